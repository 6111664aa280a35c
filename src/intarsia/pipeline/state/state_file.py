"""What a pipeline remembers between runs (steps done, input files taken, commits made), and its file."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from intarsia.common.locks import try_lock, unlock
from intarsia.common.system import replace_file, sync_descriptor, sync_path
from intarsia.errors import CommitConflict, DamagedTable, InputError, StorageError
from intarsia.pipeline.inputs import FileStamp
from intarsia.pipeline.model import Pipeline

VERSION = 2
MOST_SUCCESSES = 500
"""Maximum number of successes kept per step, each of another definition (such as another day)."""
ANY_SCOPE = "*"
"""The scope of files that version 1 took, which had no scopes: they count as taken in every scope."""


@dataclass(frozen=True, slots=True)
class Success:
    """One success of a step under one definition."""

    definition: str
    input: str
    at: int
    """Its number; successes are counted over all steps of the pipeline."""
    changed_at: int
    """The number of the last success that changed the target; 0 for none."""
    target: str | None = None
    version: int | None = None
    finished: str = ""
    positions: Mapping[str, Any] = field(default_factory=dict)
    """By target that is read since the last run: the state that was read."""
    scope: str | None = None
    """The parameters that chose its rows; None where they were not noted."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A step that is about to commit; the table's log says by batch and run whether it has."""

    run: str
    batch: int
    target: str
    version: int | None
    """The table's version when the step began."""
    definition: str
    input: str
    scope: str = ""
    files: tuple[FileStamp, ...] = ()
    """Input files that count as taken once the step has committed."""
    full_refresh: bool = False
    positions: Mapping[str, Any] = field(default_factory=dict)
    """By target that is read since the last run: the state that is read."""
    limited: bool = False
    """Whether the run was limited to some steps: what is below does not have to follow."""
    stream: bool = False
    """Whether the step is one over a stream, which commits batch by batch, each under the run's id."""


@dataclass(frozen=True, slots=True)
class KnownFile:
    """An input file that a step has taken, with a digest of its bytes."""

    size: int
    mtime_ns: int
    """Its modification time when it was taken; with path and size its identity."""
    digest: str
    seen_ns: int
    """The latest modification time at which it had the same bytes."""


@dataclass(slots=True)
class StepMemory:
    """What is remembered of one step, under its name."""

    successes: list[Success] = field(default_factory=list)
    taken: dict[str, dict[str, tuple[FileStamp, ...]]] = field(default_factory=dict)
    """By target and scope: the input files that are in the target."""
    commits: dict[str, int] = field(default_factory=dict)
    """By target: the number of the step's last batch."""
    streams: dict[str, str] = field(default_factory=dict)
    """By target and stream: the directory of the step's checkpoint."""

    def find_success(self, definition: str) -> Success | None:
        return next((found for found in self.successes if found.definition == definition), None)

    def add(self, success: Success) -> None:
        others = [found for found in self.successes if found.definition != success.definition]
        self.successes = [*others[max(0, len(others) - MOST_SUCCESSES + 1) :], success]

    def take(self, target: str, scope: str, files: Iterable[FileStamp]) -> None:
        """Note files that are in a target; of those that a quarantine has judged the last time counts."""
        known = self.taken.setdefault(target, {})
        taken = dict.fromkeys((*known.get(scope, ()), *files))
        if " " in scope:  # the definition, what selects rows, the run, and the name of the step
            said = scope.split(" ", 3)
            for other in [one for one in known if one.split(" ")[:2] == said[:2]]:
                left = tuple(stamp for stamp in known.pop(other) if stamp not in taken)
                if left or other.split(" ", 3)[3:] != said[3:]:
                    known[other] = left
        known[scope] = tuple(taken)


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    """A run that was killed, interrupted or failed after some of its steps."""

    run: str
    after: str
    """The last of its steps that was done."""
    full_refresh: bool = False


