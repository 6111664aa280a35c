import logging

import pyarrow as pa
import pytest

from intarsia.common.log import cleanup, logger, operation_log, redact
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
    assert logger("intarsia.core.run").name == "intarsia.core.run"
    assert logger("x").name == "intarsia.x"
    assert logger("intarsiafoo").name == "intarsia.intarsiafoo"
    assert len(logger("intarsia.twice").filters) == len(logger("intarsia.twice").filters) == 1


def test_messages_arguments_and_tracebacks_are_redacted(caplog):
    log = logger("intarsia.test_redaction")
    try:
        raise ValueError("cannot open s3://u:hunter2@h/b")
    except ValueError:
        log.exception("failed with token=%s at %s", "hunter2", "s3://u:hunter2@h/b")
    assert "hunter2" not in caplog.text
    assert "cannot open s3://***@h/b" in caplog.text
    assert "token=***" in caplog.messages[0]


def test_a_message_whose_arguments_do_not_fit_does_not_raise_in_the_caller(monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger("intarsia.test_misfit").error("%d rows", "many")


def test_unexpected_errors_are_logged_with_operation_and_path_and_raised_unchanged(caplog):
    error = RuntimeError("boom")
    with pytest.raises(RuntimeError) as caught, operation_log(logger("intarsia.t"), "merge", "/data/orders"):
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
    with pytest.raises(InputError), operation_log(logger("intarsia.t"), "merge", "/data"):
        raise InputError("no such strategy")
    with pytest.raises(KeyboardInterrupt), operation_log(logger("intarsia.t"), "merge", "/data"):
        raise KeyboardInterrupt
    with operation_log(logger("intarsia.t"), "merge", "/data"):
        pass
    assert caplog.records == []


def test_cleanup_goes_on_after_a_failure_and_logs_each(caplog, tmp_path):
    there = tmp_path / "there"
    there.touch()
    missing = tmp_path / "missing"
    failed = cleanup(
        logger("intarsia.t"),
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
        cleanup(logger("intarsia.t"), ("a", lambda: 1 / 0), ("b", lambda: done.append("b")))
    assert done == ["b"]


def test_cleanup_of_nothing_is_fine():
    assert cleanup(logger("intarsia.t")) == 0
