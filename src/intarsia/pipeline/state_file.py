"""The file in which the state of a pipeline is kept: where it is, who holds it, how it is written."""

from __future__ import annotations

import fcntl
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from intarsia.errors import CommitConflict, InputError, StorageError
from intarsia.pipeline.model import Pipeline
from intarsia.pipeline.state import State

DIRECTORY = ".intarsia"
"""The state's own directory, beside that of the reports."""


def state_path(pipeline: Pipeline) -> Path:
    """Where the state is: what the pipeline says, else ``.intarsia/<name>.state.json`` beside the reports."""
    if pipeline.state is not None:
        if "://" in pipeline.state:
            raise InputError(
                f"The state is kept on a local disk, not at {pipeline.state}.", path=pipeline.state
            )
        return Path(pipeline.state)
    return Path(pipeline.reports).absolute().parent / DIRECTORY / f"{pipeline.name}.state.json"


def old_state_path(pipeline: Pipeline) -> Path | None:
    """Where earlier versions kept the state; None where the pipeline says where it is."""
    return None if pipeline.state is not None else Path(pipeline.reports, f"{pipeline.name}.state.json")


@contextmanager
def held(path: Path, old: Path | None = None) -> Iterator[State]:
    """The state, while no other run of the pipeline goes on.

    Raises:
        CommitConflict: another run is under way.
        DamagedTable: the file is not what we write.
        StorageError: it cannot be read or written.
    """
    lock = path.with_name(f".{path.name}.lock")
    with _storage_errors(path):
        _make_directory(path.parent)
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
        for draft in path.parent.glob(f".{glob.escape(path.name)}.*.part"):  # of a run that was killed
            draft.unlink(missing_ok=True)
        state = read(path, old)
        if old is not None and old.exists():
            with _storage_errors(old):
                if not path.exists():
                    write_atomically(path, state.as_json())
                old.unlink()  # one that was left would be taken over again if the new one were lost
                old.with_name(f".{old.name}.lock").unlink(missing_ok=True)
        yield state
    finally:
        os.close(handle)


def read(path: Path, old: Path | None = None) -> State:
    """The state as it is; else what an earlier version left at ``old``; else an empty one."""
    for place in (path, old):
        if place is None:
            continue
        with _storage_errors(place):
            try:
                data = place.read_bytes()
            except FileNotFoundError:
                continue
        return State.from_json(data, str(place))
    return State()


def write_atomically(path: Path, data: bytes) -> None:
    """A reader sees the old bytes or the new ones, also after a crash."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _storage_errors(path):
        _make_directory(path.parent)
        try:
            with open(draft, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        _sync(path.parent)


def _make_directory(path: Path) -> None:
    """Make a directory and those above it, so that a power cut does not take them away again."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir(exist_ok=True)
    _sync(path.parent)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
