"""Options that cannot have an effect in an operation are refused, instead of being passed over in silence."""

from __future__ import annotations

from intarsia.core.files import Snapshot
from intarsia.core.intent import Deduplicate, Intent, Merge, Optimize, Write
from intarsia.errors import InputError

__all__ = ["check_effects", "check_overwrite"]


def check_effects(intent: Intent) -> None:
    """Raise InputError for an option that the operation itself leaves no room for."""
    match intent:
        case Merge():
            if not intent.rule.replaces_rows:
                options = _about_columns(intent)
                why = "no clause takes whole rows (`update set *`, `insert *`)"
                _refuse(options, why, "name the columns in the clauses.")
            if intent.dedup_order_by and intent.rule.name != "deduplicate":
                raise InputError('dedup_order_by goes with strategy="deduplicate".')
        case Write():
            if intent.where is not None and intent.mode != "overwrite":
                raise InputError(
                    f'where= goes with mode="overwrite", not with {intent.mode!r}.',
                    hint="leave it out, or filter the source.",
                )
        case Optimize():
            if intent.dedup_order_by and not intent.deduplicate:
                raise InputError("dedup_order_by= goes with deduplicate_on=.", hint="name the keys there.")
        case Deduplicate():
            if intent.order_by and not intent.keys:
                raise InputError(
                    "order_by= goes with on=: rows that are equal in every column leave nothing to choose.",
                    hint="name the key columns in on=.",
                )
        case _:
            pass


def check_overwrite(intent: Write, snapshot: Snapshot) -> None:
    """Raise InputError for options about columns where the rows that come decide about these."""
    if intent.replaces_all and snapshot.spread is None:
        why = 'mode="overwrite" replaces the schema with the rows'
        _refuse(_about_columns(intent), why, "leave it out, or replace a part of the rows with where=.")


def _about_columns(intent: Merge | Write) -> list[str]:
    options = ["missing="] if intent.missing != "error" else []
    return [*options, "schema_evolution="] if intent.schema_evolution else options


def _refuse(options: list[str], why: str, hint: str) -> None:
    if options:
        raise InputError(f"{' and '.join(options)} would have no effect: {why}.", hint=hint)
