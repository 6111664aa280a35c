"""Topics of Kafka as streams: what their options must say, which topics they are, and their failures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from intarsia.errors import EngineError, InputError, IntarsiaError
from intarsia.pipeline.model import Stream
from intarsia.spark.errors import list_spark_error_types, summarize_error
from intarsia.spark.session import is_connect

__all__ = ["check_kafka", "find_topics", "is_kafka", "translate_kafka_errors"]

SERVERS = "kafka.bootstrap.servers"
_CHOICES = ("subscribe", "subscribePattern", "assign")
_WAIT_SECONDS = 30
"""How long a broker is waited for before a run, where the options do not say."""
_FROM_JSON = "read it in a query: from_json(cast(value as string), 'id bigint, ...')."
_LOST = ("may have been lost because they are not available in Kafka", "KAFKA_DATA_LOSS")
_REASON = re.compile(r"^Reason: (.*?)\.?(?: SQLSTATE.*)?$", re.MULTILINE)


def is_kafka(stream: Stream) -> bool:
    return stream.format.lower() == "kafka"


def _fold_options(stream: Stream) -> dict[str, str]:
    """The options by their names in lower case, as Spark compares them."""
    return {name.lower(): str(value) for name, value in stream.options.items()}


def check_kafka(stream: Stream) -> None:
    """Refuse a stream of Kafka that names no broker or no topic, or that is declared as files are.

    Raises:
        InputError: what is missing, or does not go with Kafka. Values of options are not in it.
    """
    options = _fold_options(stream)
    if stream.path is not None:
        raise InputError(
            "messages of Kafka have no path.", hint='name the topic: options = { subscribe = "..." }.'
        )
    if stream.schema is not None:
        raise InputError(
            "messages of Kafka have the columns key, value, topic, partition, offset, timestamp and"
            " timestampType, and take no schema.",
            hint=f"the value is bytes; {_FROM_JSON}",
        )
    if not options.get(SERVERS):
        raise InputError(
            f"options: there is no {SERVERS!r}.",
            hint=f'name the brokers: options = {{ "{SERVERS}" = "host:9092" }}.',
        )
    given = [name for name in _CHOICES if options.get(name.lower())]
    if len(given) != 1:
        told = f"{' and '.join(given)} are given" if given else f"there is none of {', '.join(_CHOICES)}"
        raise InputError(f"options: {told}.", hint='give one of them: options = { subscribe = "topic" }.')
    if given == ["assign"]:
        _read_assigned(options["assign"])


def _read_assigned(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"options.assign is no JSON: {error}.", hint='write {"topic": [0, 1]}.') from error
    if not isinstance(found, Mapping) or not found:
        raise InputError("options.assign names no topic.", hint='write {"topic": [0, 1]}.')
    return list(found)


def find_topics(stream: Stream, session: Any) -> dict[str, str]:
    """The ids of the topics that a stream reads, by name: one that is deleted and made again has another id.

    Kafka is asked by the client that Spark's package brings, in the driver's JVM, and waited for no longer
    than ``kafka.default.api.timeout.ms``, or 30 seconds. Under Spark Connect, which has no JVM here, nothing
    is known: the result is empty.

    Raises:
        InputError: a topic is not there, or Kafka does not accept the options.
        EngineError: no broker answers.
    """
    if is_connect(session):
        return {}
    options, jvm = _fold_options(stream), session._jvm
    settings = jvm.java.util.Properties()
    for name, value in stream.options.items():
        if name.lower().startswith("kafka."):
            settings.put(name[len("kafka.") :], str(value))
    if "kafka.request.timeout.ms" not in options:  # Kafka refuses one that is longer than the other
        settings.putIfAbsent("default.api.timeout.ms", str(_WAIT_SECONDS * 1000))
    with _translate_client_errors(stream):
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(settings)
        try:
            return _describe_topics(admin, _list_names(admin, options, jvm), jvm)
        finally:
            admin.close(jvm.java.time.Duration.ZERO)


def _list_names(admin: Any, options: Mapping[str, str], jvm: Any) -> list[str]:
    if "subscribe" in options:
        return [name.strip() for name in options["subscribe"].split(",") if name.strip()]
    if "assign" in options:
        return _read_assigned(options["assign"])
    pattern = options["subscribepattern"]
    names = list(admin.listTopics().names().get())
    return sorted(name for name in names if jvm.java.util.regex.Pattern.matches(pattern, name))


def _describe_topics(admin: Any, names: list[str], jvm: Any) -> dict[str, str]:
    asked = jvm.java.util.ArrayList()
    for name in names:
        asked.add(name)
    answers = admin.describeTopics(asked).topicNameValues()
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = answers[name].get().topicId().toString()
        except list_spark_error_types() as error:
            if "UnknownTopicOrPartitionException" not in str(error):
                raise
            raise InputError(
                f"there is no topic {name!r}.", hint="make it, or correct the name; or it was deleted."
            ) from error
    return found


@contextmanager
def _translate_client_errors(stream: Stream) -> Iterator[None]:
    try:
        yield
    except IntarsiaError:
        raise
    except list_spark_error_types() as error:
        where = _fold_options(stream)[SERVERS]
        if "errors.TimeoutException" in str(error):
            raise _make_unreachable(f" at {where}", error) from error
        raise InputError(
            f"Kafka at {where} cannot be read: {summarize_error(error)}",
            hint='correct the options that begin with "kafka.", such as kafka.security.protocol.',
        ) from error


def _make_unreachable(where: str, error: BaseException) -> EngineError:
    return EngineError(
        f"no broker of Kafka answered{where}: {summarize_error(error)}",
        hint=f"check {SERVERS}, that a broker runs there, the address that it advertises, and"
        " kafka.security.protocol; kafka.default.api.timeout.ms (and kafka.request.timeout.ms, which is not"
        " longer) is how long it is waited for.",
    )


@contextmanager
def translate_kafka_errors() -> Iterator[None]:
    """Translate what Kafka says while a query runs; other errors of Spark are raised as they are.

    Raises:
        InputError: messages that no batch has taken are gone, or a topic is.
        EngineError: no broker answers any more.
    """
    try:
        yield
    except list_spark_error_types() as error:
        said = str(error)
        if any(sign in said for sign in _LOST):
            raise _explain_loss(said) from error
        if "UnknownTopicOrPartitionException" in said:
            raise InputError(
                "a topic that it reads is not there.", hint="make it, or correct the name; or it was deleted."
            ) from error
        if "org.apache.kafka" in said and "TimeoutException" in said:
            raise _make_unreachable("", error) from error
        raise


def _explain_loss(said: str) -> InputError:
    found = _REASON.search(said)
    reason = f" ({found[1]})" if found is not None else ""
    return InputError(
        f"messages that no batch has taken are gone from Kafka{reason}: the topic's retention removed them,"
        " or the topic was deleted and made again.",
        hint="a merge with --full-refresh takes what is there now, and keeps the rows that the target has;"
        " options = { failOnDataLoss = false } goes on without what is gone, in this run and all later ones.",
    )
