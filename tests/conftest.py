"""What every test may use: datasets made and read without intarsia, and proof that a tree was left alone.

The fixtures hand out plain functions and are session-wide, so that property tests may use them too.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings

from intarsia.kernel import chunk_copy
from intarsia.spark import refresh
from intarsia.spark.session import active_session
from tests import fault_points, jvm_options, sampling

settings.register_profile(
    "quick",
    max_examples=sampling.choose_number(20, 50),
    deadline=None,  # a file system has no deadline
    print_blob=True,
    derandomize=True,  # what one run finds, every run finds; "full" is the profile that searches
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("full", settings.get_profile("quick"), max_examples=1000, derandomize=False)
settings.load_profile(os.environ.get("INTARSIA_HYPOTHESIS", "quick"))

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
LARGEST_RECORD = 1 << 20
CHUNK_BYTES = chunk_copy.CHUNK_BYTES
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30
SLEEP = time.sleep
LEFT = pytest.StashKey[int]()

pytest_plugins = ["tests.collecting"]
jvm_options.set_in(os.environ)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests' files in memory where there is room: a disk takes milliseconds for every fsync.

    ``--basetemp`` or ``PYTEST_DEBUG_TEMPROOT`` name another place; the mark ``on_disk`` is for single tests.
    """
    has_memory = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES
    if config.option.basetemp is None and has_memory:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the cases a sample; tests on Spark come first, and among them the slow ones, else in random order.

    So the first worker has one session for almost all of them, and the others take the rest meanwhile.
    """
    none = [item for item in items if not sampling.is_case(item)]
    items[:] = [item for item in items if sampling.is_case(item)]
    config.hook.pytest_deselected(items=none)
    if not sampling.EVERYTHING and not any("[" in argument for argument in config.args):
        items[:], left = sampling.sample(items)
        config.hook.pytest_deselected(items=left)
        config.stash[LEFT] = len(left)
    items.sort(key=lambda item: (not _starts_spark(item), item.get_closest_marker("slow") is None))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells how many cases it was not given: all workers leave the same."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = session.config.stash.get(LEFT, 0)


def pytest_runtest_logfinish() -> None:
    """A run of hours that is broken off has told its fault points."""
    fault_points.save_points()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT] = getattr(node, "workeroutput", {}).get("left", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := config.stash.get(LEFT, 0):
        terminalreporter.write_line(
            f"{left} more cases are run by make test-all (INTARSIA_TESTS=all), some with INTARSIA_TESTS=more."
        )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what needs the Spark session, so that ``-m spark`` and ``-m "not spark"`` tell it apart."""
    if uses_spark(item):
        item.add_marker(pytest.mark.spark)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Every other test, by its name, copies chunks of files that would be too small for it."""
    chosen = hashlib.sha256(item.nodeid.encode()).digest()[0] % 2
    chunk_copy.CHUNK_BYTES = 0 if chosen else CHUNK_BYTES
    # Telling the shared session of every change in process would be most of what these tests take.
    told = item.get_closest_marker("session_at_hand") is not None
    refresh.active_session = active_session if told else _no_session


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """A patch that outlives its test: without sleep, threads that wait take the processor from all others."""
    if time.sleep is not SLEEP:
        time.sleep = SLEEP
        pytest.fail("time.sleep was left patched")


def _no_session() -> None:
    return None


def uses_spark(item: pytest.Item) -> bool:
    """Whether a test needs the session: by its mark or fixtures, or as one of the contract's engines."""
    if item.get_closest_marker("spark") is not None:
        return True
    parts = getattr(item, "callspec", None)
    engines = () if parts is None else (p[0] for p in parts.params.values() if isinstance(p, tuple) and p)
    return "spark" in getattr(item, "fixturenames", ()) or "spark" in engines


def _starts_spark(item: pytest.Item) -> bool:
    """Whether a test uses Spark, or has an engine among its values that is Spark."""
    parts = getattr(item, "callspec", None)
    values = () if parts is None else parts.params.values()
    return uses_spark(item) or any(isinstance(value, str) and value == "spark" for value in values)


def _control(path: Path) -> Path:
    return path.parent / f".{path.name}.intarsia"


