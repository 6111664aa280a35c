"""Structured Streaming into a table: every micro-batch is merged exactly once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

from intarsia import api
from intarsia.arguments import MatchArguments
from intarsia.common.log import get_logger
from intarsia.core.merge import normalize_keys
from intarsia.core.ports import Table
from intarsia.core.rule import get_strategy_rule
from intarsia.engine_choice import EngineLike
from intarsia.errors import InputError
from intarsia.options import Columns, StreamOptions, TableTarget
from intarsia.request import is_iceberg, open_iceberg
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
    target: TableTarget,
    key_columns: Columns,
    *,
    strategy: api.Strategy = "upsert",
    app_id: str | None = None,
    **options: Unpack[BatchArguments],
) -> Callable[[Any, int], None]:
    """A function for ``foreachBatch`` that merges each micro-batch into a table, exactly once.

    The batch's number is recorded in the same commit as its rows. A query that was killed at any
    moment and is started again from its checkpoint repeats its last batch; where the table has that
    already, it is skipped. Of an Iceberg table the number is in the snapshot's summary, and in a property of
    the table for when that snapshot has expired. A batch that changes nothing is recorded in a dataset; an
    Iceberg table gets no snapshot for it, and repeating it changes nothing again.

    Under Spark Connect the function runs on the server's machine, which needs this package and reads and
    commits the table; what it raises is in the text of the query's ``StreamingQueryException``. An Iceberg
    table travels there as its name and the settings of its catalog, with the credentials among them.

    Args:
        target: path or URL of a dataset, or an Iceberg table, as of :func:`intarsia.merge`. A relative path
            is taken from the directory of this call, wherever and whenever batches are merged.
        key_columns: what rows are matched by.
        strategy: as of :func:`intarsia.merge`.
        app_id: the name that batches are counted under; the query's id by default, which lives in its
            checkpoint. Needed under Spark Connect, which does not tell the id. A query that starts
            without its old checkpoint counts from 0 again, so it needs another ``app_id``: under the old
            one its batches would be taken for done.
        options: as of :func:`intarsia.merge`.

    Raises:
        InputError: an unknown strategy, no keys, a target that is neither, or Spark Connect without
            ``app_id``; nothing was started.

    A batch that an Iceberg table had, and that was rolled back since, ends its query by CommitUnknown.

    Example:
        >>> import os
        >>> from intarsia.spark import local_session, merge_batches
        >>> clicks = local_session().readStream.format("rate").load().selectExpr("value as id", "'c' as n")
        >>> writer = clicks.writeStream.foreachBatch(merge_batches("lake/orders", "id"))
        >>> writer = writer.option("checkpointLocation", os.path.abspath("checkpoint"))
        >>> writer.trigger(availableNow=True).start().awaitTermination(60)
        True
    """
    reserved = [name for name in ("batch_id", "dry_run", "source", "on") if name in options]
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
        given |= {name: _make_absolute(given[name]) for name in _PLACES if given.get(name)}
    where = _describe_target(target, is_local=given.get("filesystem") is None)
    return MergeBatches(where, tuple(normalize_keys(key_columns)), strategy, app_id, given)


def _describe_target(target: TableTarget, *, is_local: bool) -> str | IcebergTarget:
    """A target as a value that pickles; a local path is made absolute."""
    if isinstance(target, (str, os.PathLike)):
        return _make_absolute(target) if is_local else os.fspath(target)
    if is_iceberg(target):
        target = open_iceberg(target)
    make_reference = getattr(target, "make_reference", None)
    if make_reference is None:
        raise InputError(
            f"merge_batches takes the path of a dataset or an Iceberg table, not {type(target).__name__}.",
            hint='give the path, or intarsia.iceberg("db.table", catalog=...).',
        )
    opened: Any = target
    return IcebergTarget(make_reference(), opened.branch, opened.mode)


def _make_absolute(path: str | os.PathLike[str]) -> str:
    """An absolute path, for a process with another working directory; a URL as it is."""
    text: Any = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise InputError(f"A path must be text, not {text!r}.")
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


@dataclass(frozen=True, slots=True)
class IcebergTarget:
    """An Iceberg table as a value that pickles."""

    reference: Any
    """Of :class:`intarsia.tables.iceberg.catalog.TableReference`."""
    branch: str | None = None
    mode: str | None = None

    def open(self) -> Table:
        return open_iceberg(self.reference.open(), branch=self.branch, mode=self.mode)


@dataclass(frozen=True, slots=True)
class MergeBatches:
    """The function for ``foreachBatch``; a value that pickles, since Spark Connect sends it to the server."""

    target: str | IcebergTarget
    keys: tuple[str, ...]
    strategy: api.Strategy
    app_id: str | None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, frame: Any, batch_id: int) -> None:
        app_id = self.app_id or _find_query_id(frame)
        known = {name: self.options[name] for name in _TABLE_OPTIONS if name in self.options}
        into: str | Table = self.target.open() if isinstance(self.target, IcebergTarget) else self.target
        table = ParquetTable(into, **known) if isinstance(into, str) else into
        if find_done(table, app_id, batch_id):  # the commit checks again, after the rows were computed
            return
        api.merge(
            frame,
            into,
            on=list(self.keys),
            strategy=self.strategy,
            app_id=app_id,
            batch_id=batch_id,
            **self.options,
        )


def find_done(table: Table, app_id: str, batch_id: int) -> bool:
    """Whether a table has a batch already; what of it was committed and not published is published then."""
    last = table.last_batch(app_id)
    if last is None or batch_id > last:
        return False
    if not getattr(table, "appends_only", False):  # on a store without a lock there is nothing to publish
        table.recover()
    log.info("batch %d of %s is in %s already", batch_id, app_id, getattr(table, "root", ""))
    return True


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
