import datetime as dt
import itertools
import math
import pickle
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.common.schema import (
    cast_exact,
    cast_schema,
    check_key_types,
    conform_schema,
    conform_table,
    convert_large_types_to_normal,
    find_common_type,
    infer_text_type,
    is_nested,
    opt_dtype,
    unify_schemas,
)
from intarsia.errors import ColumnNotFound, InputError, KeyColumnError, SchemaMismatch

WHERE = {"operation": "merge", "path": "/data/orders"}
STRINGS = [pa.string(), pa.large_string(), pa.string_view()]
BINARIES = [pa.binary(), pa.large_binary(), pa.binary_view()]
LISTS = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]


def dictionary(values=None, index=None):
    return pa.dictionary(index or pa.int32(), values or pa.string())


def cast(array, data_type):
    result = cast_exact(array, data_type, column="c", **WHERE)
    assert result.type == data_type
    result.validate(full=True)
    return result.to_pylist()


# --- the common type


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.uint32(), pa.uint32()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint8(), pa.int64(), pa.int64()),
        (pa.uint32(), pa.int32(), pa.int64()),
        (pa.uint64(), pa.int64(), None),
        (pa.uint64(), pa.int8(), None),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.float16(), pa.float32(), pa.float32()),
        (pa.int8(), pa.float16(), pa.float16()),
        (pa.int16(), pa.float16(), pa.float32()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.uint32(), pa.float64(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.decimal128(5, 2), pa.decimal128(6, 1), pa.decimal128(7, 2)),
        (pa.decimal128(38, 0), pa.decimal128(38, 2), pa.decimal256(40, 2)),
        (pa.decimal256(76, 0), pa.decimal128(38, 2), None),
        (pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal64(12, 2)),
        (pa.decimal32(9, 2), pa.decimal32(9, 0), pa.decimal64(11, 2)),
        (pa.int32(), pa.decimal128(5, 2), pa.decimal128(12, 2)),
        (pa.int64(), pa.decimal128(5, 2), pa.decimal128(21, 2)),
        (pa.uint64(), pa.decimal128(5, 2), pa.decimal128(22, 2)),
        (pa.float64(), pa.decimal128(5, 2), None),
        (pa.bool_(), pa.int8(), None),
        (pa.string(), pa.int64(), None),
        (pa.string(), pa.binary(), None),
        (pa.string(), dictionary(pa.binary()), None),
        (pa.binary(4), pa.binary(), pa.binary()),
        (pa.binary(4), pa.large_binary(), pa.large_binary()),
        (pa.binary(4), pa.binary(5), pa.binary()),
        (pa.date32(), pa.date64(), pa.date64()),
        (pa.date32(), pa.timestamp("us"), None),
        (pa.time32("s"), pa.time32("ms"), pa.time32("ms")),
        (pa.time32("s"), pa.time64("us"), pa.time64("us")),
        (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.timestamp("us", "UTC"), pa.timestamp("ms", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.duration("s"), pa.duration("us"), pa.duration("us")),
        (pa.null(), pa.list_(pa.int8()), pa.list_(pa.int8())),
        (dictionary(index=pa.int8()), dictionary(index=pa.int32()), dictionary()),
        (dictionary(), pa.large_string(), dictionary()),
        (pa.large_string(), dictionary(), pa.large_string()),
        (dictionary(pa.int32()), pa.int64(), pa.int64()),
        (dictionary(pa.int32()), dictionary(pa.int64()), dictionary(pa.int64())),
        (dictionary(), pa.int64(), None),
        (pa.run_end_encoded(pa.int32(), pa.int8()), pa.int16(), pa.int16()),
        (pa.list_(pa.int8()), pa.large_list(pa.int16()), pa.list_(pa.int16())),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int16(), 2), pa.list_(pa.int16(), 2)),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (pa.list_(pa.int8(), 2), pa.large_list(pa.int8()), pa.large_list(pa.int8())),
        (pa.list_(pa.int8()), pa.list_(pa.string()), None),
        (pa.list_(pa.int8()), pa.int8(), None),
        (
            pa.struct([pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.string(), nullable=False)]),
            pa.struct([pa.field("c", pa.bool_()), pa.field("a", pa.int16(), nullable=False)]),
            pa.struct([pa.field("a", pa.int16(), nullable=False), ("b", pa.string()), ("c", pa.bool_())]),
        ),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())]), None),
        (
            pa.map_(pa.string(), pa.int8()),
            pa.map_(pa.large_string(), pa.int16()),
            pa.map_(pa.string(), pa.int16()),
        ),
        (pa.uuid(), pa.uuid(), pa.uuid()),
        (pa.uuid(), pa.binary(16), pa.uuid()),
        (pa.binary(16), pa.uuid(), pa.binary(16)),
        (pa.uuid(), pa.binary(), None),
        (pa.uuid(), pa.json_(), None),
    ],
    ids=str,
)
def test_the_common_type_holds_every_value_of_both(left, right, expected):
    assert find_common_type(left, right) == expected
    assert (find_common_type(right, left) is None) == (expected is None)
    assert find_common_type(left, left) == left
    assert find_common_type(left, pa.null()) == left


