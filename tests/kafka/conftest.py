"""A broker of Kafka and a Spark session that can read it, once for all tests here: ``make kafka``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from intarsia.errors import NotSupported
from tests.cross.jars import NoJars, fetched
from tests.kafka.broker import SPARK_JARS, KafkaBroker, Topics


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    if not os.environ.get("INTARSIA_KAFKA"):
        pytest.skip("make kafka runs it")
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    started = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    try:
        fetched(SPARK_JARS)
        started.start()
    except NoJars as error:
        pytest.skip(f"Kafka cannot be had: {error}")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def session(broker: KafkaBroker) -> Iterator[Any]:
    from intarsia.spark import local_session, stop_session

    jars = ",".join(map(str, fetched(SPARK_JARS)))
    config = {"spark.driver.memory": "512m", "spark.jars": jars, "spark.sql.shuffle.partitions": "1"}
    try:
        opened = local_session("kafka", master="local[1]", config=config)
    except NotSupported as error:
        pytest.skip(f"Spark cannot start: {error}")
    yield opened
    stop_session(opened)


@pytest.fixture(scope="session")
def topics(broker: KafkaBroker, session: Any) -> Iterator[Topics]:
    made = Topics(broker, session)
    yield made
    made.close()
