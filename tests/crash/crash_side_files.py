"""Side files of other writers, made and judged without intarsia: Hadoop's checksums, and a summary."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator

CHUNK = 512
SUMMARY = "_metadata"
CACHE_FILES = ("footers.cache", "footers.cache.part")
"""Ours, in the control directory: a cache that may be deleted at any time, and what a kill leaves of one."""


def checksums(path: str) -> bytes:
    """What Hadoop's ChecksumFileSystem keeps of a file in ``.<name>.crc``: a header, a CRC32 per chunk."""
    with open(path, "rb") as file:
        data = file.read()
    sums = (zlib.crc32(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK))
    return b"crc\0" + struct.pack(">i", CHUNK) + b"".join(struct.pack(">I", one) for one in sums)


def checksum_file(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.crc")


def add_checksum(path: str) -> None:
    with open(checksum_file(path), "wb") as file:
        file.write(checksums(path))


def add_side_files(root: str) -> None:
    """A checksum beside every data file, and a summary of them all with a checksum of its own."""
    for path in data_files(root):
        add_checksum(path)
    with open(f"{root}/{SUMMARY}", "w", encoding="utf-8") as file:
        json.dump(_described(root), file)
    add_checksum(f"{root}/{SUMMARY}")


def data_files(root: str) -> Iterator[str]:
    for directory, _, names in os.walk(root):
        yield from (f"{directory}/{name}" for name in sorted(names) if name.endswith(".parquet"))


def _described(root: str) -> dict[str, str]:
    return {os.path.relpath(path, root): checksums(path).hex() for path in data_files(root)}


def side_file_problems(root: str) -> list[str]:
    """What a writer of side files could not read, or would read wrongly, at this instant."""
    problems = []
    for path in [*data_files(root), f"{root}/{SUMMARY}"]:
        aside = checksum_file(path)
        if os.path.exists(path) and os.path.exists(aside):
            with open(aside, "rb") as file:
                if file.read() != checksums(path):
                    problems.append(f"{os.path.relpath(path, root)} stands beside a checksum of other bytes")
    if os.path.exists(f"{root}/{SUMMARY}"):
        with open(f"{root}/{SUMMARY}", encoding="utf-8") as described:
            if json.load(described) != _described(root):
                problems.append(f"{SUMMARY} describes other files than there are")
    return problems


def orphans(root: str) -> list[str]:
    """Checksums of files that are not there."""
    return [
        f"{directory}/{name}"
        for directory, _, names in os.walk(root)
        for name in names
        if name.endswith(".crc") and name[1:-4] not in names
    ]
