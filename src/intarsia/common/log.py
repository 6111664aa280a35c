"""Loggers that never show credentials, and what to log around operations and clean-ups."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType

from intarsia.errors import IntarsiaError

__all__ = ["cleanup", "get_logger", "operation_log", "redact"]

_ROOT = "intarsia"
_GONE = "***"
_KEY = rf"\1{_GONE}"

_SECRET_NAME = (
    r"(?:[\w.\-]*(?:secret|token|passw(?:or)?d|pwd|credentials?|signature|"
    r"access[_\-]?key(?:[_\-]?id)?|account[_\-]?key|api[_\-]?key|private[_\-]?key)|"
    r"AWS[\w\-]*|X-Amz-[\w\-]+|sig|key)"
)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # scheme://user:password@host; the host stays, it says where.
    (re.compile(r"(://)[^/\s@'\"]+@"), rf"\1{_GONE}@"),
    # A secret with an unescaped slash in it; but not a port and a path.
    (re.compile(r"(://)[^/\s@'\":]+:(?!\d+(?:/|$))[^\s@'\"]*@"), rf"\1{_GONE}@"),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), _GONE),
    (
        re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S),
        _KEY,
    ),
    # Kafka's login: a class, a flag and options, of which any may be secret; to the semicolon that ends it.
    (
        re.compile(
            r"(?i)(jaas[\w.\-]*config\\?['\"]?\s*[=:]\s*+)(?!\*\*\*)(?:'[^']*'|\"(?:[^\"\\]|\\.)*\"|[^;\n]+;?)"
        ),
        rf"\1{_GONE}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=\-]{8,}"), rf"\1 {_GONE}"),
    # name=value, "name": "value" and ?name=value; not /name=value/, which is a partition directory.
    (
        re.compile(
            rf"(?i)(?<![\w/.\-])(['\"]?{_SECRET_NAME}['\"]?\s*[=:]\s*)"
            r"(?:\\?'[^']*'|\\?\"[^\"]*\"|[^\s&,;'\"})\]]+)"
        ),
        rf"\1{_GONE}",
    ),
)


_REFUSALS = (
    *("ACCESS_DENIED", "AccessDenied", "INVALID_ACCESS_KEY_ID", "InvalidAccessKeyId"),
    *("SIGNATURE_DOES_NOT_MATCH", "SignatureDoesNotMatch", "EXPIRED_TOKEN", "ExpiredToken"),
    *("INVALID_CLIENT_TOKEN", "NoCredentialsError", "Unable to locate credentials", "CredentialUnavailable"),
    *("AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch"),
    *("PERMISSION_DENIED", "UNAUTHENTICATED", "DefaultCredentialsError"),
)
"""In what clients of stores say where credentials are missing, wrong or expired, or allow too little."""


def redact(text: str) -> str:
    """The text without user info in URLs, and without the values of keys, secrets, tokens and signatures.

    Idempotent. Made for logs and error messages: it would rather remove too much than too little.

    >>> redact("s3://me:pw@host/bucket?token=abc")
    's3://***@host/bucket?token=***'
    """
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


class _Redacting(logging.Filter):
    """Redacts the message, its arguments, the traceback and the error itself before any handler sees them.

    The error too, because a formatter that writes JSON (such as PySpark's) takes its text from there.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            record.msg, record.args = redact(record.getMessage()), ()
        except (TypeError, ValueError, KeyError):  # arguments that do not fit are the handler's to report
            record.msg, record.args = redact(str(record.msg)), (redact(repr(record.args)),)
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
            if not record.exc_text:
                # A formatter takes this text instead of formatting the traceback again.
                record.exc_text = redact(logging.Formatter().formatException(record.exc_info))
            error = record.exc_info[1]
            if any(_has_secret(one) for one in _iterate_chain(error)):
                stand_in = _make_redacted_error(error, {})
                record.exc_info = (type(stand_in), stand_in, stand_in.__traceback__)
        return True


def _iterate_chain(error: BaseException) -> Iterator[BaseException]:
    """An error, its causes, and the members of an error group; each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inside = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        waiting += [other for other in (one.__cause__, one.__context__, *inside) if other is not None]


def _has_secret(error: BaseException) -> bool:
    texts = (str(error), repr(error), repr(error.args), *getattr(error, "__notes__", ()))
    return any(redact(text) != text for text in texts)


def _make_redacted_error(error: BaseException, made: dict[int, Exception]) -> Exception:
    """An error of the same name, traceback and causes with redacted text and no other attributes."""
    if id(error) in made:
        return made[id(error)]
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    found: Exception = type(kind.__name__, (Exception,), names)(redact(str(error)))
    made[id(error)] = found
    found.__traceback__ = error.__traceback__
    if error.__cause__ is not None:
        found.__cause__ = _make_redacted_error(error.__cause__, made)
    if error.__context__ is not None:
        found.__context__ = _make_redacted_error(error.__context__, made)
    found.__suppress_context__ = error.__suppress_context__
    for note in getattr(error, "__notes__", ()):
        found.add_note(redact(note))
    return found


_REDACTING = _Redacting()


def get_logger(name: str) -> logging.Logger:
    """The logger of a module, below "intarsia", redacting. Idempotent.

    It has no handler of its own: what is shown where is up to the application.
    """
    below = name == _ROOT or name.startswith(f"{_ROOT}.")
    found = logging.getLogger(name if below else f"{_ROOT}.{name}")
    # A filter of a parent does not see what its children log, so each logger has it.
    if _REDACTING not in found.filters:
        found.addFilter(_REDACTING)
    return found


get_logger(_ROOT).addHandler(logging.NullHandler())


def is_store_error(error: BaseException) -> bool:
    """Whether the client of a store raised an error of its own kind, which need not be an OSError."""
    root = type(error).__module__.partition(".")[0]
    return isinstance(error, Exception) and root not in ("builtins", "intarsia", "pyarrow")


def is_refused_access(text: str) -> bool:
    """Whether a store's message says that credentials are missing, wrong or expired, or allow too little.

    PyArrow raises such errors without a number.
    """
    return any(sign in text for sign in _REFUSALS)


class operation_log:
    """Add the operation and the path to an error that leaves the block, and let it propagate.

    One raised on purpose (:class:`IntarsiaError`) names them itself and is not logged; any other is logged
    with them, unchanged.
    """

    __slots__ = ("_logger", "_operation", "_path")

    def __init__(self, logger: logging.Logger, operation: str, path: object) -> None:
        self._logger, self._operation, self._path = logger, operation, path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Ctrl-C and a closed generator are no errors of the operation.
        if isinstance(error, IntarsiaError):
            error.place(self._operation, redact(str(self._path)))
        elif isinstance(error, Exception):
            self._logger.error(
                "%s failed unexpectedly at %s: %s: %s",
                self._operation,
                self._path,
                type(error).__name__,
                error,
                exc_info=error,
            )


def cleanup(logger: logging.Logger, *actions: tuple[str, Callable[[], object]]) -> int:
    """Run every action, one after the other, whatever happens to the others; how many failed.

    An OSError is logged with the action's label and forgotten. Any other error is a mistake in the
    program: it is raised, after all the actions were run.
    """
    failed: list[str] = []

    def attempt(label: str, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            failed.append(label)
            logger.warning("could not clean up %s: %s: %s", label, type(error).__name__, error)

    with ExitStack() as stack:
        for label, action in reversed(actions):
            stack.callback(attempt, label, action)
    return len(failed)
