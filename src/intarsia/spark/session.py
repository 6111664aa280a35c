"""Spark sessions: the active one, else a new one; no data is read here."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
import traceback
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from intarsia.common.log import get_logger, redact
from intarsia.errors import InputError, NotSupported, StorageError
from intarsia.spark import class_archive
from intarsia.spark.java import is_under_spark_submit, prepare_environment

__all__ = [
    "MASTERS",
    "Session",
    "active_session",
    "connect_session",
    "describe_master",
    "is_alive",
    "is_connect",
    "local_session",
    "open_session",
    "session_on",
    "silence_query_errors",
    "stop_session",
]

log = get_logger(__name__)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession as Session
else:
    Session = Any
"""A ``pyspark.sql.SparkSession``, classic or Connect."""

MASTERS = ("local", "local[n]", "local[*]", "spark://host:port", "yarn", "k8s://...", "sc://host:port")

_ANY_LOCAL = "local[*]"
_CONNECT_PORT = 15002
_ANSWER_SECONDS = 10.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
_REMOTE = "SPARK_REMOTE"
_QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_started: weakref.WeakSet[Any] = weakref.WeakSet()


@contextmanager
def silence_query_errors() -> Iterator[None]:
    """Meanwhile keep pyspark from writing each error of a query to standard error, as JSON with its stack.

    It does so before it raises the error, also where whoever catches it tries something else.
    """
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in _QUERY_LOGGERS]
    before = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)


def local_session(
    app: str = "intarsia", *, master: str = "local[*]", config: Mapping[str, Any] | None = None
) -> Session:
    """The active session; where there is none, a new one in a JVM on this machine.

    A new one logs errors only, has no UI, listens on loopback alone, and takes 2 GB of driver memory unless
    ``config`` (``spark.driver.memory``) or the environment (``SPARK_DRIVER_MEMORY``) says otherwise.
    Idempotent. An active session is returned as it is, without ``config``. Below spark-submit the session is
    opened on the master that spark-submit was given.

    Args:
        app: the name that Spark shows.
        master: ``local``, ``local[n]`` or ``local[*]``.
        config: Spark settings; they win over the defaults.

    Raises:
        NotSupported: pyspark or Java is missing, or the JVM did not start.

    Example:
        >>> from intarsia.spark import local_session
        >>> local_session().range(3).count()
        3
    """
    if is_under_spark_submit():
        return _open_cluster_session(None, app, config)
    found = _find_active(None if master == _ANY_LOCAL else master, config)
    if found is not None:
        return found
    given = _format_settings(config)
    java = prepare_environment()
    own = given.pop("spark.driver.extraJavaOptions", None)
    options = " ".join(filter(None, (_make_quiet_log_option(), class_archive.make_options(java), own)))
    settings = {**_make_local_settings(master), **given, "spark.master": master}
    if options:
        settings["spark.driver.extraJavaOptions"] = options
    return _build_session(app, settings)


def connect_session(url: str, *, app: str = "intarsia", config: Mapping[str, Any] | None = None) -> Session:
    """The active session; where there is none, a new one on a Spark Connect server.

    Needs no Java on this machine. Settings that a server takes only when it starts (memory, cores,
    ``spark.sql.extensions`` and other static ones) have no effect; a warning names them.

    Args:
        url: ``sc://host:port``.
        app: the name that Spark shows.
        config: Spark settings of the session.

    Raises:
        InputError: the URL is no ``sc://`` URL.
        NotSupported: pyspark is missing.
        StorageError: no server listens there.

    Example:
        >>> from intarsia.spark import connect_session
        >>> spark = connect_session("sc://spark.example.org:15002")  # doctest: +SKIP
    """
    if not url.startswith("sc://"):
        raise InputError(f"A Spark Connect server has a URL like sc://host:port, not {redact(url)!r}.")
    found = _find_active(url, config)
    if found is not None:
        return found
    _check_answers(url)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to set ")  # one by one, and not all of them
        session = _build_session(app, {**_format_settings(config), "spark.remote": url})
    if fixed := _find_differences(session, config):
        warnings.warn(
            f"On a Spark Connect server {fixed} cannot be set by a session: the server was started without.",
            UserWarning,
            stacklevel=2,
        )
    return session


def open_session(
    master: str | None = None, *, app: str = "intarsia", config: Mapping[str, Any] | None = None
) -> Session:
    """The active session; where there is none, one on ``master``.

    Without a master it is the one of ``SPARK_REMOTE`` in the environment, else a local session. Below
    spark-submit the master and the settings are those that it was given; only ``config`` is added.

    Args:
        master: ``local[*]``, ``spark://host:port``, ``yarn``, ``k8s://...`` or ``sc://host:port``.
        app: the name that Spark shows.
        config: Spark settings; they win over the defaults of a local session.

    Raises:
        InputError: ``master`` is none of these.
        NotSupported: pyspark or Java is missing, or the session did not start.
        StorageError: no Spark Connect server listens at ``master``.

    Example:
        >>> from intarsia.spark import open_session
        >>> open_session("local[2]").range(3).count()
        3
    """
    master = describe_master(master)
    match _classify_master(master):
        case "connect":
            return connect_session(master, app=app, config=config)
        case "cluster":
            return _open_cluster_session(master, app, config)
        case "local":
            return local_session(app, master=master, config=config)


def describe_master(master: str | None = None) -> str:
    """The master that a session is opened on: the one given, else the environment's, else this machine.

    Raises:
        InputError: it is no master.
    """
    chosen = master if master is not None else os.environ.get(_REMOTE) or _ANY_LOCAL
    _classify_master(chosen)
    return chosen


@contextmanager
def session_on(
    master: str | None = None, *, app: str = "intarsia", config: Mapping[str, Any] | None = None
) -> Iterator[Session]:
    """A context manager with a session, which is stopped at its end unless it was active before.

    Args:
        master: as of :func:`open_session`.
        app: the name that Spark shows.
        config: Spark settings, as of :func:`open_session`.

    Raises:
        InputError, NotSupported, StorageError: as :func:`open_session`.

    Example:
        >>> from intarsia.spark import session_on
        >>> with session_on("local[2]") as spark:
        ...     spark.range(3).count()
        3
    """
    before = active_session()
    session = open_session(master, app=app, config=config)
    try:
        yield session
    finally:
        if session is not before:
            stop_session(session)


def stop_session(session: Session) -> bool:
    """Stop a session that a function of this module has opened; any other is left running. Idempotent.

    Args:
        session: the session.

    Returns:
        Whether the session was stopped.

    Example:
        >>> from intarsia.spark import local_session, stop_session
        >>> stop_session(local_session())  # doctest: +SKIP
        True
    """
    if session not in _started:
        return False
    _started.discard(session)
    session.stop()
    if is_connect(session):
        os.environ.pop(_CONNECT_MODE, None)  # pyspark sets it for good; a local session may come next
    return True


def active_session() -> Session | None:
    """The session that is active in this thread, or the process' default one; None where there is none.

    Imports no pyspark, and opens no session.

    Example:
        >>> from intarsia.spark import active_session, local_session
        >>> spark = local_session()
        >>> active_session() is not None
        True
    """
    if sys.modules.get("pyspark.sql") is None:
        return None
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.active()
    except PySparkRuntimeError:
        return None
    return session if is_alive(session) else None


def use_this_python(session: Session) -> None:
    """Let the Python workers of a local session be of this process's Python, where none was chosen.

    Spark would take the ``python3`` of the search path, which in a notebook or a virtual environment that
    is not activated is another one, without our packages. Sessions that this module opens have it set.
    """
    if is_connect(session) or os.environ.get("PYSPARK_PYTHON"):
        return
    context = session.sparkContext
    if (context.master or "").startswith("local") and context.pythonExec == "python3":
        context.pythonExec = sys.executable


def _find_active(master: str | None, config: Mapping[str, Any] | None) -> Session | None:
    """The active session; logs a warning where its master or settings differ from those asked for."""
    session = active_session()
    if session is None:
        return None
    if other := _find_differences(session, config):
        log.warning("The active Spark session is used as it is: its settings %s are other ones.", other)
    if is_connect(session):
        return session
    there = session.sparkContext.master
    if master is not None and there != master:
        log.warning("The active Spark session on %s is used instead of one on %s.", there, redact(master))
    return session


def _find_differences(session: Session, config: Mapping[str, Any] | None) -> str:
    """Names of settings that a session has other values for; pyspark gives no error for them."""
    return ", ".join(
        name
        for name, value in _format_settings(config).items()
        if str(session.conf.get(name, None)).casefold() != value.casefold()
    )


def _open_cluster_session(master: str | None, app: str, config: Mapping[str, Any] | None) -> Session:
    found = _find_active(master, config)
    if found is not None:
        return found
    settings = _format_settings(config)
    # Machines of YARN and Kubernetes have a Python of their own; those of a standalone cluster are
    # taken to be laid out as this one.
    prepare_environment(workers_here=(master or "").startswith(("spark://", "local")))
    if master is not None and not is_under_spark_submit():
        settings["spark.master"] = master
    return _build_session(app, settings)


def _check_answers(url: str) -> None:
    """Raise StorageError where no server listens: pyspark would retry for ten minutes."""
    if any(os.environ.get(name) for name in _PROXIES):
        return  # a connection of ours would not go through the proxy
    place = urlsplit(url.partition("/;")[0])
    try:
        with socket.create_connection((place.hostname or "", place.port or _CONNECT_PORT), _ANSWER_SECONDS):
            return
    except (ConnectionRefusedError, socket.gaierror) as error:
        raise StorageError(
            f"No Spark Connect server listens at {place.hostname}:{place.port or _CONNECT_PORT}: {error}.",
            errno=error.errno,
            hint="check the address, and that the server was started.",
        ) from error
    except OSError as error:  # slow, or not to be reached right now: pyspark's own retries may help
        log.info("%s did not answer at once: %s", redact(url), error)


def _build_session(app: str, settings: Mapping[str, str]) -> Session:
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NotSupported(
            f"Spark needs pyspark, which cannot be imported: {error}.", hint="pip install 'intarsia[spark]'"
        ) from error
    try:
        with _without_remote(settings):
            builder = SparkSession.builder.appName(app)
            for name, value in settings.items():
                builder = builder.config(name, value)
            session = builder.getOrCreate()
    except KeyboardInterrupt as error:
        _end_launched(error)
        raise
    except ImportError as error:  # Connect has requirements of its own
        raise NotSupported(
            f"Spark Connect cannot be used here: {error}.", hint="pip install 'intarsia[spark]'"
        ) from error
    except PySparkException as error:
        raise NotSupported(
            f"The Spark session did not start: {redact(str(error))}",
            hint=_explain_packages(settings) or "intarsia doctor --start says what was found.",
        ) from error
    _started.add(session)
    return session


def _explain_packages(settings: Mapping[str, Any]) -> str:
    """A hint where the JVM had packages to fetch, without which it ends; else empty."""
    asked = settings.get("spark.jars.packages")
    if not asked:
        return ""
    return (
        f"Spark's output says whether it could fetch {redact(str(asked))} (spark.jars.packages); jars that"
        " are there already are named with spark.jars."
    )


def _end_launched(error: BaseException) -> None:
    """Kill the JVM that pyspark was waiting for when it was interrupted; it would never end by itself.

    pyspark keeps the process in a local variable only, so it is taken from the frame of the traceback.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        launched = frame.f_locals.get("proc")
        if frame.f_code.co_name == "launch_gateway" and isinstance(launched, subprocess.Popen):
            launched.kill()
            launched.wait()


