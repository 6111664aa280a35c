"""Filters on partitions, such as "date=2025-11-04/region=eu": taken apart and answered, never evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.common.partition_values import HIVE_NULL, partition_text, unescape
from intarsia.errors import InputError

__all__ = ["PartitionFilter", "parse_partition_filter", "partition_matches"]

PartitionFilter = tuple[tuple[tuple[str, str | None], ...], ...]
"""Alternatives; each is met when all of its (column, text) pairs are."""


def parse_partition_filter(partition_filter: str | Sequence[str] | None) -> PartitionFilter:
    """A filter such as ``"date=2025-11-04"`` or ``"date=2025-11-04/region=eu"``, or a list: any of them.

    The text is only taken apart, never evaluated. Values are escaped as in paths (``%2F`` for ``/``).
    None is no filter.

    Raises:
        InputError: The text is anything else than column=value, parted by slashes.
    """
    if partition_filter is None:
        return ()
    listed = isinstance(partition_filter, (list, tuple, set, frozenset))
    texts = list(partition_filter) if listed else [partition_filter]
    if not texts:
        raise InputError("partition_filter is an empty list", hint="use None for all partitions")
    return tuple(_parse_filter(text) for text in texts)


def _parse_filter(text: Any) -> tuple[tuple[str, str | None], ...]:
    if not isinstance(text, str):
        raise _not_understood(text)
    pairs = []
    for part in text.strip("/").split("/"):
        name, equals, value = part.partition("=")
        # An operator, as in "day>=1" or "day == 1", would be a column that no file has.
        if not (name and equals) or name.strip(" <>!~") != name or "=" in value:
            raise _not_understood(text)
        pairs.append((unescape(name), None if value == HIVE_NULL else unescape(value)))
    return tuple(pairs)


def _not_understood(text: Any) -> InputError:
    return InputError(
        f"partition_filter {text!r} is not understood",
        hint='write "column=value" or "column=value/column=value"; "=" in a value is %3D, "/" is %2F',
    )


def partition_matches(partition: Mapping[str, Any], partition_filter: PartitionFilter) -> bool:
    """True where a file with these values, text or typed, passes a parsed filter.

    A column that is not known for the file does not match.
    """
    if not partition_filter:
        return True
    return any(
        all(name in partition and _same(partition[name], text) for name, text in alternative)
        for alternative in partition_filter
    )


def _same(value: Any, text: str | None) -> bool:
    if value is None or text is None:
        return value is None and text is None
    return partition_text(value) == text
