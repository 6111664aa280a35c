"""A plugin of dbt-duckdb: models that are merged into Parquet datasets, and sources that are read from them.

dbt-duckdb calls :class:`Plugin`, which its profile names; the materialization that calls it in turn is
``dbt.sql`` beside this module, which ``python -m intarsia.integrations.dbt`` writes out.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import uuid
import weakref
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dbt.adapters.duckdb.plugins import BasePlugin
from dbt_common.exceptions import DbtRuntimeError

import intarsia as it
from intarsia.errors import InputError, IntarsiaError
from intarsia.options import select_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from dbt.adapters.duckdb.utils import SourceConfig, TargetConfig

MACROS = Path(__file__).with_suffix(".sql")
"""The materialization and its macros, to be put into a project's ``macros``."""

_STRATEGIES: Mapping[str, str | None] = {  # None needs no key
    "append": None,
    "insert_overwrite": None,
    "merge": "upsert",
    **{name: name for name in ("upsert", "insert", "update", "full_merge", "deduplicate")},
}
_SCHEMA_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "ignore": {},  # dbt's default, which cannot be told from none
    "fail": {},
    "append_new_columns": {"schema_evolution": "add", "missing": "null"},
}
_NOT_FOLLOWED = ("merge_update_columns", "merge_exclude_columns", "incremental_predicates", "predicates")


