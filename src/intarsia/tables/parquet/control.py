"""The control directory beside a dataset: its layout, and the log in it; nothing is published here."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from intarsia.common.scratch import sweep, sweep_private
from intarsia.errors import DamagedTable, InputError, StorageError
from intarsia.storage import FileEntry, Storage
from intarsia.tables.parquet.listing import make_sibling_path
from intarsia.tables.parquet.record import DatasetMetadata, FileAdd, FileRemove, Record, parse_metadata

_NAME = re.compile(r"^(\d{12})(-[0-9a-f]{32})?\.(json|done)$")
_OWN = re.compile(r"-[0-9a-f]{32}-[0-9]{5,}\.parquet$")
_GONE = re.compile(r"^\d{12}\.gone$")
_STAGING = re.compile(r"^\.staging_([0-9a-f]{32})$")
_SUMMARY = "summary.json"
_ARCHIVE = re.compile(r"^history-\d{12}\.json$")
_ARCHIVES = 40
"""How many are kept: of about a thousand commits, a few hundred bytes each."""
_FOLD_ABOVE = 32
_FOLD_KEEPS = 8
_READ_ATTEMPTS = 50

T = TypeVar("T")
Tombstone = tuple[str, str]
"""A file that was removed: its path and its entity tag."""


def is_slot(name: str) -> bool:
    """Whether a name in the log is that of a record whose slot has one winner."""
    found = _NAME.match(name)
    return found is not None and found[2] is None and found[3] == "json"


@dataclass(frozen=True, slots=True)
class LogState:
    """What the log said at one moment.

    ``names`` differ whenever anything was committed, finished or cleaned up in between.
    """

    names: frozenset[str]
    version: int
    undone: tuple[Record, ...] = ()
    """Committed and not known to be published, oldest first."""
    unclean: tuple[Record, ...] = ()
    """Published, with something left to clean up."""
    tombstones: frozenset[Tombstone] = frozenset()
    """What was removed not long ago, where a request that comes late could bring it back."""


def find_resurrected(found: Iterable[Tombstone], removed: Collection[Tombstone]) -> list[Tombstone]:
    """The files, with their tags, that a commit has removed before.

    A name that a transaction has made is never used again, whatever is found there; another name may be given
    to another file.
    """
    names = {path for path, _ in removed if _OWN.search(path)}
    return [key for key in found if key in removed or key[0] in names]


class Control:
    """The paths of a control directory, and its log."""

    def __init__(self, storage: Storage, root: str, *, directory: str | None = None) -> None:
        self.storage = storage
        self.root = root
        self.explicit = directory is not None
        self.directory = directory or make_sibling_path(root)
        self.lock = f"{self.directory}/lock"
        self.log = f"{self.directory}/log"
        self.transactions = f"{self.directory}/tx"
        self.snapshots = f"{self.directory}/snap"
        self.spools = f"{self.directory}/spools"
        self.retained = f"{self.directory}/retained"
        self.footers = f"{self.directory}/footers.cache"
        self.store = f"{self.directory}/store.json"
        self._gone: dict[str, frozenset[Tombstone]] = {}
        self._named: set[str] = set()
        """Transactions whose records carry their ids, of writers that did not go by conditions."""

    @property
    def directories(self) -> tuple[str, ...]:
        """Those that may be in it."""
        return (self.log, self.transactions, self.snapshots, self.spools, self.retained)

    def make_staging_path(self, txid: str) -> str:
        return f"{self.transactions}/.staging_{txid}"

    def record(self, seq: int, txid: str, suffix: str) -> str:
        """The log record of a commit. Where nothing keeps two writers from one slot, it carries the
        transaction's id."""
        slotted = self.storage.atomic or (self.storage.conditional and txid not in self._named)
        slot = f"{seq:012d}" if slotted else f"{seq:012d}-{txid}"
        return f"{self.log}/{slot}.{suffix}"

    def list_staged(self) -> list[str]:
        """The ids of the transactions that have something staged."""
        found = (_STAGING.match(name) for name in self.storage.names(self.transactions))
        return [match[1] for match in found if match]

    def sweep(self) -> list[str]:
        """Remove scratch whose owner is gone, here and in this user's temporary directory; what was here."""
        sweep_private()
        places = (self.directory, self.snapshots, self.spools)
        return [found for place in places for found in sweep(self.storage.filesystem, place)]

    def is_planned(self, record: Record, item: FileAdd | FileRemove, found: FileEntry) -> bool:
        """Whether the file found under a recorded path is the one the transaction had planned on.

        Told by its fingerprint, or by its bytes where a copy of the whole dataset has another one.
        """
        if item.was is None or item.kept is None:
            return False
        if found.fingerprint == item.was:
            return True
        size, _, identity = item.was
        if found.size != size or (identity is not None and found.identity == identity):
            return False  # written in place, so the hard link in old/ was written, too
        return self.storage.is_same(
            f"{self.root}/{item.path}", f"{self.make_staging_path(record.txid)}/old/{item.kept}"
        )

    def exists(self) -> bool:
        return self.storage.stat(self.directory) is not None

    def read_log(self) -> LogState:
        """The log's state; reads only records that are not finished. Writes nothing."""
        return self._read_names(self._make_state)

    def _read_names(self, read: Callable[[list[str]], T]) -> T:
        """What a function reads by the names in the log; again if a record was cleaned up meanwhile."""
        for _ in range(_READ_ATTEMPTS):
            names = self.storage.names(self.log)
            try:
                return read(names)
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
        raise StorageError(f"The log {self.log} kept changing while it was read.", path=self.log)

    def _make_state(self, names: list[str]) -> LogState:
        slots = [name for name in names if _NAME.match(name)]
        unknown = [name for name in slots if name.endswith(".json") and not self._is_kept(name, names)]
        records = {name: self._read_record(name) for name in unknown}
        folded = self._read_summary(names)[0] if records else 0
        done = {
            record.txid
            for name, record in records.items()
            if record.seq <= folded or self._is_done(name, record, names)
        }
        return LogState(
            names=frozenset(names),
            version=max((int(name[:12]) for name in slots), default=0),
            undone=tuple(record for record in records.values() if record.txid not in done),
            unclean=tuple(record for record in records.values() if record.txid in done),
            tombstones=self.read_tombstones(names),
        )

    def _is_kept(self, name: str, names: list[str]) -> bool:
        """Whether a record is finished by its name alone, and kept so that nobody takes its slot again.

        So it is where conditional requests decide: there an object appears whole, or not at all.
        """
        return not self.storage.atomic and is_slot(name) and f"{name[:12]}.done" in names

    def read_tombstones(self, names: Iterable[str]) -> frozenset[Tombstone]:
        """Files that commits of late have removed; a request that was under way may bring one back."""
        found: set[Tombstone] = set()
        for name in names:
            if not _GONE.match(name):
                continue
            if name not in self._gone:
                raw = _parse_json(self.storage.read(f"{self.log}/{name}")).get("removed", ())
                self._gone[name] = frozenset((str(path), str(tag)) for path, tag in raw)
            found |= self._gone[name]
        return frozenset(found)

    def read_records(self) -> list[Record]:
        """Every record that is in the log."""
        return self._read_names(
            lambda names: [
                self._read_record(name) for name in names if _NAME.match(name) and name.endswith("json")
            ]
        )

    def _read_record(self, name: str) -> Record:
        where = f"{self.log}/{name}"
        record = Record.from_json(self.storage.read(where), where)
        if self.explicit and record.root != self.root:
            raise InputError(
                f"The control directory {self.directory} serves another dataset, {record.root}.",
                path=self.directory,
                hint="give every dataset its own control_path=",
            )
        if name not in (f"{record.seq:012d}.json", f"{record.seq:012d}-{record.txid}.json"):
            raise DamagedTable(f"The journal record {where} has another record's name.", path=where)
        if not self.storage.atomic and not is_slot(name):
            self._named.add(record.txid)
        return record

    def _is_done(self, name: str, record: Record, names: list[str]) -> bool:
        done = f"{name.removesuffix('.json')}.done"
        if done not in names:
            return False
        return _parse_json(self.storage.read(f"{self.log}/{done}")).get("txid") == record.txid

    def write_done(self, record: Record) -> None:
        """Record that a commit is published, durably."""
        self.storage.write(self.record(record.seq, record.txid, "done"), self.make_note(record))
        self.storage.sync(self.log)

    def make_note(self, record: Record) -> bytes:
        """What the log keeps of a commit that is published."""
        note: dict[str, Any] = {"seq": record.seq, "txid": record.txid, "operation": record.operation}
        replaced = sum(item.was is not None for item in record.adds)
        note["files"] = [len(record.adds) - replaced, replaced, len(record.removes)]
        note["info"] = record.info.to_json()
        if record.metadata is not None:
            note["metadata"] = asdict(record.metadata)
        return json.dumps({**note, "properties": dict(record.properties)}).encode() + b"\n"

    def read_metadata(self, state: LogState) -> DatasetMetadata | None:
        """Schema and partition columns after the last commit, if that left no file; else None.

        Where writers have no lock, two commits may have one number; either of them may tell.
        """
        for record in state.undone:
            if record.seq == state.version and record.metadata is not None:
                return record.metadata
        last = (name for name in sorted(state.names) if name.startswith(f"{state.version:012d}"))
        for name in last:
            if _NAME.match(name) and name.endswith(".done"):
                where = f"{self.log}/{name}"
                found = parse_metadata(_parse_json(self.storage.read(where)).get("metadata"), where)
                if found is not None:
                    return found
        return None

    def find_last_batch(self, app_id: str) -> int | None:
        """The highest batch an application has committed, or None."""
        commit = self.find_last_commits().get(app_id)
        return None if commit is None else int(commit.get("batch_id", 0))

    def find_last_commits(self) -> dict[str, dict[str, str]]:
        """By application: the properties of its highest batch, of which a summary keeps the ``run_id``."""
        return self._read_names(self._find_last_commits)

    def _find_last_commits(self, names: list[str]) -> dict[str, dict[str, str]]:
        runs = self._read_runs(names)
        found = {
            app: {"app_id": app, "batch_id": str(batch), **({"run_id": runs[app]} if app in runs else {})}
            for app, batch in self._read_summary(names)[1].items()
        }
        for name in filter(_NAME.match, names):
            if name.endswith(".json") and self._is_kept(name, names):
                continue
            record = _parse_json(self.storage.read(f"{self.log}/{name}"))
            for app, batch in _list_batches(record).items():
                if app not in found or batch >= int(found[app].get("batch_id", 0)):
                    found[app] = {str(key): str(value) for key, value in record["properties"].items()}
        return found

    def _read_runs(self, names: list[str]) -> dict[str, str]:
        """By application: the run that committed the highest batch that was folded."""
        if _SUMMARY not in names:
            return {}
        raw = _parse_json(self.storage.read(f"{self.log}/{_SUMMARY}")).get("runs")
        return {str(app): str(run) for app, run in raw.items()} if isinstance(raw, dict) else {}

    def fold(self) -> None:
        """Keep the log short: old finished records become one summary."""
        names = self.storage.names(self.log)
        finished = [name for name in names if _NAME.match(name) and name.endswith(".done")]
        if len(finished) <= _FOLD_ABOVE:
            return
        folded = finished[:-_FOLD_KEEPS]
        self.storage.write(self.make_archive_path(folded), self.make_archive(folded))
        draft = f"{self.log}/{_SUMMARY}.part"
        self.storage.write(draft, self.make_summary(names, folded))
        self.storage.move(draft, f"{self.log}/{_SUMMARY}")
        # Before a record goes, the summary must be durable, and so must the end of its intent.
        self.storage.sync(self.log)
        for name in (*folded, *self.list_old_archives(names)):
            self.storage.remove(f"{self.log}/{name}")

    def make_archive_path(self, folded: Iterable[str]) -> str:
        """Where the notes of commits go that are folded: they are for people, and nothing depends on them."""
        return f"{self.log}/history-{max(name[:12] for name in folded)}.json"

    def make_archive(self, folded: Iterable[str]) -> bytes:
        """The notes that are to be folded, one after the other."""
        notes = [_parse_json(self.storage.read(f"{self.log}/{name}")) for name in folded]
        return json.dumps([note for note in notes if note]).encode() + b"\n"

    def list_old_archives(self, names: Iterable[str]) -> list[str]:
        """Archives beyond those that are kept."""
        return sorted(name for name in names if _ARCHIVE.match(name))[:-_ARCHIVES]

    def read_notes(self) -> list[dict[str, Any]]:
        """What the log has of commits, oldest first; of those that are not published yet, the same."""
        return self._read_names(self._read_notes)

    def _read_notes(self, names: list[str]) -> list[dict[str, Any]]:
        found: dict[tuple[int, str], dict[str, Any]] = {}
        for name in names:
            if _ARCHIVE.match(name):
                notes = _parse_notes(self.storage.read(f"{self.log}/{name}"))
            elif _NAME.match(name) and name.endswith(".done"):
                notes = [_parse_json(self.storage.read(f"{self.log}/{name}"))]
            elif _NAME.match(name) and not self._is_kept(name, names):
                notes = [_parse_json(self.make_note(self._read_record(name)))]
            else:
                continue
            for note in notes:
                if isinstance(note, dict) and type(note.get("seq")) is int:
                    found.setdefault((note["seq"], str(note.get("txid"))), note)
        return [found[key] for key in sorted(found)]

    def list_properties_since(self, version: int) -> list[dict[str, str]]:
        """The properties of every commit after a version, oldest first; nothing of one that is forgotten."""
        notes = {note["seq"]: note for note in self.read_notes() if note["seq"] > version}
        numbers = range(version + 1, max(notes, default=version) + 1)
        said = [notes.get(number, {}).get("properties") for number in numbers]
        return [{str(key): str(value) for key, value in (one or {}).items()} for one in said]

    def make_summary(self, names: list[str], folded: Iterable[str]) -> bytes:
        """The summary of the log with more notes in it, those that are to be folded."""
        last, batches = self._read_summary(names)
        runs = self._read_runs(names)
        for name in folded:
            record = _parse_json(self.storage.read(f"{self.log}/{name}"))
            last = max(last, int(name[:12]))
            for app_id, batch in _list_batches(record).items():
                if batch >= batches.get(app_id, batch):
                    batches[app_id] = batch
                    runs.pop(app_id, None)
                    if "run_id" in record["properties"]:
                        runs[app_id] = str(record["properties"]["run_id"])
        return json.dumps({"last": last, "batches": batches, "runs": runs}).encode() + b"\n"

    def read_folded(self) -> int:
        """The highest number of a commit that is in the summary only."""
        return self._read_names(lambda names: self._read_summary(names)[0])

    def _read_summary(self, names: list[str]) -> tuple[int, dict[str, int]]:
        if _SUMMARY not in names:
            return 0, {}
        where = f"{self.log}/{_SUMMARY}"
        raw = _parse_json(self.storage.read(where))
        try:
            return int(raw["last"]), {str(app): int(batch) for app, batch in raw["batches"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedTable(
                f"The log's summary {where} is damaged.", path=where, hint="restore it from a backup"
            ) from error


def _parse_json(data: bytes) -> dict[str, Any]:
    """A small record; empty when a crash tore it, which counts as not written."""
    try:
        raw = json.loads(data)
    except ValueError:
        return {}
    return raw if isinstance(raw, dict) else {}


def _parse_notes(data: bytes) -> list[Any]:
    """An archive of notes; none where it is damaged, since they are for people."""
    try:
        raw = json.loads(data)
    except ValueError:
        return []
    return raw if isinstance(raw, list) else []


def _list_batches(record: dict[str, Any]) -> dict[str, int]:
    properties = record.get("properties")
    if not isinstance(properties, dict) or "app_id" not in properties:
        return {}
    return {str(properties["app_id"]): int(properties.get("batch_id", 0))}
