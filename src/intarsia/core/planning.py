"""Making plans: pure functions from an intent, a snapshot and facts about the source to a Plan."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from intarsia.common.int96 import list_duration_units, read_arrow_schema, read_int96
from intarsia.common.names import join_names, suggest_names
from intarsia.common.partitions import (
    PartitionFilter,
    parse_hive_partition_path,
    parse_partition_filter,
    partition_matches,
)
from intarsia.core.file_table import FileTable, FileTuple
from intarsia.core.intent import (
    CompactIntent,
    DeduplicateIntent,
    DeleteIntent,
    MergeIntent,
    OptimizeIntent,
    UpdateIntent,
    WriteIntent,
)
from intarsia.core.key_value_metadata import check_metadata
from intarsia.core.lazy_footer import load_footers
from intarsia.core.pack import FULL, pack
from intarsia.core.partitioner import PartitionDirectories
from intarsia.core.plan import FileGroup, FilePlan, Plan, SparsePlans, keep_all
from intarsia.core.prove import judge_files, list_predicate_columns
from intarsia.core.prune import (
    KeyRange,
    PartitionSet,
    count_scan_bytes,
    find_candidates,
    list_row_groups,
)
from intarsia.core.rule import Drop
from intarsia.core.snapshot import DataFile, Snapshot
from intarsia.errors import InputError, NothingMatched, PartitionColumnNotFound

DEFAULT_TARGET_BYTES = 128 << 20
LARGE_ROWS = 100_000
LARGE_BYTES = 16 << 20
"""Average rows, or stored bytes, from which row groups are large: joining them would gain little."""


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What planning needs to know of a source: how many rows, which keys, which partitions."""

    rows: int
    ranges: Mapping[str, KeyRange] = field(default_factory=dict)
    """By the target's name of each key column."""
    partitions: PartitionSet = field(default_factory=lambda: PartitionSet(()))
    parts: frozenset[Any] | None = None
    """Keys of the partitions that source rows belong to, where the table's partition spec decides."""


def plan_merge(intent: MergeIntent, snapshot: Snapshot, facts: SourceFacts, *, schema: pa.Schema) -> Plan:
    """Candidates by partition first, then by the bounds of every key column."""
    files = snapshot.files
    ranges = {name: values for name, values in facts.ranges.items() if name not in snapshot.partition_columns}
    groups = find_candidates(files, snapshot.schema, ranges, null_match=intent.matches_null)
    if not facts.rows:
        groups = {}
    load_footers([files[number] for number in sorted(groups)])
    judge = _MergeJudge(
        intent, snapshot, intent.has_equal_columns(snapshot.partition_columns), _TargetOnly.of(intent)
    )
    plans: Sequence[FilePlan]
    if isinstance(files, FileTable) and not judge.alone.touched:
        plans = _plan_many(judge, files, facts.partitions.find_partitions(files.partitions), groups)
    else:
        homes = facts.partitions.find_rows(files)
        plans = tuple(
            judge.plan(file, home, groups.get(number, ()))
            for number, (file, home) in enumerate(zip(files, homes, strict=True))
        )
    return Plan(
        intent,
        snapshot,
        with_widening(plans, snapshot, schema),
        schema,
        source_rows=facts.rows,
        notes=(*snapshot.notes, *_note_added_columns(snapshot, schema)),
    )


def _plan_many(
    judge: _MergeJudge,
    files: FileTable,
    homes: Sequence[int | None],
    groups: Mapping[int, tuple[int, ...]],
) -> SparsePlans:
    """Plans of many files: one for each that may hold a key, and one reason for the others of a directory."""
    changed = {
        number: judge.plan(files[number], homes[files.get_directory_number(number)], may_hold)
        for number, may_hold in groups.items()
    }
    return SparsePlans(files, [judge.explain(home, ())[0] for home in homes], changed)


@dataclass(frozen=True, slots=True)
class _TargetOnly:
    """What a merge does with target rows that no source row matches."""

    touched: bool
    all_go: bool

    @staticmethod
    def of(intent: MergeIntent) -> _TargetOnly:
        clauses = intent.rule.list_clauses("target_only")
        unconditional = bool(clauses) and clauses[0].condition is None
        return _TargetOnly(bool(clauses), unconditional and isinstance(clauses[0].action, Drop))


