import json
import logging
import traceback

import pyarrow as pa
import pytest

from intarsia.common.log import cleanup, get_logger, operation_log, redact
from intarsia.datasets.pyarrow import merge_parquet_dataset_pyarrow
from intarsia.errors import InputError


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("s3://AKIAABCDEFGHIJKLMNOP:hunter2secret@minio:9000/b", "hunter2secret"),
        ("s3://me:hunter2/secret@bucket/lake", "hunter2/secret"),
        ("https://x.blob/c/f.parquet?sv=1&sig=hunter2%2Fsecret&se=2", "hunter2"),
        ("opening https://h/p?token=hunter2", "hunter2"),
        ("{'key': 'hunter2', 'secret': 'hunter2'}", "hunter2"),
        ("S3FileSystem(key=hunter2, secret=hunter2)", "hunter2"),
        ("AWS_SECRET_ACCESS_KEY=hunter2", "hunter2"),
        ("aws_session_token = 'hunter2 with blanks'", "hunter2"),
        ("AccountKey=hunter2==;EndpointSuffix=x", "hunter2"),
        ("Authorization: Bearer hunter2.hunter2", "hunter2"),
        ("?X-Amz-Signature=hunter2&X-Amz-Credential=hunter2", "hunter2"),
        ("client id AKIAABCDEFGHIJKLMNOP refused", "AKIAABCDEFGHIJKLMNOP"),
        ('{"secret_access_key": "hunter2"}', "hunter2"),
        ("password: hunter2", "hunter2"),
        (r"login \"u\" password=\"hunter2\"; more", "hunter2"),
        ('kafka.sasl.jaas.config=org.X required username="u" password="hunter2";', "hunter2"),
        (r'{"kafka.sasl.jaas.config": "org.X required pin=\"hunter2\";", "a": 1}', "hunter2"),
        ("{'sasl.jaas.config': 'org.X required pin=hunter2;'}", "hunter2"),
        ("ssl.keystore.key=-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----", "hunter2"),
        ("-----BEGIN RSA PRIVATE KEY-----\nhunter2", "hunter2"),
    ],
)
def test_credentials_are_redacted(text, secret):
    assert secret not in redact(text)
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "Key column 'id' holds 3 NULLs in /data/day=2025-11-04/part-0.parquet",
        "key_columns=['id', 'day']",
        "s3://bucket/lake/key=5/part-0.parquet",
        "http://host:9000/user@home/part-0.parquet",
        "/data/token=a/part-0.parquet",
        "upsert at s3://bucket/orders: 1 column does not fit: 'a' is int8",
        "monkey=3",
    ],
)
def test_what_is_no_credential_stays(text):
    assert redact(text) == text


def test_the_host_of_a_url_stays_visible():
    assert redact("s3://me:pw@minio:9000/b") == "s3://***@minio:9000/b"


def test_loggers_live_below_the_name_of_the_library():
    assert get_logger("intarsia.core.run").name == "intarsia.core.run"
    assert get_logger("x").name == "intarsia.x"
    assert get_logger("intarsiafoo").name == "intarsia.intarsiafoo"
    assert len(get_logger("intarsia.twice").filters) == len(get_logger("intarsia.twice").filters) == 1


def test_messages_arguments_and_tracebacks_are_redacted(caplog):
    log = get_logger("intarsia.test_redaction")
    try:
        raise ValueError("cannot open s3://u:hunter2@h/b")
    except ValueError:
        log.exception("failed with token=%s at %s", "hunter2", "s3://u:hunter2@h/b")
    assert "hunter2" not in caplog.text
    assert "cannot open s3://***@h/b" in caplog.text
    assert "token=***" in caplog.messages[0]


class AsJson(logging.Formatter):
    """Takes the text of the error from the error, as PySpark's formatter does."""

    def format(self, record):
        _, error, _ = record.exc_info
        return json.dumps({"msg": record.getMessage(), "class": type(error).__name__, "error": str(error)})


class ByItself(logging.Formatter):
    """Formats the traceback on its own, with all causes, as Sentry and structlog do."""

    def format(self, record):
        kind, error, trace = record.exc_info
        lines = traceback.format_exception(kind, error, trace)
        return f"{record.getMessage()} {''.join(lines)} {error!r} {error.args!r} {vars(error)!r}"


class Everything(logging.Formatter):
    def format(self, record):
        return f"{super().format(record)} {vars(record)!r}"


class Foreign(Exception):
    """Of a client that keeps the address it was given."""

    def __init__(self, url):
        super().__init__(f"no answer from {url}")
        self.url = url
        self.add_note(f"asked with token={url}")


