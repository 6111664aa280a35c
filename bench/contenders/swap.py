"""How a script by hand puts a rewritten dataset in the place of the old one; not safe against a crash."""

from __future__ import annotations

import shutil
from pathlib import Path


def swap(new: Path, target: Path) -> None:
    """``new`` becomes ``target``."""
    old = target.with_name(target.name + "-old")
    target.rename(old)
    new.rename(target)
    shutil.rmtree(old)


def beside(target: Path) -> Path:
    """A name for the new dataset on the same device."""
    return target.with_name(target.name + "-new")


def day_directory(target: Path, day: object) -> Path:
    return target / f"day={day}"
