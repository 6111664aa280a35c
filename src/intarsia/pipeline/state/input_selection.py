"""Which files of a source a step takes now: new files only, compared by their bytes."""

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
from intarsia.pipeline.state.state_file import KnownFile
from intarsia.pipeline.validation import list_clauses
from intarsia.show import units

_THREADS = 8


@dataclass(frozen=True, slots=True)
class Selection:
    """The files that a step takes in this run."""

    files: InputFiles
    once: bool = False
    """Whether they count as taken once the step is done; else the step takes all files in every run."""
    skipped: int = 0
    """How many files of the source were taken before."""
    notes: tuple[str, ...] = ()


def is_taken_once(step: Step, source: Source, listing: InputFiles, *, full_refresh: bool = False) -> bool:
    """Whether a step leaves out the files that it has taken before."""
    if source.is_computed:
        return False
    if is_append(step):
        return True
    if full_refresh or not isinstance(step, (Merge, Write)):
        return False
    if source.new_files_only is not None:
        return source.new_files_only
    return not listing.fetched and not replaces_target(step)


def is_append(step: Step) -> bool:
    return isinstance(step, Write) and step.mode == "append"


def replaces_target(step: Step) -> bool:
    """Whether a step deletes rows that its source lacks, so that it needs the whole source in every run."""
    if isinstance(step, Write):
        return step.mode != "append"
    if not isinstance(step, Merge):
        return False
    rule = make_rule(step.strategy or "upsert", list_clauses(step), step.options.get("dialect"))
    return rule.touches_target_only


def fills_target(step: Step) -> bool:
    """Whether a target has the rows of a step's source and no others after it."""
    if isinstance(step, Write):
        return step.mode == "overwrite" and step.where is None
    return isinstance(step, Merge) and step.strategy == "full_merge"


def recognize_files(
    listing: InputFiles, known: Mapping[str, KnownFile]
) -> tuple[InputFiles, dict[str, KnownFile]]:
    """The files, with their old modification time where only that has changed; and new entries of ``known``.

    A local file with another modification time is compared by the digest of its bytes.
    """
    stamps: list[FileStamp] = []
    found: dict[str, KnownFile] = {}
    for number, stamp in enumerate(listing.stamps):
        entry = known.get(stamp.path)
        if entry is None or entry.size != stamp.size or entry.mtime_ns == stamp.mtime_ns:
            stamps.append(stamp)
            continue
        if stamp.mtime_ns != entry.seen_ns:
            if not (listing.files and entry.digest and entry.digest == compute_digest(listing.files[number])):
                stamps.append(stamp)
                continue
            found[stamp.path] = replace(entry, seen_ns=stamp.mtime_ns)
        stamps.append(replace(stamp, mtime_ns=entry.mtime_ns))
    return replace(listing, stamps=tuple(stamps)), found


def list_known_files(listing: InputFiles, known: Mapping[str, KnownFile]) -> dict[str, KnownFile]:
    """Entries to remember of files that are taken now; computes the digests of new ones."""
    if listing.parts:
        return {
            path: entry
            for part in listing.parts.values()
            for path, entry in list_known_files(part, known).items()
        }
    new = [
        (stamp, listing.files[number] if listing.files else None)
        for number, stamp in enumerate(listing.stamps)
        if not listing.fetched and not _is_same(known.get(stamp.path), stamp)
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
    except FileNotFoundError:  # removed since it was listed: reading it will fail
        return ""


def select_files(
    listing: InputFiles, taken: Iterable[FileStamp], *, hint: str = ""
) -> tuple[Selection, list[str]]:
    """The files that were not taken yet; and the paths of those that were, with other bytes."""
    old = tuple(taken)
    fresh = listing.without(old)
    again = sorted({stamp.path for stamp in fresh.stamps} & {stamp.path for stamp in old})
    skipped = len(listing.stamps) - len(fresh.stamps)
    notes = []
    if skipped:
        some = "every file was" if not fresh.stamps else f"{_were(skipped, 'file')}"
        notes.append(f"{some} taken before{hint}")
    if again:
        name = os.path.basename(again[0])
        notes.append(
            f"{units.format_count(len(again), 'file')} taken again with other bytes than before,"
            f" such as {name}"
        )
    return Selection(fresh, True, skipped, tuple(notes)), again


def _were(number: int, noun: str) -> str:
    return f"{units.format_count(number, noun)} {'was' if number == 1 else 'were'}"
