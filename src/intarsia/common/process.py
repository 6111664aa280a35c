"""Who runs this process, as commits note it: user, host and program; never an argument, never a secret."""

from __future__ import annotations

import getpass
import os
import platform
import sys
from functools import cache

from intarsia.common.log import redact

__all__ = ["describe_program", "describe_user"]

_LONGEST = 64


@cache
def describe_user() -> str:
    """``user@host``, as the operating system has them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user without a name
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return f"{_clean(user) or 'unknown'}@{_clean(platform.node()) or 'unknown'}"


def describe_program() -> str:
    """The name of the program that was started, without its directory and without arguments; may be empty."""
    started = sys.argv[0] if sys.argv else ""
    name = os.path.basename(started.rstrip("/"))
    if name in ("__main__.py", "__init__.py"):  # python -m package
        name = os.path.basename(os.path.dirname(started))
    return "" if name in ("", "-c", "-m", "-") else _clean(name)


def _clean(text: str) -> str:
    """A short text without control characters, and without what looks like a secret."""
    shown = "".join(char for char in text if char.isprintable())
    return redact(shown)[:_LONGEST]
