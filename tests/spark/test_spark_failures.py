"""What Spark raises in our calls is one of our errors: short, with a hint, and Spark's as its cause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import intarsia as it
from intarsia.engines.spark.tasks import load_work, serialize
from intarsia.errors import CommitConflict, EngineError, InputError, IntarsiaError, NotSupported, StorageError
from intarsia.spark.errors import translate_spark_errors

ROWS = pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]})


@pytest.fixture
def place(tmp_path, make_dataset):
    return make_dataset(tmp_path / "t", ROWS)


def raised(kind: type[IntarsiaError], place: Path, unchanged, frame) -> IntarsiaError:
    """The error of a merge, which is short, names a way out and has changed nothing."""
    with unchanged(place), pytest.raises(kind) as caught:
        it.merge(frame, str(place), on="id")
    error = caught.value
    assert error.changed is False
    assert error.hint
    assert error.__cause__ is not None
    assert len(str(error)) < 900
    assert "\n" not in str(error)
    return error


def test_a_file_of_the_source_that_is_gone(spark, place, tmp_path, unchanged):
    spark.createDataFrame(ROWS).write.parquet(str(tmp_path / "source"))
    frame = spark.read.parquet(str(tmp_path / "source"))
    for file in (tmp_path / "source").glob("*.parquet"):
        file.unlink()
    error = raised(StorageError, place, unchanged, frame)
    assert "is not there" in error.message
    assert ".parquet" in error.message
    assert "read it again" in str(error.hint)


def test_an_expression_that_fails_is_the_sources(spark, place, unchanged):
    frame = spark.range(3).selectExpr("id", "cast(1 / (id - id) as string) v")
    error = raised(InputError, place, unchanged, frame)
    assert "DIVIDE_BY_ZERO" in error.message


def test_a_function_of_the_user_that_raises_is_told_by_its_last_line(spark, place, unchanged):
    from pyspark.sql.functions import udf

    bad = udf(lambda value: int(f"no number {value}"), "int")
    frame = spark.range(3).select("id", bad("id").cast("string").alias("v"))
    error = raised(InputError, place, unchanged, frame)
    assert "ValueError: invalid literal for int()" in error.message


def test_a_worker_that_dies(spark, place, unchanged):
    from pyspark.sql.functions import udf

    die = udf(lambda _: os._exit(137), "string")
    error = raised(EngineError, place, unchanged, spark.range(2).select("id", die("id").alias("v")))
    assert "memory" in str(error)


def test_a_job_that_is_cancelled(spark, place, unchanged):
    from pyspark.sql.functions import udf

    slow = udf(lambda _: time.sleep(30), "string")
    frame = spark.range(2).select("id", slow("id").alias("v"))
    stop = spark.sparkContext.cancelAllJobs if hasattr(spark, "_sc") else spark.interruptAll
    timer = threading.Timer(3, stop)
    timer.start()
    try:
        assert "cancelled" in raised(EngineError, place, unchanged, frame).message
    finally:
        timer.cancel()


def test_a_session_that_was_stopped(spark, place, unchanged, monkeypatch):
    frame = spark.range(2).selectExpr("id", "'x' v")
    monkeypatch.setattr("intarsia.spark.session.is_alive", lambda _: False)
    with unchanged(place), pytest.raises(EngineError, match="has been stopped"):
        it.merge(frame, str(place), on="id")


def test_a_dataframe_is_no_engine(spark, place):
    with pytest.raises(InputError, match="Unknown engine"):
        it.delete(str(place), "id = 1", engine=spark.range(1))


@pytest.mark.parametrize(
    ("text", "kind", "word"),
    [
        ("<_InactiveRpcError: status = StatusCode.UNAVAILABLE failed to connect", EngineError, "lost"),
        ("[RETRIES_EXCEEDED] The maximum number of retries has been exceeded.", EngineError, "lost"),
        (
            "[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid. Session was closed.",
            EngineError,
            "stopped",
        ),
        ("Cannot call methods on a stopped SparkContext.", EngineError, "stopped"),
        ("[OPERATION_CANCELED] Operation has been canceled.", EngineError, "cancelled"),
        ("Job aborted: ExecutorLostFailure (executor 1 exited)", EngineError, "memory"),
        ("[PATH_NOT_FOUND] Path does not exist: file:/x.", StorageError, "not there"),
        ("[USER_RAISED_EXCEPTION] intarsia CommitConflict: x was replaced. Hint: again", CommitConflict, "x"),
        ("AttributeError: Can't get attribute 'Y' on <module 'intarsia.z'>", NotSupported, "another version"),
        ("[SOMETHING] else", EngineError, "else"),
    ],
)
def test_errors_are_told_apart_by_what_spark_says(text, kind, word):
    pytest.importorskip("pyspark")
    from pyspark.errors import PySparkException

    from intarsia.spark.errors import translate_error

    error = translate_error(PySparkException(text))
    assert type(error) is kind
    assert word in error.message


BARE = """#!/bin/sh
PYTHONPATH="{packages}:$PYTHONPATH" exec "{python}" -S "$@"
"""
OTHER = """#!/bin/sh
PYTHONPATH="{room}:$PYTHONPATH" exec "{python}" "$@"
"""
OLDER = """
import collections, sys
kind = collections.namedtuple("kind", "major minor micro releaselevel serial")
sys.version_info = kind(3, 99, 0, "final", 0)
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [
        (BARE, ["NotSupported|False", "cannot import 'intarsia'", "executors run 3", "PYSPARK_PYTHON"]),
        (OTHER, ["NotSupported|False", "executors run Python 3.99, and this process runs", "PYSPARK_PYTHON"]),
        (None, ["NotSupported|False", "did not start", "PYSPARK_PYTHON"]),
    ],
    ids=["without the package", "another version", "none at all"],
)
def test_executors_with_another_python(tmp_path, script, words):
    pytest.importorskip("pyspark")
    python = tmp_path / "python.sh"
    (tmp_path / "sitecustomize.py").write_text(OLDER)
    if script is not None:
        packages = sysconfig.get_path("purelib")
        python.write_text(script.format(packages=packages, room=tmp_path, python=sys.executable))
        python.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("other_python.py")), str(tmp_path / "lake")],
        env={**os.environ, "PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    for word in words:
        assert word in done.stdout, done.stdout + done.stderr
    assert len(done.stdout) < 900


@pytest.mark.spark
@pytest.mark.slow
def test_a_local_session_of_the_callers_runs_this_python_and_not_any_of_the_path(tmp_path):
    """As in a notebook, or in an environment that is not activated."""
    pytest.importorskip("pyspark")
    (tmp_path / "python3").write_text("#!/bin/sh\necho this is another Python >&2\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    unset = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("other_python.py")), str(tmp_path / "lake"), "own"],
        env={**unset, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert done.stdout == "3 rows\n", done.stdout + done.stderr


@pytest.mark.spark
def test_workers_of_our_local_session_are_forked_with_our_modules_loaded(spark):
    def look(batches):
        import gc
        import sys

        import pyspark

        for _ in batches:
            yield pa.RecordBatch.from_pylist(
                [
                    {
                        "daemon": sys.modules["__main__"].__spec__.name,
                        "pyspark": pyspark.__file__,
                        "frozen": gc.get_freeze_count(),
                    }
                ]
            )

    schema = "daemon string, pyspark string, frozen long"
    (found,) = spark.range(0, 1, 1, 1).mapInArrow(look, schema).collect()
    assert found.daemon == "intarsia.spark.daemon"
    assert found.frozen > 10_000  # what a worker would go through after each task
    assert ".zip" not in found.pyspark  # whose sources are compiled at each start


def plan_query():
    return pytest.importorskip("pyspark_intarsia.options").parse_read_options({"path": "/lake"})


@pytest.mark.parametrize("begin", [lambda: load_work(serialize((max, 2))), plan_query])
def test_a_worker_whose_directory_was_removed_does_its_work(tmp_path, monkeypatch, begin):
    """It begins where the session began, which may be gone; PyIceberg asks for it as it is imported."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError):
        os.getcwd()
    begin()
    assert Path.cwd().is_dir()


def test_an_interrupt_that_is_swallowed_on_its_way_is_raised_all_the_same():
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for late in (ConnectionError("o47.parseDataType"), None):  # what py4j raises instead, or nothing
            with pytest.raises(KeyboardInterrupt), translate_spark_errors():
                with suppress(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGINT)
                if late is not None:
                    raise late
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_program_that_only_takes_note_of_an_interrupt_is_not_interrupted():
    noted: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        with translate_spark_errors():
            signal.raise_signal(signal.SIGINT)
        assert noted == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, handler)