@pytest.mark.parametrize(
    "family", [STRINGS, BINARIES, [make(pa.int8()) for make in LISTS]], ids=["s", "b", "l"]
)
def test_between_variants_of_the_same_values_the_left_one_is_kept(family):
    for left, right in itertools.permutations(family, 2):
        assert find_common_type(left, right) == left


NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(
        pa.float16(),
        pa.float32(),
        pa.float64(),
        pa.decimal32(4, 1),
        pa.decimal64(15, 4),
        pa.decimal128(25, 3),
    ),
    *(pa.decimal128(38, 38), pa.decimal256(60, 10)),
]


def extremes(data_type):
    if pa.types.is_integer(data_type):
        signed = pa.types.is_signed_integer(data_type)
        top = 2 ** (data_type.bit_width - signed)
        return [-top if signed else 0, top - 1, 1]
    if pa.types.is_decimal(data_type):
        most = Decimal((0, (9,) * data_type.precision, -data_type.scale))
        return [most, most.copy_negate(), Decimal((0, (1,), -data_type.scale))]
    return {16: [65504.0, 2.0**-24], 32: [3.4028234663852886e38, 2.0**-149], 64: [1.7e308, 5e-324]}[
        data_type.bit_width
    ]


@pytest.mark.parametrize(("left", "right"), list(itertools.permutations(NUMBERS, 2)), ids=str)
def test_the_extremes_of_two_number_types_fit_their_common_type(left, right):
    both = find_common_type(left, right)
    for data_type in (left, right) if both is not None else ():
        values = extremes(data_type)
        assert cast(pa.array(values, data_type), both) == values


# --- large and normal


def test_large_types_become_normal_at_every_depth_and_all_else_stays():
    inner = pa.field("i", pa.large_list(pa.field("e", pa.string_view(), nullable=False)), metadata={"k": "v"})
    schema = pa.schema(
        [
            pa.field("s", pa.large_string(), nullable=False, metadata={"a": "b"}),
            pa.field("b", pa.binary_view()),
            pa.field("f", pa.binary(3)),
            pa.field("st", pa.struct([inner])),
            pa.field("m", pa.map_(pa.large_string(), pa.large_binary())),
            pa.field("d", pa.dictionary(pa.int8(), pa.large_string())),
            pa.field("fl", pa.list_(pa.large_string(), 2)),
            pa.field("lv", pa.large_list_view(pa.int8())),
            pa.field("i", pa.int8()),
        ],
        metadata={"meta": "data"},
    )
    normal = convert_large_types_to_normal(schema)
    expected = [
        pa.string(),
        pa.binary(),
        pa.binary(3),
        pa.struct([pa.field("i", pa.list_(pa.field("e", pa.string(), nullable=False)))]),
        pa.map_(pa.string(), pa.binary()),
        pa.dictionary(pa.int8(), pa.string()),
        pa.list_(pa.string(), 2),
        pa.list_(pa.int8()),
        pa.int8(),
    ]
    assert normal.types == expected
    assert normal.metadata == schema.metadata
    assert normal.field("s").metadata == {b"a": b"b"}
    assert not normal.field("s").nullable
    assert normal.field("st").type.field("i").metadata == {b"k": b"v"}
    assert convert_large_types_to_normal(normal).equals(normal, check_metadata=True)


# --- unify


def test_schemas_unify_by_name_in_order_of_first_appearance():
    first = pa.schema([("a", pa.int32()), pa.field("b", pa.string(), nullable=False)], metadata={"m": "1"})
    second = pa.schema(
        [
            ("c", pa.bool_()),
            pa.field("b", pa.large_string(), nullable=False, metadata={"k": "v"}),
            ("a", pa.int64()),
        ],
        metadata={"m": "2"},
    )
    expected = pa.schema(
        [
            ("a", pa.int64()),
            pa.field("b", pa.string(), nullable=False, metadata={"k": "v"}),
            ("c", pa.bool_()),
        ],
        metadata={"m": "1"},
    )
    assert unify_schemas([first, second]).equals(expected, check_metadata=True)
    assert unify_schemas([first]).equals(first, check_metadata=True)


def test_a_column_that_a_schema_lacks_is_nullable():
    required = pa.field("a", pa.int32(), nullable=False)
    assert not unify_schemas([pa.schema([required]), pa.schema([required])]).field("a").nullable
    assert unify_schemas([pa.schema([required]), pa.schema([("b", pa.int8())])]).field("a").nullable
    assert unify_schemas([pa.schema([required]), pa.schema([("a", pa.int8())])]).field("a").nullable


