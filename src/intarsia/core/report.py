"""What an operation did: the same fields for every operation, engine and table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from intarsia.common.requests import Requests
from intarsia.core import render

if TYPE_CHECKING:
    from intarsia.core.plan import Plan


@dataclass(frozen=True, slots=True)
class MergeFileMetadata:
    """One file that an operation has considered."""

    path: str
    row_count: int
    operation: Literal["rewritten", "with_deletes", "inserted", "preserved", "removed"]
    """A file with deletes stays; a delete file is written beside it."""
    size_bytes: int | None = None


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge, and of every other operation that changes a table.

    Answers ``result["inserted"]``, ``["updated"]``, ``["deleted"]`` and ``["total"]``, and
    ``dict(result)`` gives those four. ``target_count_after`` is what a reader then finds.
    """

    strategy: str
    source_count: int
    target_count_before: int
    target_count_after: int
    inserted: int
    updated: int
    deleted: int
    files: list[MergeFileMetadata] = field(default_factory=list)
    rewritten_files: list[str] = field(default_factory=list)
    inserted_files: list[str] = field(default_factory=list)
    preserved_files: list[str] = field(default_factory=list)
    removed_files: list[str] = field(default_factory=list)
    files_with_deletes: list[str] = field(default_factory=list)
    operation: str = "merge"
    path: str = ""
    engine: str = "arrow"
    dry_run: bool = False
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    attempts: int = 1
    version: int | None = None
    txid: str | None = None
    notes: tuple[str, ...] = ()
    created: bool = False
    """Whether there was no such dataset before (in a dry run: whether it would be made)."""
    new_files: int = 0
    """Number of new files; of a dry run, how many there would be, see ``new_files_exact``."""
    new_files_exact: bool = True
    """False where a dry run only knows the least number of new files; the notes say why."""
    bytes_exact: bool = True
    """False where a dry run's ``bytes_written`` is an estimate, since there is too much to encode."""
    requests: Requests | None = field(default=None, compare=False)
    """What was sent to the object store; None where it is not counted, such as on a disk."""
    plan: Plan | None = field(default=None, repr=False, compare=False)

    @property
    def total(self) -> int:
        return self.target_count_after

    @property
    def changed(self) -> bool:
        """Whether any file was (or, in a dry run, would be) written or removed."""
        planned = self.dry_run and (self.inserted > 0 or self.new_files > 0)  # files that have no name yet
        touched = (*self.rewritten_files, *self.files_with_deletes, *self.inserted_files, *self.removed_files)
        return bool(touched or planned)

    def keys(self) -> Iterator[str]:
        return iter(("inserted", "updated", "deleted", "total"))

    def __getitem__(self, name: str) -> int:
        if name not in tuple(self.keys()):
            raise KeyError(name)
        value: int = getattr(self, name)
        return value

    def __repr__(self) -> str:
        return render.render_text(self)

    def _repr_html_(self) -> str:
        return render.render_html(self)


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """One file written by ``write_dataset``."""

    path: str
    row_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WriteDatasetResult:
    """The files that ``write_dataset`` wrote."""

    files: list[FileMetadata]
    total_rows: int
    mode: str
    backend: str = "pyarrow"

    def __repr__(self) -> str:
        """Short, however many files there are."""
        return (
            f"WriteDatasetResult({len(self.files):,} files, {self.total_rows:,} rows, mode={self.mode!r},"
            f" backend={self.backend!r})"
        )


def make_file_metadata(result: MergeResult) -> list[FileMetadata]:
    """The new files of a result in the form ``write_dataset`` returns."""
    return [
        FileMetadata(entry.path, entry.row_count, entry.size_bytes or 0)
        for entry in result.files
        if entry.operation == "inserted"
    ]


def as_json(result: MergeResult) -> dict[str, Any]:
    """The result as plain JSON types, for logs and scripts."""
    plain = {name: getattr(result, name) for name in result.__dataclass_fields__ if name != "plan"}
    plain["files"] = [
        {"path": f.path, "row_count": f.row_count, "operation": f.operation, "size_bytes": f.size_bytes}
        for f in result.files
    ]
    plain["notes"] = list(result.notes)
    plain["requests"] = None if result.requests is None else dict(result.requests)
    return plain
