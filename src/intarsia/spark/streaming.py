"""Structured Streaming into a Parquet dataset: every micro-batch is merged exactly once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

from intarsia import api
from intarsia.arguments import MatchArguments
from intarsia.common.log import get_logger
from intarsia.core.merge import normalize_keys
from intarsia.core.rule import get_strategy_rule
from intarsia.engine_choice import EngineLike
from intarsia.errors import InputError
from intarsia.options import Columns, StreamOptions
from intarsia.spark.session import active_session, is_connect
from intarsia.tables.parquet import ParquetTable

log = get_logger(__name__)

_QUERY_ID = "sql.streaming.queryId"
_TABLE_OPTIONS = ("filesystem", "storage_options", "control_path", "single_writer", "lock_timeout", "lock")
_PLACES = ("control_path", "spool_dir")
_NAME_IT = "pass app_id=, a name of your own that stays the same when the query is started again."


class BatchArguments(StreamOptions, MatchArguments, total=False):
    """Arguments and options of :func:`intarsia.merge` that a stream can have."""

    dedup_order_by: Columns | None
    partition_by: Columns | None
    engine: EngineLike


def merge_batches(
    path: str | os.PathLike[str],
    key_columns: Columns,
    *,
    strategy: api.Strategy = "upsert",
    app_id: str | None = None,
    **options: Unpack[BatchArguments],
) -> Callable[[Any, int], None]:
    """A function for ``foreachBatch`` that merges each micro-batch into a dataset, exactly once.

    The batch's number is recorded in the same commit as its rows. A query that was killed at any
    moment and is started again from its checkpoint repeats its last batch; where the dataset has that
    already, it is skipped. Batches without rows are recorded as well.

    Under Spark Connect the function runs on the server's machine, which needs this package and reads and
    commits the dataset; what it raises is in the text of the query's ``StreamingQueryException``.

    Args:
        path: path or URL of the dataset. A relative path is taken from the directory of this call,
            wherever and whenever batches are merged.
        key_columns: what rows are matched by.
        strategy: as of :func:`intarsia.merge`.
        app_id: the name that batches are counted under; the query's id by default, which lives in its
            checkpoint. Needed under Spark Connect, which does not tell the id. A query that starts
            without its old checkpoint counts from 0 again, so it needs another ``app_id``: under the old
            one its batches would be taken for done.
        options: as of :func:`intarsia.merge`.

    Raises:
        InputError: an unknown strategy, no keys, or Spark Connect without ``app_id``; nothing was started.

    Example:
        >>> import os
        >>> from intarsia.spark import local_session, merge_batches
        >>> clicks = local_session().readStream.format("rate").load().selectExpr("value as id", "'c' as n")
        >>> writer = clicks.writeStream.foreachBatch(merge_batches("lake/orders", "id"))
        >>> writer = writer.option("checkpointLocation", os.path.abspath("checkpoint"))
        >>> writer.trigger(availableNow=True).start().awaitTermination(60)
        True
    """
    reserved = [name for name in ("batch_id", "dry_run", "source", "target", "on") if name in options]
    if reserved:
        raise InputError(f"merge_batches does not take {', '.join(reserved)}.")
    if app_id is not None and not app_id:
        raise InputError("app_id must not be empty.")
    session = active_session() if app_id is None else None
    if session is not None and is_connect(session):
        raise InputError("merge_batches needs an app_id under Spark Connect.", hint=_NAME_IT)
    get_strategy_rule(strategy)
    given: dict[str, Any] = {**options}
    if given.get("filesystem") is None:
        path = _make_absolute(path)
        given |= {name: _make_absolute(given[name]) for name in _PLACES if given.get(name)}
    return MergeBatches(os.fspath(path), tuple(normalize_keys(key_columns)), strategy, app_id, given)


def _make_absolute(path: str | os.PathLike[str]) -> str:
    """An absolute path, for a process with another working directory; a URL as it is."""
    text: Any = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise InputError(f"A path must be text, not {text!r}.")
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


@dataclass(frozen=True, slots=True)
class MergeBatches:
    """The function for ``foreachBatch``; a value that pickles, since Spark Connect sends it to the server."""

    path: str
    keys: tuple[str, ...]
    strategy: api.Strategy
    app_id: str | None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, frame: Any, batch_id: int) -> None:
        app_id = self.app_id or _find_query_id(frame)
        if self._is_done(app_id, batch_id):  # the commit checks again, after the rows were computed
            log.info("merge_batches %s: batch %d of %s is there already", self.path, batch_id, app_id)
            return
        api.merge(
            frame,
            self.path,
            on=list(self.keys),
            strategy=self.strategy,
            app_id=app_id,
            batch_id=batch_id,
            **self.options,
        )

    def _is_done(self, app_id: str, batch_id: int) -> bool:
        known = {name: self.options[name] for name in _TABLE_OPTIONS if name in self.options}
        last = ParquetTable(self.path, **known).last_batch(app_id)
        return last is not None and batch_id <= last


def _find_query_id(frame: Any) -> str:
    """The id of the query of a batch, from a local property of the thread that runs it."""
    session = frame.sparkSession
    found = None if is_connect(session) else session.sparkContext.getLocalProperty(_QUERY_ID)
    if not found:
        raise InputError(
            "merge_batches cannot tell which query this batch is of.",
            hint=_NAME_IT,
        )
    return str(found)
