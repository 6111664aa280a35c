"""Python files of the caller's sent to the executors of a session, classic or Connect, for UDFs to import."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from typing import Any

__all__ = ["ship_modules"]


def ship_modules(spark: Any, files: Mapping[str, bytes]) -> None:
    """Let the Python workers of a session import files, given by their paths in an archive.

    Idempotent: the archive is named by a digest of what is in it, and sent once. It stays until this process
    ends, since a session asks for it whenever it gets a new executor.
    """
    if not files:
        return
    digest = hashlib.sha256()
    for path, data in sorted(files.items()):
        digest.update(path.encode() + b"\0" + hashlib.sha256(data).digest())
    name = f"intarsia_{digest.hexdigest()[:20]}.zip"
    is_connect = ".connect." in type(spark).__module__
    if not is_connect and name in spark.sparkContext._python_includes:
        return
    archive = _write_archive(name, files)
    if is_connect:
        spark.addArtifacts(archive, pyfile=True)
        return
    before = list(sys.path)
    spark.sparkContext.addPyFile(archive)
    sys.path[:] = before  # for the executors alone: here the files themselves are imported


def _write_archive(name: str, files: Mapping[str, bytes]) -> str:
    directory = tempfile.mkdtemp(prefix="intarsia-modules-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    archive = os.path.join(directory, name)
    with zipfile.ZipFile(archive, "w") as zipped:
        for path, data in files.items():
            zipped.writestr(path, data)
    return archive
