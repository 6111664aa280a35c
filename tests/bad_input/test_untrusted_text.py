"""Cases 84 to 92 of the bad-input catalogue: names and text meant to do harm, options and sources that fail."""

from __future__ import annotations

import json
import logging
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import intarsia
import intarsia as it
from intarsia.datasets.pyarrow import PyarrowDatasetIO
from intarsia.engines.arrow import ArrowEngine
from intarsia.errors import DamagedTable, InputError, IntarsiaError, NothingMatched, NotSupported
from tests.bad_input.trial import BASE, EVERYTHING, MERGES, SCHEMA, SOURCE, STRATEGIES, files_of, write_aside

EVIL_NAMES = [
    'a" FROM t; COPY x TO y; --',
    "it's; drop table t",
    "a`b``c",
    "sp ace\ttab",
    "x=y",
    "a/b",
    "Ünï😀",
    "%s {0}",
]
"""Every one of them ends a name, a string or a path in some language."""


def evil_table(ids: list[int], start: int) -> pa.Table:
    columns: dict[str, Any] = {"key": ids} | {
        name: [start + i for i in range(len(ids))] for name in EVIL_NAMES
    }
    return pa.table(columns)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize("name", EVIL_NAMES)
def test_case_84_column_named_to_do_harm(tmp_path: Path, name: str, rows: Any) -> None:
    root = tmp_path / "it's; drop table --"
    it.write(evil_table([1, 2, 3], 10), root)
    it.merge(evil_table([3, 4], 50), root, on=[name])
    assert it.merge(evil_table([1], 10), root, on=[name], strategy="update").updated == 1
    assert it.delete(root, f"{quoted(name)} = 11").deleted == 1
    assert it.update(root, {quoted(name): f"{quoted(name)} + 1"}, f"{quoted(name)} = 10").updated == 1
    it.optimize(root, by=[name, "key"])
    it.deduplicate(root, on=[name])
    assert sorted(row[name] for row in rows(root)) == [11, 12, 50, 51]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".it's; drop table --.intarsia", root.name]


@pytest.mark.parametrize("name", [name for name in EVIL_NAMES if "=" not in name])
def test_case_84_partition_column_named_to_do_harm(tmp_path: Path, name: str, rows: Any) -> None:
    root = tmp_path / "t"
    it.write(evil_table([1, 2], 10), root, partition_by=name)
    assert it.merge(evil_table([1, 2], 10), root, on=["key", name]).updated == 2
    assert it.snapshot(root).partition_columns == (name,)
    assert it.delete(root, f"{quoted(name)} = 10").deleted == 1
    assert len(rows(root)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "id = 1; DROP TABLE t",
        "id = 1 UNION SELECT 1",
        "id = (SELECT max(id) FROM t)",
        "id = 1 -- and more\n; delete",
        "read_csv('/etc/passwd') is not null",
        "__import__('os').system('true')",
        "id = 1 or",
        "'unclosed",
        "",
        "getenv('HOME') = 'x'",
    ],
)
def test_case_84_filter_text_that_is_no_condition(root: Path, text: str, unchanged: Any) -> None:
    calls = [
        lambda: it.delete(root, text),
        lambda: it.update(root, {"n": "1"}, text),
        lambda: it.merge(SOURCE, root, on="id", clauses=[it.when_matched(text).delete()]),
        lambda: it.update(root, {"n": text}),
    ]
    for call in calls:
        with unchanged(root), pytest.raises((InputError, NotSupported)) as caught:
            call()
        assert caught.value.changed is False
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    "filter",
    [
        "day>=1",
        "day == 1",
        "day",
        "=1",
        "day=1 or 1=1",
        "day<2",
        "day!=1",
        "__import__('os')",
        "",
        "/",
        "day=a=b",
    ],
)
def test_case_86_partition_filter_that_is_no_pair(
    tmp_path: Path, filter: str, make_dataset: Any, each_refused: Any
) -> None:
    root = make_dataset(
        tmp_path / "t", BASE.append_column("day", pa.array([1, 1, 1, 2, 2, 2])), partition="day"
    )
    calls = {
        "compact": lambda root: it.compact(root, partition_filter=filter),
        "optimize": lambda root: it.optimize(root, by="n", partition_filter=[filter]),
        "deduplicate": lambda root: it.deduplicate(root, on="id", partition_filter=filter),
    }
    each_refused(root, calls, InputError, "partition_filter", repr(filter), "column=value", where=None)


