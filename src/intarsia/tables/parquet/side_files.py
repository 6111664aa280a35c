"""Side files: what other writers keep beside data files to describe them, and which of them a change ends.

Hadoop's local file system (and so Spark) writes a checksum ``.<name>.crc`` beside every file and refuses to
read a file that does not fit it. Dask, pyarrow and old versions of Spark write ``_metadata``, the footers of
all files below its directory, and ``_common_metadata``, their schema. Each is removed before the files that
it describes change: at every instant a reader finds it right or not at all, and all of them do without.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping

from intarsia.storage import Entry

SUMMARIES = ("_metadata", "_common_metadata")
_SUFFIXES = (".parquet", ".parq")


def is_data_name(name: str) -> bool:
    """Whether a file of this name is a data file."""
    return not name.startswith((".", "_")) and name.lower().endswith(_SUFFIXES)


def is_summary(path: str) -> bool:
    return posixpath.basename(path) in SUMMARIES


def described_name(name: str) -> str | None:
    """The file that a checksum file is about, by its name alone; None where it is no such file."""
    if name.startswith(".") and name.endswith(".crc"):
        inner = name[1:-4]
        if is_data_name(inner) or inner in SUMMARIES:
            return inner
    return None


def is_side_name(name: str) -> bool:
    return name in SUMMARIES or described_name(name) is not None


def checksum_path(path: str) -> str:
    """Where Hadoop keeps the checksum of a file."""
    directory, name = posixpath.split(path)
    return posixpath.join(directory, f".{name}.crc")


def ended_by(changed: Collection[str], found: Mapping[str, Entry]) -> list[Entry]:
    """The side files that would be wrong once the files at these paths have changed; sorted by path.

    Args:
        changed: paths of data files that come, are replaced or go.
        found: the side files that are there, by path.
    """
    if not found:
        return []
    summaries = {
        posixpath.join(directory, name)
        for directory in {above for path in changed for above in _above(path)}
        for name in SUMMARIES
    }
    described = [*changed, *summaries.intersection(found)]
    ended = summaries.intersection(found) | {checksum_path(path) for path in described}.intersection(found)
    return [found[path] for path in sorted(ended)]


def _above(path: str) -> Iterator[str]:
    """The directories above a path, the root ("") last."""
    while path:
        path = posixpath.dirname(path)
        yield path


def removal_notes(removed: Iterable[str]) -> tuple[str, ...]:
    """What to say of side files that a commit removed: summaries are somebody's, checksums come and go."""
    summaries = sorted(path for path in removed if is_summary(path))
    if not summaries:
        return ()
    return (f"Removed {', '.join(summaries)}: the files are no longer what was described there.",)
