"""Checkpoints of stream steps: whose they are, and what they say is taken; Spark writes their insides."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from intarsia.errors import DamagedTable, InputError, StorageError
from intarsia.pipeline.state.state_file import write_atomically

__all__ = [
    "CHECKS",
    "WRITTEN",
    "Checkpoint",
    "choose_directory",
    "find_new_files",
    "finish_checkpoint",
    "has_content",
    "has_started",
    "has_written",
    "make_checkpoint",
    "read_checkpoint",
    "read_checks",
    "read_offsets",
    "read_results",
    "write_checkpoint",
]

_FILE = "intarsia.json"
_RESULTS = "results"
WRITTEN = "intarsia-written"
"""A file in Spark's directory, which says that a batch was committed."""
CHECKS = "checks-"
"""How files begin that say what guards have found in a batch."""
_SPARKS = ("metadata", "offsets")
"""What every checkpoint of Spark has."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint of one step: a directory with ``intarsia.json`` and Spark's own directory below it.

    Batches are counted within Spark's directory, so it and the ``app_id`` belong together: a new one of the
    two comes with a new other.
    """

    directory: str
    id: str
    app_id: str
    pipeline: str
    step: str
    target: str
    streams: tuple[Mapping[str, Any], ...]
    """What identifies the streams that the query reads, in its order."""
    code: str = ""
    """A digest of the query or function, where it reads several streams: Spark knows them by their order."""
    records: tuple[Mapping[str, Any], ...] = ()
    """Of Kafka, where it is known, of each stream: digests of the last messages that were taken."""
    refreshing: bool = False
    """Whether a full refresh made it that has not come to its end."""

    @property
    def location(self) -> str:
        """Spark's ``checkpointLocation``."""
        return os.path.join(self.directory, self.id)

    @property
    def results(self) -> str:
        """The directory of what the batches of the last run did."""
        return os.path.join(self.directory, _RESULTS)


def choose_directory(root: Path, step: str) -> Path:
    """The directory of a step's checkpoint below that of all; different names have different ones."""
    plain = re.sub(r"[^\w.-]", "-", step)
    if plain != step or plain.startswith("."):
        plain = f"{plain.lstrip('.')}-{hashlib.sha256(step.encode()).hexdigest()[:8]}"
    return root / plain


def make_checkpoint(
    directory: Path,
    *,
    pipeline: str,
    step: str,
    step_id: str,
    target: str,
    streams: Sequence[Mapping[str, Any]],
    code: str = "",
) -> Checkpoint:
    """A checkpoint that has not been written, with an ``app_id`` that no other has had."""
    number = uuid.uuid4().hex[:12]
    app_id = f"{step_id}/{number}"
    return Checkpoint(str(directory), number, app_id, pipeline, step, target, tuple(streams), code)


