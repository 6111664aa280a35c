"""Streams read by Spark: their schema and options, and Spark's refusals with the place in the file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from intarsia.errors import EngineError, InputError, NotSupported
from intarsia.pipeline.inputs import make_text_options
from intarsia.pipeline.model import Source, Stream
from intarsia.pipeline.row_transform import parse_type_name
from intarsia.pipeline.streams.kafka import is_kafka
from intarsia.spark.errors import find_known_failure, list_spark_error_types, summarize_error

__all__ = ["add_place", "get_local_path", "read_stream", "require_stream", "translate_refusal"]

_FROM_THE_START = {"startingOffsets": "earliest"}
"""Of Kafka: else Spark leaves out what is there when a query is first started."""


def require_stream(source: Source) -> Stream:
    assert source.stream is not None
    return source.stream


def get_local_path(stream: Stream) -> str | None:
    """The path of a stream of files on this machine; None for any other."""
    if not stream.path or not stream.reads_files:
        return None
    plain = stream.path.removeprefix("file://")
    return None if "://" in plain else plain


def read_stream(source: Source, place: str, session: Any) -> Any:
    """The rows of a stream as a streaming DataFrame, as Spark gives them.

    Raises:
        InputError: Spark refuses it; with the place.
        NotSupported: a package of Spark is missing.
    """
    stream = require_stream(source)
    with add_place(f"{place} stream"), translate_refusal():
        reader = session.readStream.format(stream.format)
        schema = _make_schema(source)
        if schema is not None:
            reader = reader.schema(schema)
        given = {name: _format_option(value) for name, value in stream.options.items()}
        chosen = {name.lower() for name in given}
        usual = _FROM_THE_START if is_kafka(stream) else make_text_options(stream.format.lower())
        reader = reader.options(
            **{name: usual[name] for name in usual if name.lower() not in chosen}, **given
        )
        local = get_local_path(stream)
        path = stream.path if local is None else f"file://{os.path.abspath(local)}"
        frame = reader.load(path) if path else reader.load()
        _ = frame.schema  # which lets Spark Connect look at it now, too
        return frame


def _make_schema(source: Source) -> Any:
    stream = require_stream(source)
    if isinstance(stream.schema, Mapping):
        return ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in stream.schema.items())
    if stream.schema is not None or not source.columns or not stream.reads_files:
        return stream.schema
    from pyspark.sql import types as sparks
    from pyspark.sql.pandas.types import from_arrow_type

    return sparks.StructType(
        [
            # As text, which keeps all digits for the exact cast, in the same way as files are read.
            sparks.StructField(
                name, sparks.StringType() if stream.reads_text else from_arrow_type(parse_type_name(kind))
            )
            for name, kind in source.columns.items()
        ]
    )


def _format_option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def translate_refusal() -> Iterator[None]:
    """Translate Spark's error about a stream that it cannot read or a query that cannot be one."""
    try:
        yield
    except list_spark_error_types() as error:
        said = summarize_error(error)
        known = None if "PATH_NOT_FOUND" in said else find_known_failure(error, "Spark could not do it")
        if known is not None:
            raise known from error
        if "Failed to find data source" in said or "DATA_SOURCE_NOT_FOUND" in said:
            raise _explain_missing_package(said) from error
        raise InputError(f"Spark refuses it: {said}") from error


def _explain_missing_package(said: str) -> NotSupported:
    hint = 'give its jar to the session: [spark.config] "spark.jars.packages".'
    if "kafka" in said.lower():
        from pyspark import __version__

        hint = (
            'set [spark.config] "spark.jars.packages" ='
            f' "org.apache.spark:spark-sql-kafka-0-10_2.13:{__version__}".'
        )
    return NotSupported(f"the Spark session has no such format: {said}", hint=hint)


@contextmanager
def add_place(place: str) -> Iterator[None]:
    """Add the place in the file to an error."""
    try:
        yield
    except (InputError, NotSupported, EngineError) as error:
        if error.message.startswith(place):
            raise
        raise type(error)(f"{place}: {error.message}", path=error.path, hint=error.hint) from error