@pytest.mark.parametrize(
    "filter", ["day=1' or '1", "day=*", "day=..", "day=1%2F..%2F..", "other=1", "day=[12]"]
)
def test_case_86_partition_filter_is_taken_by_the_letter(
    tmp_path: Path, filter: str, make_dataset: Any, each_refused: Any
) -> None:
    root = make_dataset(
        tmp_path / "t", BASE.append_column("day", pa.array([1, 1, 1, 2, 2, 2])), partition="day"
    )
    calls = {"compact": lambda root: it.compact(root, partition_filter=filter)}
    each_refused(root, calls, NothingMatched, repr(filter))


SECRET = "hunter2SECRETkey"
SECRETS = {
    "key": "AKIAABCDEFGHIJKLMNOP",
    "secret": SECRET,
    "token": SECRET,
    "client_kwargs": {"password": SECRET},
}


def all_of(error: BaseException) -> str:
    """The error with all that caused it, in every form it is shown in."""
    text = ""
    seen: BaseException | None = error
    while seen is not None:
        text += f"{seen!s} {seen!r} {getattr(seen, 'hint', '')} {getattr(seen, 'path', '')}\n"
        seen = seen.__cause__
    return text


@pytest.mark.parametrize(
    "target",
    [
        f"nosuch://user:{SECRET}@host/bucket/t",
        f"nosuch://host/bucket/t?token={SECRET}&X-Amz-Signature={SECRET}",
        f"s3://user:{SECRET}@/",
        f"https://u:{SECRET}@127.0.0.1:1/t",
    ],
)
def test_case_87_secrets_in_a_url(
    target: str, tmp_path: Path, root: Path, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    for call in (
        lambda: it.merge(SOURCE, target, on="id"),
        lambda: it.merge(SOURCE, target, on="id", storage_options=SECRETS),
        lambda: it.merge(target, root, on="id"),
        lambda: it.merge(SOURCE, root, on="id", control_path=target),
        lambda: it.inspect(target),
        lambda: it.delete(target, "id = 1"),
    ):
        with pytest.raises((IntarsiaError, ValueError, OSError)) as caught:
            call()
        error = caught.value
        shown = str(error) + repr(error) + str(getattr(error, "path", "")) + str(getattr(error, "hint", ""))
        assert SECRET not in shown, type(error)
        assert SECRET.encode() not in pickle.dumps(error)
    assert SECRET not in caplog.text
    assert SECRET not in "".join(capsys.readouterr())


def test_case_87_secrets_in_storage_options(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    result = it.merge(SOURCE, root, on="id", storage_options=SECRETS)
    shown = f"{result!r} {result} {result.plan!r} {result.plan} {dict(result)}"
    control = root.parent / f".{root.name}.intarsia"
    for file in [*control.rglob("*"), *root.rglob("*")]:
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"secret={SECRET} token: {SECRET} https://u:{SECRET}@host/?sig={SECRET}")

    monkeypatch.setattr(ArrowEngine, "stage", broken)
    with pytest.raises(RuntimeError):
        it.merge(SOURCE.slice(0, 1), root, on="id", storage_options=SECRETS)
    assert "RuntimeError" in caplog.text
    assert SECRET not in shown + caplog.text


class Payload:
    """What must never be woken."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.mark), "w"))


def test_case_88_pickles_in_a_file_are_never_opened(tmp_path: Path, rows: Any) -> None:
    mark = tmp_path / "woken"
    evil = pickle.dumps(Payload(mark))
    extension = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": evil}
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("n", pa.int64(), metadata=extension)],
        metadata={b"pandas": evil, b"intarsia.other": evil},
    )
    root = tmp_path / "t"
    root.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "n": [1, 2]}, schema=schema), root / "f.parquet")
    source = pa.table({"id": [2, 3], "n": [5, 6]})
    assert it.merge(source, root, on="id").updated == 1
    it.optimize(root, by="n")
    assert [row["n"] for row in rows(root)] == [1, 5, 6]
    assert not mark.exists()


def test_case_88_metadata_of_pandas_that_is_damaged_harms_nothing(root: Path, rows: Any) -> None:
    table = BASE.replace_schema_metadata({b"pandas": b"{not json", b"ARROW:extension:name": b"x"})
    pq.write_table(table, root / "z.parquet")
    it.compact(root)
    assert len(rows(root)) == 12


def test_case_88_no_code_evaluates_what_it_reads() -> None:
    forbidden = re.compile(r"\bpickle\.loads?\(|(?<![\w.])eval\(|(?<![\w.])exec\(|\bmarshal\b|\byaml\.load\(")
    for module in Path(intarsia.__file__).parent.rglob("*.py"):
        assert not forbidden.search(module.read_text()), module


TXID = "c0ffee" * 5 + "ab"


def a_record(dataset: Path, **changes: Any) -> dict[str, Any]:
    return {
        "version": 1, "seq": 1, "txid": TXID, "operation": "merge", "root": str(dataset), "properties": {},
        "retain": None, "fresh": False, "going": [],
        "coming": [{"path": "new.parquet", "staged": "insert-00000.part", "was": None, "kept": None}],
    } | changes  # fmt: skip


def plant(root: Path, record: bytes) -> Path:
    """A commit that was recorded and not published, as a crash leaves it, with this record."""
    control = root.parent / f".{root.name}.intarsia"
    for name in ("new", "old", "pub"):
        (control / "tx" / f".staging_{TXID}" / name).mkdir(parents=True)
    pq.write_table(SOURCE, control / "tx" / f".staging_{TXID}" / "new" / "insert-00000.part")
    (control / "log").mkdir()
    slot = control / "log" / "000000000001.json"
    slot.write_bytes(record)
    return slot


def test_case_89_a_record_as_we_write_it_is_finished(root: Path, rows: Any) -> None:
    plant(root, json.dumps(a_record(root)).encode())
    assert len(it.recover(root)) == 1
    assert (root / "new.parquet").exists()
    assert len(rows(root)) == 9


ESCAPES = ["../evil.parquet", "a/../../evil.parquet", "/tmp/evil.parquet", "", ".", "..", "a//b.parquet", "x\0.parquet",
           "_hidden.parquet", "README.md", ".intarsia/f.parquet", "n" * 300 + ".parquet"]  # fmt: skip
BROKEN = {
    "no json": b"{",
    "empty": b"",
    "binary": b"\x00\xff\xfe",
    "a list": b"[]",
    "other version": {"version": 2},
    "no version": {"version": None},
    "a number as root": {"root": 7},
    "txid with a path": {"txid": "../../../../tmp/x"},
    "short txid": {"txid": "ab"},
    "unknown field": {"run": "rm -rf /"},
    "coming is a word": {"coming": "all"},
    "seq is a word": {"seq": "one"},
    "staged name outside": {"coming": [{"path": "n.parquet", "staged": "../../x.part", "was": None, "kept": None}]},
    "kept name outside": {"coming": [{"path": "n.parquet", "staged": "x.part", "was": [1], "kept": "../x.part"}]},
    **{f"path {p!r:.24}": {"coming": [{"path": p, "staged": "insert-00000.part", "was": None, "kept": None}]}
       for p in ESCAPES},
    **{f"going {p!r:.24}": {"coming": [], "going": [{"path": p, "was": [1, 2, 3], "kept": "00000.part"}]}
       for p in ESCAPES},
}  # fmt: skip


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_case_89_journal_that_was_edited(root: Path, damage: Any, tree_digest: Any) -> None:
    raw = damage if isinstance(damage, bytes) else json.dumps(a_record(root, **damage)).encode()
    slot = plant(root, raw)
    outside = sorted(root.parent.iterdir())
    before = tree_digest(root, control=True)
    calls = dict(list(EVERYTHING.items())[::4]) | {"recover": it.recover}
    for name, call in calls.items():
        with pytest.raises(DamagedTable, match="journal record") as caught:
            call(root)
        error = caught.value
        assert str(slot) in str(error), name
        assert "restore" in error.hint
        assert error.changed is None, "whether that commit is in effect cannot be known"
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        after = tree_digest(root, control=True)
        after.pop(f".{root.name}.intarsia/lock", None)
        assert after == before, name
    assert sorted(root.parent.iterdir()) == outside


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"last": "x", "batches": {}}', b"null"])
def test_case_89_summary_of_the_log_that_was_edited(root: Path, damage: bytes, unchanged: Any) -> None:
    plant(root, json.dumps(a_record(root)).encode())
    (root.parent / f".{root.name}.intarsia" / "log" / "summary.json").write_bytes(damage)
    with pytest.raises(DamagedTable, match="summary"):
        it.merge(SOURCE, root, on="id")
    assert not (root / "new.parquet").exists()


def test_case_89_link_in_the_way_of_a_recorded_commit(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (root / "p=1").symlink_to(elsewhere)
    coming = [{"path": "p=1/new.parquet", "staged": "insert-00000.part", "was": None, "kept": None}]
    plant(root, json.dumps(a_record(root, coming=coming)).encode())
    with pytest.raises(IntarsiaError) as caught:
        it.recover(root)
    assert "p=1" in str(caught.value)
    assert list(elsewhere.iterdir()) == []


WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "strategy": (lambda r: it.merge(SOURCE, r, on="id", strategy="replace"), ("replace", *STRATEGIES)),
    "no strategy": (lambda r: it.merge(SOURCE, r, on="id", strategy=""), STRATEGIES),
    "strategy of another type": (lambda r: it.merge(SOURCE, r, on="id", strategy=7), STRATEGIES),
    "mode": (lambda r: it.write(SOURCE, r, mode="replace"), ("mode", "'append'", "'overwrite'", "'replace'")),
    "curve": (lambda r: it.optimize(r, by="n", curve="peano"), ("curve", "'zorder'", "'hilbert'", "'peano'")),
    "nothing to order by": (lambda r: it.optimize(r), ("by=",)),
    "target size zero": (lambda r: it.compact(r, target_mb_per_file=0), ("target_mb_per_file", "greater than zero")),
    "target size below": (lambda r: it.compact(r, target_mb_per_file=-1), ("target_mb_per_file",)),
    "target rows zero": (lambda r: it.compact(r, target_rows_per_file=0), ("target_rows_per_file",)),
    "target rows below": (lambda r: it.optimize(r, by="n", target_rows_per_file=-5), ("target_rows_per_file",)),
    "target size without end": (lambda r: it.compact(r, target_mb_per_file=float("inf")), ("target_mb_per_file",)),
    "target size nan": (lambda r: it.compact(r, target_mb_per_file=float("nan")), ("target_mb_per_file",)),
    "target rows text": (lambda r: it.compact(r, target_rows_per_file="many"), ("target_rows_per_file", "'many'")),
    "null_keys": (lambda r: it.merge(SOURCE, r, on="id", null_keys="skip"), ("null_keys", "'match'", "'skip'")),
    "missing": (lambda r: it.merge(SOURCE, r, on="id", missing="zero"), ("missing", "'null'", "'zero'")),
    "evolution": (lambda r: it.merge(SOURCE, r, on="id", schema_evolution="all"), ("schema_evolution", "'all'")),
    "order without deduplicate": (lambda r: it.merge(SOURCE, r, on="id", dedup_order_by="n"), ("dedup_order_by",)),
    "unknown option": (lambda r: it.merge(SOURCE, r, on="id", overwrite=True), ("overwrite", "options are")),
    "engine": (lambda r: it.merge(SOURCE, r, on="id", engine="pandas"), ("engine", "'pandas'")),
    "codec": (lambda r: it.write(SOURCE, r, compression="rar"), ("compression", "'rar'", "zstd")),
    "row group": (lambda r: it.write(SOURCE, r, row_group_size=0), ("row_group_size", "0")),
    "rows per file": (lambda r: it.write(SOURCE, r, max_rows_per_file=-1), ("max_rows_per_file", "-1")),
    "batch rows": (lambda r: it.merge(SOURCE, r, on="id", batch_rows=1.5), ("batch_rows", "1.5")),
    "retain": (lambda r: it.merge(SOURCE, r, on="id", retain=-1), ("retain", "-1")),
    "no predicate": (lambda r: it.delete(r, None), ("predicate", "true")),
    "predicate of another type": (lambda r: it.delete(r, 7), ("predicate", "int")),
    "value as predicate": (lambda r: it.delete(r, "1 + 1"), ("condition",)),
    "no assignment": (lambda r: it.update(r, {}), ("assignment",)),
    "assigned twice": (lambda r: it.update(r, {"n": "1", '"n"': "2"}), ("n", "both")),
    "no clause": (lambda r: it.merge(SOURCE, r, on="id", clauses=[]), ("clauses", "when_matched")),
    "clause without action": (lambda r: it.merge(SOURCE, r, on="id", clauses=[it.when_matched()]), ("clauses",)),
    "no equality": (lambda r: it.merge(SOURCE, r, on="target.id >= source.id"), ("equality",)),
    "source of no kind": (lambda r: it.merge(7, r, on="id"), ("source", "int")),
    "no source": (lambda r: it.merge(None, r, on="id"), ("source", "NoneType")),
    "source without columns": (lambda r: it.merge(pa.table({}), r, on="id"), ("no columns",)),
    "empty list": (lambda r: it.merge([], r, on="id"), ("empty list",)),
    "target of no kind": (lambda r: it.merge(SOURCE, 7, on="id"), ("target", "int")),
    "empty target": (lambda r: it.merge(SOURCE, "", on="id"), ("target", "''")),
    "target with a NUL": (lambda r: it.merge(SOURCE, "a\0b", on="id"), ("target",)),
    "other partitions": (lambda r: it.write(SOURCE, r, partition_by="name"), ("'name'", "nothing")),
    "partitions of none": (lambda r: it.write(SOURCE, r, mode="overwrite_partitions"), ("partition_by=",)),
    "operation to plan": (lambda r: it.plan("vacuum", r), ("'vacuum'", "merge", "compact")),
    "half a batch": (lambda r: it.merge(SOURCE, r, on="id", app_id="x"), ("app_id", "batch_id")),
    "batch of words": (lambda r: it.merge(SOURCE, r, on="id", app_id="x", batch_id="y"), ("app_id", "batch_id")),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_case_90_option_that_makes_no_sense(root: Path, name: str, refused: Any) -> None:
    call, words = WRONG[name]
    refused(root, InputError, lambda: call(root), *words, where=None, advice=False)


def test_case_90_engines_that_are_not_here_say_so(root: Path, refused: Any) -> None:
    for engine in ("duckdb", "spark"):
        call = lambda engine=engine: it.merge(SOURCE, root, on="id", engine=engine)  # noqa: E731
        refused(root, NotSupported, call, engine, 'engine="arrow"', where=None)


IO_WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "full_merge": ({"strategy": "full_merge", "key_columns": "id", "rewrite_mode": "incremental"}, ("full_merge",)),
    "rewrite_mode": ({"strategy": "upsert", "key_columns": "id", "rewrite_mode": "partly"}, ("rewrite_mode",)),
    "append": ({"strategy": "upsert", "mode": "append"}, ("append", "not supported", "upsert")),
    **{s: ({"strategy": s}, ("key_columns", s)) for s in ("upsert", "update", "full_merge", "deduplicate")},
}  # fmt: skip


@pytest.mark.parametrize("name", IO_WRONG)
def test_case_90_modes_that_contradict_each_other(root: Path, name: str, unchanged: Any) -> None:
    options, words = IO_WRONG[name]
    with unchanged(root), pytest.raises(InputError) as caught:
        PyarrowDatasetIO().write_parquet_dataset(SOURCE, str(root), **options)
    assert all(word in str(caught.value) for word in words), caught.value


def breaking(kind: type[BaseException]) -> Iterator[pa.RecordBatch]:
    yield from SOURCE.slice(0, 2).to_batches()
    raise kind("the other side hung up")


@pytest.mark.parametrize(
    "kind", [OSError, ValueError, RuntimeError, MemoryError, KeyboardInterrupt, pa.ArrowInvalid]
)
@pytest.mark.parametrize("reader", [False, True], ids=["generator", "reader"])
def test_case_91_source_that_raises_half_way(
    root: Path, kind: type[BaseException], reader: bool, unchanged: Any, tmp_path: Path
) -> None:
    def source() -> Any:
        batches = breaking(kind)
        return pa.RecordBatchReader.from_batches(SCHEMA, batches) if reader else batches

    calls = [
        *(lambda s=s: it.merge(source(), root, on="id", strategy=s) for s in MERGES),
        lambda: it.write(source(), root),
        lambda: it.write(source(), root, mode="overwrite"),
        lambda: it.write(source(), tmp_path / "new"),
        lambda: it.merge(source(), root, on="id", spool_bytes=1),
    ]
    for call in calls:
        with unchanged(root), pytest.raises((kind, IntarsiaError)):
            call()
    assert not (tmp_path / "new").exists()
    assert not (root.parent / f".{root.name}.intarsia").exists()


def test_case_92_source_that_can_be_read_once(root: Path, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def once() -> Iterator[pa.RecordBatch]:
        asked.append(1)
        yield from SOURCE.to_batches()

    stage, attempts = ArrowEngine.stage, iter(range(9))

    def staged(self: ArrowEngine, *arguments: Any) -> Any:
        change = stage(self, *arguments)
        if next(attempts) < 2:  # two conflicts, so the merge is planned three times
            write_aside(files_of(root)[0], BASE.slice(0, 3))
        return change

    monkeypatch.setattr(ArrowEngine, "stage", staged)
    result = it.merge(once(), root, on="id")
    assert (result.attempts, result.updated, result.inserted) == (3, 2, 1)
    assert asked == [1]
    assert [row["id"] for row in rows(root)] == [1, 2, 3, 4, 5, 6, 7]


def test_case_92_source_that_says_something_else_each_time(root: Path, rows: Any) -> None:
    class Fickle:
        schema = SCHEMA
        calls = 0

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            Fickle.calls += 1
            table = pa.table({"id": [100 * Fickle.calls], "name": ["x"], "n": [1]}, schema=SCHEMA)
            return table.__arrow_c_stream__(requested_schema)

    result = it.merge(Fickle(), root, on="id")
    assert (Fickle.calls, result.inserted, result.source_count) == (1, 1, 1)
    assert [row["id"] for row in rows(root)][-1] == 100


def test_case_92_the_target_as_its_own_source(root: Path, rows: Any) -> None:
    before = rows(root)
    assert it.merge(root, root, on="id", strategy="full_merge").updated == 6
    assert rows(root) == before
    assert it.write(root, root, mode="overwrite").total == 6
    assert rows(root) == before


def test_predicates_of_pyarrow_are_taken_too(root: Path) -> None:
    assert it.plan("delete", root, pc.field("id") == 2).deleted == 1
