"""One operation under way: the plan, the prepared source, where files are written; passed as one value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from intarsia.core.plan import Plan
from intarsia.core.ports import OutputLocation, Progress, Transaction
from intarsia.core.prepare import Prepared


@dataclass(frozen=True, slots=True)
class Execution:
    """What an engine needs to match and stage one operation."""

    plan: Plan
    prepared: Prepared = field(repr=False)
    tx: Transaction | None = field(repr=False)
    """Where files are written; None where rows are only matched."""
    progress: Progress = field(repr=False)

    def with_plan(self, plan: Plan) -> Execution:
        """The same with another plan, such as the one that matching has resolved."""
        return replace(self, plan=plan)

    @property
    def transaction(self) -> Transaction:
        """The transaction, where something is to be written."""
        assert self.tx is not None
        return self.tx

    @property
    def output(self) -> OutputLocation | None:
        """Where files are written, as a value that travels; None where nothing is."""
        return None if self.tx is None else self.tx.output()