@contextmanager
def _without_remote(settings: Mapping[str, str]) -> Iterator[None]:
    """Unset ``SPARK_REMOTE`` while a session is opened on a given master: pyspark refuses both."""
    remote = os.environ.get(_REMOTE)
    if remote is None or not settings.keys() & {"spark.master", "spark.remote"}:
        yield
        return
    del os.environ[_REMOTE]
    try:
        yield
    finally:
        os.environ[_REMOTE] = remote


def _classify_master(master: str) -> Literal["local", "cluster", "connect"]:
    if re.fullmatch(r"local(\[[\d*,\s]+\])?", master):
        return "local"
    if master.startswith("sc://"):
        return "connect"
    if master == "yarn" or master.startswith(("spark://", "k8s://", "local-cluster[")):
        return "cluster"
    raise InputError(f"Unknown Spark master {redact(master)!r}.", hint=f"it is one of {', '.join(MASTERS)}.")


def _make_local_settings(master: str) -> dict[str, str]:
    cores = re.search(r"\[\s*(\d+)", master)
    workers = int(cores[1]) if cores else (os.cpu_count() or 2) if "*" in master else 1
    daemon = {"spark.python.daemon.module": "intarsia.spark.daemon"} if _runs_installed() else {}
    return {
        **daemon,
        "spark.driver.memory": os.environ.get("SPARK_DRIVER_MEMORY") or "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.worker.reuse": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        # The default of 200 is for clusters: on a few cores, tasks cost more than the rows in them.
        "spark.sql.shuffle.partitions": str(max(4, 2 * workers)),
    }


