"""Java runtimes, Spark sessions, tables as DataFrames and streams into a dataset; no engine.

Names are loaded when they are first used: importing this package imports no pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.common.lazy import make_lazy_names as _lazily

if TYPE_CHECKING:
    from intarsia.spark.class_archive import archive_classes
    from intarsia.spark.java import Java, find_java, prepare_environment
    from intarsia.spark.session import (
        active_session,
        connect_session,
        local_session,
        open_session,
        session_on,
        stop_session,
    )
    from intarsia.spark.streaming import merge_batches
    from intarsia.spark.tables import read

_HOMES = {
    "Java": "intarsia.spark.java",
    "active_session": "intarsia.spark.session",
    "archive_classes": "intarsia.spark.class_archive",
    "connect_session": "intarsia.spark.session",
    "find_java": "intarsia.spark.java",
    "local_session": "intarsia.spark.session",
    "merge_batches": "intarsia.spark.streaming",
    "open_session": "intarsia.spark.session",
    "prepare_environment": "intarsia.spark.java",
    "read": "intarsia.spark.tables",
    "session_on": "intarsia.spark.session",
    "stop_session": "intarsia.spark.session",
}

__all__ = [
    "Java",
    "active_session",
    "archive_classes",
    "connect_session",
    "find_java",
    "local_session",
    "merge_batches",
    "open_session",
    "prepare_environment",
    "read",
    "session_on",
    "stop_session",
]

__getattr__, __dir__ = _lazily(__name__, _HOMES)