def read_checkpoint(directory: Path) -> Checkpoint | None:
    """The checkpoint in a directory; None where the directory is empty or not there.

    Raises:
        InputError: there is something else in it, such as the checkpoint of a query of yours.
        DamagedTable: its file cannot be read.
    """
    try:
        data = (directory / _FILE).read_bytes()
    except FileNotFoundError:
        foreign = next((one for one in (directory, directory.parent) if _is_foreign(one, directory)), None)
        if foreign is not None:
            raise InputError(
                f"The checkpoint directory {foreign} is not empty, and no pipeline has made it: it belongs"
                " to another query.",
                path=str(foreign),
                hint="name another directory with checkpoint =.",
            ) from None
        return None
    except OSError as error:
        raise StorageError(
            f"The checkpoint {directory} cannot be read: {error.strerror}",
            errno=error.errno,
            path=str(directory),
        ) from error
    try:
        raw = json.loads(data)
        if raw.pop("version") != _VERSION:
            raise ValueError("another version")
        raw.pop("topics", None)  # ids, by which topics were known before 0.1
        return Checkpoint(
            directory=str(directory),
            **raw | {name: tuple(raw.get(name, ())) for name in ("streams", "records")},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedTable(
            f"The checkpoint {directory / _FILE} is damaged ({error}).",
            path=str(directory),
            hint="restore it from a backup, or take everything again with --full-refresh.",
        ) from error


def _is_foreign(place: Path, directory: Path) -> bool:
    """Whether a step's directory has anything in it, or the one above it is the checkpoint of a query.

    Drafts of its own file, which a kill has left, are nobody else's.
    """
    if place == directory:
        return bool(set(_list_directory(place)) - set(_list_drafts(place)))
    return all((place / one).exists() for one in _SPARKS)


def write_checkpoint(checkpoint: Checkpoint) -> None:
    """Write a checkpoint's own file, and remove what Spark had in the place of an earlier one."""
    directory = Path(checkpoint.directory)
    plain = {name: value for name, value in asdict(checkpoint).items() if name != "directory"}
    write_atomically(directory / _FILE, json.dumps({"version": _VERSION, **plain}, indent=1).encode() + b"\n")
    for draft in _list_drafts(directory):
        (directory / draft).unlink(missing_ok=True)
    for other in directory.iterdir():
        if other.is_dir() and other.name not in (checkpoint.id, _RESULTS):
            shutil.rmtree(other, ignore_errors=True)


def finish_checkpoint(checkpoint: Checkpoint, records: Sequence[Mapping[str, Any]]) -> None:
    """Note that a query, and with it a full refresh, came to its end, and which messages were its last."""
    if checkpoint.refreshing or tuple(records) != checkpoint.records:
        write_checkpoint(replace(checkpoint, refreshing=False, records=tuple(records)))


def has_content(directory: Path) -> bool:
    """Whether there is anything in a directory."""
    return bool(_list_directory(directory))


def _list_directory(directory: Path) -> list[str]:
    """The names in a directory; none where there is no directory."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _list_drafts(directory: Path) -> list[str]:
    """What runs that were killed while they wrote a checkpoint's own file have left."""
    return [name for name in _list_directory(directory) if name.startswith(f".{_FILE}.")]


def has_written(checkpoint: Checkpoint) -> bool:
    """Whether a batch was committed, as far as the batches have said so; the target may be gone since."""
    return os.path.exists(os.path.join(checkpoint.location, WRITTEN))


def has_started(checkpoint: Checkpoint) -> bool:
    """Whether Spark has begun to write a checkpoint."""
    return os.path.exists(os.path.join(checkpoint.location, "metadata"))


# What Spark has taken


def find_new_files(checkpoint: Checkpoint, path: str) -> list[str] | None:
    """The files below a local path that no finished batch has taken; None where it cannot be told.

    Spark's own log of the files is compared with what is there, and that is all Spark would do itself. Files
    that Spark would leave out for another reason, such as an option of the reader, count as new.
    """
    location = Path(checkpoint.location)
    if not any(map(has_content, (location / "offsets", location / "sources" / "0"))):
        return list(_walk_files(path))
    if not _is_settled(location):
        return None
    taken = set(_iterate_taken(location / "sources" / "0"))
    return [file for file in _walk_files(path) if os.path.abspath(file) not in taken]


def _is_settled(location: Path) -> bool:
    """Whether the last batch that was begun is finished, and took all that the log of files has."""
    begun, done = _find_last(location / "offsets"), _find_last(location / "commits")
    if begun is None or begun != done:
        return False
    listed = _find_last(location / "sources" / "0")
    try:
        lines = (location / "offsets" / str(begun)).read_text("utf-8").splitlines()
        return bool(json.loads(lines[-1])["logOffset"] == (-1 if listed is None else listed))
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return False


def read_offsets(checkpoint: Checkpoint) -> list[Any]:
    """Up to where finished batches have taken the streams, as Spark writes it of each; empty for none."""
    location = Path(checkpoint.location)
    done = _find_last(location / "commits")
    try:
        lines = (location / "offsets" / str(done)).read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines[2:] if line != "-"]
    except (OSError, ValueError):
        return []


def _find_last(directory: Path) -> int | None:
    """The highest number of Spark's log files in a directory."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    numbers = [
        int(name.removesuffix(".compact")) for name in names if name.removesuffix(".compact").isdecimal()
    ]
    return max(numbers, default=None)


def _iterate_taken(directory: Path) -> Iterator[str]:
    for name in os.listdir(directory) if directory.is_dir() else ():
        if not name.removesuffix(".compact").isdecimal():
            continue
        for line in (directory / name).read_text("utf-8").splitlines()[1:]:
            yield unquote(urlsplit(json.loads(line)["path"]).path)


def _walk_files(path: str) -> Iterator[str]:
    """The files of a path or pattern, also below directories; without those that Spark takes for hidden."""
    for place in glob.glob(path, recursive=True) if glob.has_magic(path) else [path]:
        if os.path.isfile(place):
            yield place
        for directory, below, names in os.walk(place):
            below[:] = [name for name in below if not name.startswith(("_", ".")) or "=" in name]
            yield from (os.path.join(directory, name) for name in names if not name.startswith(("_", ".")))


# What batches did


def read_results(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """What the batches of this run did, in their order."""
    return _read_left(checkpoint, "")


def read_checks(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """What guards have found in the batches of this run: of each batch, one after the other."""
    return [told for batch in _read_left(checkpoint, CHECKS) for told in batch]


def _read_left(checkpoint: Checkpoint, start: str) -> list[Any]:
    found = []
    for name in os.listdir(checkpoint.results) if os.path.isdir(checkpoint.results) else ():
        stem, _, kind = name.removeprefix(start).partition(".")
        if stem.isdecimal() and kind == "json" and name.startswith(start):
            found.append((int(stem), json.loads(Path(checkpoint.results, name).read_bytes())))
    return [result for _, result in sorted(found, key=lambda one: one[0])]
