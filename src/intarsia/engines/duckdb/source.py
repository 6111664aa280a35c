"""The source of a merge or a write: its rows in Arrow, its keys in a table of DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from intarsia.common.rows import take_rows
from intarsia.common.source import IngestedSource, conform_source, select_rows
from intarsia.core.intent import MergeIntent
from intarsia.core.keys import arange, decode_dictionary, to_array, to_comparable
from intarsia.core.planning import SourceFacts
from intarsia.core.prepare import MergeTerms, Prepared
from intarsia.core.prune import KeyRange, PartitionSet
from intarsia.core.snapshot import Snapshot
from intarsia.core.validation import refuse_duplicate_keys, refuse_null_source_keys
from intarsia.engines.duckdb.scan import is_float
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.sql import SRC, quote, quote_all

__all__ = ["DuckSource", "LoadedKeys", "normalize_key", "prepare_merge", "refuse_duplicates"]

DISTINCT_ROWS = 1_000_000
"""Rows of a source up to which planning knows every key; of larger sources only the least and greatest."""
_SAMPLES = 64
_KEYS = "keys"


class DuckSource(IngestedSource):
    """Ingested rows with the session that works on them; both are closed together."""

    __slots__ = ("_make", "_session")

    def __init__(self, source: IngestedSource, make: Callable[[], Session]) -> None:
        super().__init__(source.table, origin=source.origin, spooled=source.spooled)
        self._make = make
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """That of a plan; another one for the next plan, where it reaches the files of the first alone."""
        if self._session is not None and self._session.restricted:
            self._session.close()
            self._session = None
        if self._session is None:
            self._session = self._make()
        return self._session

    def close(self) -> None:
        super().close()
        if self._session is not None:
            self._session.close()
            self._session = None


@dataclass(frozen=True, slots=True)
class LoadedKeys:
    """The keys of a source with their row numbers, in a table of DuckDB."""

    session: Session
    table: pa.Table
    keys: tuple[str, ...]

    @property
    def size(self) -> int:
        return int(self.table.nbytes)

    @property
    def sql(self) -> str:
        """The table of row numbers and keys."""
        return self.session.name_table(_KEYS)


def add_row_numbers(table: pa.Table) -> pa.Table:
    """The table with its row numbers as another column."""
    return table.append_column(SRC, arange(table.num_rows))


def normalize_key(column: str, kind: pa.DataType) -> str:
    """A key column as an expression with the same value for equal keys: -0.0 becomes 0.0."""
    return f"({column} + 0)" if is_float(kind) else column


def prepare_merge(terms: MergeTerms, snapshot: Snapshot, source: DuckSource) -> Prepared:
    """The source in the target's types, its keys in DuckDB; raises the same errors as any engine.

    Duplicate keys are found by matching, see :func:`refuse_duplicates`.
    """
    intent, path = terms.intent, snapshot.root
    operation, keys, session = intent.rule.name, intent.source_keys, source.session
    rows = conform_source(source, terms.wanted, operation=operation, path=path)
    nulls = {name_: rows.table[name_].null_count for _, name_ in intent.never_null}
    refuse_null_source_keys(nulls, operation=operation, path=path)
    if operation == "deduplicate":
        rows = _keep_one_each(session, rows, intent)
    loaded = _load_keys(session, rows.table, intent)
    ranges = {name_: _find_range(rows.table[other]) for name_, other in zip(intent.keys, keys, strict=True)}
    facts = SourceFacts(rows.rows, ranges, PartitionSet.of(rows.table, terms.pruning))
    return Prepared(
        intent,
        terms.schema,
        terms.partition_columns,
        rows.table,
        facts,
        source.rows,
        remote=loaded,
        notes=terms.notes,
    )


def _load_keys(session: Session, table: pa.Table, intent: MergeIntent) -> LoadedKeys:
    loaded = LoadedKeys(session, table, intent.source_keys)
    columns = tuple(dict.fromkeys(intent.source_keys))
    with session.register_view(add_row_numbers(table.select(columns))) as view:
        session.run(
            f"CREATE OR REPLACE TABLE {loaded.sql} AS SELECT {quote_all((*columns, SRC))} FROM {view}"
        )
    return loaded


def refuse_duplicates(
    loaded: LoadedKeys, intent: MergeIntent, path: str, *, met_twice: bool, unmatched: pa.Array
) -> None:
    """Refuse a source with duplicate keys.

    It has some if a target row matches two source rows, or if unmatched source rows share a key. Only then is
    the whole source searched, for the error message.
    """
    if not met_twice and not _has_shared_key(loaded, intent, unmatched):
        return
    session, keys = loaded.session, tuple(dict.fromkeys(loaded.keys))
    repeated = _select_repeated(loaded, intent, loaded.sql)
    count, rows = session.fetch_rows(f"SELECT count(*), sum(n)::BIGINT FROM ({repeated})")[0]
    grouped = _list_group_terms(loaded.table, keys)
    some = session.fetch_arrow(
        f"SELECT {quote(SRC)} FROM (SELECT {quote(SRC)}, count(*) OVER (PARTITION BY {grouped}) AS n"
        f" FROM {loaded.sql}) WHERE n > 1 ORDER BY 1 ASC LIMIT {_SAMPLES}"
    )
    samples = take_rows(loaded.table.select(list(intent.source_keys)), to_array(some[SRC]))
    refuse_duplicate_keys(samples, intent.source_keys, count, rows, operation=intent.rule.name, path=path)


def _has_shared_key(loaded: LoadedKeys, intent: MergeIntent, rows: pa.Array) -> bool:
    columns = list(dict.fromkeys(loaded.keys))
    table = loaded.table.select(columns)
    some = table if len(rows) == len(table) else take_rows(table, rows)
    with loaded.session.register_view(some) as view:
        found = loaded.session.fetch_rows(f"SELECT count(*) FROM ({_select_repeated(loaded, intent, view)})")
    return bool(found[0][0])


def _list_group_terms(table: pa.Table, keys: Sequence[str]) -> str:
    return ", ".join(normalize_key(quote(each), table.schema.field(each).type) for each in keys)


def _select_repeated(loaded: LoadedKeys, intent: MergeIntent, rows: str) -> str:
    """SQL for the keys that several of some rows have, and the number of these rows."""
    keys = dict.fromkeys(loaded.keys)
    there = ""
    if not intent.matches_null:
        there = f" WHERE {' AND '.join(f'{quote(each)} IS NOT NULL' for each in keys)}"
    grouped = _list_group_terms(loaded.table, tuple(keys))
    return f"SELECT count(*) AS n, {grouped} FROM {rows}{there} GROUP BY {grouped} HAVING count(*) > 1"


def _keep_one_each(session: Session, source: IngestedSource, intent: MergeIntent) -> IngestedSource:
    """The row with the highest order of each key; the last one of equal rows."""
    table = source.table
    keys, orders = tuple(dict.fromkeys(intent.source_keys)), tuple(dict.fromkeys(intent.dedup_order_by))
    order = [
        f"{normalize_key(quote(each), table.schema.field(each).type)} DESC NULLS LAST" for each in orders
    ]
    needed = add_row_numbers(table.select([*keys, *(each for each in orders if each not in keys)]))
    ranked = f"PARTITION BY {_list_group_terms(table, keys)}"
    ranked += f" ORDER BY {', '.join([*order, f'{quote(SRC)} DESC'])}"
    with session.register_view(needed) as view:
        kept = session.fetch_arrow(
            f"SELECT {quote(SRC)} FROM {view} QUALIFY row_number() OVER ({ranked}) = 1 ORDER BY 1 ASC"
        )
    rows = to_array(kept[SRC])
    return source if len(rows) == table.num_rows else select_rows(source, rows)


def _find_range(column: pa.ChunkedArray) -> KeyRange:
    """The range of one key column, for planning."""
    if len(column) <= DISTINCT_ROWS:
        return KeyRange.of(column)
    values = decode_dictionary(to_comparable(column))
    has_nan = False
    if pa.types.is_floating(values.type):
        nan = pc.is_nan(values)
        has_nan = bool(pc.any(nan).as_py())
        values = values.filter(pc.invert(nan))
    ends = pc.min_max(values)
    both = pa.concat_arrays([pa.repeat(ends[end], 1) for end in ("min", "max")]).drop_null()
    return KeyRange(both, has_null=column.null_count > 0, has_nan=has_nan, span=True)
