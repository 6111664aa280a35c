"""Avro's encoding, against fastavro both ways."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import DamagedTable, NotSupported
from intarsia.tables.iceberg import avro
from intarsia.tables.iceberg.avro_codec import encode_long, make_reader, make_writer
from intarsia.tables.iceberg.packed_maps import DamagedAvro, read_long

_LONGS = st.integers(-(2**63), 2**63 - 1)
_PAIR = {"type": "record", "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "long"}]}
_BYTES_PAIR = {
    "type": "record",
    "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "bytes"}],
}
_SCHEMA = {
    "type": "record",
    "name": "all",
    "fields": [
        {"name": "n", "type": "null"},
        {"name": "b", "type": "boolean"},
        {"name": "i", "type": "int"},
        {"name": "l", "type": ["null", "long"]},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "x", "type": "bytes"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "z", "type": {"type": "fixed", "name": "three", "size": 3}},
        {"name": "again", "type": ["null", "three"]},
        {"name": "e", "type": {"type": "enum", "name": "abc", "symbols": ["A", "B", "C"]}},
        {"name": "a", "type": {"type": "array", "items": "string"}},
        {"name": "m", "type": {"type": "map", "values": "long"}},
        {"name": "p", "type": {"type": "array", "items": {**_PAIR, "name": "p1"}}},
        {"name": "q", "type": ["null", {"type": "array", "items": {**_BYTES_PAIR, "name": "p2"}}]},
    ],
}
_RECORDS = st.fixed_dictionaries(
    {
        "n": st.none(),
        "b": st.booleans(),
        "i": st.integers(-(2**31), 2**31 - 1),
        "l": st.none() | _LONGS,
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "x": st.binary(max_size=200),
        "s": st.none() | st.text(max_size=10),
        "z": st.binary(min_size=3, max_size=3),
        "again": st.none() | st.binary(min_size=3, max_size=3),
        "e": st.sampled_from("ABC"),
        "a": st.lists(st.text(max_size=3), max_size=3),
        "m": st.dictionaries(st.text(max_size=3), _LONGS, max_size=3),
        "p": st.dictionaries(st.integers(-(2**31), 2**31 - 1), _LONGS, max_size=5),
        "q": st.none()
        | st.dictionaries(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=100), max_size=5),
    }
)


def _pairs(record: dict[str, Any]) -> dict[str, Any]:
    """As other libraries have maps with integer keys."""

    def pairs(mapping: dict[int, Any] | None) -> list[dict[str, Any]] | None:
        return None if mapping is None else [{"key": key, "value": value} for key, value in mapping.items()]

    return record | {"p": pairs(record["p"]), "q": pairs(record["q"])}


@settings(max_examples=60, deadline=None)
@given(st.lists(_RECORDS, max_size=4), st.sampled_from(["null", "deflate"]))
def test_what_is_written_is_read_by_fastavro(records: list[dict[str, Any]], codec: str) -> None:
    encoder = avro.AvroFileWriter(_SCHEMA, {"some": "text"}, codec)
    for record in records:
        encoder.append(record)
    reader = fastavro.reader(io.BytesIO(encoder.finish()))
    assert reader.metadata["some"] == "text"
    assert list(reader) == [_pairs(record) for record in records]


@settings(max_examples=60, deadline=None)
@given(st.lists(_RECORDS, max_size=4), st.sampled_from(["null", "deflate", "bzip2", "xz"]))
def test_what_fastavro_writes_is_read(records: list[dict[str, Any]], codec: str) -> None:
    out = io.BytesIO()
    fastavro.writer(
        out, _SCHEMA, [_pairs(record) for record in records], codec=codec, metadata={"some": "text"}
    )
    container = avro.parse_avro(out.getvalue(), "f.avro")
    assert container.get_text("some") == "text"
    assert list(container.read_records()) == records


@given(_LONGS)
def test_numbers_survive(value: int) -> None:
    assert read_long(encode_long(value), 0) == (value, len(encode_long(value)))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_numbers_of_more_than_64_bits_are_refused(value: int) -> None:
    with pytest.raises(OverflowError, match="64-bit"):
        encode_long(value)


def test_blocks_with_their_size_are_read() -> None:
    # A negative count is followed by the bytes of the block; several blocks make one array.
    data = encode_long(-1) + encode_long(4) + b"\x02\x04" + encode_long(1) + b"\x06\x08" + b"\x00"
    assert make_reader({"type": "array", "items": {**_PAIR, "name": "p"}})(data, 0) == (
        {1: 2, 3: 4},
        len(data),
    )
    assert make_reader({"type": "array", "items": "long"})(
        encode_long(-2) + encode_long(2) + b"\x02\x04" + encode_long(1) + b"\x06\x00", 0
    ) == ([1, 2, 3], 7)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("bytes", encode_long(5) + b"abc"),
        ("bytes", encode_long(-5) + b"abc"),
        ("long", b"\xff" * 11),
        ("double", b"1234"),
        (["null", "long"], b"\x04"),
        (["null", "long"], b"\x01"),
        (["null", "long", "string"], b"\x06"),
        ({"type": "fixed", "name": "f", "size": 9}, b"1234"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\x01"),
        ({"type": "array", "items": {**_PAIR, "name": "p"}}, encode_long(2**40) + b"\x02\x02"),
        ({"type": "array", "items": {**_PAIR, "name": "p"}}, encode_long(2) + b"\x02\x02\x02"),
        ({"type": "array", "items": {**_BYTES_PAIR, "name": "p"}}, encode_long(1) + b"\x02\x01"),
        ({"type": "array", "items": {**_BYTES_PAIR, "name": "p"}}, encode_long(1) + b"\x02\x10abc"),
    ],
    ids=str,
)
def test_damaged_data_is_an_error(schema: Any, data: bytes) -> None:
    with pytest.raises((DamagedAvro, IndexError)):
        make_reader(schema)(data, 0)


@pytest.mark.parametrize("compile_schema", [make_reader, make_writer])
def test_an_unknown_type_is_named(compile_schema: Any) -> None:
    with pytest.raises(NotSupported, match="'geometry'"):
        compile_schema({"type": "record", "name": "r", "fields": [{"name": "g", "type": "geometry"}]})


def test_an_unknown_codec_is_named() -> None:
    data = avro.AvroFileWriter("long", {}, "null").finish().replace(b"\x08null", b"\x08lzo9")
    with pytest.raises(NotSupported, match="'lzo9'") as caught:
        avro.parse_avro(data, "f.avro")
    assert caught.value.path == "f.avro"


def test_a_wrong_checksum_of_a_snappy_block_is_damage() -> None:
    encoder = avro.AvroFileWriter("string", {}, "snappy")
    encoder.append("text" * 10)  # type: ignore[arg-type]
    data = bytearray(encoder.finish())
    assert list(avro.parse_avro(bytes(data), "f").read_records()) == ["text" * 10]
    data[-17] ^= 1
    with pytest.raises(DamagedTable, match="checksum"):
        avro.parse_avro(bytes(data), "f.avro")


def test_bytes_after_the_last_record_of_a_block_are_damage() -> None:
    encoder = avro.AvroFileWriter("long", {}, "null")
    encoder.append(1)  # type: ignore[arg-type]
    encoder._block += b"\x02"
    with pytest.raises(DamagedTable, match="1 bytes too many"):
        list(avro.parse_avro(encoder.finish(), "f.avro").read_records())


def test_a_damaged_deflate_block_is_damage() -> None:
    encoder = avro.AvroFileWriter("string", {}, "gzip")
    encoder.append("text" * 100)  # type: ignore[arg-type]
    data = encoder.finish()
    place = len(data) - 20
    with pytest.raises(DamagedTable):
        list(avro.parse_avro(data[:place] + b"\xff\xff" + data[place + 2 :], "f.avro").read_records())


def test_numbers_are_unpacked_as_a_mapping() -> None:
    out = bytearray()
    schema = {"type": "array", "items": {**_PAIR, "name": "p"}}
    make_writer(schema)(out, {1: 2, -5: 2**40})
    found, _ = make_reader(schema)(bytes(out), 0)
    assert (found[-5], found.get(7), len(found), list(found)) == (2**40, None, 2, [1, -5])
    assert found == {1: 2, -5: 2**40} == found
    assert repr(found) == "{1: 2, -5: 1099511627776}"
    again = bytearray()
    make_writer(schema)(again, found)
    assert again == out


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.binary(max_size=200), min_size=1))
def test_bytes_by_number_are_found_while_they_stay_packed(values: dict[int, bytes]) -> None:
    schema = {"type": "array", "items": {**_BYTES_PAIR, "name": "p"}}
    out = bytearray()
    make_writer(schema)(out, values)
    packed, end = make_reader(schema)(bytes(out), 0)
    assert end == len(out)
    assert packed == values
    assert {key: packed.get(key) for key in values} == values
    assert packed.get(max(values) + 1) is None
    assert bool(packed)
    again = bytearray()
    make_writer(schema)(again, packed)
    assert again == out


def test_maps_that_are_equal_are_kept_once() -> None:
    pairs = {"type": "array", "items": {**_PAIR, "name": "pair"}}
    data = bytearray()
    write = make_writer(pairs)
    for counts in ({1: 10, 2: 0}, {1: 10, 2: 0}, {1: 11, 2: 0}):
        write(data, counts)
    read, at, found = make_reader(pairs), 0, []
    while at < len(data):
        one, at = read(bytes(data), at)
        found.append(one)
    assert [dict(one) for one in found] == [{1: 10, 2: 0}, {1: 10, 2: 0}, {1: 11, 2: 0}]
    assert found[0] is found[1]
    assert found[0].peek(1) == 10
    assert found[2].peek(1) == 11
