"""How a script by hand puts a rewritten dataset in the place of the old one; not safe against a crash."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
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


def link_others(target: Path, new: Path, rewritten: Iterable[str | Path]) -> None:
    """Files that need not be rewritten are in the new dataset as well, by hard links."""
    left_out = {Path(path).resolve() for path in rewritten}
    for path in target.glob("*.parquet"):
        if path.resolve() not in left_out:
            os.link(path, new / path.name)


def day_directory(target: Path, day: object) -> Path:
    return target / f"day={day}"