def test_every_column_that_does_not_unify_is_named_with_both_types():
    left = pa.schema([("a", pa.int32()), ("b", pa.string()), ("ok", pa.int8())])
    right = pa.schema([("a", pa.string()), ("b", pa.binary()), ("ok", pa.int64())])
    with pytest.raises(SchemaMismatch) as caught:
        unify_schemas([left, right], **WHERE)
    text = str(caught.value)
    for part in (
        "merge",
        "/data/orders",
        "2 columns",
        "'a' is int32 and string",
        "'b' is string and binary",
        "Hint",
    ):
        assert part in text
    assert "'ok'" not in text
    assert isinstance(caught.value, ValueError | pa.ArrowInvalid | pa.ArrowTypeError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_names_that_are_ambiguous_do_not_unify():
    with pytest.raises(SchemaMismatch, match="'Id' and 'id' differ only by case"):
        unify_schemas([pa.schema([("id", pa.int8())]), pa.schema([("Id", pa.int8())])])
    with pytest.raises(SchemaMismatch, match="'a' is there 2 times"):
        unify_schemas([pa.schema([("a", pa.int8()), ("a", pa.int8())])])
    both = pa.schema([("id", pa.int8()), ("Id", pa.int8())])
    assert unify_schemas([both, both]) == both
    with pytest.raises(InputError, match="no schema"):
        unify_schemas([])


def test_large_types_and_time_zones_can_be_asked_for():
    schema = pa.schema([("s", pa.large_string()), ("n", pa.string()), ("z", pa.timestamp("us", "UTC"))])
    assert unify_schemas([schema]).types == schema.types
    assert unify_schemas([schema], use_large_dtypes=False).types[:2] == [pa.string(), pa.string()]
    assert unify_schemas([schema], use_large_dtypes=True).types[:2] == [pa.large_string(), pa.large_string()]
    zoned = unify_schemas([schema, pa.schema([("t", pa.timestamp("us"))])], timezone="Asia/Tokyo")
    assert zoned.field("z").type == pa.timestamp("us", "Asia/Tokyo")
    assert zoned.field("t").type == pa.timestamp("us")


# --- conforming schemas

TARGET = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("v", pa.int32()), ("day", pa.date32())], metadata={"k": "v"}
)


def conform(source, target=TARGET, **options):
    return conform_schema(pa.schema(source), target, **WHERE, **options)


def test_the_target_keeps_its_columns_order_and_types():
    source = [("day", pa.date32()), ("v", pa.int64()), ("id", pa.int8())]
    assert conform(source).equals(TARGET, check_metadata=True)


def test_widening_takes_the_common_type_only_when_asked():
    source = [("day", pa.date32()), ("v", pa.int64()), ("id", pa.int8())]
    widened = conform(source, schema_evolution="widen")
    assert widened.field("v").type == pa.int64()
    assert widened.field("id") == TARGET.field("id")


def test_every_problem_is_in_one_error():
    with pytest.raises(SchemaMismatch) as caught:
        conform([("id", pa.string()), ("day", pa.timestamp("us")), ("extra", pa.int8())])
    text = str(caught.value)
    for part in (
        "merge: 4 columns do not fit at /data/orders",
        "'id' is int64 in the target and string in the source",
        "'day' is date32[day] in the target and timestamp[us] in the source",
        "'v' (int32) is missing from the source",
        "'extra' (int8) is new",
        'missing="null"',
        'schema_evolution="add"',
    ):
        assert part in text


def test_a_missing_column_can_be_null_unless_it_is_required_or_a_partition():
    assert conform([("id", pa.int64()), ("day", pa.date32())], missing="null").equals(TARGET)
    with pytest.raises(SchemaMismatch, match=r"'id'.*NOT NULL"):
        conform([("v", pa.int32()), ("day", pa.date32())], missing="null")
    with pytest.raises(SchemaMismatch, match=r"'day'.*partition column"):
        conform([("id", pa.int64()), ("v", pa.int32())], missing="null", partition_columns=["day"])


def test_new_columns_are_appended_nullable_when_asked():
    source = [pa.field("new", pa.string(), nullable=False), *TARGET]
    added = conform(source, schema_evolution="add")
    assert added.names == ["id", "v", "day", "new"]
    assert added.field("new").nullable
    assert added.metadata == TARGET.metadata


@pytest.mark.parametrize("evolution", ["add,widen", "widen, add", ["add", "widen"], {"add", "widen"}])
def test_both_kinds_of_evolution_at_once(evolution):
    source = [("id", pa.int64()), ("v", pa.int64()), ("day", pa.date32()), ("n", pa.int8())]
    assert conform(source, schema_evolution=evolution).types == [
        pa.int64(),
        pa.int64(),
        pa.date32(),
        pa.int8(),
    ]


@pytest.mark.parametrize(
    "options", [{"schema_evolution": "merge"}, {"schema_evolution": ["x"]}, {"missing": "drop"}]
)
def test_unknown_options_are_refused(options):
    with pytest.raises(InputError, match="is not known"):
        conform(TARGET, **options)


def test_names_that_differ_by_case_are_ambiguous():
    with pytest.raises(SchemaMismatch, match="'ID' and 'id' differ only by case"):
        conform([("ID", pa.int64()), ("v", pa.int32()), ("day", pa.date32())], schema_evolution="add")
    with pytest.raises(SchemaMismatch, match="'id' is there 2 times"):
        conform([("id", pa.int64()), *TARGET])


