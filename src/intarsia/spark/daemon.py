"""Spark's daemon of Python workers, with what our tasks need loaded before it forks them.

A local session that we open names it (``spark.python.daemon.module``). Every worker then begins with pyarrow
and this package in memory that it shares with the others, instead of loading them by itself.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys


def put_archives_last() -> None:
    """Take the installed pyspark instead of the archive of its sources, which are compiled at each start.

    Only where the archive is a part of that installation, so of the same version.
    """
    for path in list(sys.path):
        home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(path))))
        if path.endswith(".zip") and path.startswith(f"{home}/pyspark/python/lib/") and home in sys.path:
            sys.path.remove(path)
            sys.path.append(path)


if __name__ == "__main__":
    put_archives_last()
    daemon = importlib.import_module("pyspark.daemon")
    importlib.import_module("intarsia.engines.spark")
    # After each task a worker collects all garbage, which would go through every module that was loaded here.
    gc.freeze()
    daemon.manager()
