"""The lake that all cross-engine tests share, and the tables of every kind, made once each.

These tests need a JVM with other jars than the Spark session of the other tests: ``make cross`` runs them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from intarsia.errors import NotSupported
from intarsia.spark import stop_session
from tests.cross.jars import SPARK_JARS, NoJars, fetched
from tests.cross.kinds import Kind
from tests.cross.lake import Lake, open_lake
from tests.cross.making import Made, make
from tests.cross.rest_server import RestServer


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    if not os.environ.get("INTARSIA_CROSS"):
        pytest.skip("make cross runs it")
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    try:
        opened = open_lake(tmp_path_factory.mktemp("lake"), fetched(SPARK_JARS))
    except NoJars as error:
        pytest.skip(f"Iceberg's runtime for Spark cannot be had: {error}")
    except NotSupported as error:
        pytest.skip(f"Spark cannot start: {error}")
    yield opened
    stop_session(opened.spark)


@pytest.fixture(scope="session")
def made(lake: Lake) -> Callable[[Kind], Made]:
    """``made(kind)``: the table of a kind, made once; work on ``made(kind).clone()``."""
    tables: dict[str, Made] = {}

    def get(kind: Kind) -> Made:
        if kind.name not in tables:
            tables[kind.name] = make(lake, kind)
        return tables[kind.name]

    return get


@pytest.fixture(scope="session")
def rest(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """The same session on a REST catalog of its own."""
    server = RestServer(tmp_path_factory.mktemp("rest"))
    try:
        server.start()
    except NoJars as error:
        pytest.skip(f"the REST catalog's jars cannot be had: {error}")
    try:
        yield server.lake(lake.spark)
    finally:
        server.stop()
