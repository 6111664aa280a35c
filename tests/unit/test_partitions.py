import datetime as dt
import math
import subprocess
import sys
from decimal import Decimal

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.common.partitions import (
    HIVE_NULL,
    check_partition_columns,
    check_partition_names,
    decode_partition_schema,
    encode_partition_schema,
    hive_path,
    infer_partition_columns,
    infer_partition_schema,
    parse_hive_partition_path,
    parse_partition,
    parse_partition_filter,
    partition_matches,
    partition_text,
    split_by_partition,
)
from intarsia.datasets.pyarrow import PyarrowDatasetIO
from intarsia.errors import ColumnNotFound, DamagedTable, InputError, UnsafePath

NASTY = [
    *("007", "1e5", "true", "2024-01-01", "2024-01-01 10:00:00", "a/b", "x=y", "50 %", "ä", "a b", "a+b"),
    *("%", "%%", "%zz", "a%2Fb", "..", ".", "../../evil", "*", "?", "[ab]*", "{x}", "a\\b", "'q'", '"q"'),
    *(
        "a#b",
        "a&b",
        "a;b",
        "<>|",
        "~$!@(),`",
        "^",
        "tab\t",
        "line\nbreak",
        "\x01",
        "\x7f",
        "日本",
        " lead",
        "trail ",
    ),
]


def read_back(values, schema=None):
    texts = parse_hive_partition_path(f"{hive_path(values)}/part-0.parquet")
    return texts if schema is None else parse_partition(texts, schema)


# --- parsing


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/year=2024/month=12/file.parquet", {"year": "2024", "month": "12"}),
        ("file.parquet", {}),
        ("a=1.parquet", {}),
        ("a=1/b=2.parquet", {"a": "1"}),
        ("a=1/plain/b=2/f.parquet", {"a": "1", "b": "2"}),
        ("p=x=y/f.parquet", {"p": "x=y"}),
        ("p=x%3Dy/f.parquet", {"p": "x=y"}),
        ("p=a%2Fb/f.parquet", {"p": "a/b"}),
        ("p=50%/f.parquet", {"p": "50%"}),
        ("p%3D=1/f.parquet", {"p=": "1"}),
        ("p=S%C3%A3o/f.parquet", {"p": "São"}),
        ("p=%E4/f.parquet", {"p": "ä"}),
        ("p=/f.parquet", {"p": ""}),
        ("=1/f.parquet", {}),
        (f"p={HIVE_NULL}/f.parquet", {"p": None}),
        ("_p=1/f.parquet", {"_p": "1"}),
        ("s3://bucket/x/p=1/f.parquet", {"p": "1"}),
    ],
)
def test_partition_values_are_the_text_of_the_directories(path, expected):
    assert parse_hive_partition_path(path) == expected


def test_only_the_columns_asked_for_are_parsed():
    path = "a=1/b=2/c=3/f.parquet"
    assert parse_hive_partition_path(path, ["c", "a", "z"]) == {"a": "1", "c": "3"}


def test_only_directories_below_the_root_count(tmp_path):
    root = tmp_path / "env=prod" / "orders"
    assert parse_hive_partition_path(root / "day=1" / "f.parquet", root=root) == {"day": "1"}
    assert parse_hive_partition_path("day=1/f.parquet", root=root) == {"day": "1"}
    assert parse_hive_partition_path(f"{root}/f.parquet", root=f"{root}/") == {}
    with pytest.raises(InputError, match="not below"):
        parse_hive_partition_path("/elsewhere/day=1/f.parquet", root=root)


# --- writing


@pytest.mark.parametrize("text", NASTY)
def test_a_text_survives_the_round_trip_in_one_directory(text):
    directory = hive_path({"p": text})
    assert "/" not in directory
    assert directory not in (".", "..")
    assert read_back({"p": text}) == {"p": text}


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_any_short_text_survives_the_round_trip(text):
    assert read_back({"p": text, "q": text}) == {"p": text, "q": text}


def test_every_reader_finds_the_values_that_were_written(tmp_path):
    for i, text in enumerate(NASTY):
        directory = tmp_path / hive_path({"p": text})
        directory.mkdir()
        pq.write_table(pa.table({"i": [i]}), directory / "f.parquet")
    expected = dict(enumerate(NASTY))
    flavor = ds.partitioning(pa.schema([("p", pa.string())]), flavor="hive")
    arrow = ds.dataset(tmp_path, partitioning=flavor).to_table()
    assert dict(zip(arrow["i"].to_pylist(), arrow["p"].to_pylist(), strict=True)) == expected
    files = f"{tmp_path}/**/*.parquet"
    query = "select i, p from read_parquet(?, hive_partitioning = true, hive_types_autocast = false)"
    assert dict(duckdb.connect().execute(query, [files]).fetchall()) == expected
    frame = pl.read_parquet(files, hive_partitioning=True, hive_schema={"p": pl.String})
    assert dict(frame.select("i", "p").rows()) == expected


