"""The proof that a table is right after a change: files, every reader, one snapshot, nothing left over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.cross.checks import problems
from tests.cross.decoded import ADDED, DATA, State, decode
from tests.cross.kinds import Kind
from tests.cross.lake import Lake, local
from tests.cross.readers import disagreements
from tests.cross.sample_rows import Row


@dataclass
class Before:
    """A table as it was: its snapshot and every file in its place."""

    lake: Lake
    kind: Kind
    table: str
    state: State
    files: frozenset[Path]

    @classmethod
    def of(cls, lake: Lake, kind: Kind, table: str) -> Before:
        state = decode(lake.metadata_file(table), kind.branch)
        return cls(lake, kind, table, state, files_of(state))

    def after(self) -> State:
        return decode(self.lake.metadata_file(self.table), self.kind.branch)


def prove(before: Before, wanted: list[Row], *, changed: bool = True) -> State:
    """Fail with everything that is wrong; the table as it is now."""
    after = before.after()
    wrong = problems(after, ours=changed)
    wrong += list(_history(before.state, after, changed=changed))
    wrong += [f"left over: {path}" for path in left_over(before, after)[:5]]
    wrong += disagreements(before.lake, before.kind, before.table, wanted)
    assert not wrong, "\n".join(str(one) for one in wrong)
    return after


def _history(before: State, after: State, *, changed: bool) -> list[str]:
    old = {one["snapshot-id"] for one in before.metadata.get("snapshots", ())}
    new = [one for one in after.metadata.get("snapshots", ()) if one["snapshot-id"] not in old]
    if not changed:
        return [f"{len(new)} snapshots for a change of nothing"] if new else []
    if len(new) != 1:
        return [f"{len(new)} snapshots for one operation"]
    assert after.snapshot is not None
    parent = None if before.snapshot is None else before.snapshot["snapshot-id"]
    found = []
    if new[0].get("parent-snapshot-id") != parent:
        found.append("the new snapshot does not follow the one that was read")
    for name, ref in before.metadata.get("refs", {}).items():
        if ref["snapshot-id"] != parent and after.metadata["refs"].get(name) != ref:
            found.append(f"the reference {name} was moved")
    found += [
        f"{file.path}: new data under spec {file.spec_id}, the default is {after.default_spec}"
        for file in added(after)
        if file.content == DATA and file.spec_id != after.default_spec
    ]
    return found


def added(state: State) -> list:  # type: ignore[type-arg]
    """The files that the current snapshot has added."""
    assert state.snapshot is not None
    return [f for f in state.live if f.status == ADDED and f.snapshot_id == state.snapshot["snapshot-id"]]


def files_of(state: State) -> frozenset[Path]:
    """Every file below the table's location, but for Hadoop's checksums."""
    root = local(state.metadata["location"])
    return frozenset(p for p in root.rglob("*") if p.is_file() and not p.name.endswith(".crc"))


def left_over(before: Before, after: State) -> list[Path]:
    """Files that have come since and that nothing of the table's current state names."""
    return sorted(files_of(after) - before.files - named(after))


def named(state: State) -> set[Path]:
    """The files that the current state of a table consists of."""
    found = {local(file.path) for file in state.live} | {manifest.path for manifest in state.manifests}
    found.add(state.path)
    if state.snapshot is not None:
        found.add(local(state.snapshot["manifest-list"]))
    return found
