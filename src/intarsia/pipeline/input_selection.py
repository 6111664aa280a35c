"""Which files of a source a step has still to take: each file once, told by its bytes; writes nothing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow.fs as pafs

from intarsia.arguments import make_rule
from intarsia.common.paths import InputFile
from intarsia.pipeline.inputs import FileStamp, InputFiles
from intarsia.pipeline.model import Merge, Source, Step, Write
from intarsia.pipeline.state import KnownFile
from intarsia.pipeline.validation import list_clauses
from intarsia.show import units

_THREADS = 8


@dataclass(frozen=True, slots=True)
class Selection:
    """The files that a step is to take now."""

    files: InputFiles
    once: bool = False
    """They count as taken after the step; other steps take all files each time."""
    skipped: int = 0
    """Files that are there and were taken before."""
    notes: tuple[str, ...] = ()


def is_taken_once(step: Step, source: Source, there: InputFiles, *, full_refresh: bool = False) -> bool:
    """Whether a step leaves out the files that it has taken before."""
    if is_append(step):
        return True
    if full_refresh or not isinstance(step, (Merge, Write)):
        return False
    if source.new_files_only is not None:
        return source.new_files_only
    return not there.fetched and not replaces_target(step)


def is_append(step: Step) -> bool:
    return isinstance(step, Write) and step.mode == "append"


def replaces_target(step: Step) -> bool:
    """Whether rows that a step's source lacks are deleted, so that it must see the whole source each time."""
    if isinstance(step, Write):
        return step.mode != "append"
    if not isinstance(step, Merge):
        return False
    rule = make_rule(step.strategy or "upsert", list_clauses(step), step.options.get("dialect"))
    return rule.touches_target_only


def recognize_files(
    there: InputFiles, known: Mapping[str, KnownFile]
) -> tuple[InputFiles, dict[str, KnownFile]]:
    """The files under the times they were taken at where only their times have changed; and what was found.

    A file with another time is read and compared by its bytes, where that is possible.
    """
    stamps: list[FileStamp] = []
    found: dict[str, KnownFile] = {}
    for number, stamp in enumerate(there.stamps):
        entry = known.get(stamp.path)
        if entry is None or entry.size != stamp.size or entry.mtime_ns == stamp.mtime_ns:
            stamps.append(stamp)
            continue
        if stamp.mtime_ns != entry.seen_ns:
            if not (there.files and entry.digest and entry.digest == compute_digest(there.files[number])):
                stamps.append(stamp)
                continue
            found[stamp.path] = replace(entry, seen_ns=stamp.mtime_ns)
        stamps.append(replace(stamp, mtime_ns=entry.mtime_ns))
    return replace(there, stamps=tuple(stamps)), found


def list_known_files(there: InputFiles, known: Mapping[str, KnownFile]) -> dict[str, KnownFile]:
    """What is to be remembered of files that are taken now; reads those that were not read before."""
    new = [
        (stamp, there.files[number] if there.files else None)
        for number, stamp in enumerate(there.stamps)
        if not there.fetched and not _is_same(known.get(stamp.path), stamp)
    ]
    with ThreadPoolExecutor(min(_THREADS, max(1, len(new)))) as pool:
        digests = list(pool.map(compute_digest, (file for _, file in new)))
    return {
        stamp.path: KnownFile(stamp.size, stamp.mtime_ns, digest, stamp.mtime_ns)
        for (stamp, _), digest in zip(new, digests, strict=True)
    }


def _is_same(known: KnownFile | None, stamp: FileStamp) -> bool:
    return known is not None and (known.size, known.mtime_ns) == (stamp.size, stamp.mtime_ns)


def compute_digest(file: InputFile | None) -> str:
    """A digest of a file's bytes; nothing for one that is not on a disk of this machine."""
    if file is None or not isinstance(file.filesystem, pafs.LocalFileSystem):
        return ""
    try:
        with open(file.location, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except FileNotFoundError:  # gone since it was listed, which the step will say
        return ""


def select_files(
    there: InputFiles, taken: Iterable[FileStamp], *, hint: str = ""
) -> tuple[Selection, list[str]]:
    """The files that were not taken yet; and the paths of those that were, with other bytes."""
    old = tuple(taken)
    fresh = there.without(old)
    again = sorted({stamp.path for stamp in fresh.stamps} & {stamp.path for stamp in old})
    skipped = len(there.stamps) - len(fresh.stamps)
    notes = []
    if skipped:
        some = "every file was" if not fresh.stamps else f"{_were(skipped, 'file')}"
        notes.append(f"{some} taken before{hint}")
    if again:
        name = os.path.basename(again[0])
        notes.append(
            f"{units.counted(len(again), 'file')} taken again with other bytes than before, such as {name}"
        )
    return Selection(fresh, True, skipped, tuple(notes)), again


def _were(number: int, noun: str) -> str:
    return f"{units.counted(number, noun)} {'was' if number == 1 else 'were'}"