def test_struct_fields_follow_the_same_rules_as_columns():
    required = pa.field("r", pa.int8(), nullable=False)
    target = pa.schema([("p", pa.list_(pa.struct([("a", pa.int8()), required])))])
    same = [("p", pa.list_(pa.struct([("r", pa.int8()), ("a", pa.int8())])))]
    wide = [("p", pa.list_(pa.struct([("r", pa.int8()), ("a", pa.int16()), ("n", pa.bool_())])))]
    assert conform(same, target) == target
    assert conform(same, target, schema_evolution="add,widen") == target, "NOT NULL inside stays"
    with pytest.raises(SchemaMismatch, match=r"'p\.item\.n' is a new struct field.*schema_evolution=\"add\""):
        conform(wide, target, schema_evolution="widen")
    added = conform(wide, target, schema_evolution="add")
    assert added.field("p").type == pa.list_(pa.struct([("a", pa.int8()), required, ("n", pa.bool_())]))
    both = conform(wide, target, schema_evolution="add,widen")
    assert both.field("p").type == pa.list_(pa.struct([("a", pa.int16()), required, ("n", pa.bool_())]))
    without_a = [("p", pa.list_(pa.struct([required])))]
    with pytest.raises(SchemaMismatch, match=r"'p\.item\.a' is a struct field missing"):
        conform(without_a, target)
    assert conform(without_a, target, missing="null", schema_evolution="widen") == target
    with pytest.raises(SchemaMismatch, match=r"'p\.item\.r' is a struct field missing"):
        conform(
            [("p", pa.list_(pa.struct([("a", pa.int8())])))], target, missing="null", schema_evolution="widen"
        )


# --- exact casts

YEAR_3000 = dt.datetime(3000, 1, 1)


@pytest.mark.parametrize(
    ("values", "source", "target", "shown"),
    [
        ([1, 300, 400], pa.int64(), pa.int8(), "300"),
        ([1, -1], pa.int64(), pa.uint64(), "-1"),
        ([1, 2**63], pa.uint64(), pa.int64(), str(2**63)),
        ([1, 2**53 + 1], pa.int64(), pa.float64(), str(2**53 + 1)),
        ([1, 2**53 + 1], pa.uint64(), pa.float64(), str(2**53 + 1)),
        ([1, 2**24 + 1], pa.int32(), pa.float32(), str(2**24 + 1)),
        ([1, 2049], pa.int32(), pa.float16(), "2049"),
        ([1, 70000], pa.int32(), pa.float16(), "70000"),
        ([1.0, 1.5], pa.float64(), pa.int32(), "1.5"),
        ([1.0, math.nan], pa.float64(), pa.int32(), "nan"),
        ([1.0, math.inf], pa.float64(), pa.int64(), "inf"),
        ([1.0, 2.0**63], pa.float64(), pa.int64(), "9.2233"),
        ([0.5, 0.1], pa.float64(), pa.float32(), "0.1"),
        ([0.5, 1e300], pa.float64(), pa.float32(), "1e+300"),
        ([0.5, 0.1], pa.float64(), pa.float16(), "0.1"),
        ([Decimal("1.20"), Decimal("1.25")], pa.decimal128(5, 2), pa.decimal128(5, 1), "Decimal('1.25')"),
        ([Decimal("1.2"), Decimal("123.2")], pa.decimal128(5, 1), pa.decimal128(3, 1), "Decimal('123.2')"),
        ([Decimal("1.0"), Decimal("1.5")], pa.decimal128(5, 1), pa.int64(), "Decimal('1.5')"),
        ([Decimal(1), Decimal(10**20)], pa.decimal128(30, 0), pa.int64(), "Decimal('100000000000000000000')"),
        ([Decimal(1), Decimal(2**53 + 1)], pa.decimal128(30, 0), pa.float64(), f"Decimal('{2**53 + 1}')"),
        ([0.5, 1 / 3], pa.float64(), pa.decimal128(10, 4), "0.333"),
        ([5, 500], pa.int64(), pa.decimal32(3, 1), "500"),
        ([10**18], pa.int64(), pa.decimal128(38, 30), str(10**18)),
        ([1000, 1], pa.timestamp("ns"), pa.timestamp("us"), "1970-01-01 00:00:00.000000001"),
        ([YEAR_3000], pa.timestamp("us"), pa.timestamp("ns"), "3000-01-01 00:00:00.000000"),
        ([YEAR_3000], pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC"), "3000-01-01 00:00:00.000000Z"),
        ([10**17], pa.timestamp("ms"), pa.timestamp("us"), "100000000000000000"),
        ([86_400_000, 1], pa.date64(), pa.date32(), "1970-01-01"),
        ([1000, 1], pa.time64("ns"), pa.time64("us"), "00:00:00.000000001"),
        ([1], pa.time64("us"), pa.time32("s"), "00:00:00.000001"),
        ([1000, 1], pa.duration("ns"), pa.duration("us"), "1"),
        ([2**62], pa.duration("s"), pa.duration("us"), str(2**62)),
        ([b"abc", b"ab"], pa.binary(), pa.binary(3), "b'ab'"),
        ([[1], [1, 300]], pa.list_(pa.int64()), pa.list_(pa.int8()), "[1, 300]"),
        ([[1, 2], [1]], pa.list_(pa.int64()), pa.list_(pa.int64(), 2), "[1]"),
        ([{"a": 1}, {"a": 300}], pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int8())]), "{'a': 300}"),
        (
            [[("k", 1)], [("k", 300)]],
            pa.map_(pa.string(), pa.int64()),
            pa.map_(pa.string(), pa.int8()),
            "('k', 300)",
        ),
        ([None, 1], pa.int64(), pa.null(), "1"),
        (["1", "x"], dictionary(), pa.null(), "'1'"),
        ([1, 300], dictionary(pa.int64()), pa.int8(), "300"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_named_and_nothing_is_lost(values, source, target, shown):
    array = pa.chunked_array(
        [pa.nulls(3, source), pa.array([values[0], *values], source), pa.array(values, source)]
    )
    with pytest.raises(SchemaMismatch) as caught:
        cast_exact(array, target, column="c", **WHERE)
    text = str(caught.value)
    for part in ("merge", "/data/orders", "'c'", shown, 'schema_evolution="widen"'):
        assert part in text


def test_the_first_of_many_misfits_in_a_large_column_is_named():
    values = pa.array(range(1_000_000))
    with pytest.raises(SchemaMismatch, match="cannot hold 32768 exactly"):
        cast_exact(pa.chunked_array([values.slice(0, 10), values, values]), pa.int16(), column="c")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (pa.string(), pa.int64()),
        (pa.int64(), pa.string()),
        (pa.string(), pa.binary()),
        (pa.binary(), pa.string()),
        (pa.bool_(), pa.int8()),
        (pa.int8(), pa.bool_()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.timestamp("us"), pa.date32()),
        (pa.date32(), pa.timestamp("us")),
        (pa.int64(), pa.timestamp("us")),
        (pa.date32(), pa.int32()),
        (pa.int64(), pa.list_(pa.int64())),
        (pa.list_(pa.int64()), pa.struct([("a", pa.int64())])),
        (pa.uuid(), pa.json_()),
        (pa.list_(pa.string()), pa.list_(pa.int64())),
        (dictionary(), pa.int64()),
        (pa.struct([("a", pa.int8()), ("b", pa.int8())]), pa.struct([("a", pa.int8())])),
        (
            pa.struct([("a", pa.int8())]),
            pa.struct([("a", pa.int8()), pa.field("b", pa.int8(), nullable=False)]),
        ),
        (pa.month_day_nano_interval(), pa.duration("s")),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [0, 2])
