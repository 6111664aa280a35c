"""The compact protocol: what was read is written back, and what is cut short is told."""

from __future__ import annotations

import struct
from io import BytesIO

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from intarsia.common.thrift import (
    BINARY,
    DOUBLE,
    FALSE,
    I8,
    I16,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    get,
    read_struct,
    write_struct,
)

INTEGERS = st.integers(-(2**63), 2**63 - 1)
SIMPLE = st.one_of(
    st.tuples(st.sampled_from([I16, I32, I64]), INTEGERS),
    st.tuples(st.just(BINARY), st.binary(max_size=200)),
    st.tuples(st.just(DOUBLE), st.binary(min_size=8, max_size=8)),
    st.sampled_from([(TRUE, True), (FALSE, False)]),
)
LISTS = st.one_of(
    st.tuples(st.just(I64), st.lists(INTEGERS, max_size=20)),
    st.tuples(st.just(BINARY), st.lists(st.binary(max_size=5), max_size=20)),
    st.tuples(st.just(TRUE), st.lists(st.sampled_from([1, 2]), max_size=20)),
    st.tuples(st.just(I8), st.lists(st.integers(0, 255), max_size=20)),
).map(lambda items: (LIST, items))
STRUCTS = st.recursive(
    st.dictionaries(st.integers(1, 300), SIMPLE | LISTS, max_size=8),
    lambda inner: st.dictionaries(
        st.integers(1, 300),
        st.tuples(st.just(STRUCT), inner)
        | st.lists(inner, max_size=17).map(lambda items: (LIST, (STRUCT, items))),
        max_size=4,
    ),
    max_leaves=6,
)


@given(STRUCTS, st.binary(max_size=5))
def test_a_struct_reads_back_as_it_was_written_and_tells_where_it_ends(value, rest):
    data = write_struct(value)
    assert read_struct(data + rest) == (value, len(data))
    assert read_struct(rest + data, len(rest)) == (value, len(rest) + len(data))
    assert read_struct(memoryview(data)) == (value, len(data))


def test_a_footer_of_arrow_comes_back_byte_for_byte():
    sink = BytesIO()
    table = pa.table({"a": [1, 2], "b": [["x"], None], "c": [{"d": 1.5}, None]})
    pq.write_table(table, sink, write_page_index=True)
    data = sink.getvalue()
    footer = data[-8 - struct.unpack("<I", data[-8:-4])[0] : -8]
    value, end = read_struct(footer)
    assert (end, write_struct(value)) == (len(footer), footer)
    assert get(value, 3) == 2
    assert get(value, 99, "none") == "none"


@pytest.mark.parametrize("data", [b"", b"\x16", b"\x18\x05ab", b"\x1c\x16\x02", b"\x1b\x01"])
def test_data_that_is_no_struct_is_refused(data):
    with pytest.raises(ValueError, match=r"ends within|unknown kind"):
        read_struct(data)
