"""Options of the JVMs that tests start: these live for seconds, and most of that they start and compile.

The first compiler alone and one thread for garbage take two fifths less CPU time than the defaults, and an
archive of the classes that Spark loads takes half of the rest. ``python -m tests.jvm_options <file>``
makes the archive (``make test`` has it made once); it fits one Java only, and others do without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
QUIET = "-Xlog:disable"
"""An archive that does not fit is not worth a line in the output that tests read."""
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"


def set_in(environ: MutableMapping[str, str]) -> None:
    """Let Spark start its JVMs with them, unless the environment says how."""
    archive = [QUIET, f"-XX:SharedArchiveFile={ARCHIVE}"] if ARCHIVE.is_file() else []
    environ.setdefault("SPARK_SUBMIT_OPTS", " ".join([*SHORT_LIVED, *archive]))
    environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(SHORT_LIVED))


PROGRAM = """
import sys
from intarsia.errors import NotSupported
from intarsia.spark import open_session, stop_session
try:
    spark = open_session("local[2]")
except NotSupported as error:
    sys.exit(str(error))
spark.range(1000).selectExpr("id", "id % 7 as k", "cast(id as string) as s").write.parquet(sys.argv[1])
read = spark.read.parquet(sys.argv[1])
read.groupBy("k").count().orderBy("k").toArrow()
joined = read.join(read.selectExpr("id", "k as other"), "id").select("id", "other")
joined.mapInArrow(lambda rows: rows, "id long, other long").count()
gateway = spark.sparkContext._gateway
stop_session(spark)
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def make_archive(path: Path) -> None:
    """Take down the classes that a session loads; where that fails, there is no archive."""
    room = path.with_suffix(".making")
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir(parents=True)
    options = [*SHORT_LIVED, QUIET, f"-XX:ArchiveClassesAtExit={room / path.name}"]
    environ = {**os.environ, "SPARK_SUBMIT_OPTS": " ".join(options)}
    try:
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(room / "rows")], env=environ, check=False, timeout=300
        )
        if (room / path.name).is_file():
            os.replace(room / path.name, path)
    finally:
        shutil.rmtree(room, ignore_errors=True)


if __name__ == "__main__":
    make_archive(Path(sys.argv[1]) if len(sys.argv) > 1 else ARCHIVE)