def test_types_that_do_not_mean_the_same_are_refused_whatever_the_values(source, target, rows):
    with pytest.raises(SchemaMismatch) as caught:
        cast_exact(pa.nulls(rows, source), target, column="c", **WHERE)
    for part in ("merge", "/data/orders", "'c'", str(source), str(target)):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        ([1, None, 127], pa.int64(), pa.int8()),
        ([2**53, -(2**53)], pa.int64(), pa.float64()),
        ([1.0, -5.0, None], pa.float64(), pa.int8()),
        ([0.5, math.inf, None], pa.float64(), pa.float32()),
        ([0.5, 65504.0], pa.float64(), pa.float16()),
        ([0.5], pa.float16(), pa.decimal128(5, 2)),
        ([Decimal("1.50")], pa.decimal128(5, 2), pa.decimal32(2, 1)),
        ([Decimal("1.50")], pa.decimal128(5, 2), pa.float16()),
        ([Decimal("3.0"), None], pa.decimal32(3, 1), pa.int64()),
        ([Decimal("3.0"), None], pa.decimal64(12, 1), pa.uint64()),
        ([5, None], pa.uint64(), pa.decimal32(3, 1)),
        ([2**64 - 1], pa.uint64(), pa.decimal256(50, 10)),
        ([1_000_000], pa.timestamp("ns", "UTC"), pa.timestamp("ms", "Asia/Tokyo")),
        ([dt.date(2024, 1, 1)], pa.date64(), pa.date32()),
        ([dt.date(2024, 1, 1)], pa.date32(), pa.date64()),
        ([dt.time(1, 2, 3)], pa.time64("us"), pa.time32("s")),
        ([b"abc", None], pa.binary(3), pa.binary_view()),
        ([b"abc", None], pa.binary_view(), pa.binary(3)),
        ([None, None], pa.null(), pa.list_view(pa.int8())),
        ([None, None], pa.null(), dictionary(pa.string_view())),
        ([None, None], pa.int64(), pa.null()),
        (["a", None, "a"], pa.string(), pa.run_end_encoded(pa.int32(), pa.large_string())),
    ],
    ids=str,
)
def test_values_that_fit_are_equal_afterwards(values, source, target):
    array = pa.array(values, source)
    for given_ in (array, pa.concat_arrays([array, array]).slice(len(array)), array.slice(0, 0)):
        back = cast_exact(cast_exact(given_, target, column="c"), source, column="c")
        assert back.to_pylist() == given_.to_pylist()
    for before, after in zip(array.to_pylist(), cast(array, target), strict=True):
        assert before == after or (before is None and after is None)


