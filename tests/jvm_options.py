"""Options of the JVMs that tests start: these live for seconds, and most of that they start and compile.

The first compiler alone and one thread for garbage take two fifths less CPU time than the defaults, and an
archive of the classes that Spark loads takes half of the rest. ``python -m tests.jvm_options <file>``
makes the archive (``make test`` has it made once); it fits one Java only, and others do without.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from intarsia.errors import IntarsiaError
from intarsia.spark import class_archive

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
QUIET = "-Xlog:disable"
"""An archive that does not fit is not worth a line in the output that tests read."""
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"


def set_in(environ: MutableMapping[str, str]) -> None:
    """Let Spark start its JVMs with them, unless the environment says how."""
    archive = [QUIET, f"-XX:SharedArchiveFile={ARCHIVE}"] if ARCHIVE.is_file() else []
    environ.setdefault("SPARK_SUBMIT_OPTS", " ".join([*SHORT_LIVED, *archive]))
    environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(SHORT_LIVED))


def make_archive(path: Path) -> None:
    """Take down the classes that a session loads; where that fails, there is no archive."""
    with suppress(IntarsiaError):
        class_archive.make_archive(path, jvm_options=" ".join(SHORT_LIVED))


if __name__ == "__main__":
    make_archive(Path(sys.argv[1]) if len(sys.argv) > 1 else ARCHIVE)
