"""The promises a dataset must keep at every instant and after recovery, checked without trusting intarsia."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable

from crash_operations import FILES, Operation, Row, State, count_files, listing_problems, read_file, read_rows
from crash_side_files import CACHE_FILES, orphans, side_file_problems

from intarsia.errors import IntarsiaError
from intarsia.tables.parquet import ParquetTable


class Answer(enum.Enum):
    """What the caller of the operation was told."""

    NONE = "nothing"
    OLD = "nothing was changed"
    NEW = "it is done"


def promises_broken(operation: Operation, root: str, answer: Answer, *, tidy: bool = False) -> list[str]:
    """What is wrong with a dataset after a crash; recovers it on the way.

    With ``tidy`` the operation came to an orderly end and must have left nothing behind.
    """
    try:
        seen = [*listing_problems(operation, read_rows(root)), *side_file_problems(root)]
        problems = [f"before recovery: {p}" for p in seen]
        if operation.recover is not None:
            if tidy:
                problems += [f"left behind by a failure: {name}" for name in _leftovers(operation, root)]
            return problems + _after_recovery(operation, operation.recover, root, answer)
        if as_state(read_rows(root)) not in _expected(operation, answer):
            problems.append("neither the old nor the new state, for ever")
        return problems
    except (OSError, ValueError, IntarsiaError) as error:
        return [f"{type(error).__name__}: {error}"]


def _after_recovery(
    operation: Operation, recover: Callable[[str], None], root: str, answer: Answer
) -> list[str]:
    problems = []
    expected = _expected(operation, answer)
    seen = snapshot_state(root)
    if seen not in expected:
        problems.append(f"a snapshot shows a state that never was, or not what was answered: {seen}")
    for _ in range(2):  # it can be repeated
        recover(root)
    rows = read_rows(root)
    if as_state(rows) not in expected:
        problems.append(f"after recovery neither old nor new, or not what was answered: {rows}")
    if as_state(rows) != seen:
        problems.append(f"recovery made another state than the snapshot showed: {rows}")
    problems += [f"after recovery: {p}" for p in side_file_problems(root)]
    problems += [f"left without its file: {path}" for path in orphans(root)]
    problems += schema_problems(operation, root, answer)
    files = count_files(root)
    if operation.files is not None and files not in _files(operation, answer):
        problems.append(f"{files} files are left")
    problems += [f"left behind: {name}" for name in _leftovers(operation, root)]
    return problems


def _leftovers(operation: Operation, root: str) -> list[str]:
    """What is left that nobody has asked for."""
    retains = operation.before is not None
    return [name for name in leftovers(root) if not (retains and name.startswith("retained/"))]


def _expected(operation: Operation, answer: Answer) -> list[State]:
    states = {Answer.OLD: [operation.old], Answer.NEW: [operation.new]}
    return states.get(answer, [operation.old, operation.new])


def _files(operation: Operation, answer: Answer) -> list[int | None]:
    counts: dict[Answer, list[int | None]] = {Answer.OLD: [len(FILES)], Answer.NEW: [operation.files]}
    return counts.get(answer, [len(FILES), operation.files])


def as_state(rows: list[Row]) -> State | None:
    """The rows by key; None when a key is there twice."""
    state = {(p, k): v for p, k, v in rows}
    return state if len(state) == len(rows) else None


def snapshot_state(root: str) -> State | None:
    """What intarsia's own reader sees, without recovery."""
    files = ParquetTable(root).snapshot().files
    return as_state([row for file in files for row in read_file(file.location, file.partition["p"])])


def schema_problems(operation: Operation, root: str, answer: Answer) -> list[str]:
    """A dataset that was there keeps its schema and partitions, with rows or without."""
    snapshot = ParquetTable(root).snapshot()
    if operation.fresh and answer is not Answer.NEW and not snapshot.exists:
        return []
    known = sorted(snapshot.schema.names) == ["k", "p", "v"] and snapshot.partition_columns == ("p",)
    return [] if known else [f"schema {snapshot.schema.names} by {snapshot.partition_columns}"]


def leftovers(root: str) -> list[str]:
    """What the control directory holds beside the lock, the cache of footers and the records of commits."""
    control = f"{os.path.dirname(root)}/.{os.path.basename(root)}.intarsia"
    found = [
        os.path.relpath(f"{directory}/{name}", control)
        for directory, _, names in os.walk(control)
        for name in names
    ]
    kept = {"lock", *CACHE_FILES}
    return [name for name in found if name not in kept and not (name[:4] == "log/" and name[-5:] == ".done")]
