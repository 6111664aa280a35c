"""Writers in processes of their own, and the log that they leave, replayed on a dictionary."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from stores_bucket import Bucket
from stores_writer import BASE, orders, replay

import intarsia as it

ROOT = "lake/orders"
HERE = Path(__file__).parent


class Writers:
    """Writers in processes of their own; all that are left are killed in the end."""

    def __init__(self, bucket: Bucket, directory: Path) -> None:
        self._bucket, self._directory = bucket, directory
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, seed: int, count: int, engine: str, *more: str, port: int | None = None) -> None:
        """``port``: of a way to the server that is not the straight one. More: "compacts", "may fail"."""
        told = self._directory / f"writer-{seed}"
        command = [sys.executable, str(HERE / "stores_writer.py"), self._bucket.kind]
        command += [str(port or self._bucket.port)]
        command += [f"{self._bucket.name}/{ROOT}", str(seed), str(count), engine, *more]
        path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
        with told.open("wb") as out, Path(f"{told}.errors").open("wb") as errors:
            process = subprocess.Popen(
                command, stdout=out, stderr=errors, env={**os.environ, "PYTHONPATH": path}
            )
        self._started.append((process, told))

    def are_running(self) -> bool:
        return any(process.poll() is None for process, _ in self._started)

    def kill(self) -> None:
        for process, _ in self._started:
            process.kill()
        for process, _ in self._started:
            process.wait()

    def read(self) -> list[dict[str, Any]]:
        """What they have told so far."""
        lines = [line for _, told in self._started for line in told.read_text().splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def read_errors(self) -> str:
        """What they have said; Arrow's client also says there that it sends a request again."""
        said = "".join(Path(f"{told}.errors").read_text() for _, told in self._started)
        return "".join(line for line in said.splitlines(True) if not _REPEATS.search(line))


_REPEATS = re.compile(r"/arrow/.*\.cc:\d+: .*retry = ")


def make_base(bucket: Bucket) -> int:
    """Four files by four commits; the number of the last."""
    for first in range(0, len(BASE), 15):
        rows = dict.fromkeys(BASE[first : first + 15], 0)
        it.write(orders(rows), f"{bucket.name}/{ROOT}", filesystem=bucket.opened)
    return len(_read_history(bucket))


def _read_history(bucket: Bucket) -> dict[int, dict[str, Any]]:
    """What the log says was done, by the number of the commit."""
    found = {}
    for key in bucket.files("lake/.orders.intarsia/log"):
        if key.endswith(".json") and "summary" not in key:
            with bucket.opened.open_input_stream(f"{bucket.name}/{key}") as stream:
                record = json.loads(stream.read())
            found[record["seq"]] = record
    return found


def check_history(bucket: Bucket, told: list[dict[str, Any]], before: int) -> None:
    """The rows are those of the log, replayed in its order; what writers were told is what the log says."""
    history = _read_history(bucket)
    assert sorted(history) == list(range(1, len(history) + 1)), "a slot is missing"
    ids = [record["txid"] for record in history.values()]
    assert len(set(ids)) == len(ids), "a transaction is in the log twice"
    rows = dict.fromkeys(BASE, 0)
    for number in range(before + 1, len(history) + 1):
        if "did" in history[number]["properties"]:
            replay(rows, json.loads(history[number]["properties"]["did"]))
    assert bucket.rows(ROOT, "id", "v") == sorted(rows.items()), "the rows are not those of the log, in order"
    done = [
        json.loads(one["properties"]["did"])["id"] for one in history.values() if "did" in one["properties"]
    ]
    assert len(set(done)) == len(done), "an operation took effect twice"
    for one in told:
        match one:
            case {"failed": _, "changed": False}:
                assert one["id"] not in done, f"failed, and in the log: {one}"
            case {"failed": _, "changed": True}:
                assert one["id"] in done, f"took effect, and not in the log: {one}"
            case {"txid": str()}:
                assert history[one["version"]]["txid"] == one["txid"], f"acknowledged, and lost: {one}"