@dataclass(frozen=True, slots=True)
class _MergeJudge:
    """What a merge does with a file, by its partition and the bounds of its keys."""

    intent: MergeIntent
    snapshot: Snapshot
    covered: bool
    """Whether a key has one partition only."""
    alone: _TargetOnly

    def explain(self, home: int | None, may_hold: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Why a file may hold a key or not, and the row groups that may."""
        if home is None and self.covered:
            return "partition: not in the source", ()
        if not may_hold:
            return ("partition: not in the source" if home is None else "bounds exclude every key"), ()
        return ("partition: key might sit here" if home is None else "bounds: key may be here"), may_hold

    def plan(self, file: DataFile, home: int | None, may_hold: tuple[int, ...]) -> FilePlan:
        """``home`` is a source row of the file's partition; ``may_hold`` are row groups that bounds allow."""
        rule, alone = self.intent.rule, self.alone
        reason, may_hold = self.explain(home, may_hold)
        if not alone.touched and not (may_hold and (rule.touches_matched or rule.inserts)):
            return FilePlan(file, "keep", reason)
        if alone.all_go and not may_hold:
            return FilePlan(file, "remove", f"{reason}: every row goes")
        groups = list_row_groups(file) if alone.touched else may_hold
        columns = [name for name in self.intent.keys if name not in file.partition]
        return FilePlan(
            file,
            "scan",
            reason,
            groups,
            scan_bytes=count_scan_bytes(self.snapshot, file, columns, groups),
            is_move_check=home is None and bool(may_hold),
        )


def _note_added_columns(snapshot: Snapshot, schema: pa.Schema) -> list[str]:
    """Notes for the plan about files that stay and lack a new column."""
    known = set(snapshot.schema.names)
    added = [name for name in schema.names if name not in known]
    if not added or not snapshot.files:
        return []
    return [
        f"Column {', '.join(map(repr, added))} is new: in files that stay as they are it reads as NULL; other"
        " readers may have to be told to unite columns by name (DuckDB: union_by_name)."
    ]


def with_widening(plans: Sequence[FilePlan], snapshot: Snapshot, schema: pa.Schema) -> Sequence[FilePlan]:
    """Mark the files that store a narrower type than the dataset is about to have."""
    known = set(snapshot.schema.names)
    widened = [f.name for f in schema if f.name in known and snapshot.schema.field(f.name).type != f.type]
    if not widened:
        return plans
    reason = f"column {', '.join(widened)} widened"
    return tuple(
        plan
        if plan.action == "remove"
        else replace(
            plan,
            forced=reason,
            action="rewrite" if plan.action == "keep" else plan.action,
            reason=reason if plan.action == "keep" else plan.reason,
        )
        for plan in plans
    )


def plan_write(intent: WriteIntent, snapshot: Snapshot, facts: SourceFacts, *, schema: pa.Schema) -> Plan:
    """Append leaves every file; overwrite removes all, those of its partitions, or rows by a predicate."""
    notes = list(snapshot.notes)
    if not intent.replaces_all:
        notes += _note_added_columns(snapshot, schema)
    if intent.where is not None:
        plans = _plan_by_predicate(intent, snapshot)
    elif intent.mode == "append":
        plans = list(keep_all(snapshot.files, "append only adds"))
    elif intent.mode == "overwrite":
        plans = [FilePlan(file, "remove", "overwritten") for file in snapshot.files]
    else:
        partitions_of_files = _find_written_files(snapshot, facts)
        plans = [
            FilePlan(file, "remove", "partition overwritten")
            if home
            else FilePlan(file, "keep", "partition: not in the source")
            for file, home in zip(snapshot.files, partitions_of_files, strict=True)
        ]
        notes += _note_old_specs(snapshot)
    if any(plan.action in ("remove", "scan") for plan in plans):
        notes += note_swap(snapshot)
    return Plan(
        intent,
        snapshot,
        with_widening(tuple(plans), snapshot, schema),
        schema,
        source_rows=facts.rows,
        notes=tuple(notes),
    )


def _note_old_specs(snapshot: Snapshot) -> list[str]:
    """Notes on files that a dynamic overwrite does not replace."""
    partitioner = snapshot.partitioner
    stale = sum(partitioner.is_old_spec(file) for file in snapshot.files)
    if not stale:
        return []
    return [f"{stale:,} files of earlier specs stay: only partitions of the current spec are overwritten."]


def _find_written_files(snapshot: Snapshot, facts: SourceFacts) -> list[bool]:
    """Per file whether source rows belong to its partition."""
    if facts.parts is None:
        return [home is not None for home in facts.partitions.find_rows(snapshot.files)]
    return [snapshot.partitioner.partition_of(file).key in facts.parts for file in snapshot.files]


def note_swap(snapshot: Snapshot) -> list[str]:
    """Notes on what readers may see while files are swapped; a table with snapshots swaps all at once."""
    return [DUPLICATES_FOR_A_MOMENT] if snapshot.replaces_in_place else []


DUPLICATES_FOR_A_MOMENT = (
    "New files appear before the old ones go: a reader that only lists the directory may see rows"
    " twice for a moment, never too few."
)


def select_files(snapshot: Snapshot, partition_filter: Any) -> Sequence[DataFile]:
    """The files a maintenance operation may touch; raises NothingMatched when there are none."""
    files = snapshot.files
    wanted = "" if partition_filter is None else f" matching partition_filter {partition_filter!r}"
    if partition_filter is not None:
        parsed = parse_partition_filter(partition_filter)
        partitions = [_get_partition(file, snapshot) for file in files]
        _check_filter(parsed, {name for values in partitions for name in values}, snapshot, wanted)
        pairs = zip(files, partitions, strict=True)
        files = FileTuple(file for file, values in pairs if partition_matches(values, parsed))
    if not files:
        if snapshot.format.owns_schema:
            raise NothingMatched(f"{snapshot.root} has no data files{wanted}.", path=snapshot.root)
        raise NothingMatched(
            f"No matching Parquet files were found under {snapshot.root}{wanted}.",
            path=snapshot.root,
            hint="check the path and the partition_filter.",
        )
    return files


def _get_partition(file: DataFile, snapshot: Snapshot) -> Mapping[str, Any]:
    """The partition values that a filter is compared with."""
    if snapshot.format.owns_schema:
        return snapshot.partitioner.partition_of(file).values
    return parse_hive_partition_path(file.path)


def _check_filter(parsed: PartitionFilter, found: Collection[str], snapshot: Snapshot, wanted: str) -> None:
    """Refuse columns that no file is partitioned by; without files nothing can be refused."""
    named = dict.fromkeys(name for alternative in parsed for name, _ in alternative)
    absent = [name for name in named if name not in found]
    if absent and snapshot.files:
        raise PartitionColumnNotFound(
            f"No matching Parquet files were found under {snapshot.root}{wanted}:"
            f" there is no partition column {join_names(absent)}.",
            path=snapshot.root,
            hint=suggest_names(absent, sorted(found)),
        )


def check_thresholds(megabytes: float | None, rows: int | None) -> None:
    """Raise InputError unless the target size of files is a finite number above zero."""
    _check_threshold("target_mb_per_file", megabytes, (int, float), "")
    _check_threshold("target_rows_per_file", rows, (int,), " and whole")


def _check_threshold(name: str, value: Any, kinds: Any, also: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
        raise InputError(f"{name} must be greater than zero{also}, it is {value!r}.")


def plan_compact(intent: CompactIntent, snapshot: Snapshot) -> Plan:
    """Small files of one partition are packed together; files of about the target size stay.

    Files in a second directory of their partition, which another writer's escaping made, move to the first.
    """
    files = select_files(snapshot, intent.partition_filter)
    target_bytes = _choose_target_bytes(intent, snapshot)
    stale, current = _split_by_age(files, snapshot)
    if stale and target_bytes is not None:  # each of them may be combined with any small file
        stale += [file for file in current if file.size < target_bytes * FULL]
        current = [file for file in current if file.size >= target_bytes * FULL]
    groups = [FileGroup(tuple(stale))] if stale else []
    aliases = PartitionDirectories.of(snapshot.files).aliases if snapshot.replaces_in_place else {}
    for members in group_by_partition(current, snapshot):
        packed = pack(
            [(file.size, file.rows) for file in members],
            target_bytes=target_bytes,
            target_rows=intent.target_rows,
        )
        groups += [FileGroup(tuple(members[i] for i in group), members[0].partition) for group in packed]
        lone = set(range(len(members))).difference(*packed)
        groups += [FileGroup((members[i],)) for i in sorted(lone) if _has_deletes(members[i])]
        moved = [members[i] for i in sorted(lone) if members[i].path.rpartition("/")[0] in aliases]
        groups += [FileGroup((file,), file.partition) for file in moved]
    _check_groups(groups, snapshot)
    groups = [replace(group, concatenated=_is_concatenable(group, intent, snapshot)) for group in groups]
    return _regroup(intent, snapshot, groups, files, kept="already of the target size, or alone")


def _is_concatenable(group: FileGroup, intent: CompactIntent, snapshot: Snapshot) -> bool:
    """Whether the files' row groups are large, and mean the same in one file: same columns, types, codecs."""
    footers = [file.footer for file in group.files if file.footer is not None]
    options = intent.options
    asked = options.compression is not None or options.row_group_size is not None or options.int96 != "keep"
    if asked or not snapshot.replaces_in_place or len(footers) < len(group.files):
        return False
    count = sum(footer.num_row_groups for footer in footers)
    if group.rows < LARGE_ROWS * count and group.size < LARGE_BYTES * count:
        return False
    first = footers[0]
    own = read_arrow_schema(first)
    repeated = any(name in file.partition for file in group.files for name in own.names)
    stored = [name for name in snapshot.schema.names if name not in group.files[0].partition]
    return (
        not repeated  # their values are compared with the path
        and own.names == stored
        and all(own.field(name).type == snapshot.schema.field(name).type for name in stored)
        and all(footer.schema.equals(first.schema) for footer in footers)
        and len({tuple(list_duration_units(one, stored)) for one in _list_schemas(footers)}) == 1
        and all(_list_codecs(footer) <= _list_codecs(first) for footer in footers)
        and not any(_holds_unproven_instants(footer) for footer in footers)
    )


def _list_schemas(footers: Sequence[pq.FileMetaData]) -> list[pa.Schema]:
    """The Arrow schemas that files note: only there is the unit of a duration."""
    noted = {(footer.metadata or {}).get(b"ARROW:schema"): footer for footer in footers}
    return [read_arrow_schema(footer) for footer in noted.values()]


def _holds_unproven_instants(footer: pq.FileMetaData) -> bool:
    """Whether INT96 values have to be read to know which instants they are."""
    known = read_int96(footer)
    return known is not None and (known.legacy or not known.proven)


def _list_codecs(footer: pq.FileMetaData) -> set[tuple[int, str]]:
    """The codecs of each column; several where row groups differ, which is then so in the new file, too."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    return {
        (number, group.column(number).compression) for group in groups for number in range(footer.num_columns)
    }


def plan_optimize(intent: OptimizeIntent, snapshot: Snapshot) -> Plan:
    """Every selected file of a partition is one group, rewritten in the order of the curve."""
    files = select_files(snapshot, intent.partition_filter)
    groups = []
    stale, current = _split_by_age(files, snapshot)
    for members in [*([stale] if stale else []), *group_by_partition(current, snapshot)]:
        group = FileGroup(tuple(members), members[0].partition)
        groups.append(replace(group, outputs=_count_outputs(group, intent, snapshot)))
    _check_groups(groups, snapshot)
    return _regroup(intent, snapshot, groups, files, kept="in order already")


def _check_groups(groups: Sequence[FileGroup], snapshot: Snapshot) -> None:
    """Raise where files of one group have contradictory metadata; a table that owns its schema ignores it."""
    for group in () if snapshot.format.owns_schema else groups:
        check_metadata(group.files, snapshot.root)


def _choose_target_bytes(intent: CompactIntent | OptimizeIntent, snapshot: Snapshot) -> int | None:
    """The target size of files: the caller's, else the table's; None where a number of rows is given."""
    if intent.target_bytes is not None or intent.target_rows is not None:
        return intent.target_bytes
    return snapshot.format.target_bytes or DEFAULT_TARGET_BYTES


def _count_outputs(group: FileGroup, intent: OptimizeIntent, snapshot: Snapshot) -> int:
    target_bytes = _choose_target_bytes(intent, snapshot)
    by_size = -(-group.size // target_bytes) if target_bytes else 1
    by_rows = -(-group.rows // intent.target_rows) if intent.target_rows else 1
    return max(1, by_size, by_rows)


def _split_by_age(files: Sequence[DataFile], snapshot: Snapshot) -> tuple[list[DataFile], list[DataFile]]:
    """Files of an earlier partition spec, which are rewritten together, and the others."""
    partitioner = snapshot.partitioner
    old = {file.path for file in files if partitioner.is_old_spec(file)}
    return [f for f in files if f.path in old], [f for f in files if f.path not in old]


def _has_deletes(file: DataFile) -> bool:
    """Whether rewriting a file leaves out deleted rows."""
    return file.scan_task is not None and file.scan_task.has_deletes


def group_by_partition(files: Sequence[DataFile], snapshot: Snapshot) -> list[list[DataFile]]:
    """Files grouped by partition, in order."""
    partitioner = snapshot.partitioner
    groups: dict[Any, list[DataFile]] = {}
    for file in snapshot.sort_files(files):
        groups.setdefault(partitioner.partition_of(file).key, []).append(file)
    return list(groups.values())


def _regroup(
    intent: CompactIntent | OptimizeIntent,
    snapshot: Snapshot,
    groups: Sequence[FileGroup],
    selected: Sequence[DataFile],
    *,
    kept: str,
) -> Plan:
    moved = {file.path: group for group in groups for file in group.files}
    chosen = {file.path for file in selected}
    plans = [
        FilePlan(
            file,
            "regroup",
            "large row groups: concatenated" if moved[file.path].concatenated else "written anew together",
        )
        if file.path in moved
        else FilePlan(file, "keep", kept if file.path in chosen else "outside of the partition filter")
        for file in snapshot.files
    ]
    notes = (*snapshot.notes, *(note_swap(snapshot) if groups else ()))
    return Plan(intent, snapshot, tuple(plans), snapshot.schema, groups=tuple(groups), notes=notes)


def plan_deduplicate(intent: DeduplicateIntent, snapshot: Snapshot) -> Plan:
    """Every selected file is scanned; which of them change is known after the key scan."""
    chosen = {file.path for file in select_files(snapshot, intent.partition_filter)}
    columns = [*(intent.keys or snapshot.schema.names), *intent.order_by]
    plans = []
    for file in snapshot.files:
        if file.path not in chosen:
            plans.append(FilePlan(file, "keep", "outside of the partition filter"))
            continue
        every = list_row_groups(file)
        plans.append(
            FilePlan(
                file,
                "scan",
                "may hold a duplicate key",
                every,
                scan_bytes=count_scan_bytes(snapshot, file, columns, every),
            )
        )
    return Plan(intent, snapshot, tuple(plans), snapshot.schema, notes=snapshot.notes)


def plan_predicate(intent: DeleteIntent | UpdateIntent, snapshot: Snapshot) -> Plan:
    """Files whose partition and bounds prove the predicate false stay; proved true, they need no scan."""
    plans = _plan_by_predicate(intent, snapshot)
    return Plan(intent, snapshot, tuple(plans), snapshot.schema, notes=snapshot.notes)


def _plan_by_predicate(
    intent: DeleteIntent | UpdateIntent | WriteIntent, snapshot: Snapshot
) -> list[FilePlan]:
    plans = []
    for file, verdict in zip(snapshot.files, judge_files(intent.where, snapshot), strict=True):
        every = list_row_groups(file)
        if verdict.never:
            plans.append(FilePlan(file, "keep", f"{verdict.by} exclude every row"))
        elif verdict.always and not isinstance(intent, UpdateIntent):
            plans.append(FilePlan(file, "remove", f"{verdict.by} prove every row goes"))
        else:
            columns = list_predicate_columns(intent.where, snapshot.schema)
            groups = (
                every if isinstance(intent, UpdateIntent) and intent.where is None else verdict.row_groups
            )
            scan_bytes = count_scan_bytes(snapshot, file, columns, groups) if intent.where is not None else 0
            plans.append(FilePlan(file, "scan", "predicate may hold", groups, scan_bytes=scan_bytes))
    return plans