def test_null_is_read_as_null_by_every_reader(tmp_path):
    directory = tmp_path / hive_path({"p": None, "q": pa.scalar(None, pa.int32())})
    directory.mkdir(parents=True)
    assert directory.name == f"q={HIVE_NULL}"
    pq.write_table(pa.table({"i": [1]}), directory / "f.parquet")
    flavor = ds.partitioning(pa.schema([("p", pa.string()), ("q", pa.int32())]), flavor="hive")
    assert ds.dataset(tmp_path, partitioning=flavor).to_table()["p"].to_pylist() == [None]
    files = f"{tmp_path}/**/*.parquet"
    assert duckdb.connect().execute("select p from read_parquet(?)", [files]).fetchall() == [(None,)]
    assert pl.read_parquet(files, hive_partitioning=True)["p"].to_list() == [None]
    assert read_back({"p": None}, pa.schema([("p", pa.int64())])) == {"p": None}


TYPED = [
    (1, pa.int8(), "1"),
    (2**64 - 1, pa.uint64(), "18446744073709551615"),
    (True, pa.bool_(), "true"),
    (False, pa.bool_(), "false"),
    (1.5, pa.float16(), "1.5"),
    (0.1, pa.float64(), "0.1"),
    (1e300, pa.float64(), "1e+300"),
    (-0.0, pa.float64(), "0.0"),
    (math.inf, pa.float64(), "inf"),
    (math.nan, pa.float64(), "nan"),
    (Decimal("1.50"), pa.decimal32(5, 2), "1.50"),
    (Decimal("1E-7"), pa.decimal128(12, 9), "0.000000100"),
    (dt.date(1, 2, 3), pa.date32(), "0001-02-03"),
    (dt.date(2024, 1, 1), pa.date64(), "2024-01-01"),
    (dt.datetime(2024, 1, 1, 1, 2, 3), pa.timestamp("s"), "2024-01-01 01:02:03"),
    (dt.datetime(2024, 1, 1, 1, 2, 3, 5), pa.timestamp("us"), "2024-01-01 01:02:03.000005"),
    (dt.datetime(2024, 7, 1, 1, tzinfo=dt.UTC), pa.timestamp("us", "Europe/Berlin"), "2024-07-01 01:00:00Z"),
    (dt.time(1, 2, 3, 4), pa.time64("us"), "01:02:03.000004"),
    (dt.time(1, 2, 3), pa.time32("s"), "01:02:03"),
    (b"abc", pa.binary(), "abc"),
    (b"abc", pa.binary(3), "abc"),
    ("x", pa.dictionary(pa.int8(), pa.string()), "x"),
    ("x", pa.string_view(), "x"),
]


@pytest.mark.parametrize(("value", "data_type", "text"), TYPED, ids=lambda v: str(v))
def test_a_typed_value_keeps_its_type_and_value_through_the_path(value, data_type, text):
    [(partition, _)] = split_by_partition(pa.table({"p": pa.array([value], data_type), "x": [1]}), ["p"])
    assert partition_text(partition["p"]) == text
    assert read_back(partition, pa.schema([("p", data_type)])) == partition


@pytest.mark.parametrize("data_type", [pa.timestamp("ns"), pa.timestamp("ns", "Asia/Tokyo"), pa.time64("ns")])
def test_nanoseconds_survive_the_path(data_type):
    values = pa.array([1, 1_000, 86_399_999_999_999], data_type)
    for i, (partition, _) in enumerate(split_by_partition(pa.table({"p": values, "x": [1, 2, 3]}), ["p"])):
        back = read_back(partition, pa.schema([("p", data_type)]))
        assert back == partition
        assert hash(back["p"]) == hash(partition["p"])
        assert pa.scalar(back["p"], data_type).equals(values[i])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        (HIVE_NULL, "NULL"),
        ("x" * 254, "256 bytes"),
        ("é" * 127, "256 bytes"),
        ("/" * 85, "257 bytes"),
        (b"\xff", "UTF-8"),
        ("\ud800", "UTF-8"),
        (pa.scalar(10**7, pa.date32()), "reads back"),
        (pa.scalar(10**17, pa.timestamp("ms")), "reads back"),
    ],
)
def test_a_value_that_cannot_be_a_directory_is_refused(value, why):
    with pytest.raises(UnsafePath, match=why) as caught:
        hive_path({"p": value}, path="/data/orders")
    assert "'p'" in str(caught.value)
    assert "/data/orders" in str(caught.value)


