"""Cases 63 to 73 of the bad-input catalogue: links, odd names, disks that refuse, interruptions."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import intarsia as it
from intarsia.errors import CommitUnknown, InputError, NotSupported, StorageError, UnsafePath
from intarsia.kernel.chunk_copy import ChunkCopy
from intarsia.kernel.write import FileWriter
from intarsia.tables.parquet.journal import Journal
from tests.bad_input.conftest import check_error
from tests.bad_input.trial import BASE, CHANGES, EVERYTHING, MERGES, OPERATIONS, SCHEMA, SOURCE, files_of

WRITES = {name: call for name, call in OPERATIONS.items() if name != "deduplicate_rows"}
"""The operations that have something to write on the usual dataset."""
REWRITES = {name: call for name, call in WRITES.items() if name not in ("insert", "append")}


def test_case_63_symlinked_file(root: Path, tmp_path: Path, each_refused: Any) -> None:
    real = tmp_path / "real.parquet"
    pq.write_table(BASE, real)
    before = real.read_bytes()
    (root / "link.parquet").symlink_to(real)
    each_refused(
        root, EVERYTHING, UnsafePath, "symbolic link", "move the real file", where=root / "link.parquet"
    )
    assert real.read_bytes() == before


def test_case_63_dangling_link(root: Path, each_refused: Any) -> None:
    (root / "link.parquet").symlink_to("nowhere.parquet")
    each_refused(root, EVERYTHING, UnsafePath, "symbolic link", where=root / "link.parquet")


def test_case_63_dangling_link_in_the_place_of_a_partition(root: Path, each_refused: Any) -> None:
    (root / "p=1").symlink_to(root.parent / "not mounted")
    each_refused(root, EVERYTHING, UnsafePath, "symbolic link", where=root / "p=1")


def test_case_68_file_in_the_place_of_a_partition(tmp_path: Path, make_dataset: Any, refused: Any) -> None:
    root = make_dataset(tmp_path / "t", BASE, partition=("n",))
    (root / "n=71").write_text("no directory")
    for call in (
        lambda: it.merge(SOURCE, root, on=["id", "n"]),
        lambda: it.write(SOURCE, root),
        lambda: it.write(SOURCE, root, mode="overwrite_partitions"),
    ):
        refused(root, StorageError, call, "move away", where=root / "n=71")


def test_case_64_symlink_loop(root: Path, each_refused: Any) -> None:
    (root / "p=1").mkdir()
    (root / "p=1" / "loop").symlink_to(root)
    each_refused(root, EVERYTHING, UnsafePath, "symbolic link", where=root / "p=1" / "loop")


def test_case_64_link_to_itself(root: Path, each_refused: Any) -> None:
    (root / "self").symlink_to(root / "self")
    each_refused(root, EVERYTHING, UnsafePath, "symbolic link", where=root / "self")


def test_case_64_a_link_to_the_dataset_is_the_dataset(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert it.merge(SOURCE, tmp_path / "alias", on="id").updated == 2
    assert (tmp_path / "alias").is_symlink()
    assert not (tmp_path / ".alias.intarsia").exists()


@pytest.mark.parametrize("operation", REWRITES.values(), ids=REWRITES)
def test_case_65_file_with_a_second_name(root: Path, tmp_path: Path, operation: Any) -> None:
    before = {}
    for file in files_of(root):
        os.link(file, tmp_path / file.name)
        before[file.name] = (file.read_bytes(), file.stat().st_ino)
    operation(root)
    for name, (data, inode) in before.items():
        assert (tmp_path / name).read_bytes() == data
        assert (tmp_path / name).stat().st_ino == inode


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_case_66_names_with_glob_characters(
    tmp_path: Path, operation: Any, make_dataset: Any, rows: Any
) -> None:
    plain = make_dataset(tmp_path / "plain", BASE, files=2)
    odd = tmp_path / "o[dr]*der?s {x}"
    odd.mkdir()
    for file, name in zip(files_of(plain), ("g[ab]*.parquet", "ga1.parquet"), strict=True):
        shutil.copy(file, odd / name)
    operation(plain)
    operation(odd)
    assert rows(odd) == rows(plain)
    assert rows(pq.read_table(odd)) == rows(plain)


def test_case_66_source_named_with_glob_characters(root: Path, tmp_path: Path) -> None:
    pq.write_table(SOURCE, tmp_path / "s[1]*.parquet")
    pq.write_table(BASE, tmp_path / "s1x.parquet")
    assert it.merge(tmp_path / "s[1]*.parquet", root, on="id").source_count == 3


def test_case_67_directory_that_cannot_be_written(root: Path, frozen: Any, each_refused: Any) -> None:
    frozen(root)
    each_refused(root, WRITES, StorageError, "write", "permission")
    with pytest.raises(OSError, match=r"permitted|denied") as caught:
        it.merge(SOURCE, root, on="id")
    assert caught.value.errno in (errno.EACCES, errno.EPERM)


def test_case_67_no_room_for_a_control_directory(root: Path, frozen: Any, each_refused: Any) -> None:
    frozen(root.parent)
    each_refused(root, WRITES, StorageError, "permi", "control_path=", where=root.parent)


def test_case_67_reading_and_planning_need_no_permission(root: Path, frozen: Any, unchanged: Any) -> None:
    frozen(root)
    frozen(root.parent)
    with unchanged(root):
        assert it.inspect(root).rows == 6
        assert it.plan("merge", SOURCE, root, on="id").updated == 2


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory that every user can reach, which a test's own cannot."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
@pytest.mark.parametrize("locked", ["root", "file"])
def test_case_67_directory_of_somebody_else(
    public_directory: Path, locked: str, make_dataset: Any, unchanged: Any
) -> None:
    root = make_dataset(public_directory / "open" / "orders", BASE, files=2)
    (public_directory / "open").chmod(0o777)
    root.chmod(0o555 if locked == "root" else 0o777)
    program = textwrap.dedent(f"""
        import pyarrow as pa, intarsia as it, sys
        try:
            it.merge(pa.table({{"id": [2], "name": ["B"], "n": [21]}}), {str(root)!r}, on="id")
        except it.IntarsiaError as error:
            sys.exit(f"{{type(error).__name__}} {{error.errno}} {{error.changed}} {{error}}")
    """)
    with unchanged(root):
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", program],
            capture_output=True, text=True, cwd="/",
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith(("StorageError 13 False", "StorageError 1 False")), done.stderr
    assert str(root) in done.stderr


def test_case_68_root_is_a_file(root: Path, each_refused: Any) -> None:
    file = files_of(root)[0]
    calls = {name: lambda _, call=call: call(file) for name, call in EVERYTHING.items()}
    each_refused(root, calls, InputError, "is a file", "directory of Parquet files", where=file)


def test_case_68_root_is_a_mount_point(small_disk: Path, each_refused: Any, rows: Any) -> None:
    pq.write_table(BASE, small_disk / "f.parquet")
    each_refused(small_disk, WRITES, NotSupported, "another device", "control_path=")
    assert it.plan("merge", SOURCE, small_disk, on="id").updated == 2


def test_case_68_control_directory_on_another_device(root: Path, small_disk: Path, each_refused: Any) -> None:
    calls = {
        "merge": lambda root: it.merge(SOURCE, root, on="id", control_path=small_disk / "control"),
        "delete": lambda root: it.delete(root, "id = 1", control_path=small_disk / "control"),
    }
    each_refused(root, calls, NotSupported, "another device", "control_path=")
    assert not (small_disk / "control").exists()


def test_case_68_control_directory_inside_of_the_dataset(root: Path, each_refused: Any) -> None:
    calls = {
        "inside": lambda root: it.merge(SOURCE, root, on="id", control_path=root / ".control"),
        "around": lambda root: it.merge(SOURCE, root, on="id", control_path=root.parent),
        "itself": lambda root: it.merge(SOURCE, root, on="id", control_path=root),
    }
    each_refused(root, calls, InputError, "control_path=", "inside one another")


def test_case_69_disk_full_while_staging(small_disk: Path, make_dataset: Any, each_refused: Any) -> None:
    wide = pa.table(
        {"id": range(3000), "name": [os.urandom(250).hex() for _ in range(3000)], "n": range(3000)},
        schema=SCHEMA,
    )
    root = make_dataset(small_disk / "orders", wide, files=2, compression="none", use_dictionary=False)
    (small_disk / "ballast").write_bytes(b"\0" * (shutil.disk_usage(small_disk).free - 300_000))
    calls = {name: REWRITES[name] for name in REWRITES if name not in ("full_merge", "overwrite")}
    calls["append"] = lambda root: it.write(wide, root)
    calls["overwrite"] = lambda root: it.write(wide, root, mode="overwrite")
    each_refused(root, calls, StorageError, "No space left", "free some space", where=root.parent)
    with pytest.raises(OSError, match="space") as caught:
        it.compact(root)
    assert caught.value.errno == errno.ENOSPC
    (small_disk / "ballast").unlink()
    assert it.merge(SOURCE, root, on="id", strategy="update").updated == 3


def failing(call: Callable[..., Any], number: int, *, when: Callable[[Any], bool]) -> Callable[..., Any]:
    """A system call that fails for the first argument it is told of, and works otherwise."""

    def stand_in(first: Any, *rest: Any) -> Any:
        if when(first):
            raise OSError(number, os.strerror(number))
        return call(first, *rest)

    return stand_in


def path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def test_case_70_disk_full_while_writing_the_intent(
    root: Path, each_refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = failing(os.write, errno.ENOSPC, when=lambda fd: path_of(fd).endswith("intent.json"))
    monkeypatch.setattr(os, "write", full)
    each_refused(root, WRITES, StorageError, "intent.json", "space", "free some space", where=root.parent)


@pytest.mark.parametrize("operation", WRITES.values(), ids=WRITES)
def test_case_70_disk_full_while_writing_the_end(
    root: Path, operation: Any, leftovers: Any, rows: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(root, twin)
    operation(twin)
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "write", failing(os.write, errno.ENOSPC, when=lambda fd: path_of(fd).endswith(".done"))
        )
        with pytest.raises(CommitUnknown) as caught:
            operation(root)
    words = ("committed", "space", "recover()", "do not repeat", str(root), caught.value.txid or "?")
    check_error(caught.value, CommitUnknown, *words, changed=True)
    assert it.snapshot(root).rows == it.snapshot(twin).rows
    assert any("committed but not published" in said for said in it.recover(root))
    assert it.recover(root) == ()
    assert rows(root) == rows(twin)
    assert leftovers(root) == []


def test_case_71_input_output_error_at_fsync(
    root: Path, each_refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []  # a staged file has a name of its own in every operation

    def broken(descriptor: int) -> None:
        asked.append(path_of(descriptor))
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    each_refused(root, WRITES, StorageError, "sync", "Input/output error", "disk failed", where=root.parent)
    assert len(asked) == len(set(asked)), "an fsync that failed must not be tried again"


INTERRUPTIONS = {
    "writing rows": [(FileWriter, "write"), (ChunkCopy, "add")],
    "finishing a file": [(FileWriter, "close"), (ChunkCopy, "close")],
    "settling staged files": [(Journal, "_prepare")],
    "recording the intent": [(Journal, "_record_intent")],
    "before the commit point": [(Journal, "_claim")],
}


@pytest.mark.parametrize("place", INTERRUPTIONS)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_case_72_interrupted_before_the_commit_point(
    root: Path, place: str, kind: type[BaseException], unchanged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(monkeypatch, INTERRUPTIONS[place], kind)
    for name, operation in WRITES.items():
        with unchanged(root), pytest.raises(kind):
            operation(root)
        assert not (root.parent / ".orders.intarsia").exists(), name


def interrupt_at(
    patch: pytest.MonkeyPatch, places: list[tuple[type, str]], kind: type[BaseException]
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise kind("now")

    for owner, name in places:
        patch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("operation", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("step", ["publish", "_publish_one", "clean"])
def test_case_72_interrupted_after_the_commit_point(
    root: Path, operation: Any, step: str, rows: Any, tmp_path: Path, leftovers: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    twin = tmp_path / "twin"
    shutil.copytree(root, twin)
    operation(twin)
    with monkeypatch.context() as patch:
        interrupt_at(patch, [(Journal, step)], KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            operation(root)
        # Pressed again while the commit is finished: the next operation sees to it.
    assert it.snapshot(root).rows == it.snapshot(twin).rows
    it.recover(root)
    assert rows(root) == rows(twin)
    assert leftovers(root) == []


@pytest.mark.parametrize("place", INTERRUPTIONS)
def test_case_73_out_of_memory(
    root: Path, place: str, unchanged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(monkeypatch, INTERRUPTIONS[place], MemoryError)
    for name, operation in WRITES.items():
        with unchanged(root), pytest.raises(MemoryError):
            operation(root)
        assert not (root.parent / ".orders.intarsia").exists(), name


def test_case_73_out_of_arrow_memory_while_reading(
    root: Path, unchanged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(*_: Any, **__: Any) -> Any:
        raise pa.ArrowMemoryError("malloc of size 1099511627776 failed")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", greedy)
    for name, operation in MERGES.items():
        with unchanged(root), pytest.raises(MemoryError):
            operation(root)
        assert not (root.parent / ".orders.intarsia").exists(), name


def test_every_change_of_the_usual_dataset_has_something_to_write(root: Path, tmp_path: Path) -> None:
    """Else the tests above would prove nothing."""
    assert set(CHANGES) <= {*WRITES, "deduplicate_rows"}
    for number, operation in enumerate(WRITES.values()):
        twin = tmp_path / str(number)
        shutil.copytree(root, twin)
        operation(twin)
        assert {f.name: f.read_bytes() for f in files_of(twin)} != {
            f.name: f.read_bytes() for f in files_of(root)
        }