class Plugin(BasePlugin):
    """Merges models into Parquet datasets, and gives sources as one consistent state.

    In ``profiles.yml``::

        plugins:
          - module: intarsia.integrations.dbt
            alias: intarsia
            config:
              options: {compression: zstd}  # of every merge and write, a model's own come first
    """

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        self._options = plugin_config.get("options") or {}
        self._catalog = plugin_config.get("catalog")
        self._staging = Path(tempfile.mkdtemp(prefix="intarsia-dbt-"))
        weakref.finalize(self, shutil.rmtree, self._staging, ignore_errors=True)

    def configure_connection(self, conn: Any) -> None:
        self._connection = conn

    def load(self, source_config: SourceConfig) -> pa.RecordBatchReader | pa.dataset.Dataset:
        """The rows of a source: a stream, or where a view is wanted, files that are kept open.

        Args:
            source_config: has ``location``, or ``iceberg_table`` where the plugin has a ``catalog``.

        Raises:
            DbtRuntimeError: there is no such table, or it cannot be read.
        """
        name = source_config.get("iceberg_table")
        location = source_config.get("location", "").format_map(source_config.as_dict())
        with _raise_for_dbt(name or location):
            if name and self._catalog:
                return it.read(it.iceberg(name, catalog=self._catalog))
            if not location:
                raise InputError(
                    f"source {source_config.name} has no table to read.",
                    hint="give it a location; or an iceberg_table, and the plugin a catalog in profiles.yml.",
                )
            if source_config.get("materialization") == "view":
                return it.snapshot(location).dataset()
            return it.read(location)

    def store(self, target_config: TargetConfig) -> None:
        """Stage, merge or register a model, as the materialization asks in ``target_config.config``.

        It is called twice for a run: first it answers with the file in ``staged`` that the rows are
        written to, then it merges that file, and answers with ``message``, ``rows`` and ``query``.

        Args:
            target_config: the relation, the dataset's location, and the dict that is answered in.

        Raises:
            DbtRuntimeError: the rows do not fit, or the dataset cannot be written; it is as it was.
        """
        run: dict[str, Any] = target_config.config
        location = target_config.location.path
        with _raise_for_dbt(location):
            _check_location(location)
        if "staged" not in run and not run.get("register"):
            own = self._staging / uuid.uuid4().hex
            own.mkdir()
            run["staged"] = str(own / "rows.parquet")
            return
        with _raise_for_dbt(location):
            if "staged" in run:
                result = self._merge(Path(run["staged"]), location, run["model"], run["incremental"])
                counts = {name: result[name] for name in ("inserted", "updated", "deleted")}
                run["rows"] = sum(counts.values())
                run["message"] = ", ".join(f"{count} {name}" for name, count in counts.items())
            run["query"] = self._make_query(location, run["model"])

    def _merge(self, staged: Path, location: str, model: Any, incremental: bool) -> it.MergeResult:
        keys = model.get("unique_key")
        strategy = model.get("incremental_strategy") or ("merge" if keys else "append")
        _check_choice("incremental_strategy", strategy, _STRATEGIES)
        change = model.get("on_schema_change") or "fail"
        _check_choice("on_schema_change", change, _SCHEMA_CHANGES)
        if _STRATEGIES[strategy] is not None and not keys:
            raise InputError(f"incremental_strategy: {strategy!r} needs a unique_key.")
        if found := [name for name in _NOT_FOLLOWED if model.get(name)]:
            raise InputError(f"{', '.join(found)} cannot be followed.", hint="say it in merge_clauses.")
        options = self._list_options(model)
        try:
            if incremental:
                options.update(_SCHEMA_CHANGES[change])
                return self._change(staged, location, strategy, model, options)
            options["partition_by"] = model.get("partition_by")
            return self._make(staged, location, strategy, model, options)
        finally:
            shutil.rmtree(staged.parent)

    @staticmethod
    def _change(
        staged: Path, location: str, strategy: str, model: Any, options: dict[str, Any]
    ) -> it.MergeResult:
        if strategy == "append":
            return it.write(staged, location, **options)
        if strategy == "insert_overwrite":
            return it.write(staged, location, mode="overwrite_partitions", **options)
        clauses = model.get("merge_clauses")
        rule = {"clauses": clauses} if clauses else {"strategy": _STRATEGIES[strategy]}
        order = model.get("dedup_order_by")
        return it.merge(staged, location, on=model.get("unique_key"), dedup_order_by=order, **rule, **options)

    @staticmethod
    def _make(
        staged: Path, location: str, strategy: str, model: Any, options: dict[str, Any]
    ) -> it.MergeResult:
        """Write all rows of the dataset, whose keys are checked as those of a merge."""
        if _STRATEGIES[strategy] is None:
            return it.write(staged, location, mode="overwrite", **options)
        rule: dict[str, Any] = {"on": model.get("unique_key"), "strategy": "upsert"}
        if strategy == "deduplicate":
            rule.update(strategy=strategy, dedup_order_by=model.get("dedup_order_by"))
        if not it.snapshot(location, **select_address(options)).exists:
            return it.merge(staged, location, **rule, **options)
        checked = staged.with_name("checked")
        it.merge(staged, checked, **rule)
        return it.write(it.read(checked), location, mode="overwrite", **options)

    def _list_options(self, model: Any) -> dict[str, Any]:
        return {**self._options, **(model.get("options") or {})}

    def _make_query(self, location: str, model: Any) -> str:
        """SQL that gives the dataset's rows with its columns and types, also where it has no files."""
        state = it.snapshot(location, **select_address(self._list_options(model)))
        empty = self._connection.cursor().from_arrow(state.schema.empty_table())
        types = {_quote(name): str(kind) for name, kind in zip(empty.columns, empty.types, strict=True)}
        if not state.files:
            columns = ", ".join(f"cast(null as {kind}) as {name}" for name, kind in types.items())
            return f"select {columns} where false"
        pattern = f"{location}/**/*.parquet".replace("'", "''")
        partitions = ", ".join(f"{name}: {types[name]}" for name in map(_quote, state.partition_columns))
        hive = f"true, hive_types = {{{partitions}}}" if partitions else "false"
        files = f"read_parquet('{pattern}', union_by_name = true, hive_partitioning = {hive})"
        return f"select {', '.join(types)} from {files}"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check_location(location: str) -> None:
    """Refuse what DuckDB takes for a pattern: its list of the files would be another, or empty."""
    if set("*?[") & set(location):
        raise InputError("a location cannot have *, ? or [ in it.", hint="choose another directory.")


def _check_choice(name: str, value: str, allowed: Mapping[str, Any]) -> None:
    if value not in allowed:
        raise InputError(f"{name}: there is no {value!r} here.", hint=f"it may be {', '.join(allowed)}.")


@contextmanager
def _raise_for_dbt(place: str) -> Iterator[None]:
    """Errors as dbt shows them: one message and the model, without a traceback."""
    try:
        yield
    except IntarsiaError as error:
        error.path = place
        raise DbtRuntimeError(str(error)) from error


if __name__ == "__main__":
    sys.stdout.write(MACROS.read_text())
