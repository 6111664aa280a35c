"""What another program needs to read objects as a file system does: the server and the credentials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["FindAccess", "S3Access"]


@dataclass(frozen=True, slots=True)
class S3Access:
    """A server that speaks S3, and keys that are valid for a while; shows no secret."""

    host: str
    """With a port where it has one of its own."""
    region: str
    encrypted: bool
    """Whether by HTTPS."""
    bucket_in_path: bool
    """Whether the bucket is in the path of a URL, and not in the host."""
    key: str = field(repr=False)
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


FindAccess = Callable[[], S3Access | None]
"""None where another program could not send what the file system sends."""