def _entries(base: Path, shown: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    if base.is_symlink():
        yield shown, ("link", os.readlink(base))
    elif base.is_dir():
        yield shown + "/", ("directory",)
        for child in sorted(base.iterdir()):
            yield from _entries(child, f"{shown}/{child.name}")
    elif base.is_file():
        stat = base.stat()
        digest = hashlib.sha256(base.read_bytes()).hexdigest()
        yield shown, ("file", stat.st_size, stat.st_mtime_ns, stat.st_ino, digest)


def _tree_digest(path: str | Path, *, control: bool = True) -> dict[str, tuple[Any, ...]]:
    path = Path(path)
    found = dict(_entries(path, path.name))
    if control:
        found.update(_entries(_control(path), _control(path).name))
    return found


def _leftovers(path: str | Path) -> list[str]:
    control = _control(Path(path))
    found = []
    for name, entry in _entries(control, control.name):
        below = name.removeprefix(control.name).strip("/")
        record = below in ("lock", "footers.cache") or (
            below.startswith("log/") and entry[0] == "file" and entry[1] < LARGEST_RECORD
        )
        if entry[0] != "directory" and not record:
            found.append(name)
    return found


def _difference(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    lines = [f"gone: {name}" for name in sorted(before.keys() - after.keys())]
    lines += [f"new: {name}" for name in sorted(after.keys() - before.keys())]
    lines += [
        f"changed: {name}: {before[name]} -> {after[name]}"
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]
    return lines


@contextlib.contextmanager
def _unchanged(path: str | Path) -> Iterator[None]:
    before = _tree_digest(path, control=False)
    try:
        yield
    finally:  # also when the error passes through, as in `with pytest.raises(...), unchanged(path)`
        difference = _difference(before, _tree_digest(path, control=False))
        assert not difference, f"{path} did not stay as it was:\n" + "\n".join(difference)
        leftovers = _leftovers(path)
        assert not leftovers, f"left behind in {_control(Path(path))}: {leftovers}"


def _hive_directory(names: Sequence[str], values: Sequence[Any]) -> str:
    parts = [
        f"{quote(name, safe='')}={NULL_PARTITION if value is None else quote(str(value), safe='')}"
        for name, value in zip(names, values, strict=True)
    ]
    return "/".join(parts)


def _slices(table: pa.Table, files: int | Sequence[int]) -> list[pa.Table]:
    if isinstance(files, int):
        edges = [table.num_rows * k // files for k in range(files + 1)]
        counts = [after - before for before, after in itertools.pairwise(edges)]
    else:
        counts = list(files)
        assert sum(counts) == table.num_rows, f"{counts} rows asked for, {table.num_rows} given"
    starts = [sum(counts[:k]) for k in range(len(counts))]
    return [table.slice(start, count) for start, count in zip(starts, counts, strict=True)]


def _make_dataset(
    root: str | Path,
    table: pa.Table,
    *,
    files: int | Sequence[int] = 1,
    partition: str | Sequence[str] = (),
    **writer: Any,
) -> Path:
    root = Path(root)
    names = [partition] if isinstance(partition, str) else list(partition)
    values = list(zip(*(table[name].to_pylist() for name in names), strict=True)) if names else []
    groups: dict[tuple[Any, ...], list[int]] = {}
    for position, key in enumerate(values):
        groups.setdefault(key, []).append(position)

    parts = [(root, table)]
    if names:
        rest = table.drop_columns(names)
        parts = [(root / _hive_directory(names, key), rest.take(pa.array(at))) for key, at in groups.items()]
    root.mkdir(parents=True, exist_ok=True)
    for directory, part in parts:
        directory.mkdir(parents=True, exist_ok=True)
        for number, piece in enumerate(_slices(part, files)):
            pq.write_table(piece, directory / f"part-{number:05d}.parquet", **writer)
    return root


def _data_files(root: Path) -> list[Path]:
    """The data files, by the readers' own rule: nothing below a name that starts with . or _."""
    return [
        file
        for file in sorted(root.rglob("*"))
        if file.is_file()
        and file.suffix.lower() in (".parquet", ".parq")
        and not any(
            part.startswith(".") or (part.startswith("_") and "=" not in part)
            for part in file.relative_to(root).parts
        )
    ]


def _read_file(root: Path, file: Path, schema: pa.Schema | None) -> list[dict[str, Any]]:
    with pq.ParquetFile(file) as parquet:
        table = parquet.read()
    for part in file.relative_to(root).parts[:-1]:
        name, equals, value = part.partition("=")
        name = unquote(name)
        if not equals or name in table.column_names:
            continue
        scalar = pa.scalar(None if value == NULL_PARTITION else unquote(value), pa.string())
        if schema is not None:
            scalar = scalar.cast(schema.field(name).type)
        table = table.append_column(name, pa.repeat(scalar, table.num_rows))
    return table.to_pylist()  # type: ignore[no-any-return]


def _comparable(value: Any) -> Any:
    # One NaN object: containers compare by identity first, so NaN is then equal to NaN.
    if isinstance(value, float) and math.isnan(value):
        return math.nan
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, dict):
        return {name: _comparable(item) for name, item in value.items()}
    return value


def _sort_key(row: dict[str, Any]) -> tuple[Any, ...]:
    def one(value: Any) -> tuple[Any, ...]:
        if isinstance(value, (bool, int, float)) and not (isinstance(value, float) and math.isnan(value)):
            return (0, value, "")
        return (2 if value is None else 1, 0, repr(value))

    return tuple(one(row[name]) for name in sorted(row))


def _rows(data: Any, *, schema: pa.Schema | None = None) -> list[dict[str, Any]]:
    if isinstance(data, pa.Table):
        found = data.to_pylist()
    elif isinstance(data, (str, Path)):
        root = Path(data)
        found = [row for file in _data_files(root) for row in _read_file(root, file, schema)]
    else:
        found = list(data)
    names = sorted({name for row in found for name in row})
    complete = [{name: _comparable(row.get(name)) for name in names} for row in found]
    return sorted(complete, key=_sort_key)


@pytest.fixture(scope="session")
def tree_digest() -> Callable[..., dict[str, tuple[Any, ...]]]:
    """``tree_digest(path, control=True)``: every file with size, mtime, inode and content hash, by name.

    Includes the dataset's control directory beside it unless ``control=False``. Of a directory only its
    existence counts. A path that does not exist gives an empty dict.
    """
    return _tree_digest


@pytest.fixture(scope="session")
def unchanged() -> Callable[[str | Path], contextlib.AbstractContextManager[None]]:
    """``with unchanged(path), pytest.raises(...)``: afterwards the data is byte-identical, same inodes and
    times, and the control directory holds nothing but the lock and small log records."""
    return _unchanged


@pytest.fixture(scope="session")
def leftovers() -> Callable[[str | Path], list[str]]:
    """``leftovers(path)``: what the control directory holds beside the lock and small log records."""
    return _leftovers


@pytest.fixture(scope="session")
def make_dataset() -> Callable[..., Path]:
    """``make_dataset(root, table, files=1, partition=(), **writer)``: real Parquet files; returns ``root``.

    ``files`` is a number of equal slices or the row count of each, per partition; ``partition`` names the
    columns that become hive directories; the rest goes to ``pq.write_table``.
    """
    return _make_dataset


@pytest.fixture
def tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """pytest's own; on a disk for tests with the mark ``on_disk``."""
    if request.node.get_closest_marker("on_disk") is None:
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="intarsia-test-")).resolve()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def deaf_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port of this machine that nobody listens on, and no proxy that stands before it."""
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


@pytest.fixture(scope="session")
def rows() -> Callable[..., list[dict[str, Any]]]:
    """``rows(path | table | list of dicts, schema=None)``: sorted dicts, read file by file without intarsia.

    A column that a file lacks is None. Partition values from directory names are strings, or of the
    type that ``schema`` gives. NaN equals NaN in the result, so that two results compare with ``==``.
    """
    return _rows


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session of a test process: local, two cores; skips where pyspark or Java is missing.

    ``INTARSIA_SPARK_REMOTE`` names a Spark Connect server to run the same tests on.
    """
    from intarsia.errors import NotSupported
    from intarsia.spark import open_session, stop_session

    pytest.importorskip("pyspark", reason="pyspark is not installed")
    remote = os.environ.get("INTARSIA_SPARK_REMOTE")
    config = {} if remote else {"spark.driver.memory": "1g"}
    try:
        # Two attempts per task: now and then Spark finds that an idle Python worker has hung up.
        with contextlib.chdir(Path(__file__).parents[1]):  # where its workers begin; that of a test goes away
            session = open_session(remote or "local[2,2]", app="intarsia tests", config=config)
    except NotSupported as error:
        pytest.skip(f"Spark cannot start: {error}")
    yield session
    stop_session(session)