def test_the_longest_directory_name_is_accepted():
    assert len(hive_path({"p": "x" * 253})) == 255


@pytest.mark.parametrize("name", ["_p", ".p", "", "a\0"])
def test_a_column_whose_directory_would_be_hidden_is_refused(name):
    with pytest.raises(UnsafePath):
        check_partition_names(["ok", name])
    with pytest.raises(UnsafePath):
        hive_path({name: 1})


def test_a_column_name_is_escaped_too():
    assert hive_path({"a/b=c": 1}) == "a%2Fb%3Dc=1"
    assert read_back({"a/b=c": 1}) == {"a/b=c": "1"}


def test_partition_columns_are_checked_against_the_schema():
    schema = pa.schema([("a", pa.int64()), ("l", pa.list_(pa.int64())), ("d", pa.duration("s"))])
    check_partition_columns(schema, ["a"])
    check_partition_columns(schema, [])
    with pytest.raises(ColumnNotFound, match="'z'"):
        check_partition_columns(schema, ["a", "z"])
    with pytest.raises(InputError, match=r"twice.*name each one once"):
        check_partition_columns(schema, ["a", "a"])
    with pytest.raises(InputError, match=r"'l' \(list.*'d' \(duration"):
        check_partition_columns(schema, ["l", "d"])
    with pytest.raises(InputError, match="nothing would be left"):
        check_partition_columns(schema.empty_table().select(["a"]).schema, ["a"])


# --- types


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "20", None], pa.int64()),
        (["-5", "0"], pa.int64()),
        (["01", "1"], pa.string()),
        (["007"], pa.string()),
        (["-0"], pa.string()),
        (["+1"], pa.string()),
        (["0x10"], pa.string()),
        (["1e5"], pa.string()),
        (["true"], pa.string()),
        (["99999999999999999999"], pa.string()),
        (["2024-01-01", "1999-12-31"], pa.date32()),
        (["2024-01-01", "x"], pa.string()),
        (["2024-1-1"], pa.string()),
        (["2024-01-01 00:00:00", "2024-01-01 00:00:00.500000"], pa.timestamp("us")),
        (["2024-01-01 00:00:00.5"], pa.string()),
        (["2024-01-01 00:00:00Z"], pa.timestamp("us", "UTC")),
        ([None], pa.string()),
        ([""], pa.string()),
    ],
)
def test_foreign_values_get_a_type_only_where_every_text_reads_back(texts, expected):
    values = [{"p": text} for text in texts]
    schema = infer_partition_schema(values)
    assert schema.field("p").type == expected
    for value in values:
        typed = parse_partition(value, schema)
        assert typed["p"] is None or partition_text(typed["p"]) == value["p"]


def test_declared_types_win_and_columns_keep_their_order():
    declared = pa.schema([("b", pa.string()), ("a", pa.int8())])
    inferred = infer_partition_schema([{"a": "1", "c": "1"}, {"a": "2", "b": "7"}], declared)
    assert inferred == pa.schema([("a", pa.int8()), ("c", pa.int64()), ("b", pa.string())])
    assert infer_partition_schema([], declared) == declared


def test_a_text_that_is_no_value_of_the_type_is_damage_that_names_the_file():
    with pytest.raises(DamagedTable, match=r"'day'.*'soon'.*date32") as caught:
        parse_partition({"day": "soon"}, pa.schema([("day", pa.date32())]), path="day=soon/f.parquet")
    assert caught.value.path == "day=soon/f.parquet"


def test_a_zoned_timestamp_that_another_writer_left_without_offset_is_utc():
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    expected = {"t": dt.datetime(2024, 1, 1, 5, tzinfo=dt.UTC)}
    assert parse_partition({"t": "2024-01-01 05:00:00"}, schema) == expected
    assert parse_partition({"t": "2024-01-01 07:00:00+02:00"}, schema) == expected


def test_a_column_the_schema_lacks_stays_text():
    assert parse_partition({"a": "1", "b": "2"}, pa.schema([("a", pa.int64())])) == {"a": 1, "b": "2"}


