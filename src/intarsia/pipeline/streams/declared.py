"""What a stream may be declared as, and what steps may do with one; nothing is read."""

from __future__ import annotations

from intarsia.arguments import make_rule
from intarsia.errors import InputError, NotSupported
from intarsia.pipeline.model import Merge, Source, Step, Write
from intarsia.pipeline.streams.kafka import check_kafka, is_kafka

__all__ = ["check_stream_source", "check_stream_step"]


def check_stream_source(source: Source, engine: str) -> None:
    """Refuse a stream that no run could read.

    Raises:
        InputError: a key that is missing, or goes elsewhere.
        NotSupported: the engine is not Spark.
    """
    stream = source.stream
    assert stream is not None
    if engine != "spark":
        raise NotSupported(
            f"a stream is read by Spark, and the engine is {engine}.",
            hint='use engine = "spark"; or a path, of which each run takes the new files.',
        )
    if not stream.format:
        raise InputError("the key 'format' is empty.", hint="name a format of Spark's readStream.")
    if is_kafka(stream):
        check_kafka(stream)
    if stream.reads_files and not stream.path:
        raise InputError(f"a stream of {stream.format} files needs a path.")
    declared = source.columns or stream.schema
    if stream.reads_files and stream.format.lower() != "text" and not declared:
        raise InputError(
            f"Spark infers no schema for a stream of {stream.format} files.",
            hint='give the source columns = { id = "bigint", ... }, or the stream a schema.',
        )
    if stream.checkpoint is not None and "://" in stream.checkpoint:
        raise InputError(
            f"checkpoints are kept on a disk that this process sees, not at {stream.checkpoint}.",
            hint="name a directory, such as on a shared mount.",
        )
    for name in ("format", "options", "new_files_only"):
        if getattr(source, name) not in (None, {}):
            raise InputError(
                f"{name!r} goes with a path.", hint=f"a stream has its own: stream = {{ {name} = ... }}."
            )


def check_stream_step(step: Step) -> None:
    """Refuse what a step cannot do with the rows of a stream, which come batch by batch.

    Raises:
        InputError: it needs all rows at once.
    """
    if isinstance(step, Write) and step.mode != "append":
        raise InputError(
            f'mode = "{step.mode}" would put each batch of the stream in the place of the one before.',
            hint='use mode = "append", or operation = "merge".',
        )
    if isinstance(step, Merge):
        clauses = step.when if isinstance(step.when, str) else tuple(step.when) or None
        rule = make_rule(step.strategy or "upsert", clauses, step.options.get("dialect"))
        if rule.touches_target_only:
            raise InputError(
                "it changes the rows that its source lacks, and each batch of a stream lacks most of them.",
                hint="leave out full_merge, and clauses with not matched by source.",
            )
