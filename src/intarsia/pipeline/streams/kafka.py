"""Topics of Kafka as streams: what their options must say, whether they are those of before, and failures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from intarsia.errors import EngineError, InputError, IntarsiaError
from intarsia.pipeline.model import Stream
from intarsia.spark.errors import list_spark_error_types, summarize_error, translate_error

__all__ = [
    "Offsets",
    "Records",
    "check_kafka",
    "find_other_topic",
    "is_kafka",
    "reach_topics",
    "read_last_records",
    "share_offsets",
    "translate_kafka_errors",
]

Offsets = Mapping[str, Mapping[str, int]]
"""By topic and partition, as Spark writes them: the offset after the last message that was taken."""
Records = Mapping[str, Mapping[str, Mapping[str, str]]]
"""By topic, partition and offset: digests of the last messages that were taken."""

SERVERS = "kafka.bootstrap.servers"
_CHOICES = ("subscribe", "subscribePattern", "assign")
_WAIT_SECONDS = 30
"""How long a broker is waited for before a run, where the options do not say."""
_API_TIMEOUT = "kafka.default.api.timeout.ms"
_OF_CLIENT = ("kafka.", "groupidprefix")
_TAIL = 8
"""How many offsets back a message is looked for: the marker of a transaction has one, and is no message."""
_DIGESTED = (
    "topic",
    "partition",
    "offset",
    """left(sha2(concat(
      encode(concat_ws(' ', unix_micros(timestamp), ifnull(length(key), -1), ifnull(length(value), -1)),
        'utf-8'),
      ifnull(key, X''),
      ifnull(value, X'')
    ), 256), 32) as digest""",
)
_FUTURE = str(2**62)
_UNTIL_NOW = {"endingTimestamp": _FUTURE}
"""No message is that late, so that Spark takes the end. It would not compare "latest" with the beginning."""
_NOTHING = {
    "startingTimestamp": _FUTURE,
    "startingOffsetsByTimestampStrategy": "latest",
    **_UNTIL_NOW,
}
"""From the end to the end: what Spark needs to know for it is asked, and nothing is read."""
_NO_TOPIC = "UnknownTopicOrPartitionException"
_TIMED_OUT = re.compile(r"org\.apache\.kafka\S*TimeoutException")
_AFTER_END = re.compile(
    r"start offset \d+ is greater than the resolved end offset \d+ for topic (\S+) partition"
)
_NO_STORE = re.compile(r"Failed to load SSL keystore (.+?) of type")
_NO_TLS = re.compile(r"SSL handshake failed|SslAuthenticationException")
_SECRET = re.compile(r"password|secret|jaas|token|credential|certificate|\.key$")
_EXPLAINED = 'correct the options that begin with "kafka.", such as kafka.security.protocol.'
_STORE_EXPLAINED = (
    "check that the file is there, and its password and type: kafka.ssl.truststore.* or .keystore.*."
)
_TLS_EXPLAINED = (
    "kafka.ssl.truststore.* must have the authority of the broker's certificate, kafka.ssl.keystore.* a"
    " certificate that the broker accepts where it asks for one."
)
_OTHER_PARTITIONS = re.compile(r"Specified: \w*Set\((.*?)\) Assigned: \w*Set\((.*?)\)")
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


# Which topics they are


def share_offsets(streams: Sequence[Stream], found: Sequence[Any]) -> tuple[Offsets, ...]:
    """The offsets of Spark's checkpoint, by stream; empty for what is not of Kafka, or of which is not known.

    Spark writes them in an order of its own, so that topics tell whose they are: those that two streams read,
    as of two clusters, are of neither.
    """
    shared: list[dict[str, dict[str, int]]] = [{} for _ in streams]
    for offsets in filter(_is_of_topics, found):
        owners = [at for at, stream in enumerate(streams) if is_kafka(stream) and _may_read(stream, offsets)]
        if len(owners) == 1:
            for topic, partitions in offsets.items():
                shared[owners[0]].setdefault(topic, {}).update(partitions)
    return tuple(shared)


def _is_of_topics(offsets: Any) -> bool:
    return isinstance(offsets, dict) and all(isinstance(one, dict) for one in offsets.values())


def _may_read(stream: Stream, topics: Iterable[str]) -> bool:
    names = _list_names(stream)
    if names is not None:
        return set(topics) <= set(names)
    try:
        pattern = re.compile(_fold_options(stream)["subscribepattern"].strip())
    except re.error:  # Java's patterns are not quite those of Python
        return True
    return all(map(pattern.search, topics))


def _list_names(stream: Stream) -> list[str] | None:
    """The topics that a stream names; None where it has a pattern."""
    options = _fold_options(stream)
    if "subscribe" in options:
        return [name.strip() for name in options["subscribe"].split(",") if name.strip()]
    return _read_assigned(options["assign"]) if "assign" in options else None


def reach_topics(stream: Stream, session: Any) -> None:
    """Ask Kafka whether the topics of a stream are there, by Spark's reader, which then reads nothing.

    So it is the same on Spark Connect. Brokers are waited for no longer than
    ``kafka.default.api.timeout.ms``, or 30 seconds.

    Raises:
        InputError: a topic is not there, or Kafka does not accept the options.
        EngineError: no broker answers.
    """

    def ask(choice: Mapping[str, str]) -> list[Any]:
        _make_frame(stream, session, {**_NOTHING, **choice}).count()
        return []

    names = _list_names(stream)
    with _translate_answers(stream):
        if names is None:
            ask({"subscribePattern": _fold_options(stream)["subscribepattern"]})
        else:
            _ask_topics(stream, names, lambda part: ask({"subscribe": ",".join(part)}))


def find_other_topic(stream: Stream, session: Any, offsets: Offsets, known: Records) -> str:
    """A topic that is not the one whose messages were taken; empty for none.

    A topic is known by its last messages: it is another one where there are others at their offsets, where it
    ends before what was taken, or where a partition is gone. Of messages that retention or compaction has
    removed nothing is known. Waits and raises as :func:`reach_topics` does.
    """
    with _translate_answers(stream):
        try:
            found = _ask_topics(
                stream, list(offsets), lambda part: _read_again(stream, session, part, offsets, known)
            )
        except list_spark_error_types() as error:
            other = _find_shorter(str(error))
            if not other:
                raise
            return other
    there = {(row.topic, str(row.partition), str(row.offset)): row.digest for row in found}
    for topic, partitions in known.items():
        for number, records in partitions.items():
            if any(
                there.get((topic, number, offset), digest) != digest for offset, digest in records.items()
            ):
                return topic
    return ""


def read_last_records(stream: Stream, session: Any, offsets: Offsets) -> Records:
    """The digests of the last messages before some offsets; a few of each partition are read.

    Raises as :func:`find_other_topic` does.
    """
    start = {
        topic: {at: max(0, one - _TAIL) for at, one in parts.items()} for topic, parts in offsets.items()
    }
    with _translate_answers(stream):
        rows = _read_range(stream, session, start, offsets).collect()
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in sorted(rows):
        found.setdefault(row.topic, {}).setdefault(str(row.partition), {})[str(row.offset)] = row.digest
    return found


def _ask_topics(stream: Stream, topics: list[str], ask: Callable[[list[str]], list[Any]]) -> list[Any]:
    """What Kafka answers about topics. Kafka does not say which is missing, so halves are asked then.

    One that a pattern has found may be gone: what that means is Spark's to say, by failOnDataLoss.
    """
    try:
        return ask(topics)
    except list_spark_error_types() as error:
        if _NO_TOPIC not in str(error):
            raise
        if len(topics) == 1 and _list_names(stream) is None:
            return []
        if len(topics) == 1:
            raise InputError(
                f"there is no topic {topics[0]!r}.", hint="make it, or correct the name; or it was deleted."
            ) from error
    half = len(topics) // 2
    return [*_ask_topics(stream, topics[:half], ask), *_ask_topics(stream, topics[half:], ask)]


def _read_again(
    stream: Stream, session: Any, topics: list[str], offsets: Offsets, known: Records
) -> list[Any]:
    """The messages at known offsets of topics.

    Spark refuses to begin after a topic's end, and looks at that before it reads anything; else the range of
    known offsets might reach beyond the end, and Spark wait for messages there.
    """
    taken = {topic: offsets[topic] for topic in topics}
    limits = {"startingOffsets": json.dumps(taken), **_UNTIL_NOW}
    ends = _make_frame(stream, session, _choose_partitions(taken) | limits).limit(1).selectExpr(*_DIGESTED)
    spans = {
        topic: {at: _find_span(known.get(topic, {}).get(at, {}), offset) for at, offset in parts.items()}
        for topic, parts in taken.items()
    }
    start = {topic: {at: span[0] for at, span in parts.items()} for topic, parts in spans.items()}
    until = {topic: {at: span[1] for at, span in parts.items()} for topic, parts in spans.items()}
    rows: list[Any] = _read_range(stream, session, start, until).union(ends).collect()
    return rows


def _find_span(records: Mapping[str, str], otherwise: int) -> tuple[int, int]:
    """The offsets of known messages; nothing at an offset where there are none."""
    numbers = [int(offset) for offset in records]
    return (min(numbers), max(numbers) + 1) if numbers else (otherwise, otherwise)


def _read_range(stream: Stream, session: Any, start: Offsets, until: Offsets) -> Any:
    """The messages from some offsets until others, each as a digest."""
    limits = {"startingOffsets": json.dumps(start), "endingOffsets": json.dumps(until)}
    return _make_frame(stream, session, _choose_partitions(start) | limits).selectExpr(*_DIGESTED)


def _choose_partitions(offsets: Offsets) -> dict[str, str]:
    return {"assign": json.dumps({topic: sorted(map(int, parts)) for topic, parts in offsets.items()})}


def _make_frame(stream: Stream, session: Any, choice: Mapping[str, str]) -> Any:
    """A batch of messages, with the stream's options for the client of Kafka."""
    given = {
        name: str(value) for name, value in stream.options.items() if name.lower().startswith(_OF_CLIENT)
    }
    folded = {name.lower(): value for name, value in given.items()}
    wait = str(_WAIT_SECONDS * 1000)
    if _API_TIMEOUT not in folded:  # Kafka refuses one that is shorter than that of a request
        given[_API_TIMEOUT] = max(wait, folded.get("kafka.request.timeout.ms", wait), key=_read_number)
    own = {"failOnDataLoss": "false", "fetchOffset.numRetries": "1"}
    own["kafkaConsumer.pollTimeoutMs"] = wait
    return session.read.format("kafka").options(**given, **own, **choice).load()