def test_the_declared_types_survive_the_metadata_of_a_real_file(tmp_path):
    schema = pa.schema([(f"c{i}", data_type) for i, (_, data_type, _) in enumerate(TYPED)])
    encoded = encode_partition_schema(schema.with_metadata({"secret": "x"}))
    table = pa.table({"x": [1]}).replace_schema_metadata({"intarsia.partitions": encoded})
    pq.write_table(table, tmp_path / "f.parquet")
    metadata = pq.read_metadata(tmp_path / "f.parquet").metadata
    assert decode_partition_schema(metadata[b"intarsia.partitions"]).equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    "encoded", [b"", b"!", b"aaaa", encode_partition_schema(pa.schema([("p", pa.int8())]))[:40]]
)
def test_damaged_metadata_is_told(encoded):
    with pytest.raises(DamagedTable, match=r"intarsia\.partitions"):
        decode_partition_schema(encoded, path="f.parquet")


# --- layout


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([], ()),
        (["f.parquet"], ()),
        (["a=1/b=2/f", "a=1/f", "f"], ("a", "b")),
        (["b=2/f", "a=1/b=2/f"], ("a", "b")),
        (["a=1/c=2/f", "a=1/b=1/c=2/f"], ("a", "b", "c")),
    ],
)
def test_partition_columns_come_from_the_layout_outermost_first(paths, expected):
    assert infer_partition_columns(paths) == expected


def test_contradictory_layouts_are_damage():
    with pytest.raises(DamagedTable, match=r"different orders.*a=1/b=2/f.*b=1/a=2/f"):
        infer_partition_columns(["a=1/b=2/f", "b=1/a=2/f"])
    with pytest.raises(DamagedTable, match=r"twice.*move the files"):
        infer_partition_columns(["a=1/a=2/f"])


# --- filters


def test_a_filter_is_a_prefix_or_a_list_of_them():
    one = parse_partition_filter("date=2025-11-04")
    assert one == ((("date", "2025-11-04"),),)
    assert parse_partition_filter("/date=2025-11-04/region=eu/") == (
        (("date", "2025-11-04"), ("region", "eu")),
    )
    assert parse_partition_filter(["a=1", f"a={HIVE_NULL}", "a=x%2Fy"]) == (
        (("a", "1"),),
        (("a", None),),
        (("a", "x/y"),),
    )
    assert parse_partition_filter(None) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "day",
        "=1",
        "day>=1",
        "day<=1",
        "day!=1",
        "day==1",
        "day = 1",
        "a=1 or b=2",
        "a='1' or 1=1",
        "a=1//b=2",
        [],
    ],
)
def test_a_filter_that_is_no_column_and_value_is_refused(text):
    with pytest.raises(InputError, match="partition_filter"):
        parse_partition_filter(text)


def test_files_match_by_text_or_by_typed_value():
    wanted = parse_partition_filter(["day=2025-11-04/n=1", "n=2"])
    assert partition_matches({"day": "2025-11-04", "n": "1", "x": "y"}, wanted)
    assert partition_matches({"day": dt.date(2025, 11, 4), "n": 1}, wanted)
    assert partition_matches({"n": 2}, wanted)
    assert not partition_matches({"day": "2025-11-04", "n": "01"}, wanted)
    assert not partition_matches({"day": "2025-11-04"}, wanted)
    assert not partition_matches({"n": None}, wanted)
    assert partition_matches({"n": None}, parse_partition_filter(f"n={HIVE_NULL}"))
    assert not partition_matches({"n": HIVE_NULL}, parse_partition_filter(f"n={HIVE_NULL}"))
    assert partition_matches({}, parse_partition_filter(None))


# --- rows


def groups(table, columns):
    return [(partition, part["x"].to_pylist()) for partition, part in split_by_partition(table, columns)]


def test_rows_are_split_in_order_of_first_appearance_and_keep_their_order():
    table = pa.table({"p": ["b", "a", None, "b", "a", None], "q": [1, 1, 1, 2, 1, 1], "x": range(6)})
    assert groups(table, ["p"]) == [({"p": "b"}, [0, 3]), ({"p": "a"}, [1, 4]), ({"p": None}, [2, 5])]
    assert groups(table, ["p", "q"]) == [
        ({"p": "b", "q": 1}, [0]),
        ({"p": "a", "q": 1}, [1, 4]),
        ({"p": None, "q": 1}, [2, 5]),
        ({"p": "b", "q": 2}, [3]),
    ]
    assert all(part.schema == table.schema for _, part in split_by_partition(table, ["q", "p"]))


