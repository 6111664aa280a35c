"""Proof that an operation was refused as it should be, and disks that are small or cannot be written."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import intarsia.request
from intarsia.errors import IntarsiaError
from tests.bad_input.trial import BASE

Refused = Callable[..., IntarsiaError]

ON_DUCKDB = ("test_bad_arguments", "test_bad_keys", "test_bad_schemas", "test_damaged_files")
"""What these refuse is refused by DuckDB in the same words; the others are about storage."""
NOT_ON_DUCKDB = {
    "test_case_51_our_own_files_have_checksums": "its writer makes none, and the plan says so",
    "test_case_54_row_group_larger_than_the_memory_for_it": "another process, which watches PyArrow's memory",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in ON_DUCKDB:
        name = metafunc.function.__name__
        metafunc.parametrize("engine", ["arrow", *["duckdb"][: name not in NOT_ON_DUCKDB]], indirect=True)


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine that ``"auto"`` is."""
    wanted: str = getattr(request, "param", "arrow")
    if wanted == "duckdb":
        chosen = intarsia.request.choose_engine

        def on_duckdb(engine: Any, options: Any, source: Any) -> Any:
            return chosen(
                "duckdb" if isinstance(engine, str) and engine == "auto" else engine, options, source
            )

        monkeypatch.setattr(intarsia.request, "choose_engine", on_duckdb)
    return wanted


def check_error(
    error: IntarsiaError, kind: type[IntarsiaError], *words: str, changed: bool | None, advice: bool = True
) -> None:
    """The error is of exactly this kind, says all of the words and what to do, and survives a pickle.

    ``advice`` is False where the words asked for are advice already.
    """
    assert type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {error}"
    said = str(error)
    missing = [word for word in words if word.lower() not in said.lower()]
    assert not missing, f"{missing} not in: {said}"
    assert error.hint or not advice, f"does not say what to do: {said}"
    assert error.changed is changed
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert str(back) == said
    assert (back.changed, back.path, back.hint, back.txid) == (
        error.changed,
        error.path,
        error.hint,
        error.txid,
    )
    assert getattr(back, "errno", None) == getattr(error, "errno", None)


@pytest.fixture(scope="session")
def refused(unchanged: Any) -> Refused:
    """``refused(root, kind, call, *words, where=...)``: the call raises, and nothing has changed.

    The error is of exactly that kind, names the place (``where``, else the root; None where there is no
    place to name) and all of the words, says what to do, has ``changed`` False and pickles. The tree is
    byte for byte what it was, and a control directory that was not there is not there now.
    """

    def check(
        root: Path,
        kind: type[IntarsiaError],
        call: Callable[[], Any],
        *words: str,
        where: object = "",
        advice: bool = True,
    ) -> IntarsiaError:
        control = root.parent / f".{root.name}.intarsia"
        had_control = control.exists()
        with unchanged(root), pytest.raises(IntarsiaError) as caught:
            call()
        error = caught.value
        place = [] if where is None else [str(where or root)]
        check_error(error, kind, *words, *place, changed=False, advice=advice)
        assert had_control or not control.exists(), f"left behind: {sorted(control.rglob('*'))}"
        return error

    return check


@pytest.fixture(scope="session")
def each_refused(refused: Refused) -> Callable[..., None]:
    """``each_refused(root, calls, kind, *words, where=...)``: each call of the dict is refused.

    What is refused changes nothing, so all calls may meet the same dataset. In the words, ``{operation}``
    stands for the name of the call.
    """

    def check(
        root: Path,
        calls: Mapping[str, Callable[[Path], Any]],
        kind: type[IntarsiaError],
        *words: str,
        where: object = "",
    ) -> None:
        for name, call in calls.items():
            said = [word.replace("{operation}", name) for word in words]
            try:
                refused(root, kind, functools.partial(call, root), *said, where=where)
            except BaseException as error:
                error.add_note(f"in the operation {name!r}")
                raise

    return check


@pytest.fixture
def root(tmp_path: Path, make_dataset: Any) -> Path:
    """The rows of BASE in two files."""
    path: Path = make_dataset(tmp_path / "orders", BASE, files=2)
    return path


@contextlib.contextmanager
def _mounted(where: Path, size: str) -> Iterator[Path]:
    where.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"a file system cannot be mounted here: {made.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    with _mounted(tmp_path / "disk", "4m") as disk:
        yield disk


@pytest.fixture
def frozen() -> Iterator[Callable[[Path], None]]:
    """``frozen(directory)``: nothing can be created, renamed or removed in it, not even by root."""
    done: list[Path] = []

    def freeze(directory: Path) -> None:
        made = subprocess.run(["chattr", "+i", str(directory)], capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"directories cannot be made immutable here: {made.stderr.strip()}")
        done.append(directory)

    yield freeze
    for directory in done:
        subprocess.run(["chattr", "-i", str(directory)], check=True)