def test_a_decimal_and_a_float_meet_where_each_reads_back_as_the_other():
    assert cast(pa.array([Decimal("0.1")]), pa.float64()) == [0.1]
    assert cast(pa.array([0.1]), pa.decimal128(5, 1)) == [Decimal("0.1")]
    assert cast(pa.array([2.0**60]), pa.int64()) == [2**60]


def test_nan_and_the_sign_of_zero_survive_a_narrower_float():
    values = cast(pa.array([math.nan, -0.0]), pa.float32())
    assert math.isnan(values[0])
    assert math.copysign(1, values[1]) == -1


ENCODINGS = [*STRINGS, *(dictionary(value, index) for value in STRINGS for index in (pa.int8(), pa.uint32()))]


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(ENCODINGS, 2)), ids=str)
def test_strings_go_between_all_variants_and_dictionaries(source, target):
    texts = ["a", None, "b", "a", "ä" * 20]
    array = cast_exact(pa.array(texts), source, column="c")
    assert cast(array, target) == texts
    assert cast(array.chunk(0).slice(1, 3), target) == texts[1:4]


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(BINARIES, 2)), ids=str)
def test_binaries_go_between_all_variants(source, target):
    assert cast(pa.array([b"\xff", None, b""], source), target) == [b"\xff", None, b""]


@pytest.mark.parametrize("source", [pa.string(), dictionary()], ids=str)
def test_more_values_than_a_dictionary_can_index_are_refused_over_all_chunks(source, tmp_path):
    texts = [str(i) for i in range(128)]
    chunks = pa.chunked_array([texts[:100], texts[100:], texts[:5]])
    narrow = dictionary(index=pa.int8())
    full = cast_exact(cast_exact(chunks, source, column="c"), narrow, column="c")
    pq.write_table(pa.table({"c": full}), tmp_path / "f.parquet")
    assert pq.read_table(tmp_path / "f.parquet")["c"].to_pylist() == chunks.to_pylist()
    more = cast_exact(pa.chunked_array([*chunks.chunks, pa.array(["one more"])]), source, column="c")
    with pytest.raises(SchemaMismatch, match="129 distinct values"):
        cast_exact(more, narrow, column="c")


def test_a_dictionary_value_that_no_row_has_need_not_fit():
    array = pa.DictionaryArray.from_arrays(pa.array([0, None, 0]), pa.array([1, 300]))
    assert cast(array, pa.int8()) == [1, None, 1]


def test_a_null_inside_a_dictionary_is_a_null():
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    assert cast(array, pa.large_string()) == ["a", None]
    assert cast(array, dictionary(index=pa.int8())) == ["a", None]


NESTED = [[{"a": 1, "b": "x"}], None, [], [{"a": 100, "b": None}, None], [{"a": None, "b": "z"}]]


@pytest.mark.parametrize(
    ("source", "target"), list(itertools.product(LISTS, LISTS)), ids=lambda f: f.__name__
)
def test_lists_of_structs_meet_by_field_name_in_every_variant(source, target):
    item = pa.struct([("a", pa.int64()), ("b", pa.string())])
    other = pa.struct([("b", pa.string_view()), ("z", pa.date32()), ("a", pa.int16())])
    array = cast_exact(pa.array(NESTED, pa.list_(item)), source(item), column="c").chunk(0)
    expected = [
        row and [None if s is None else {"b": s["b"], "z": None, "a": s["a"]} for s in row] for row in NESTED
    ]
    assert cast(array, target(other)) == expected
    assert cast(array.slice(1, 3), target(other)) == expected[1:4]


def test_lists_of_fixed_size_go_both_ways():
    array = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2))
    for target in (
        pa.list_(pa.int8()),
        pa.list_(pa.int8(), 2),
        pa.large_list(pa.int8()),
        pa.list_view(pa.int8()),
    ):
        assert cast(array, target) == [[1, 2], None, [3, 4]]
        assert cast(array.slice(1), target) == [None, [3, 4]]
        assert cast(cast_exact(array.slice(1), target, column="c"), array.type) == [None, [3, 4]]


def test_maps_are_cast_also_when_sliced():
    rows = [[("a", 1)], None, [("b", None), ("c", 3)], []]
    array = pa.array(rows, pa.map_(pa.string(), pa.int64()))
    target = pa.map_(pa.large_string(), pa.int8())
    assert cast(array, target) == rows
    assert cast(array.slice(1, 2), target) == rows[1:3]
    required = pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False))
    with pytest.raises(SchemaMismatch, match="'value' is NOT NULL"):
        cast_exact(array, required, column="c")


def test_what_lies_under_a_null_struct_or_list_does_not_count():
    child = pa.array([300, 1])
    struct = pa.StructArray.from_arrays([child], ["a"], mask=pa.array([True, False]))
    assert cast(struct, pa.struct([("a", pa.int8())])) == [None, {"a": 1}]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), child, mask=pa.array([True, False]))
    assert cast(lists, pa.list_(pa.int8())) == [None, [1]]


