"""A REST catalog on loopback, in a process of its own, from the jars that Spark has here anyway."""

from __future__ import annotations

import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import RestCatalog

from tests.cross.jars import SPARK_JARS, NoJars, fetched, java, pyspark_jars
from tests.cross.lake import NAMESPACE, Lake, catalog_settings

SOURCE = Path(__file__).with_name("RestCatalog.java")
NAME = "rest"


class RestServer:
    """Starts the server, and hands out a lake on it."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Raises NoJars when the jars cannot be had, or this Java cannot run source files."""
        needed = ("hadoop-client-*.jar", "slf4j-api-*.jar", "commons-*.jar", "log4j-*.jar", "caffeine*.jar")
        classes = [*fetched(SPARK_JARS), *(jar for one in needed for jar in pyspark_jars().glob(one))]
        warehouse = self.room / "warehouse"
        warehouse.mkdir()
        places = f"jdbc:sqlite:{self.room}/catalog.db", f"file://{warehouse}"
        with (self.room / "server.log").open("w") as log:
            self._process = subprocess.Popen(
                [java(), "-Xmx256m", "-cp", ":".join(map(str, classes)), str(SOURCE), *places],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        first = self._process.stdout.readline().strip()
        if not first.isdigit():
            self.stop()
            raise NoJars(f"the server did not start: {(self.room / 'server.log').read_text()[-1000:]}")
        self.port = int(first)

    def stop(self) -> None:
        """It ends by itself once its input does."""
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def lose_the_next_answer(self) -> None:
        """The next commit will happen, and be answered with an error of the gateway."""
        urllib.request.urlopen(f"{self.uri}/test/lose-answer", data=b"", timeout=10).close()

    def lake(self, spark: Any) -> Lake:
        """The session with this catalog beside the one it has."""
        for key, value in catalog_settings(NAME, type="rest", uri=self.uri).items():
            spark.conf.set(key, value)
        catalog = RestCatalog(NAME, uri=self.uri)
        catalog.create_namespace_if_not_exists(NAMESPACE)
        return Lake(spark, catalog, self.room / "warehouse", name=NAME, server=self)
