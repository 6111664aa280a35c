"""Compacting: DuckDB writes the files of each group as one; which files is the plan's to say."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from intarsia.core.change import Change, StagedFile
from intarsia.core.files import DataFile
from intarsia.core.plan import FileGroup, Plan
from intarsia.core.ports import Progress, Workplace
from intarsia.engines.arrow.compact import compact_group
from intarsia.engines.arrow.regroup import Form, form_of, regrouped
from intarsia.engines.arrow.threads import in_order
from intarsia.engines.duckdb.checksums import verify
from intarsia.engines.duckdb.describing import OtherTypes
from intarsia.engines.duckdb.fitness import group_beyond
from intarsia.engines.duckdb.scan import Scan
from intarsia.engines.duckdb.session import Session
from intarsia.engines.duckdb.text import FILE, POS, name, named
from intarsia.engines.duckdb.writing import Target, declared_order, distinct_values, optional

__all__ = ["stage_compact", "target_of"]

logger = logging.getLogger(__name__)


def stage_compact(plan: Plan, tx: Workplace, session: Session, progress: Progress) -> Change:
    """Write each group of the plan as one file, its rows in the order of the files.

    Rows are brought into an order that every file of the group declares. A group that DuckDB cannot write
    as it was is written by the Arrow kernel; the plan's notes tell. Nothing of the table changes.

    Raises DamagedTable where a file has not the rows its footer says.
    """
    forms = [form_of(group, plan, tx.txid) for group in plan.groups]
    mine = [group_beyond(group, plan, form) is None for group, form in zip(plan.groups, forms, strict=True)]
    files = [file for group, fits in zip(plan.groups, mine, strict=True) if fits for file in group.files]
    scan = Scan.of(session, plan.snapshot, files, plan.schema)
    compacting = _Compacting(session, tx, scan, distinct_values(scan, files[:1]))

    def work(number: int) -> StagedFile:
        group = plan.groups[number]
        if not mine[number]:
            return compact_group(group, plan, tx, number=number)
        try:
            return compacting.staged(group, forms[number], number)
        except OtherTypes:
            logger.debug("Files are compacted by PyArrow", exc_info=True)
            return compact_group(group, plan, tx, number=number)

    staged: list[StagedFile] = []
    threads = min(session.threads, len(plan.groups))
    for file in in_order(work, range(len(plan.groups)), threads=threads):
        staged.append(file)
        progress("write files", len(staged), len(plan.groups))
    return regrouped(plan, staged, exclusive=False)


def target_of(form: Form, tx: Workplace, label: str, dictionary: int | None) -> Target:
    """A new file of a group, in staging."""
    staging = tx.staging
    location = staging.location(label)
    return Target(location, staging.filesystem, form.schema, form.layout, form.metadata, dictionary)


@dataclass(frozen=True, slots=True)
class _Compacting:
    session: Session
    tx: Workplace = field(repr=False)
    scan: Scan
    dictionary: int | None

    def staged(self, group: FileGroup, form: Form, number: int) -> StagedFile:
        target = target_of(form, self.tx, f"compact-{number:05d}", self.dictionary)
        path = self.tx.place(group.partition, "compact", number, beside=group.files[0])
        for file in group.files:
            verify(file, self.scan.snapshot.filesystem)
        with self.session.fork() as session:
            return target.write(
                session, self._query(form, group.files), path, group.partition, rows=group.rows
            )

    def _query(self, form: Form, files: Sequence[DataFile]) -> str:
        """The rows file by file, or in the order declared.

        They are sorted by their place even where they come like that: it costs little, and row groups are
        filled exactly, whereas the writer lets them end where files do.
        """
        stored = form.schema.names
        place = f"({name(FILE)} << 40) | {name(POS)} AS {name(POS)}"
        rows = f"SELECT {named(stored)}, {place} FROM ({self.scan.sql(stored, files)})"
        order = ", ".join([*declared_order(form.layout, form.schema), f"{name(POS)} ASC"])
        return f"SELECT {named(stored)} FROM ({optional(form.schema, rows)}) ORDER BY {order}"
