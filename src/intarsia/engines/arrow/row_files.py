"""What the rows of a plan become: files to be rewritten, and new files; whoever writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from intarsia.core.change import Change, Replacement, StagedFile
from intarsia.core.intent import Merge
from intarsia.core.matches import Hits, Matches
from intarsia.core.plan import Plan
from intarsia.core.ports import Transaction
from intarsia.core.prepare import Prepared
from intarsia.engines.arrow.placing import NewFile, Placing
from intarsia.engines.arrow.rewrite import Rewrite

__all__ = ["RowFiles"]


@dataclass(frozen=True, slots=True)
class RowFiles:
    """The files that come of a plan once its rows are matched."""

    plan: Plan
    rewrites: Sequence[Rewrite]
    """Files written anew under their names."""
    new: Sequence[NewFile]
    placing: Placing = field(repr=False)
    """Writes the new ones."""

    @staticmethod
    def of(plan: Plan, matches: Matches, prepared: Prepared, tx: Transaction) -> RowFiles:
        placing = Placing(
            plan.snapshot, plan.schema, prepared.partition_columns, plan.intent.options, plan.operation
        )
        prefix = "insert" if isinstance(plan.intent, Merge) else "part"
        new = placing.files(matches.inserts, prepared.table, tx, prefix=prefix)
        rewrites = [
            Rewrite.of(
                item.file,
                matches.hits.get(item.file.path, Hits.empty()),
                plan,
                tx,
                actions=matches.actions,
                label=f"rewrite-{number:05d}",
            )
            for number, item in enumerate(plan.chosen("rewrite"))
        ]
        return RowFiles(plan, rewrites, new, placing)

    def change(self, staged: Sequence[StagedFile]) -> Change:
        """What the files, staged in this order, do to the table."""
        count = len(self.rewrites)
        replaced = [
            Replacement(task.file, file) for task, file in zip(self.rewrites, staged[:count], strict=True)
        ]
        return self.plan.change(replaced=replaced, added=staged[count:])
