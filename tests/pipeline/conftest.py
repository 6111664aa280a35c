"""A small shop: files that land, a pipeline over them, and a browser where there is one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

from intarsia import pipeline

SHOP = """
name = "shop"
engine = "arrow"

[sources.landing]
path = "landing/*.csv"
columns = { id = "bigint", region = "varchar", amount = "double" }

[targets.orders]
path = "lake/orders"
partition_by = "region"

[[steps]]
name = "upsert"
operation = "merge"
source = "landing"
target = "orders"
on = "id"

[[steps]]
name = "purge"
operation = "delete"
target = "orders"
where = "amount < 0"

[[steps]]
name = "tidy"
operation = "compact"
target = "orders"
"""

Rows = Mapping[int, tuple[str, float]]


class Shop:
    """A directory with a pipeline file, the files that land, and the lake."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "shop.toml"
        self.lake = root / "lake" / "orders"
        self.state = root / ".intarsia" / "shop.state.json"
        self.declare(SHOP)

    def declare(self, text: str) -> None:
        self.file.write_text(text, encoding="utf-8")

    def lands(self, name: str, rows: Rows) -> Path:
        """A CSV file with id: (region, amount)."""
        path = self.root / "landing" / name
        path.parent.mkdir(exist_ok=True)
        regions, amounts = [r for r, _ in rows.values()], [a for _, a in rows.values()]
        pacsv.write_csv(pa.table({"id": list(rows), "region": regions, "amount": amounts}), path)
        return path

    def run(self, **options: Any) -> pipeline.PipelineReport:
        options.setdefault("progress", False)
        return pipeline.run_file(self.file, **options)

    def statuses(self, **options: Any) -> dict[str, str]:
        return {step.name: step.status for step in self.run(**options).steps}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture(scope="session")
def make_shop() -> type[Shop]:
    """``make_shop(directory)``, for fixtures that several tests share."""
    return Shop


@pytest.fixture
def ids(rows: Callable[..., list[dict[str, Any]]]) -> Callable[[Shop], list[int]]:
    """The ids in the lake, read without intarsia."""
    return lambda shop: sorted(row["id"] for row in rows(shop.lake))


@pytest.fixture
def browser(tmp_path: Path) -> Callable[..., str]:
    """``browser(page, *flags)``: what a real browser says, such as the rendered page with ``--dump-dom``."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine: the page is not looked at in a browser")

    def show(page: Path, *flags: str) -> str:
        quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update")
        done = subprocess.run(
            [
                chromium,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-sync",
                *quiet,
                "--enable-logging=stderr",
                f"--user-data-dir={tmp_path / 'browser'}",
                *flags,
                page.resolve().as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []  # of the page
        return done.stdout

    return show


@pytest.fixture
def list_persisted(spark: Any) -> Callable[[], set[int]]:
    """The ids of what the session keeps in memory; other tests may have left something in it."""

    def list_ids() -> set[int]:
        is_classic = hasattr(spark, "_jsparkSession")  # Spark Connect does not tell
        return set(spark.sparkContext._jsc.getPersistentRDDs()) if is_classic else set()

    return list_ids
