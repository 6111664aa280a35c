"""A standalone Spark cluster on loopback, and drivers for it: processes that end with the test."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intarsia.spark import find_java, prepare_environment

HERE = Path(__file__).parent
HOST = "127.0.0.1"
SECONDS = 600.0
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a JVM that lives for seconds."""

# What Spark's own launcher opens of the JDK, as far as a master and a worker need it.
_OPENED = ("java.lang", "java.lang.invoke", "java.io", "java.net", "java.nio", "java.util", "sun.nio.ch")


def wait_until(found: Callable[[], Any], what: str, *, seconds: float = SECONDS) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + seconds
    while not (answer := found()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)
    return answer


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process and all of its group: a worker's executors, a driver's JVM."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def die_with_parent() -> None:
    """In a new process: end when the tests do, also when those are killed. Linux only."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def environment(place: Path, host: str) -> dict[str, str]:
    """What Spark reads; temporary files stay inside the test's directory."""
    import pyspark

    there = place / "tmp"
    there.mkdir(parents=True, exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environ |= {
        "SPARK_HOME": os.path.dirname(pyspark.__file__),
        "SPARK_LOCAL_IP": host,
        "SPARK_LOCAL_DIRS": str(place / "local"),
        "SPARK_SCALA_VERSION": "2.13",  # which Spark's shell scripts tell the worker otherwise
        "TMPDIR": str(there),
    }
    prepare_environment(environ)
    return environ


@dataclass
class Worker:
    """A worker, and the executors that it starts."""

    host: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def registered(self) -> bool:
        assert self.alive, f"a worker ended by itself:\n{self.log.read_text()[-2000:]}"
        return "Successfully registered with master" in self.log.read_text()


@dataclass
class Cluster:
    """One master, and a worker of one core on each host."""

    place: Path
    hosts: Sequence[str]
    memory: str = "1g"
    """Of a worker, for its executors."""
    url: str = ""
    master: subprocess.Popen[bytes] | None = None
    workers: list[Worker] = field(default_factory=list)
    _started: int = 0

    def start(self) -> None:
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
        self.url = f"spark://{HOST}:{port}"
        words = ["master.Master", "--host", HOST, "--port", str(port), "--webui-port", "0"]
        self.master, log = self._java("master", HOST, words)
        wait_until(lambda: "I have been elected leader" in log.read_text(), f"the master, see {log}")
        self.make_whole()

    def make_whole(self) -> None:
        """Start workers for those that are missing."""
        self.workers = [worker for worker in self.workers if worker.alive]
        missing = [host for host in self.hosts if host not in {worker.host for worker in self.workers}]
        new = [self._worker(host) for host in missing]
        self.workers += new
        wait_until(lambda: all(worker.registered for worker in new), "the workers")

    def stop(self) -> None:
        for worker in self.workers:
            end(worker.process)
        if self.master is not None:
            end(self.master)

    def _worker(self, host: str) -> Worker:
        self._started += 1
        name = f"worker-{self._started}"
        words = ["worker.Worker", "--host", host, "--webui-port", "0", "--cores", "1"]
        words += ["--memory", self.memory, "--work-dir", str(self.place / name), self.url]
        process, log = self._java(name, host, words)
        return Worker(host, log, process)

    def _java(self, name: str, host: str, words: Sequence[str]) -> tuple[subprocess.Popen[bytes], Path]:
        """A class of Spark's deploy package in a JVM and a process group of its own."""
        environ = environment(self.place / name, host)
        log = self.place / f"{name}.log"
        command = [
            f"{find_java(environ).home}/bin/java",
            "-cp",
            f"{environ['SPARK_HOME']}/jars/*",
            "-Xmx256m",
            *QUICK.split(),
            "-Dspark.master.rest.enabled=false",
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
            f"org.apache.spark.deploy.{words[0]}",
            *words[1:],
        ]
        with open(log, "wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=environ,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        return process, log


@dataclass
class Driver:
    """A driver at work; ``place`` is where faults leave their markers."""

    process: subprocess.Popen[bytes]
    place: Path

    def markers(self, pattern: str) -> list[Path]:
        ended = self.process.poll()
        assert ended is None, f"the driver ended with {ended}:\n{self.errors()}"
        return list(self.place.glob(pattern))

    def errors(self) -> str:
        return Path(self.place, "stderr").read_text()[-4000:]

    def ended(self) -> int:
        return self.process.wait(SECONDS)

    def results(self) -> Any:
        """What it has printed in the end."""
        code = self.ended()
        assert code == 0, f"the driver ended with {code}:\n{self.errors()}"
        return json.loads(Path(self.place, "stdout").read_text().splitlines()[-1])


SETTINGS = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": False,
    # So little data: what costs time is the start of everything, and compiling what runs once.
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": False,
    "spark.sql.shuffle.partitions": 2,
    "spark.scheduler.minRegisteredResourcesRatio": 1.0,
}
"""Of a session on the cluster, or on this machine in its place."""


def driver(
    place: Path,
    merges: Sequence[dict[str, Any]],
    *,
    master: str,
    fault: str = "",
    step: str = "write_file_batch",
    config: dict[str, Any] | None = None,
) -> contextlib.AbstractContextManager[Driver]:
    """A driver of merges.

    ``step`` is the work of tasks that meets the fault, of a merge whose rows are routed.
    """
    job = {"master": master, "merges": list(merges), "fault": fault, "step": step}
    return start_driver(place, "cluster_driver.py", job, config=config)


@contextlib.contextmanager
def start_driver(
    place: Path,
    script: str,
    job: dict[str, Any],
    *,
    markers: str = "driver",
    config: dict[str, Any] | None = None,
) -> Iterator[Driver]:
    """A script with a job, in a process group of its own, which is gone afterwards."""
    there = place / markers
    there.mkdir()
    job = {**job, "place": str(there), "config": {**SETTINGS, **(config or {})}}
    with open(there / "stdout", "wb") as out, open(there / "stderr", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore::ResourceWarning", str(HERE / script)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            env=environment(place, HOST),
            cwd=place,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(json.dumps(job).encode())
        yield Driver(process, there)
    finally:
        end(process)
