"""No secret of a store is in what operations write, log, show or raise; nothing stored is unpickled."""

from __future__ import annotations

import ast
import functools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from stores_bucket import KEY, SECRET, Bucket, s3
from stores_faults import orders

import intarsia as it
from intarsia.core.report import as_json
from intarsia.errors import IntarsiaError

SOURCES = Path(it.__file__).parent


@pytest.mark.parametrize("engine", ["arrow", "duckdb"])
def test_no_secret_is_in_objects_logs_results_plans_or_errors(
    bucket: Bucket, engine: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, logger="intarsia")
    target = f"{bucket.name}/lake/orders"
    how: dict[str, Any] = {"filesystem": s3(bucket.port), "engine": engine, "single_writer": True}
    results = [
        it.write(orders([(n, n) for n in range(10)]), target, **how),
        it.merge(orders([(3, 7), (50, 7)]), target, on="id", retain=2, **how),
        it.update(target, {"v": "v + 1"}, "id < 3", **how),
        it.delete(target, "id = 5", **how),
        it.compact(target, **how),
    ]
    plan = it.plan(it.delete, target, "id = 3", **how)
    history = it.history(target, filesystem=how["filesystem"])
    shown = [f"{one!r} {one} {one._repr_html_()} {json.dumps(as_json(one))} {one.plan!r}" for one in results]
    inspected = it.inspect(target, filesystem=s3(bucket.port))
    shown += [f"{plan!r} {plan._repr_html_()}", f"{history!r} {inspected!r}"]
    with pytest.raises(IntarsiaError) as caught:
        it.delete("no-such-bucket/lake/orders", "id = 1", filesystem=s3(bucket.port), engine=engine)
    shown.append(f"{caught.value!s} {caught.value!r} {caught.value.hint} {caught.value.path}")
    shown.append("".join(f"{one.getMessage()} {one.exc_text}" for one in caplog.records))
    shown += [*capsys.readouterr()]
    stored = bucket.contents()
    assert any("/log/" in key for key in stored)
    for secret in (SECRET, KEY):
        assert not any(secret in text for text in shown)
        assert not any(secret.encode() in data for data in stored.values())


def _find_calls(module: str, names: set[str]) -> set[str]:
    """The files of src that call functions of a module by these names."""
    wanted = {f"{module}.{name}" if module else name for name in names}
    return {path for path, called in _list_calls().items() if called & wanted}


@functools.cache
def _list_calls() -> dict[str, set[str]]:
    """What each file of src calls, as it is written there."""
    found: dict[str, set[str]] = {}
    for path in SOURCES.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        found[path.relative_to(SOURCES).as_posix()] = calls
    return found


def test_only_what_our_own_tasks_have_made_is_unpickled() -> None:
    """Between the driver and its tasks, through Spark: never what lies in a file or on a store."""
    assert _find_calls("pickle", {"load", "loads", "Unpickler"}) == {"engines/spark/tasks.py"}
    for module in ("marshal", "shelve", "dill", "joblib", "cloudpickle"):
        assert not _find_calls(module, {"load", "loads", "open"})


def test_no_text_is_evaluated() -> None:
    assert not _find_calls("", {"eval", "exec"})