@pytest.mark.parametrize("formatter", [AsJson, ByItself, Everything, logging.Formatter])
@pytest.mark.parametrize("grouped", [False, True])
def test_no_formatter_of_the_host_program_sees_a_secret(caplog, monkeypatch, formatter, grouped):
    monkeypatch.setattr(caplog.handler, "formatter", formatter())
    secret = "2retnuh"[::-1]  # which a line of this file, shown in a traceback, does not hold
    try:
        try:
            raise Foreign(f"https://u:{secret}@h/b")
        except Foreign as cause:
            error = RuntimeError(f"secret={secret}")
            raise (ExceptionGroup(f"password={secret}", [error]) if grouped else error) from cause
    except (RuntimeError, ExceptionGroup) as caught:
        get_logger("intarsia.test_formatters").error("failed", exc_info=caught, stack_info=True)
        raised = repr(caught)
    assert "hunter2" in raised, "what is raised stays as it is"
    assert "hunter2" not in caplog.text
    assert "failed" in caplog.text
    assert ("ExceptionGroup" if grouped else "RuntimeError") in caplog.text


def test_an_error_without_a_secret_is_handed_to_the_handlers_as_it_is(caplog):
    error = Foreign("h")
    error.__notes__ = []
    get_logger("intarsia.test_formatters").error("failed", exc_info=error)
    assert caplog.records[0].exc_info[1] is error


def test_a_logger_of_pyspark_that_keeps_to_itself_changes_nothing(caplog, monkeypatch):
    """pytest and others add their handlers to it, and it gives them its own formatter."""
    pyspark_logger = pytest.importorskip("pyspark.logger").PySparkLogger
    own = pyspark_logger("intarsia.test_pyspark")
    monkeypatch.setattr(caplog.handler, "formatter", caplog.handler.formatter)
    own.addHandler(caplog.handler)
    with pytest.raises(RuntimeError), operation_log(get_logger("intarsia.t"), "merge", "s3://u:hunter2@h/b"):
        raise RuntimeError("token=hunter2")
    assert json.loads(caplog.text)["exception"]["msg"] == "token=***"
    assert "hunter2" not in caplog.text


def test_a_message_whose_arguments_do_not_fit_shows_no_secret_either(monkeypatch):
    records = []
    log = get_logger("intarsia.test_misfit")
    monkeypatch.setattr(log, "propagate", False)
    seen = logging.Handler()
    monkeypatch.setattr(seen, "emit", records.append)
    monkeypatch.setattr(log, "handlers", [seen])
    log.error("%d rows at %s", "token=hunter2", "s3://u:hunter2@h/b")
    log.error("%(n)d rows at %(path)s", {"n": "token=hunter2"})
    assert len(records) == 2
    assert "hunter2" not in repr([vars(record) for record in records])


def test_a_message_whose_arguments_do_not_fit_does_not_raise_in_the_caller(monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    get_logger("intarsia.test_misfit").error("%d rows", "many")


def test_unexpected_errors_are_logged_with_operation_and_path_and_raised_unchanged(caplog):
    error = RuntimeError("boom")
    with (
        pytest.raises(RuntimeError) as caught,
        operation_log(get_logger("intarsia.t"), "merge", "/data/orders"),
    ):
        raise error
    assert caught.value is error
    assert "merge" in caplog.messages[0]
    assert "/data/orders" in caplog.messages[0]
    assert "RuntimeError: boom" in caplog.text


def test_an_unexpected_error_of_a_merge_with_plain_counts_is_logged_once(tmp_path, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise RuntimeError("boom")

    monkeypatch.setattr("intarsia.request.run", fail)
    with pytest.raises(RuntimeError, match="boom"):
        merge_parquet_dataset_pyarrow(pa.table({"id": [1]}), tmp_path / "orders", "id")
    assert len(caplog.records) == 1
    assert "orders" in caplog.messages[0]


def test_errors_raised_on_purpose_and_success_are_not_logged(caplog):
    with pytest.raises(InputError), operation_log(get_logger("intarsia.t"), "merge", "/data"):
        raise InputError("no such strategy")
    with pytest.raises(KeyboardInterrupt), operation_log(get_logger("intarsia.t"), "merge", "/data"):
        raise KeyboardInterrupt
    with operation_log(get_logger("intarsia.t"), "merge", "/data"):
        pass
    assert caplog.records == []


def test_cleanup_goes_on_after_a_failure_and_logs_each(caplog, tmp_path):
    there = tmp_path / "there"
    there.touch()
    missing = tmp_path / "missing"
    failed = cleanup(
        get_logger("intarsia.t"),
        ("the first file", missing.unlink),
        ("the second file", there.unlink),
        ("the third file", missing.unlink),
    )
    assert failed == 2
    assert not there.exists()
    assert [("first" in m, "third" in m) for m in caplog.messages] == [(True, False), (False, True)]


def test_cleanup_runs_everything_before_it_raises_a_mistake():
    done = []
    with pytest.raises(ZeroDivisionError):
        cleanup(get_logger("intarsia.t"), ("a", lambda: 1 / 0), ("b", lambda: done.append("b")))
    assert done == ["b"]


def test_cleanup_of_nothing_is_fine():
    assert cleanup(get_logger("intarsia.t")) == 0
