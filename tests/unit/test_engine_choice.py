"""What ``engine="spark"`` refuses before a session is opened, and what it opens then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.errors import ColumnNotFound, InputError, IntarsiaError, NothingMatched
from intarsia.spark import session

NEW = pa.table({"id": [2, 3], "n": [1, 1]})


class Opened(Exception):
    """In the place of a session, which would take seconds."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_session(*_: Any, **__: Any) -> Any:
        raise Opened

    monkeypatch.setattr(session, "active_session", lambda: None)
    monkeypatch.setattr(session, "open_session", open_session)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    it.write(pa.table({"id": [1, 2], "n": [0, 0]}), tmp_path / "ds")
    return tmp_path / "ds"


WRONG: dict[str, tuple[type[IntarsiaError], Callable[..., Any]]] = {
    "a clause": (InputError, lambda root, **o: it.merge(NEW, root, on="id", clauses="when matchd", **o)),
    "a condition": (InputError, lambda root, **o: it.merge(NEW, root, on="target.id = ", **o)),
    "a strategy": (InputError, lambda root, **o: it.merge(NEW, root, on="id", strategy="upsrt", **o)),
    "null_keys": (InputError, lambda root, **o: it.merge(NEW, root, on="id", null_keys="no", **o)),
    "dedup_order_by": (InputError, lambda root, **o: it.merge(NEW, root, on="id", dedup_order_by="n", **o)),
    "a mode": (InputError, lambda root, **o: it.write(NEW, root, mode="add", **o)),
    "a codec": (InputError, lambda root, **o: it.write(NEW, root, compression="zip", **o)),
    "a predicate": (InputError, lambda root, **o: it.delete(root, "id = = 2", **o)),
    "its column": (ColumnNotFound, lambda root, **o: it.delete(root, "idd = 2", **o)),
    "an assignment": (InputError, lambda root, **o: it.update(root, {"n": "n +"}, **o)),
    "what is assigned": (ColumnNotFound, lambda root, **o: it.update(root, {"m": "1"}, **o)),
    "a size": (InputError, lambda root, **o: it.compact(root, target_mb_per_file=0, **o)),
    "an order": (ColumnNotFound, lambda root, **o: it.optimize(root, by="m", **o)),
    "a key": (ColumnNotFound, lambda root, **o: it.deduplicate(root, on="m", **o)),
    "a source": (NothingMatched, lambda root, **o: it.merge(root.parent / "no.csv", root, on="id", **o)),
    "a target": (NothingMatched, lambda root, **o: it.delete(root.parent / "no", "id = 2", **o)),
    "a place": (NothingMatched, lambda root, **o: it.compact(root.parent / "no", **o)),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.usefixtures("opened")
def test_what_is_wrong_is_refused_before_a_session_is_opened(what: str, root: Path) -> None:
    kind, call = WRONG[what]
    with pytest.raises(kind):
        call(root, engine="spark")


RIGHT: dict[str, Callable[..., Any]] = {
    "merge": lambda root: it.merge(NEW, root, on="id", engine="spark"),
    "write": lambda root: it.write(NEW, root.parent / "new", engine="spark"),
    "delete": lambda root: it.delete(root, "id = 2", engine="spark"),
    "compact": lambda root: it.compact(root, engine="spark"),
}


@pytest.mark.parametrize("what", RIGHT)
@pytest.mark.usefixtures("opened")
def test_what_is_right_opens_the_session_that_a_run_opens(what: str, root: Path) -> None:
    with pytest.raises(Opened):
        RIGHT[what](root)


def test_a_session_that_is_active_is_taken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "active_session", lambda: _Active())
    monkeypatch.setattr(session, "open_session", lambda: pytest.fail("another was opened"))
    with pytest.raises(InputError, match="Unknown engine"):  # it is none of pyspark's
        it.delete(root, "id = 2", engine="spark")


class _Active:
    """Something that is no session, so that nothing is run on it."""
