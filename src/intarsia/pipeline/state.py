"""What a pipeline remembers between runs: which step was done with which input, and what it left behind."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from intarsia.core.files import Snapshot
from intarsia.errors import CommitConflict, DamagedTable, InputError, StorageError
from intarsia.pipeline.inputs import Stamp
from intarsia.pipeline.model import Pipeline, Step, names

VERSION = 1
MOST_RECORDS = 500
"""So many successes of one step are remembered, each with another definition (as of another day)."""


@dataclass(frozen=True, slots=True)
class Record:
    """One success of a step."""

    definition: str
    input: str
    at: int
    """Successes are numbered through the whole pipeline."""
    changed_at: int
    """The last success that changed the target, 0 for none."""
    target: str | None = None
    version: int | None = None
    finished: str = ""
    files: tuple[Stamp, ...] = ()


@dataclass(frozen=True, slots=True)
class Pending:
    """Files that are being appended: whether they were, the table's log knows by the batch."""

    batch: int
    target: str
    files: tuple[Stamp, ...]


@dataclass(slots=True)
class State:
    """The memory of one pipeline. Changed in place, and written as a whole after each step."""

    counter: int = 0
    targets: dict[str, str] = field(default_factory=dict)
    """By path: the state in which this pipeline left a target."""
    foreign: dict[str, int] = field(default_factory=dict)
    """By path: when a target was found in another state than that, in the numbers of successes."""
    steps: dict[str, list[Record]] = field(default_factory=dict)
    pending: dict[str, Pending] = field(default_factory=dict)

    def record(self, step: str, definition: str) -> Record | None:
        return next((r for r in self.steps.get(step, ()) if r.definition == definition), None)

    def look(self, target: str, digest: str) -> None:
        """Take note of the state a target is found in: one we did not leave it in is somebody else's."""
        if self.targets.get(target, digest) != digest:
            self.counter += 1
            self.foreign[target] = self.counter
        self.targets[target] = digest

    def taken(self, step: str, target: str | None) -> tuple[Stamp, ...]:
        """All files that a step has ever taken into a target."""
        return tuple(s for r in self.steps.get(step, ()) if r.target == target for s in r.files)

    def note(
        self,
        step: str,
        record: Record,
        *,
        changed: bool,
        left: Mapping[str, str],
        files: Iterable[Stamp] = (),
    ) -> None:
        """Remember a success: its input, and the state in which it left its target."""
        self.counter += 1
        before = self.record(step, record.definition)
        known = before.files if before is not None and before.target == record.target else ()
        made = replace(
            record,
            at=self.counter,
            changed_at=self.counter if changed else (before.changed_at if before is not None else 0),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            files=tuple(dict.fromkeys((*known, *files))),
        )
        others = [r for r in self.steps.get(step, ()) if r.definition != record.definition]
        old = [r for r in others if not r.files]
        drop = set(map(id, old[: max(0, len(old) - MOST_RECORDS + 1)]))
        self.steps[step] = [*(r for r in others if id(r) not in drop), made]
        self.targets.update(left)
        self.pending.pop(step, None)

    def as_json(self) -> bytes:
        plain = {
            "version": VERSION,
            "counter": self.counter,
            "targets": self.targets,
            "foreign": self.foreign,
            "steps": {name: [_plain(record) for record in found] for name, found in self.steps.items()},
            "pending": {name: _plain(entry) for name, entry in self.pending.items()},
        }
        return json.dumps(plain, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> State:
        """Read it back. Raises DamagedTable unless it is what we would write."""
        try:
            raw = json.loads(data)
            if raw["version"] != VERSION:
                raise ValueError(f"its version is {raw['version']!r}")
            return cls(
                counter=int(raw["counter"]),
                targets={str(path): str(digest) for path, digest in raw["targets"].items()},
                foreign={str(path): int(at) for path, at in raw["foreign"].items()},
                steps={
                    name: [_revived(Record, one) for one in found] for name, found in raw["steps"].items()
                },
                pending={name: _revived(Pending, one) for name, one in raw["pending"].items()},
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedTable(
                f"The state file {where} is damaged ({error}).",
                path=where,
                hint="restore it, or remove it to let every step run again",
            ) from error


def _plain(value: Record | Pending) -> dict[str, Any]:
    plain = {entry.name: getattr(value, entry.name) for entry in fields(value)}
    return plain | {"files": [stamp.as_list() for stamp in value.files]}


def _revived(kind: type[Any], raw: Any) -> Any:
    stamps = tuple(Stamp(str(path), int(size), int(time)) for path, size, time in raw["files"])
    return kind(**(raw | {"files": stamps}))


# Fingerprints


def definition_of(step: Step, pipeline: Pipeline) -> str:
    """A digest of all that a step's meaning depends on beside its data; its name is not part of it.

    Nor is how its tables are opened (credentials, locks), nor what goes without saying, so that an option
    that comes with a later version lets nothing run again.
    """
    source = pipeline.sources.get(step.source or "")
    meaning = {
        "operation": step.operation,
        "step": {name: value for name, value in step.given().items() if name != "name"},
        "source": None if source is None else asdict(source),
        "from": None if source is None else _table(pipeline, source.target),
        "target": _table(pipeline, step.target),
    }
    return _digest(meaning)


def _table(pipeline: Pipeline, target: str | None) -> Any:
    if target is None:
        return None
    declared = pipeline.targets[target]
    known = [declared.kind, declared.path, list(names(declared.partition_by))]
    if not declared.catalog:
        return known
    return [*known, declared.catalog, declared.options.get("branch")]


def digest_of_files(stamps: Iterable[Stamp]) -> str:
    return _digest(sorted(stamp.as_list() for stamp in stamps))


def digest_of_snapshot(snapshot: Snapshot) -> str:
    """Differs where any file of the table does."""
    files: Sequence[Any] = sorted([file.path, list(file.fingerprint), file.size] for file in snapshot.files)
    if snapshot.spread is not None:  # rows may be veiled while every file stays
        return _digest([snapshot.exists, files, snapshot.version])
    return _digest([snapshot.exists, files])


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# The file


def state_path(pipeline: Pipeline) -> Path:
    given = pipeline.state or os.path.join(pipeline.reports, f"{pipeline.name}.state.json")
    if "://" in given:
        raise InputError(f"The state is kept on a local disk, not at {given}.", path=given)
    return Path(given)


@contextmanager
def held(path: Path) -> Iterator[State]:
    """The state, while no other run of the pipeline goes on.

    Raises:
        CommitConflict: another run is under way.
        DamagedTable: the file is not what we write.
        StorageError: it cannot be read or written.
    """
    lock = path.with_name(f".{path.name}.lock")
    with _storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommitConflict(
                f"Another run of this pipeline is under way: {lock} is locked.",
                path=str(path),
                hint="wait for it, or give this pipeline a state file of its own",
            ) from error
        yield read(path)
    finally:
        os.close(handle)


def read(path: Path) -> State:
    """The state as it is; an empty one where there is no file yet."""
    with _storage_errors(path):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return State()
    return State.from_json(data, str(path))


def write_atomically(path: Path, data: bytes) -> None:
    """A reader sees the old bytes or the new ones, also after a crash."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(draft, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"Could not keep {path}: {error.strerror or error}", errno=error.errno, path=str(path)
        ) from error