@dataclass(slots=True)
class PipelineState:
    """The state of one pipeline; changed in place, and written as a whole before and after each commit."""

    counter: int = 0
    targets: dict[str, str] = field(default_factory=dict)
    """By target: the digest of its snapshot after the last step."""
    foreign: dict[str, int] = field(default_factory=dict)
    """By target: the number at which it was found changed by another writer."""
    steps: dict[str, StepMemory] = field(default_factory=dict)
    pending: dict[str, Pending] = field(default_factory=dict)
    files: dict[str, KnownFile] = field(default_factory=dict)
    """By path: the input files that were taken."""
    unfinished: UnfinishedRun | None = None
    trusting: bool = False
    """Read from a file of version 1, which has no commits: those in the tables' logs count as known."""

    def get_step(self, name: str) -> StepMemory:
        return self.steps.setdefault(name, StepMemory())

    def find_success(self, step: str, definition: str) -> Success | None:
        found = self.steps.get(step)
        return None if found is None else found.find_success(definition)

    def list_successes(self, step: str) -> tuple[Success, ...]:
        found = self.steps.get(step)
        return () if found is None else tuple(found.successes)

    def look(self, target: str, digest: str) -> None:
        """Record the digest of a target; one that differs from ours means that another writer changed it."""
        if self.targets.get(target, digest) != digest:
            self.counter += 1
            self.foreign[target] = self.counter
        self.targets[target] = digest

    def list_taken(self, step: str, target: str, scope: str) -> tuple[FileStamp, ...]:
        """The files that a step has taken into a target, in a scope."""
        known = {} if step not in self.steps else self.steps[step].taken.get(target, {})
        return (*known.get(scope, ()), *known.get(ANY_SCOPE, ()))

    def note(self, step: str, success: Success, *, changed: bool, left: Mapping[str, str]) -> None:
        """Record a success, and the digests of the targets it left behind."""
        self.counter += 1
        memory = self.get_step(step)
        before = memory.find_success(success.definition)
        memory.add(
            replace(
                success,
                at=self.counter,
                changed_at=self.counter if changed else (before.changed_at if before is not None else 0),
                finished=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        )
        self.targets.update(left)
        self.pending.pop(step, None)

    # As JSON

    def as_json(self) -> bytes:
        plain = {
            "version": VERSION,
            "counter": self.counter,
            "targets": self.targets,
            "foreign": self.foreign,
            "steps": {name: _memory_to_json(memory) for name, memory in self.steps.items()},
            "pending": {
                name: asdict(entry) | {"files": _stamps_to_json(entry.files)}
                for name, entry in self.pending.items()
            },
            "files": {
                path: [known.size, known.mtime_ns, known.digest, known.seen_ns]
                for path, known in self.files.items()
            },
            "unfinished": None if self.unfinished is None else asdict(self.unfinished),
            "trusting": self.trusting,
        }
        return json.dumps(plain, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> PipelineState:
        """Read a state of version 1 or 2. Raises DamagedTable for anything else."""
        try:
            raw = json.loads(data)
            if raw["version"] not in (1, VERSION):
                raise ValueError(f"its version is {raw['version']!r}")
            made = cls(
                counter=int(raw["counter"]),
                targets={str(path): str(digest) for path, digest in raw["targets"].items()},
                foreign={str(path): int(at) for path, at in raw["foreign"].items()},
            )
            _read_first(made, raw) if raw["version"] == 1 else _read_second(made, raw)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedTable(
                f"The state file {where} is damaged ({error}).",
                path=where,
                hint="restore it from a backup; without one, remove it and run once with --full-refresh or"
                " --mark-done",
            ) from error
        return made


def _stamps_to_json(files: Iterable[FileStamp]) -> list[list[Any]]:
    return [stamp.as_list() for stamp in files]


def _memory_to_json(memory: StepMemory) -> dict[str, Any]:
    return {
        "successes": [asdict(success) for success in memory.successes],
        "taken": {
            target: {scope: _stamps_to_json(files) for scope, files in scopes.items()}
            for target, scopes in memory.taken.items()
        },
        "commits": memory.commits,
        "streams": memory.streams,
    }


def _parse_stamps(raw: Any) -> tuple[FileStamp, ...]:
    return tuple(FileStamp(str(path), int(size), int(time)) for path, size, time in raw)


def _read_second(state: PipelineState, raw: Mapping[str, Any]) -> None:
    for name, one in raw["steps"].items():
        state.steps[name] = StepMemory(
            [Success(**success) for success in one["successes"]],
            {
                t: {s: _parse_stamps(files) for s, files in scopes.items()}
                for t, scopes in one["taken"].items()
            },
            {str(target): int(batch) for target, batch in one["commits"].items()},
            {str(stream): str(directory) for stream, directory in one.get("streams", {}).items()},
        )
    for name, one in raw["pending"].items():
        state.pending[name] = Pending(**(one | {"files": _parse_stamps(one["files"])}))
    state.files = {path: KnownFile(*known) for path, known in raw["files"].items()}
    if raw["unfinished"] is not None:
        state.unfinished = UnfinishedRun(**raw["unfinished"])
    state.trusting = bool(raw["trusting"])


def _read_first(state: PipelineState, raw: Mapping[str, Any]) -> None:
    """Version 1 has the input files of appends only, and no commits."""
    for name, found in raw["steps"].items():
        memory = state.get_step(name)
        for one in found:
            files = _parse_stamps(one["files"])
            success = Success(**{key: value for key, value in one.items() if key != "files"})
            memory.add(success)
            if files and success.target is not None:
                memory.take(success.target, ANY_SCOPE, files)
    for name, one in raw["pending"].items():
        state.pending[name] = Pending(
            "", int(one["batch"]), str(one["target"]), None, "", "", ANY_SCOPE, _parse_stamps(one["files"])
        )
    state.trusting = True


DIRECTORY = ".intarsia"
"""Directory of the state, beside that of the reports."""


def choose_state_path(pipeline: Pipeline) -> Path:
    """The path of the state: the pipeline's own, else ``.intarsia/<name>.state.json`` beside the reports."""
    if pipeline.state is not None:
        if "://" in pipeline.state:
            raise InputError(
                f"The state is kept on a local disk, not at {pipeline.state}.", path=pipeline.state
            )
        return Path(pipeline.state)
    return Path(pipeline.reports).absolute().parent / DIRECTORY / f"{pipeline.name}.state.json"


def find_old_state_path(pipeline: Pipeline) -> Path | None:
    """The path of the state in version 1; None where the pipeline names its own."""
    return None if pipeline.state is not None else Path(pipeline.reports, f"{pipeline.name}.state.json")


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Lock the file ``.<name>.lock`` beside a path, in a directory that is made where it is not there.

    Raises:
        CommitConflict: another run holds it.
        StorageError: it cannot be written.
    """
    lock = path.with_name(f".{path.name}.lock")
    with _translate_storage_errors(path):
        _make_directory(path.parent)
        handle = try_lock(str(lock), 0o644)
    if handle is None:
        raise CommitConflict(
            f"Another run of this pipeline is under way: {lock} is locked.",
            path=str(path),
            hint="wait for it, or give this pipeline a state file of its own",
        )
    try:
        yield
    finally:
        unlock(handle)


@contextmanager
def lock_state(path: Path, old: Path | None = None) -> Iterator[PipelineState]:
    """Lock the state file and read it; no other run of the pipeline can start meanwhile.

    Raises:
        CommitConflict: another run is under way.
        DamagedTable: the file is not a state.
        StorageError: it cannot be read or written.
    """
    with hold_lock(path):
        for draft in path.parent.glob(f".{glob.escape(path.name)}.*.part"):  # of a run that was killed
            draft.unlink(missing_ok=True)
        state = read_state(path, old)
        if old is not None and old.exists():
            with _translate_storage_errors(old):
                if not path.exists():
                    write_atomically(path, state.as_json())
                old.unlink()  # one that was left would be taken over again if the new one were lost
                old.with_name(f".{old.name}.lock").unlink(missing_ok=True)
        yield state


def read_state(path: Path, old: Path | None = None) -> PipelineState:
    """The state at ``path``, else the one of version 1 at ``old``, else an empty one."""
    for place in (path, old):
        if place is None:
            continue
        with _translate_storage_errors(place):
            try:
                data = place.read_bytes()
            except FileNotFoundError:
                continue
        return PipelineState.from_json(data, str(place))
    return PipelineState()


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file: a reader sees the old bytes or the new ones, also after a crash."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _translate_storage_errors(path):
        _make_directory(path.parent)
        try:
            with open(draft, "wb") as file:
                file.write(data)
                file.flush()
                sync_descriptor(file.fileno())
            replace_file(str(draft), str(path))
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        sync_path(str(path.parent))


def _make_directory(path: Path) -> None:
    """Make a directory and its parents, and sync them: they survive a power cut."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_path(str(path.parent))


@contextmanager
def _translate_storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"Could not keep {path}: {error.strerror or error}", errno=error.errno, path=str(path)
        ) from error
