"""Cases 84 to 89 of the bad-input catalogue: names, text, secrets and records that may do harm."""

from __future__ import annotations

import json
import logging
import pickle
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia
import intarsia as it
from intarsia.engines.arrow import ArrowEngine
from intarsia.errors import DamagedTable, InputError, IntarsiaError, NothingMatched, NotSupported
from tests.bad_input.trial import BASE, EVERYTHING, SOURCE

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


@pytest.mark.parametrize("filter", ["day=1' or '1", "day=*", "day=..", "day=1%2F..%2F..", "day=[12]"])
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
        with pytest.raises(IntarsiaError) as caught:
            call()
        error = caught.value
        assert SECRET not in all_of(error), all_of(error)
        assert SECRET.encode() not in pickle.dumps(error)
    ours = [record for record in caplog.records if record.name.startswith("intarsia")]
    assert SECRET not in "".join(f"{record.getMessage()} {record.exc_text}" for record in ours)
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
    package = Path(intarsia.__file__).parent
    ours = package / "engines" / "spark" / "tasks.py"  # in Spark's closures
    for module in package.rglob("*.py"):
        if module != ours:
            assert not forbidden.search(module.read_text()), module


TXID = "c0ffee" * 5 + "ab"


def a_record(dataset: Path, **changes: Any) -> dict[str, Any]:
    return {
        "version": 1, "seq": 1, "txid": TXID, "operation": "merge", "root": str(dataset), "properties": {},
        "retain": None, "fresh": False, "removes": [],
        "adds": [{"path": "new.parquet", "staged": "insert-00000.part", "was": None, "kept": None}],
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


ESCAPES = [
    "../evil.parquet", "a/../../evil.parquet", "/tmp/evil.parquet", "", ".", "..", "a//b.parquet",
    "x\0.parquet", "_hidden.parquet", "README.md", ".intarsia/f.parquet", "n" * 300 + ".parquet",
]  # fmt: skip


def adds(path: str, *, staged: str = "insert-00000.part", **more: Any) -> dict[str, Any]:
    return {"adds": [{"path": path, "staged": staged, "was": None, "kept": None} | more]}


def removes(path: str) -> dict[str, Any]:
    return {"adds": [], "removes": [{"path": path, "was": [1, 2, 3], "kept": "00000.part"}]}


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
    "adds is a word": {"adds": "all"},
    "seq is a word": {"seq": "one"},
    "staged name outside": adds("n.parquet", staged="../../x.part"),
    "kept name outside": adds("n.parquet", was=[1], kept="../x.part"),
    **{f"adds {path!r:.24}": adds(path) for path in ESCAPES},
    **{f"removes {path!r:.24}": removes(path) for path in ESCAPES},
}


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
    plant(root, json.dumps(a_record(root, **adds("p=1/new.parquet"))).encode())
    with pytest.raises(IntarsiaError) as caught:
        it.recover(root)
    assert "p=1" in str(caught.value)
    assert list(elsewhere.iterdir()) == []