def _read_number(text: str) -> int:
    return int(text) if text.strip().isdecimal() else 0  # Kafka says what is wrong with it


def _find_shorter(said: str) -> str:
    """The topic that ends before what was taken of it, or lacks a partition, of a refusal of Spark."""
    ended = _AFTER_END.search(said)
    if ended is not None:
        return ended[1]
    lacking = _OTHER_PARTITIONS.search(said)
    if lacking is None:
        return ""
    asked, there = (set(part.split(", ")) for part in lacking.groups())
    return min(asked - there, default="").rpartition("-")[0]


@contextmanager
def _translate_answers(stream: Stream) -> Iterator[None]:
    try:
        yield
    except IntarsiaError:
        raise
    except list_spark_error_types() as error:
        if "kafka" not in str(error).lower():  # the session has failed
            raise translate_error(error) from error
        where = f" at {_fold_options(stream)[SERVERS]}"
        if _TIMED_OUT.search(str(error)):
            raise _make_unreachable(where, error) from error
        said, hint = _hide_values(stream, summarize_error(error)), _EXPLAINED
        store = _NO_STORE.search(str(error))
        if store is not None:
            said, hint = f"the store {store[1]} cannot be opened: {said}", _STORE_EXPLAINED
        elif _NO_TLS.search(str(error)):
            said, hint = f"TLS with it failed: {said}", _TLS_EXPLAINED
        raise InputError(f"Kafka{where} cannot be read: {said}", hint=hint) from error


def _hide_values(stream: Stream, said: str) -> str:
    """A text without the values of options that are secret, though Kafka does not write them itself."""
    secrets = [value for name, value in _fold_options(stream).items() if _SECRET.search(name)]
    secrets += [part for value in secrets for part in re.findall(r'"([^"]+)"', value)]
    for value in sorted(secrets, key=len, reverse=True):
        said = said.replace(value, "***") if len(value) > 3 else said
    return said


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
        if _NO_TOPIC in said:
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
