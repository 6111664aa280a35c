"""Cases 49 to 62 of the bad-input catalogue: files that are damaged, and statistics that mislead."""

from __future__ import annotations

import datetime as dt
import math
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

import intarsia as it
from intarsia.errors import DamagedTable, KeyColumnError, NotSupported
from tests.bad_input.trial import (
    BASE,
    CHANGES,
    EVERYTHING,
    SCHEMA,
    SOURCE,
    column,
    cut,
    files_of,
    flip_a_bit,
    lie_about_the_footer,
    swap,
)

FIRST = "part-00000.parquet"


def test_case_49_file_of_zero_bytes(root: Path, each_refused: Any) -> None:
    (root / FIRST).write_bytes(b"")
    each_refused(root, EVERYTHING, DamagedTable, "empty", "0 bytes", "restore", where=root / FIRST)


SPOILED = {
    "cut in the middle": lambda file: cut(file, keep=file.stat().st_size // 2),
    "without its last byte": lambda file: cut(file, keep=-1),
    "without its footer": lambda file: cut(file, keep=-8),
    "four bytes long": lambda file: cut(file, keep=4),
    "with a footer length that lies": lie_about_the_footer,
    "with a footer of noise": lambda file: file.write_bytes(
        file.read_bytes()[:-200] + b"\xff" * 192 + file.read_bytes()[-8:]
    ),
    "with a writer that is no text": lambda file: file.write_bytes(
        file.read_bytes().replace(b"parquet-cpp-arrow", b"parquet-cpp-arro\xff")
    ),
    "that is text": lambda file: file.write_text("id,name\n1,a\n" * 20),
    "that is a web page": lambda file: file.write_text("<html>403 Forbidden</html>"),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_case_50_file_that_is_torn_or_no_parquet(root: Path, spoil: Any, each_refused: Any) -> None:
    spoil(root / FIRST)
    each_refused(root, EVERYTHING, DamagedTable, "cannot be read as Parquet", "restore", where=root / FIRST)


def test_case_50_source_that_is_torn(root: Path, tmp_path: Path, each_refused: Any) -> None:
    torn = tmp_path / "source.parquet"
    pq.write_table(SOURCE, torn)
    cut(torn, keep=-10)
    calls = {
        "merge": lambda root: it.merge(torn, root, on="id"),
        "append": lambda root: it.write(torn, root),
        "overwrite": lambda root: it.write(str(torn), root, mode="overwrite"),
    }
    each_refused(root, calls, DamagedTable, where=torn)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_case_51_flipped_bit_in_a_page_with_a_checksum(
    tmp_path: Path, share: float, codec: str, make_dataset: Any, each_refused: Any
) -> None:
    wide = pa.table(
        {"id": list(range(4000)), "name": [f"name {i}" for i in range(4000)], "n": list(range(4000))},
        schema=SCHEMA,
    )
    root = make_dataset(
        tmp_path / "t", wide, files=2, write_page_checksum=True, compression=codec, use_dictionary=False
    )
    flip_a_bit(root / FIRST, column=2, share=share)  # no key, so a merge meets it when it rewrites
    calls = {name: call for name, call in CHANGES.items() if name not in ("insert", "deduplicate_rows")}
    each_refused(root, calls, DamagedTable, FIRST, "damaged", where=None)


def test_case_51_flipped_bit_in_a_key(tmp_path: Path, make_dataset: Any, each_refused: Any) -> None:
    table = pa.table({"id": list(range(4000)), "name": ["a"] * 4000, "n": [1] * 4000}, schema=SCHEMA)
    root = make_dataset(tmp_path / "t", table, write_page_checksum=True, use_dictionary=False)
    flip_a_bit(root / FIRST, column=0)
    calls = {name: call for name, call in CHANGES.items() if name not in ("compact", "deduplicate_rows")}
    each_refused(root, calls, DamagedTable, FIRST, "damaged", where=None)
    each_refused(
        root, {"deduplicate": lambda root: it.deduplicate(root, on="id")}, DamagedTable, FIRST, where=None
    )


def test_case_51_our_own_files_have_checksums(root: Path, each_refused: Any) -> None:
    many = pa.table({"id": range(3000), "name": ["x"] * 3000, "n": range(3000)}, schema=SCHEMA)
    it.merge(many, root, on="id", strategy="full_merge")
    (new,) = [file for file in files_of(root) if pq.read_metadata(file).num_rows > 1000]
    flip_a_bit(new, column=2)
    each_refused(root, {"optimize": CHANGES["optimize"]}, DamagedTable, new.name, where=None)


class Keys(encryption.KmsClient):
    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return key_bytes

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return wrapped_key


@pytest.mark.parametrize("plaintext_footer", [False, True], ids=["footer", "columns"])
def test_case_52_encrypted_file(root: Path, plaintext_footer: bool, each_refused: Any) -> None:
    factory = encryption.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(
        encryption.KmsConnectionConfig(),
        encryption.EncryptionConfiguration(
            footer_key="footer",
            column_keys={"column": ["id", "n"]},
            plaintext_footer=plaintext_footer,
            double_wrapping=False,
        ),
    )
    with pq.ParquetWriter(root / FIRST, SCHEMA, encryption_properties=properties) as writer:
        writer.write_table(BASE.slice(0, 3))
    calls = dict(EVERYTHING)
    if plaintext_footer:  # what reads no row does not notice
        for name in ("append", "overwrite", "snapshot", "inspect", "deduplicate_rows"):
            del calls[name]
    each_refused(root, calls, DamagedTable, FIRST, "crypt", where=None)


@pytest.mark.parametrize("codec", [0x06, 0x7E], ids=["LZO", "unheard-of"])
def test_case_53_unknown_codec(root: Path, codec: int, each_refused: Any) -> None:
    for name in (b"id", b"name", b"n"):  # in the footer: path_in_schema, then the codec
        mark = b"\x19\x18" + bytes([len(name)]) + name + b"\x15"
        swap(root / FIRST, mark + b"\x02", mark + bytes([codec]))
    each_refused(root, CHANGES, DamagedTable, FIRST, where=None)


def test_case_53_integers_of_polars_that_are_too_wide_are_no_damage(
    tmp_path: Path, each_refused: Any
) -> None:
    root = tmp_path / "t"
    root.mkdir()
    wide = pl.Series("n", [10**30], dtype=pl.Int128)
    pl.DataFrame([pl.Series("id", [1]), pl.Series("name", ["a"]), wide]).write_parquet(root / FIRST)
    calls = {name: CHANGES[name] for name in ("delete", "compact")}
    each_refused(root, calls, NotSupported, FIRST, "more than 64 bits", "another type", where=None)
    with pytest.raises(NotSupported, match="more than 64 bits"):  # nor as a source
        it.merge(root / FIRST, tmp_path / "new", on="id")
    assert not (tmp_path / "new").exists()


def test_case_53_format_of_the_future(root: Path, each_refused: Any) -> None:
    data = (root / FIRST).read_bytes()
    (root / FIRST).write_bytes(data[:-4] + b"PAR9")
    each_refused(root, EVERYTHING, DamagedTable, "Parquet", where=root / FIRST)


MEMORY = """
import os, sys
import pyarrow as pa
import intarsia as it
from intarsia.kernel import read, write

read.PIECE_ROWS, read.PIECE_BYTES, write.PIECE_BYTES = 1 << 16, 8 << 20, 8 << 20
pool = pa.proxy_memory_pool(pa.default_memory_pool())
pa.set_memory_pool(pool)
updated = it.update(sys.argv[1], {"c0": "c0 + 1"}, "id % 1000 = 7", threads=1).updated
print(updated, pool.max_memory(), flush=True)
os._exit(0)  # the pool must outlive whatever was taken from it
"""


def test_case_54_row_group_larger_than_the_memory_for_it(tmp_path: Path, make_dataset: Any) -> None:
    rows = 800_000
    one = pa.array([1.5, 2.5, 3.5, 4.5] * (rows // 4))
    table = pa.table({"id": pa.array(range(rows))} | {f"c{i}": one for i in range(12)})
    root = make_dataset(tmp_path / "t", table, row_group_size=rows)
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY, str(root)], capture_output=True, text=True, check=True
    )
    updated, held = map(int, ran.stdout.split())
    assert updated == rows // 1000
    assert held < table.nbytes / 2, f"{held:,} of {table.nbytes:,} bytes were held at once"


@pytest.mark.parametrize("statistics", [False, ["n"], True], ids=["none", "others", "all"])
def test_case_55_statistics_absent(tmp_path: Path, statistics: Any, make_dataset: Any, rows: Any) -> None:
    root = make_dataset(tmp_path / "t", BASE, files=2, row_group_size=1, write_statistics=statistics)
    result = it.merge(SOURCE, root, on="id")
    assert (result.updated, result.inserted) == (2, 1)
    assert it.delete(root, "id = 6").deleted == 1
    assert [row["id"] for row in rows(root)] == [1, 2, 3, 4, 5, 7]


@pytest.mark.parametrize("letters", [31, 32, 64, 65, 200])
def test_case_56_bounds_that_were_cut_off(tmp_path: Path, letters: int, rows: Any) -> None:
    keys = ["k" * letters + tail for tail in ("", "a", "ä", "\U0010ffff")]
    root = tmp_path / "t"
    root.mkdir()
    pl.DataFrame({"id": keys, "n": [0] * 4}).write_parquet(root / "f.parquet", statistics=True)
    for number, key in enumerate(keys):
        result = it.merge(pa.table({"id": [key], "n": [number]}), root, on="id", strategy="update")
        assert result.updated == 1, key
    assert it.delete(root, f"id = '{keys[3]}'").deleted == 1
    assert sorted(row["n"] for row in rows(root)) == [0, 1, 2]


def test_case_57_nan_is_in_no_bound(tmp_path: Path, make_dataset: Any) -> None:
    table = pa.table({"id": [1.0, math.nan, math.nan, math.nan], "n": [1, 2, 3, 4]})
    root = make_dataset(tmp_path / "t", table, files=[2, 2])
    plan = it.plan("merge", pa.table({"id": [math.nan], "n": [9]}), root, on="id")
    assert plan.updated == 3
    assert it.delete(root, "id = 'nan'::double").deleted == 3


def test_case_58_bounds_of_a_writer_that_is_known_to_be_wrong(
    tmp_path: Path, make_dataset: Any, rows: Any
) -> None:
    root = make_dataset(tmp_path / "t", column(["aaa", "bbb"], pa.string()), use_dictionary=False)
    (file,) = files_of(root)
    ours = pq.read_metadata(file).created_by.encode()
    theirs = b"parquet-mr version 1.4.3 (build abcdef)"[: len(ours)]
    data = file.read_bytes()
    end = len(data) - int.from_bytes(data[-8:-4], "little") - 8
    footer = data[end:].replace(b"bbb", b"aab").replace(ours, theirs.ljust(len(ours)))
    file.write_bytes(data[:end] + footer)  # signed order gave such maxima
    assert pq.read_table(file)["id"].to_pylist() == ["aaa", "bbb"]
    result = it.merge(column(["bbb"], pa.string()), root, on="id")
    assert (result.updated, result.inserted) == (1, 0)


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-128, -1, 0, 127]),
    "uint8": (pa.uint8(), [0, 127, 128, 255]),
    "uint32": (pa.uint32(), [0, 2**31 - 1, 2**31, 2**32 - 1]),
    "int64": (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
    "uint64": (pa.uint64(), [0, 2**63 - 1, 2**63, 2**64 - 1]),
    "float16": (pa.float16(), [-1.5, -0.0, 0.5, math.inf]),
    "float32": (pa.float32(), [-math.inf, -0.0, 0.5, math.nan]),
    "float64": (pa.float64(), [-math.inf, -0.0, 1e300, math.nan]),
    "bool": (pa.bool_(), [False, True]),
    "decimal32": (pa.decimal32(5, 2), [Decimal("-1.50"), Decimal("0.01"), Decimal("999.99")]),
    "decimal128": (pa.decimal128(38, 4), [Decimal("-1.5"), Decimal("0.0001"), Decimal(10**30)]),
    "decimal256": (pa.decimal256(60, 4), [Decimal("-1.5"), Decimal("0.0001"), Decimal(10**40)]),
    "string": (pa.string(), ["", "\x7f", "ä", "\U0001f600"]),
    "binary": (pa.binary(), [b"", b"\x7f", b"\x80", b"\xff\xff"]),
    "fixed": (pa.binary(2), [b"\x00\x00", b"\x7f\xff", b"\x80\x00", b"\xff\xff"]),
    "date32": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "date64": (pa.date64(), [dt.date(1900, 1, 1), dt.date(1969, 12, 31), dt.date(2100, 12, 31)]),
    "time32": (pa.time32("s"), [dt.time(0), dt.time(23, 59, 59)]),
    "time64": (pa.time64("ns"), [dt.time(0), dt.time(23, 59, 59, 999_999)]),
    "timestamp_s": (pa.timestamp("s"), [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)]),
    "timestamp_ns": (pa.timestamp("ns"), [dt.datetime(1700, 1, 1), dt.datetime(2200, 12, 31)]),
    "zoned": (pa.timestamp("ms", "Asia/Tokyo"), [dt.datetime(1960, 1, 1), dt.datetime(2100, 1, 1)]),
    "duration": (pa.duration("ms"), [dt.timedelta(-1), dt.timedelta(0), dt.timedelta(1)]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["", "ä", "z"]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_case_59_true_bounds_of_any_type_hide_no_row(tmp_path: Path, kind: str, make_dataset: Any) -> None:
    """Bounds that lie cannot be told from true ones; those of an honest writer must never mislead."""
    data_type, values = VALUES[kind]
    table = column(values, data_type)
    root = make_dataset(tmp_path / "t", table, files=len(values))
    for position in range(len(values)):
        plan = it.plan("merge", table.slice(position, 1), root, on="id")
        assert (plan.updated, plan.inserted) == (1, 0), values[position]
    assert it.merge(table, root, on="id", strategy="full_merge").updated == len(values)


def test_case_60_count_of_nulls_absent(tmp_path: Path, make_dataset: Any, each_refused: Any) -> None:
    table = pa.table({"id": [1, None, 3], "name": ["a", "b", "c"], "n": [1, 2, 3]}, schema=SCHEMA)
    root = make_dataset(tmp_path / "t", table, write_statistics=False)
    merges = {name: CHANGES[name] for name in ("insert", "update", "upsert", "full_merge")}
    each_refused(root, merges, KeyColumnError, "Key column 'id'", "1 NULL", FIRST)
    assert it.plan("delete", root, "id is null").deleted == 1


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_case_61_zeros_of_both_signs_in_bounds(tmp_path: Path, kind: pa.DataType, make_dataset: Any) -> None:
    root = make_dataset(tmp_path / "t", column([-0.0, 1.0, 0.0, 2.0], kind), files=4)
    for zero in (0.0, -0.0):
        assert it.plan("merge", column([zero], kind), root, on="id").updated == 2
    assert it.plan("delete", root, "id = 0").deleted == 2
    assert it.plan("delete", root, "id >= 0").deleted == 4
    assert it.plan("delete", root, "id < 0").deleted == 0


PREDICATES = {
    "decimal128": "v = 0.0001", "uint64": f"v = {2**63}", "uint32": f"v > {2**31}", "binary": "v is not null",
    "bool": "v = true", "date32": "v = date '1969-12-31'", "float16": "v > 0.4", "dictionary": "v = 'ä'",
    "string": "v = '\U0001f600'", "fixed": "v is not null", "timestamp_s": "v < timestamp '1970-01-01'",
}  # fmt: skip
FOUND = {"float16": 2, "binary": 4, "fixed": 4}


@pytest.mark.parametrize("kind", PREDICATES)
def test_case_62_bounds_of_types_with_an_order_of_their_own(
    tmp_path: Path, kind: str, make_dataset: Any
) -> None:
    data_type, values = VALUES[kind]
    table = pa.table({"v": pa.array(values, data_type), "n": list(range(len(values)))})
    root = make_dataset(tmp_path / "t", table, files=len(values))
    assert it.delete(root, PREDICATES[kind]).deleted == FOUND.get(kind, 1)


def test_case_62_bounds_of_a_list_are_not_those_of_a_column(tmp_path: Path, make_dataset: Any) -> None:
    table = pa.table({"v": pa.array([[5, 6], [7]], pa.list_(pa.int64())), "n": [1, 2]})
    root = make_dataset(tmp_path / "t", table, files=2)
    assert it.delete(root, "v is not null and n = 2").deleted == 1