def _runs_installed() -> bool:
    """Whether the Python of local workers is this one, and finds this package by itself."""
    if os.environ.get("PYSPARK_PYTHON") != sys.executable:
        return False
    try:
        distribution("intarsia")
    except PackageNotFoundError:
        return False
    return True


def _make_quiet_log_option() -> str:
    """The JVM option for a quiet log; Spark's log level is set too late for the first lines."""
    place = files("intarsia.spark").joinpath("log4j2.properties")
    path = str(place)
    if not os.path.isfile(path) or re.search(r"\s", path):  # zipped, or not to be passed as one word
        return ""
    return f"-Dlog4j2.configurationFile=file:{path}"


def _format_settings(config: Mapping[str, Any] | None) -> dict[str, str]:
    """Settings as Spark reads them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (config or {}).items()
    }


def is_connect(session: Session) -> bool:
    """Whether a session is one on a Spark Connect server."""
    return ".connect." in type(session).__module__


def is_alive(session: Session) -> bool:
    """Whether a session has not been stopped."""
    if is_connect(session):
        remote: Any = session  # pyspark types the classic session only
        return not remote.is_stopped
    # Stopping the context alone leaves the session in place. pyspark has no public way to ask for that:
    # SparkSession.active() and getOrCreate() look at the same attribute. Nothing is called through it.
    return getattr(session.sparkContext, "_jsc", None) is not None