def test_required_struct_fields_are_checked_below_structs_that_are_there(tmp_path):
    target = pa.struct([pa.field("a", pa.int8(), nullable=False)])
    array = pa.array([{"a": 1}, None], pa.struct([("a", pa.int64())]))
    assert cast(array, target) == [{"a": 1}, None]
    with pytest.raises(SchemaMismatch, match="'a' is NOT NULL"):
        cast_exact(pa.array([{"a": None}], array.type), target, column="c")
    deeper = pa.struct([pa.field("d", target, nullable=False), ("l", pa.list_(pa.string()))])
    nulls = pa.nulls(2)
    table = pa.table({"c": array, "n": nulls, "d": nulls})
    schema = pa.schema([("c", target), ("n", target), ("d", deeper), ("absent", deeper)])
    conformed = conform_table(table, schema, **WHERE)
    pq.write_table(conformed, tmp_path / "f.parquet")
    assert pq.read_table(tmp_path / "f.parquet").to_pylist() == conformed.to_pylist()


def test_extension_types_meet_their_storage():
    array = pa.array([b"a" * 16, None], pa.binary(16))
    assert cast_exact(array, pa.uuid(), column="c").chunk(0).storage.equals(array)
    assert cast(cast_exact(array, pa.uuid(), column="c"), pa.large_binary()) == [b"a" * 16, None]


def test_a_column_of_the_right_type_is_not_copied():
    column = pa.chunked_array([[1, 2], [3]])
    assert cast_exact(column, pa.int64(), column="c") is column


def numbers(data_type):
    if pa.types.is_integer(data_type):
        low, high = sorted(extremes(data_type)[:2])
        return st.one_of(st.integers(low, high), st.sampled_from(extremes(data_type)), st.integers(0, 100))
    if pa.types.is_decimal(data_type):
        limit = 10**data_type.precision - 1
        digits = st.one_of(st.integers(-limit, limit), st.integers(-100, 100))
        scale = -data_type.scale
        return digits.map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), scale)))
    return st.one_of(st.floats(width=data_type.bit_width), st.integers(-100, 100).map(float))


@given(st.data())
def test_a_cast_of_numbers_is_exact_or_refused(data):
    source, target = data.draw(st.sampled_from(NUMBERS)), data.draw(st.sampled_from(NUMBERS))
    values = data.draw(st.lists(st.none() | numbers(source), max_size=6))
    array = pa.array(values, source)
    try:
        result = cast_exact(array, target, column="c")
    except SchemaMismatch:
        return
    # A decimal and a float are the same when each reads back as the other; all others are equal.
    read_back = {"float", "halffloat", "double"} & {
        str(source),
        str(target),
    } and "decimal" in f"{source}{target}"
    after = cast_exact(result, source, column="c") if read_back else result
    for a, b in zip(array.to_pylist(), after.to_pylist(), strict=True):
        assert a == b or (a != a and b != b)


# --- conforming tables


def test_a_table_takes_the_order_types_and_metadata_of_the_schema():
    table = pa.table({"v": pa.array([1, 2]), "id": pa.array([1, 2], pa.int8())})
    result = conform_table(table, TARGET, **WHERE)
    assert result.schema.equals(TARGET, check_metadata=True)
    assert result.to_pylist() == [{"id": 1, "v": 1, "day": None}, {"id": 2, "v": 2, "day": None}]
    assert conform_table(result, TARGET, **WHERE).equals(result)
    assert conform_table(table.slice(0, 0), TARGET, **WHERE).schema.equals(TARGET)


def test_nulls_in_required_columns_are_counted():
    with pytest.raises(SchemaMismatch, match="'id' is NOT NULL in the target and NULL in 2 rows"):
        conform_table(pa.table({"id": [1, None, None]}), TARGET, **WHERE)
    with pytest.raises(SchemaMismatch, match="'id' is NOT NULL in the target and NULL in 1 rows"):
        conform_table(pa.table({"v": [1]}), TARGET, **WHERE)


def test_a_column_without_a_place_is_not_dropped_silently():
    with pytest.raises(SchemaMismatch, match=r"'x' \(int64\) has no place"):
        conform_table(pa.table({"id": [1], "x": [1]}), TARGET, **WHERE)
    with pytest.raises(SchemaMismatch, match="'id' is there 2 times"):
        conform_table(pa.Table.from_arrays([pa.array([1])] * 2, names=["id", "id"]), TARGET, **WHERE)


def test_cast_schema_never_loses_a_value():
    schema = pa.schema([("a", pa.int8())])
    assert cast_schema(pa.table({"a": [1, 2]}), schema).schema == schema
    with pytest.raises(SchemaMismatch, match=r"cast_schema.*'a'.*300"):
        cast_schema(pa.table({"a": [1, 300]}), schema)


# --- keys


