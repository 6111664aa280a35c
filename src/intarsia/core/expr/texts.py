"""SQL's text functions on Arrow arrays; positions and lengths count code points."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from intarsia.core.expr.casts import as_array
from intarsia.core.expr.kernels import Value, quote_regex

_MOST_PADDED = 1 << 20
_REGEX_OPTIONS = "icslg"


def trim(kernel: Callable[..., Value]) -> Callable[..., Value]:
    def run(value: Value, characters: str = " ") -> Value:
        return kernel(value, characters=characters) if characters else value

    return run


def substring(value: Value, start: int, length: int | None = None) -> Value:
    """SQL counts from 1, and from the end below 0; a start of 0 is the place before the first."""
    if length is not None and length < 0:
        raise pa.ArrowInvalid(f"substring of a negative length {length}")
    if start >= 0:
        begin, end = max(start - 1, 0), None if length is None else max(start - 1 + length, 0)
        return pc.utf8_slice_codeunits(value, start=begin, stop=end)
    if length is None or start + length >= 0:
        return pc.utf8_slice_codeunits(value, start=start)
    return pc.utf8_slice_codeunits(value, start=start, stop=start + length)


def left(value: Value, count: int) -> Value:
    """The first characters; of a negative count, all but the last ones."""
    return pc.utf8_slice_codeunits(value, start=0, stop=count)


def right(value: Value, count: int) -> Value:
    """The last characters; of a negative count, all but the first ones."""
    if count == 0:
        return pc.utf8_slice_codeunits(value, start=0, stop=0)
    return pc.utf8_slice_codeunits(value, start=-count)


def replace(value: Value, old: str, new: str) -> Value:
    return pc.replace_substring(value, pattern=old, replacement=new) if old else value


def concat(*values: Value) -> Value:
    empty = pa.scalar("", values[0].type)
    # null_handling="skip" drops the row when every part is NULL.
    return pc.binary_join_element_wise(*values, empty, null_handling="replace", null_replacement="")


def concat_ws(separator: Value, *values: Value) -> Value:
    """The parts that are not NULL with the separator between them."""
    empty = pa.scalar("", separator.type)
    joined: Value = pa.scalar(None, separator.type)
    for value in values:
        both = pc.and_(pc.is_valid(joined), pc.is_valid(value))
        pair = pc.binary_join_element_wise(joined, value, separator)
        joined = pc.if_else(both, pair, pc.coalesce(joined, value))
    return pc.if_else(pc.is_valid(separator), pc.coalesce(joined, empty), pa.scalar(None, separator.type))


def repeat(value: Value, count: Value) -> Value:
    return pc.binary_repeat(value, pc.max_element_wise(count, pa.scalar(0, count.type), skip_nulls=False))


def make_padding(*, before: bool) -> Callable[..., Value]:
    """Pad to a length by repeating a text; longer values are cut."""

    def run(value: Value, length: int, fill: str = " ") -> Value:
        length = max(length, 0)
        if length > _MOST_PADDED:
            raise pa.ArrowInvalid(
                f"a text of {length:,} characters is too long; {_MOST_PADDED:,} is the most"
            )
        cut = pc.utf8_slice_codeunits(value, start=0, stop=length)
        missing = pc.subtract(pa.scalar(length, pa.int64()), pc.cast(pc.utf8_length(cut), pa.int64()))
        if not fill:
            if pc.any(pc.greater(as_array(missing), 0)).as_py():
                raise pa.ArrowInvalid("there is nothing to fill up with")
            return cut
        if len(fill) == 1:
            kernel = pc.utf8_lpad if before else pc.utf8_rpad
            return kernel(cut, width=length, padding=fill)
        whole = fill * (length // len(fill) + 1)
        encoded = as_array(missing).dictionary_encode()  # once per number of characters that are missing
        pieces = [None if n is None else whole[:n] for n in encoded.dictionary.to_pylist()]
        padding: Value = pa.array(pieces, cut.type).take(encoded.indices)
        padding = padding[0] if isinstance(cut, pa.Scalar) else padding
        parts = (padding, cut) if before else (cut, padding)
        return pc.binary_join_element_wise(*parts, pa.scalar("", cut.type))

    return run


def split_part(value: Value, separator: str, index: int) -> Value:
    """The part at a position, from the end if negative; the empty text if there is none."""
    if not separator:  # every character is a part
        return substring(value, index, 1)
    texts = as_array(value)
    parts = pc.split_pattern(texts, pattern=separator)
    length, start = pc.list_value_length(parts), parts.offsets.slice(0, len(parts))
    place: Value = (
        pa.scalar(index - 1, length.type) if index > 0 else pc.add(length, pa.scalar(index, length.type))
    )
    there = pc.and_(pc.less(place, length), pc.greater_equal(place, pa.scalar(0, length.type)))
    there = there if index else pc.and_(there, pa.scalar(False))
    at = pc.if_else(there, pc.add(start, place), pa.scalar(None, start.type))
    found = pc.coalesce(parts.values.take(at), pa.scalar("", texts.type))
    found = pc.if_else(pc.is_valid(texts), found, pa.scalar(None, texts.type))
    return found[0] if isinstance(value, pa.Scalar) else found


def strpos(value: Value, part: str) -> Value:
    """The position (from 1) of a text in another; 0 if it is not contained."""
    if not part:
        return pc.if_else(pc.is_valid(value), pa.scalar(1), pa.scalar(None, pa.int64()))
    before = pc.replace_substring_regex(value, pattern=f"(?s){quote_regex(part)}.*$", replacement="")
    place = pc.add(pc.cast(pc.utf8_length(before), pa.int64()), 1)
    return pc.if_else(pc.match_substring(value, pattern=part), place, pa.scalar(0))


def regexp_matches(value: Value, pattern: str, options: str = "") -> Value:
    return pc.match_substring_regex(value, pattern=_make_regex(pattern, options))


def regexp_full_match(value: Value, pattern: str, options: str = "") -> Value:
    return pc.match_substring_regex(value, pattern=rf"\A(?:{_make_regex(pattern, options)})\z")


def regexp_replace(value: Value, pattern: str, new: str, options: str = "") -> Value:
    """Replace the first match, or with the option g all; ``\\1`` is the text of the first group."""
    most = None if "g" in options else 1
    return pc.replace_substring_regex(
        value, pattern=_make_regex(pattern, options), replacement=new, max_replacements=most
    )


def regexp_extract(value: Value, pattern: str, group: int = 0, options: str = "") -> Value:
    """The first match of the pattern, or of one of its groups; the empty text if there is none."""
    if not 0 <= group <= 8:
        raise pa.ArrowInvalid(f"there is no group {group}; groups are numbered from 0 to 8")
    regex = _make_regex(pattern, options)
    try:
        groups = re.compile(pattern).groups if "l" not in options else 0
    except re.error:  # syntax that only RE2 has
        groups = 9
    if group > groups:
        empty = pa.scalar("", value.type)
        return pc.if_else(pc.is_valid(value), empty, pa.scalar(None, value.type))
    # The whole text is replaced by the group; the part before the first match is as short as possible.
    found = pc.replace_substring_regex(
        value,
        pattern=rf"(?s:\A.*?)({regex})(?s:.*)\z",
        replacement=rf"\{group + 1}",
        max_replacements=1,
    )
    return pc.if_else(pc.match_substring_regex(value, pattern=regex), found, pa.scalar("", value.type))


def _make_regex(pattern: str, options: str) -> str:
    unknown = sorted(set(options) - set(_REGEX_OPTIONS))
    if unknown:
        raise pa.ArrowInvalid(f"there is no option {unknown[0]!r}; there are {', '.join(_REGEX_OPTIONS)}")
    regex = quote_regex(pattern) if "l" in options else pattern
    flags = "".join(flag for flag in "is" if flag in options)
    return f"(?{flags}:{regex})" if flags else regex


def make_digest(name: str) -> Callable[[Value], Value]:
    """A function that gives a hash as hexadecimal text; hashlib computes it once per distinct value."""

    def run(value: Value) -> Value:
        import hashlib  # 3 ms, which only these functions should pay

        make: Any = getattr(hashlib, name)
        array = as_array(value)
        binary = (
            pa.large_binary()
            if pt.is_large_string(array.type) or pt.is_large_binary(array.type)
            else pa.binary()
        )
        encoded = pc.cast(array, binary).dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        texts = [None if each is None else make(each, usedforsecurity=False).hexdigest() for each in distinct]
        found = pa.array(texts, pa.string()).take(encoded.indices)
        return found[0] if isinstance(value, pa.Scalar) else found

    return run
