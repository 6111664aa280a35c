"""The jars that only the cross-engine tests need: pinned, fetched once by Ivy, which comes with pyspark.

``python -m tests.cross.jars`` fetches them. They lie in the environment, so they go with it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PLACE = Path(os.environ.get("INTARSIA_JARS", Path(sys.prefix, "cross-jars")))
TIMEOUT = 300


class NoJars(Exception):
    """A jar could not be had, and why."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One artifact, by its coordinates and the digest of its bytes."""

    group: str
    artifact: str
    version: str
    sha256: str
    classifier: str = ""

    @property
    def path(self) -> Path:
        suffix = f"-{self.classifier}" if self.classifier else ""
        return PLACE / f"{self.artifact}-{self.version}{suffix}.jar"

    @property
    def is_there(self) -> bool:
        return self.path.is_file() and hashlib.sha256(self.path.read_bytes()).hexdigest() == self.sha256


SPARK_JARS = (
    Jar(
        "org.apache.iceberg",
        "iceberg-spark-runtime-4.1_2.13",
        "1.12.0",
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    ),
    Jar(
        "org.xerial",
        "sqlite-jdbc",
        "3.50.3.0",
        "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
    ),
)


def fetched(jars: tuple[Jar, ...]) -> list[Path]:
    """The jars' paths; what is missing is fetched.

    Raises:
        NoJars: one is missing and cannot be fetched, or its bytes are not the pinned ones.
    """
    if missing := [jar for jar in jars if not jar.is_there]:
        _fetch(missing)
    for jar in missing:
        if not jar.path.is_file():
            raise NoJars(f"{jar.group}:{jar.artifact}:{jar.version} was not found in any repository")
        if not jar.is_there:
            raise NoJars(f"{jar.path.name} is not the pinned file: its SHA-256 differs")
    return [jar.path for jar in jars]


def java() -> str:
    """The java that Spark starts with, too."""
    from intarsia.errors import NotSupported
    from intarsia.spark.java import find_java

    try:
        return str(Path(find_java().home, "bin", "java"))
    except NotSupported as error:
        raise NoJars(str(error)) from error


def pyspark_jars() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def _fetch(jars: list[Jar]) -> None:
    ivy = next(iter(pyspark_jars().glob("ivy-*.jar")), None)
    if ivy is None:
        raise NoJars("pyspark has no Ivy to fetch jars with")
    PLACE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as room:
        asked = Path(room, "ivy.xml")
        asked.write_text(_ivy_file(jars))
        command = [java(), "-jar", str(ivy), "-cache", f"{room}/cache", "-ivy", str(asked), "-notransitive"]
        command += ["-confs", "default", "-overwriteMode", "always"]
        command += ["-retrieve", f"{PLACE}/[artifact]-[revision](-[classifier]).[ext]"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoJars(f"Ivy did not run: {error}") from error
    if done.returncode:
        told = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
        raise NoJars(f"Ivy could not fetch them: {(told or ['it does not say why'])[-1][:300]}")


def _ivy_file(jars: list[Jar]) -> str:
    wanted = "\n".join(
        f'    <dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" conf="default->master">'
        f'<artifact name="{jar.artifact}" type="jar" ext="jar"'
        + (f' m:classifier="{jar.classifier}"' if jar.classifier else "")
        + "/></dependency>"
        for jar in jars
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n'
        '  <info organisation="tests" module="cross"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{wanted}\n  </dependencies>\n</ivy-module>\n"
    )


if __name__ == "__main__":
    for path in fetched(SPARK_JARS):
        print(path)
