"""How much a manifest keeps of each column: ``write.metadata.metrics.*``, as Java reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.transforms import BucketTransform, UnknownTransform, VoidTransform
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from intarsia.tables.iceberg.schemas import fields_of

Mode = int | None
"""How much is kept of a column: None is nothing, 0 counts only, else bounds of up to so many characters."""
COUNTS: Mode = 0
FULL: Mode = 2**31 - 1
TRUNCATED: Mode = 16
_TRUNCATE = re.compile(r"truncate\((\d+)\)")
_INFERRED = 100


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """How much is kept of each column, by field id."""

    modes: Mapping[int, Mode] = field(default_factory=dict)
    default: Mode = TRUNCATED

    @staticmethod
    def of(properties: Mapping[str, str], schema: Schema, order: SortOrder | None = None) -> MetricsConfig:
        """What ``write.metadata.metrics.*`` says; a mode that is none is passed over, as Java does."""
        limit = _limit(properties.get("write.metadata.metrics.max-inferred-column-defaults"))
        said, chosen = _parsed(properties.get("write.metadata.metrics.default"))
        modes: dict[int, Mode] = {}
        default = chosen
        if not said:
            inferred = list(_first_leaves(schema.as_struct(), limit))
            modes = dict.fromkeys(inferred, TRUNCATED)
            default = TRUNCATED if len(inferred) < limit else None
        sorted_mode = chosen if said and chosen else TRUNCATED
        modes.update(dict.fromkeys(_sorted_columns(order), sorted_mode))
        prefix = "write.metadata.metrics.column."
        numbers = {schema.find_column_name(one.field_id): one.field_id for one in fields_of(schema)}
        for key, text in properties.items():
            number = numbers.get(key.removeprefix(prefix)) if key.startswith(prefix) else None
            valid, mode = _parsed(text)
            if number is not None and valid:
                modes[number] = mode
        return MetricsConfig(modes, default)

    def mode(self, number: int) -> Mode:
        return self.modes.get(number, self.default)


def _parsed(text: str | None) -> tuple[bool, Mode]:
    """Whether a mode is one, and which."""
    mode = (text or "").strip().lower()
    if mode == "none":
        return True, None
    if mode in ("counts", "full"):
        return True, COUNTS if mode == "counts" else FULL
    match = _TRUNCATE.fullmatch(mode)
    return (True, int(match[1])) if match and int(match[1]) else (False, TRUNCATED)


def _limit(text: str | None) -> int:
    return int(text) if text is not None and text.strip().isdigit() else _INFERRED


def _first_leaves(struct: StructType, limit: int) -> list[int]:
    """The ids of so many primitive fields, those of a struct itself before those inside it."""
    found: list[int] = []

    def visit(kind: IcebergType) -> None:
        match kind:
            case StructType():
                inner: tuple[NestedField, ...] = tuple(kind.fields)
            case ListType():
                inner = (kind.element_field,)
            case MapType():
                inner = (kind.key_field, kind.value_field)
            case _:
                return
        for one in inner:
            if len(found) < limit and one.field_type.is_primitive:
                found.append(one.field_id)
        for one in inner:
            if len(found) < limit:
                visit(one.field_type)

    visit(struct)
    return found


def _sorted_columns(order: SortOrder | None) -> list[int]:
    """Columns by whose own order the rows are sorted."""
    unordered = (BucketTransform, VoidTransform, UnknownTransform)
    fields = () if order is None else order.fields
    return [one.source_id for one in fields if not isinstance(one.transform, unordered)]
