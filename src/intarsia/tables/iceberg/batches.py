"""The batches that applications have committed to a branch: in summaries of snapshots, and noted beside them.

A summary goes when its snapshot expires. The last batch of each application is therefore noted in a property
of the table as well, which is set by the commit that adds the snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from pyiceberg.table.snapshots import Snapshot

from intarsia.errors import CommitUnknown
from intarsia.tables.iceberg.state import BranchState, has_commits_since, iterate_ancestors

_PREFIX = "intarsia.last-batch"


@dataclass(frozen=True, slots=True)
class _Note:
    """The last batch of an application, as a property of the table has it."""

    batch: int
    snapshot_id: int
    sequence_number: int
    said: Mapping[str, str]
    """``app_id``, ``batch_id`` and, of a pipeline, ``run_id``, as in the snapshot's summary."""


def make_batch_note(branch: str, properties: Mapping[str, str], snapshot: Snapshot) -> dict[str, str]:
    """The property that notes the batch of a commit; none where the commit has no batch."""
    app = properties.get("app_id")
    if app is None:
        return {}
    said = {name: properties[name] for name in ("batch_id", "run_id") if name in properties}
    place = {"snapshot_id": snapshot.snapshot_id, "sequence_number": snapshot.sequence_number or 0}
    return {_make_key(branch, app): json.dumps({**said, **place})}


def find_last_batch(state: BranchState, app_id: str) -> int | None:
    """The highest ``batch_id`` that was committed to the branch with this ``app_id``, or None."""
    commit = find_last_commits(state).get(app_id)
    return None if commit is None else int(commit["batch_id"])


def find_highest_batch(state: BranchState, app_id: str) -> int | None:
    """As :func:`find_last_batch`, also where the batch was rolled back: higher numbers are free."""
    last, note = find_last_batch(state, app_id), _read_notes(state).get(app_id)
    return last if note is None else max(note.batch, note.batch if last is None else last)


def find_last_commits(state: BranchState) -> dict[str, dict[str, str]]:
    """By ``app_id``: the summary of its highest ``batch_id`` in the branch; its note where that expired."""
    found: dict[str, dict[str, str]] = {}
    for snapshot in iterate_ancestors(state.head, state.metadata):
        said = {} if snapshot.summary is None else snapshot.summary.additional_properties
        app, batch = said.get("app_id"), said.get("batch_id", "")
        if app is not None and batch.isdecimal():
            known = found.get(app)
            if known is None or int(batch) > int(known["batch_id"]):
                found[app] = dict(said)
    for app, note in _read_notes(state).items():
        is_newer = app not in found or note.batch > int(found[app]["batch_id"])
        if is_newer and not _is_rolled_back(state, note):
            found[app] = dict(note.said)
    return found


def check_not_rolled_back(state: BranchState, app_id: str, batch: int) -> None:
    """Refuse a batch that was committed once, and that the branch has been set back behind since.

    Whether its rows are wanted again, and those of the batches around it, only the caller can know.

    Raises:
        CommitUnknown: it was rolled back; nothing was changed.
    """
    note = _read_notes(state).get(app_id)
    if note is None or batch > note.batch or not _is_rolled_back(state, note):
        return
    last = find_last_batch(state, app_id)
    behind = "behind the first of them" if last is None else f"to batch {last}"
    raise CommitUnknown(
        f"Batch {batch} of {app_id!r} comes again, but the table was set back {behind} after batch"
        f" {note.batch} was committed (snapshot {note.snapshot_id}).",
        path=state.metadata.location,
        changed=False,
        hint="with another app_id the query goes on from here without what was rolled back; with another"
        " app_id and a new checkpoint, which --full-refresh makes for a pipeline, it takes everything again.",
    )


def _make_key(branch: str, app_id: str) -> str:
    return "/".join((_PREFIX, quote(branch, safe=""), quote(app_id, safe="")))


def _read_notes(state: BranchState) -> dict[str, _Note]:
    """By ``app_id``: the notes of a branch; what others have put in such a property is none."""
    start = _make_key(state.branch, "")
    found: dict[str, _Note] = {}
    for key, text in state.metadata.properties.items():
        if not key.startswith(start):
            continue
        app = unquote(key.removeprefix(start))
        try:
            raw = json.loads(text)
            said = {name: str(raw[name]) for name in ("batch_id", "run_id") if name in raw}
            found[app] = _Note(
                int(raw["batch_id"]),
                int(raw["snapshot_id"]),
                int(raw["sequence_number"]),
                {"app_id": app, **said},
            )
        except (ValueError, TypeError, KeyError):
            continue
    return found


def _is_rolled_back(state: BranchState, note: _Note) -> bool:
    """Whether a snapshot was taken out of the branch's history, and has not just expired."""
    if any(one.snapshot_id == note.snapshot_id for one in iterate_ancestors(state.head, state.metadata)):
        return False
    if state.metadata.snapshot_by_id(note.snapshot_id) is not None:  # it is there, on no way to the head
        return True
    if state.head is None:
        return True
    if state.metadata.format_version == 1:  # no sequence numbers
        return False
    return has_commits_since(state, note.sequence_number)
