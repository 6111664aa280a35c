"""Files behind ``http://`` and ``https://``, fetched once in a run; Spark and Arrow list no web server."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import tempfile
from dataclasses import dataclass, field
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import pyarrow.fs as pafs

from intarsia.common.log import redact
from intarsia.common.paths import InputFile
from intarsia.errors import InputError, NothingMatched, StorageError

__all__ = ["Web", "is_web"]

_WEB = re.compile(r"^https?://", re.IGNORECASE)
_TIMEOUT = 60.0
_PIECE = 1 << 20


def is_web(path: str) -> bool:
    return _WEB.match(path) is not None


@dataclass(slots=True)
class Web:
    """What one run has fetched: each URL once, into a directory that goes with :meth:`close`."""

    fetched: dict[str, tuple[InputFile, int]] = field(default_factory=dict)
    directory: tempfile.TemporaryDirectory[str] | None = None

    def file(self, url: str) -> tuple[InputFile, int]:
        """The file behind a URL, and a number that tells its contents from any others.

        Raises:
            NothingMatched: the server has no such file.
            InputError: the URL has a pattern in it, which a web server cannot answer.
            StorageError: the server did not answer, or not in full.
        """
        if url not in self.fetched:
            self.fetched[url] = self._fetch(url)
        return self.fetched[url]

    def close(self) -> None:
        """Remove what was fetched. Idempotent."""
        self.fetched.clear()
        if self.directory is not None:
            self.directory.cleanup()
            self.directory = None

    def _fetch(self, url: str) -> tuple[InputFile, int]:
        shown, path = redact(url), urlsplit(url).path
        if "*" in path:
            raise InputError(f"A web server lists no files: {shown}.", path=shown, hint="name each file.")
        if self.directory is None:
            self.directory = tempfile.TemporaryDirectory(prefix="intarsia-web-")
        name = posixpath.basename(unquote(path)).replace("/", "_") or "index"
        place = os.path.join(tempfile.mkdtemp(dir=self.directory.name), name)
        try:
            size, digest = _download(url, place)
        except HTTPError as error:
            error.close()
            if error.code in (404, 410):
                raise NothingMatched(f"There is no file {shown}: HTTP {error.code}.", path=shown) from error
            raise StorageError(f"Could not fetch {shown}: HTTP {error.code}.", path=shown) from error
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise StorageError(f"Could not fetch {shown}: {redact(str(reason))}.", path=shown) from error
        return InputFile(place, shown, name, size, pafs.LocalFileSystem()), digest


def _download(url: str, place: str) -> tuple[int, int]:
    """Size and digest of what came; memory: one piece."""
    digest, size = hashlib.sha256(), 0
    asked = Request(url, headers={"User-Agent": "intarsia", "Accept-Encoding": "identity"})
    with urlopen(asked, timeout=_TIMEOUT) as answer, open(place, "wb") as file:
        while piece := answer.read(_PIECE):
            digest.update(piece)
            size += len(piece)
            file.write(piece)
        expected = answer.headers.get("Content-Length")
    if expected is not None and int(expected) != size:
        raise OSError(f"{size:,} bytes came of {int(expected):,}")
    return size, int.from_bytes(digest.digest()[:7], "big")