def test_nested_keys_are_refused_by_name_and_type():
    nested = {
        "l": pa.list_(pa.int8()),
        "s": pa.struct([("a", pa.int8())]),
        "m": pa.map_(pa.string(), pa.int8()),
        "d": dictionary(pa.list_(pa.int8())),
        "i": pa.month_day_nano_interval(),
    }
    schema = pa.schema(nested)
    with pytest.raises(KeyColumnError) as caught:
        check_key_types(schema, list(nested), side="source", **WHERE)
    for part in (
        "merge",
        "source",
        "/data/orders",
        "'l' (list<item: int8>)",
        "'s' (struct<a: int8>)",
        "'m'",
        "'d'",
        "'i'",
    ):
        assert part in str(caught.value)
    with pytest.raises(KeyColumnError, match="no key column 'z'"):
        check_key_types(schema, ["z"], side="target", **WHERE)


def test_all_plain_types_can_be_keys():
    plain = [
        *NUMBERS,
        *ENCODINGS,
        *BINARIES,
        *(pa.bool_(), pa.date32(), pa.time32("s"), pa.timestamp("ns", "UTC"), pa.duration("s"), pa.uuid()),
    ]
    schema = pa.schema([(str(i), data_type) for i, data_type in enumerate(plain)])
    check_key_types(schema, schema.names, side="source", **WHERE)
    assert not any(map(is_nested, plain))


# --- the smallest type


@pytest.mark.parametrize(
    ("values", "source", "expected"),
    [
        ([1, 127], pa.int64(), pa.int8()),
        ([1, 128], pa.int64(), pa.int16()),
        ([-32768, None], pa.int64(), pa.int16()),
        ([2**31], pa.int64(), pa.int64()),
        ([1, 255], pa.uint64(), pa.uint8()),
        ([1], pa.int8(), pa.int8()),
        ([1.0, 300.0], pa.float64(), pa.int16()),
        ([1.0, -0.0], pa.float64(), pa.float32()),
        ([1.0, math.nan], pa.float64(), pa.float32()),
        ([0.5, 0.1], pa.float64(), pa.float64()),
        ([0.5], pa.float16(), pa.float16()),
        ([2.0], pa.float16(), pa.int8()),
        (["1", "-20", None], pa.string(), pa.int8()),
        (["1", "007"], pa.string(), pa.string()),
        (["1", "1.0"], pa.string(), pa.string()),
        (["1e5"], pa.string(), pa.string()),
        (["+1"], pa.string(), pa.string()),
        ([" 1"], pa.string(), pa.string()),
        (["99999999999999999999"], pa.string(), pa.string()),
        (["true", "false"], pa.large_string(), pa.bool_()),
        (["True"], pa.string(), pa.string()),
        (["2024-02-29"], pa.string_view(), pa.date32()),
        (["2024-02-30"], pa.string(), pa.string()),
        (["2024-01-01 10:00:00"], pa.string(), pa.timestamp("s")),
        (["2024-01-01T10:00:00.123"], pa.string(), pa.timestamp("ms")),
        (["2024-01-01T10:00:00.123456Z"], pa.string(), pa.timestamp("us", "UTC")),
        (["2024-01-01 10:00:00", "2024-01-01T10:00:00"], pa.string(), pa.string()),
        (["2024-01-01 10:00:00", "2024-01-01 10:00:00Z"], pa.string(), pa.string()),
        (["2024-01-01 10:00:00+02:00"], pa.string(), pa.string()),
        ([None], pa.string(), pa.string()),
        ([], pa.int64(), pa.int64()),
        ([Decimal("1.0")], pa.decimal128(38, 1), pa.decimal128(38, 1)),
        (["1"], dictionary(), dictionary()),
        ([[1]], pa.list_(pa.int64()), pa.list_(pa.int64())),
    ],
    ids=str,
)
def test_a_column_gets_the_smallest_type_that_holds_every_value(values, source, expected):
    table = pa.table({"c": pa.chunked_array([pa.array(values, source), pa.array(values, source)])})
    small = opt_dtype(table)
    assert small.schema.field("c").type == expected
    assert opt_dtype(small).schema == small.schema
    if pa.types.is_integer(source) or pa.types.is_floating(source):
        assert all(
            a == b or a != a for a, b in zip(table["c"].to_pylist(), small["c"].to_pylist(), strict=True)
        )


def test_columns_can_be_chosen_and_must_exist():
    table = pa.table(
        {"a": ["1"], "b": ["2"]},
        schema=pa.schema([pa.field("a", pa.string(), metadata={"k": "v"}), ("b", pa.string())]),
    )
    assert opt_dtype(table, include="a").schema.types == [pa.int8(), pa.string()]
    assert opt_dtype(table, exclude=["a"]).schema.types == [pa.string(), pa.int8()]
    assert opt_dtype(table).schema.field("a").metadata == {b"k": b"v"}
    with pytest.raises(ColumnNotFound, match="'z'"):
        opt_dtype(table, include=["a", "z"])


@given(st.lists(st.none() | st.text(max_size=6) | st.integers().map(str) | st.dates().map(str), min_size=1))
def test_a_text_column_reads_back_as_the_very_same_text(texts):
    array = pa.array(texts, pa.string())
    data_type = infer_text_type(array)
    if data_type is not None:
        assert array.cast(data_type).cast(pa.string()).to_pylist() == texts