def test_nan_is_one_partition_and_so_is_zero_with_either_sign():
    values = [0.0, math.nan, -0.0, -math.nan, None]
    for data_type in (pa.float16(), pa.float32(), pa.float64()):
        table = pa.table({"p": pa.array(values, data_type), "x": range(5)})
        assert groups(table, ["p"]) == [({"p": 0.0}, [0, 2]), ({"p": math.nan}, [1, 3]), ({"p": None}, [4])]
        assert hive_path(split_by_partition(table, ["p"])[0][0]) == "p=0.0"


@pytest.mark.parametrize(("value", "data_type", "text"), TYPED, ids=lambda v: str(v))
def test_every_type_splits_also_in_chunks_and_with_views_beside(value, data_type, text):
    chunks = [pa.array([value, None], data_type), pa.array([None, value, value], data_type)]
    view = pa.array(["a", "b", None, "d", "e"], pa.string_view())
    nested = pa.array([[{"v": s}] for s in view.to_pylist()], pa.list_(pa.struct([("v", pa.string_view())])))
    table = pa.table({"p": pa.chunked_array(chunks), "v": view, "n": nested, "x": range(5)})
    (first, with_value), (second, with_null) = split_by_partition(table, ["p"])
    assert partition_text(first["p"]) == text
    assert second == {"p": None}
    assert with_value["x"].to_pylist() == [0, 3, 4]
    assert with_null["v"].to_pylist() == ["b", None]
    assert with_value["n"].to_pylist() == [[{"v": "a"}], [{"v": "d"}], [{"v": "e"}]]
    assert with_value.schema == table.schema
    with_value.validate(full=True)


def test_tables_without_rows_or_without_columns_to_split_by():
    table = pa.table({"p": [1, 2], "x": [1, 2]})
    assert split_by_partition(table.slice(0, 0), ["p"]) == []
    assert split_by_partition(table, []) == [({}, table)]
    assert groups(table.slice(1), ["p"]) == [({"p": 2}, [2])]


@given(st.lists(st.tuples(st.sampled_from([None, 0, 1, 2]), st.sampled_from(["", "a", None])), max_size=60))
def test_a_split_is_what_grouping_row_by_row_would_give(rows):
    table = pa.table(
        {
            "p": pa.array([p for p, _ in rows], pa.int64()),
            "q": pa.array([q for _, q in rows], pa.string()),
            "x": pa.array(range(len(rows)), pa.int64()),
        }
    )
    expected: dict[tuple, list] = {}
    for i, row in enumerate(rows):
        expected.setdefault(row, []).append(i)
    assert groups(table, ["p", "q"]) == [({"p": p, "q": q}, x) for (p, q), x in expected.items()]


def test_ten_thousand_partitions_take_one_pass():
    n = 200_000
    table = pa.table({"p": pa.array([i * 7919 % 10_000 for i in range(n)]), "x": range(n)})
    parts = split_by_partition(table, ["p"])
    assert len(parts) == 10_000
    assert sum(part.num_rows for _, part in parts) == n
    partition, part = parts[1]
    assert partition == {"p": 7919}
    assert part["x"].to_pylist()[:3] == [1, 10_001, 20_001]


def test_partition_values_do_not_need_pandas_or_numpy():
    code = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("pandas", "numpy"):
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
import pyarrow as pa
from intarsia.common.partitions import hive_path, split_by_partition
t = pa.table({"p": pa.array([1, 1000], pa.timestamp("ns")), "x": pa.array([1, 2])})
print([hive_path(p) for p, _ in split_by_partition(t, ["p"])])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "00.000000001" in done.stdout
    assert "00.000001'" in done.stdout


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_any_unit_come_back_from_their_paths(tmp_path, unit):
    kind = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    rows = pa.table({"id": [1, 2], "at": pa.array([1, 3_600], kind)})
    io = PyarrowDatasetIO()
    io.write_dataset(rows, tmp_path / "t", partition_by="at")
    assert io.read_parquet(tmp_path / "t").sort_by("id").equals(rows)


def test_values_that_have_no_text_are_no_partitions(tmp_path):
    storage = pa.array([b"a" * 16], pa.binary(16))
    rows = pa.table({"id": [1], "u": pa.ExtensionArray.from_storage(pa.uuid(), storage)})
    with pytest.raises(InputError, match="cannot partition by 'u'"):
        PyarrowDatasetIO().write_dataset(rows, tmp_path / "t", partition_by="u")
    assert not (tmp_path / "t").exists()
