"""The engines under the sweeps; Spark's session is opened once, before any fork, and outlives every kill.

A child that is killed is a driver that dies: what it planned, staged by executors and was about to commit is
its own, while the JVM and its workers, which no sweep counts, go on for the next child.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

ENGINES = ("arrow", "duckdb", "spark")
NO_SPARK = 77
"""What a process exits with that finds no Java."""
_SESSIONS: list[Any] = []
_CONNECTIONS: list[Any] = []


def spark_session() -> Any:
    """The one session of this process, opened when it is first asked for."""
    if not _SESSIONS:
        from intarsia.errors import NotSupported
        from intarsia.spark import open_session

        config = {
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "1",
            "spark.ui.enabled": "false",
        }
        try:
            _SESSIONS.append(open_session("local[2,2]", app="intarsia sweep", config=config))
        except NotSupported as error:
            print(f"Spark cannot start: {error}", file=sys.stderr)
            sys.exit(NO_SPARK)
    return _SESSIONS[0]


def stop_spark() -> None:
    while _SESSIONS:
        from intarsia.spark import stop_session

        stop_session(_SESSIONS.pop())


def engine_named(name: str) -> Any:
    return spark_session() if name == "spark" else name


def calm_options(name: str, directory: str) -> dict[str, Any]:
    """One thread, so that call n is the same call each time; and nothing outside of the directory."""
    if name == "spark":
        return {}
    return {"threads": 1} | ({"spool_dir": directory} if name == "duckdb" else {})


def own_connections() -> None:
    """In a child: speak to the JVM through sockets of its own, so that a kill breaks no other's words off."""
    for session in _SESSIONS:
        client = session.sparkContext._gateway._gateway_client
        _CONNECTIONS.append((client.thread_connection, list(client.deque)))  # closing them would say goodbye
        client.thread_connection = threading.local()
        client.deque.clear()
