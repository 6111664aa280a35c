"""Stores of files: opened by path, URL or file system object, with the few operations that tables need."""

from __future__ import annotations

from intarsia.storage.objects import ObjectStorage
from intarsia.storage.port import FileEntry, StatFile, Storage, translate_storage_errors
from intarsia.storage.posix import PosixStorage
from intarsia.storage.remote import RemoteStorage
from intarsia.storage.resolve import open_storage
from intarsia.storage.trial import Trial

__all__ = [
    "FileEntry",
    "ObjectStorage",
    "PosixStorage",
    "RemoteStorage",
    "StatFile",
    "Storage",
    "Trial",
    "open_storage",
    "translate_storage_errors",
]
