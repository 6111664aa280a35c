"""What this machine, or the container around this process, lets it have."""

from __future__ import annotations

import os

__all__ = ["memory_total"]

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where a container's limit is told: control groups of version 2, and of version 1."""


def memory_total() -> int:
    """The memory there is, in bytes: that of the machine, or less where a container has less."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for place in _LIMITS:
        try:
            with open(place, encoding="ascii") as file:
                told = file.read().strip()
        except OSError:
            continue
        if told.isdecimal():  # "max" is no limit
            found.append(int(told))
    return min(found)
