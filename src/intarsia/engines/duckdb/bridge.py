"""A file system of PyArrow as one of fsspec, which is what DuckDB takes beside its own."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pyarrow.fs as pafs

from intarsia.errors import NotSupported

__all__ = ["bridge"]


def bridge(filesystem: pafs.FileSystem, protocol: str) -> Any:
    """The file system under a protocol of its own; raises NotSupported without fsspec."""
    try:
        from fsspec import AbstractFileSystem
        from fsspec.implementations.arrow import ArrowFSWrapper
    except ImportError as error:
        raise NotSupported(
            "DuckDB needs fsspec for files that are not on a local disk.",
            hint="pip install 'intarsia[duckdb,fsspec]', or use engine=\"arrow\".",
        ) from error

    wrapped = ArrowFSWrapper(filesystem)

    class Bridge(AbstractFileSystem):
        """Passes every call on, with the path that the file system below knows."""

        cachable = False

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix(f"{protocol}://")

        def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
            return wrapped.open(self._strip_protocol(path), mode)

        def glob(self, path: str, **_: Any) -> list[str]:
            """Only whole names are asked for: what stands in brackets stands for itself."""
            return [re.sub(r"\[([*?\[])\]", r"\1", path)]

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            found: dict[str, Any] = wrapped.info(self._strip_protocol(path))
            return found

        def exists(self, path: str, **_: Any) -> bool:
            return bool(wrapped.exists(self._strip_protocol(path)))

        def modified(self, path: str) -> Any:
            # Some stores do not tell; no other file of the session has this path.
            return wrapped.modified(self._strip_protocol(path)) or datetime.fromtimestamp(0, UTC)

    Bridge.protocol = protocol
    return Bridge()
