"""Which batch of an application was committed last, from what snapshots say of themselves."""

from __future__ import annotations

from collections.abc import Mapping

from intarsia.errors import InputError
from intarsia.tables.iceberg.state import State, ancestry


def last_batch(state: State, app_id: str) -> int | None:
    """The highest ``batch_id`` with this ``app_id`` in the branch's history; None, also if it expired."""
    found: int | None = None
    for snapshot in ancestry(state.head, state.metadata):
        said = {} if snapshot.summary is None else snapshot.summary.additional_properties
        batch = said.get("batch_id", "")
        if said.get("app_id") == app_id and batch.isdecimal():
            found = max(int(batch), -1 if found is None else found)
    return found


def last_commits(state: State) -> dict[str, dict[str, str]]:
    """By ``app_id``: the summary of the snapshot with its highest ``batch_id`` in the branch's history."""
    found: dict[str, dict[str, str]] = {}
    for snapshot in ancestry(state.head, state.metadata):
        said = {} if snapshot.summary is None else snapshot.summary.additional_properties
        app, batch = said.get("app_id"), said.get("batch_id", "")
        if app is not None and batch.isdecimal():
            known = found.get(app)
            if known is None or int(batch) > int(known["batch_id"]):
                found[app] = dict(said)
    return found


def reaches_back(state: State, version: int) -> bool:
    """Whether every snapshot after a version is still known, as far as sequence numbers tell (not in V1).

    A snapshot without a parent need not be the first: PyIceberg forgets parents that have expired.
    """
    if state.head is None or state.metadata.format_version == 1:
        return True
    first = max(version, 1)
    return any((one.sequence_number or 0) <= first for one in ancestry(state.head, state.metadata))


def check_batch(properties: Mapping[str, str]) -> None:
    """Refuse half an idempotency key."""
    batch = properties.get("batch_id")
    if ("app_id" in properties) != (batch is not None) or not (batch is None or batch.isdecimal()):
        raise InputError(f"app_id and a whole number batch_id go together, not {dict(properties)}.")
