"""What a state is brought up to before a run: what the tables' logs say, other names, earlier versions."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from intarsia.common.log import logger
from intarsia.errors import CommitUnknown, DamagedTable, IntarsiaError
from intarsia.pipeline.fingerprints import definition_of, digest_of_files, digest_of_snapshot
from intarsia.pipeline.inputs import Stamp
from intarsia.pipeline.ledger import Ledger, batch_of
from intarsia.pipeline.model import Expect, Step, needed
from intarsia.pipeline.state import Pending, Success, UnfinishedRun
from intarsia.pipeline.taken import is_append

log = logger(__name__)

Commits = Mapping[str, Mapping[str, str]]
"""By the id of a step: what the log of a table says of its last commit."""

_TRIES = 50
"""So many files may have landed while an earlier version's last run went on."""


def reconcile(ledger: Ledger) -> None:
    """Bring the state up to what the tables' logs say: what was committed when a run ended is done.

    Raises:
        DamagedTable: a log has commits of this pipeline that the state does not know.
    """
    state = ledger.state
    if state.trusting:
        _rename_targets(ledger)
    settle(ledger)
    _follow_renames(ledger)
    lost: list[Step] = []
    for target in _targets(ledger):
        if target in ledger.unsettled:
            continue
        try:
            commits = ledger.shop.table(target).last_commits()
            exists = ledger.snapshot(target).exists
        except (IntarsiaError, OSError) as error:
            _leave_unsettled(ledger, target, error)
            continue
        steps = [one for one in ledger.steps() if one.target == target and not isinstance(one, Expect)]
        lost += [step for step in steps if exists and _is_unknown(ledger, step, commits)]
        if not exists:
            _start_over(ledger, steps)
        if state.trusting or ledger.full_refresh or not exists:
            _trust(ledger, steps, commits)
    if lost:
        _refuse(ledger, lost)
    if state.trusting:
        _adopt(ledger)
        state.trusting = False
        ledger.dirty = True


def settle(ledger: Ledger) -> None:
    """What was about to be committed when a run ended is done if the table's log has it, else it is not.

    A target that cannot be looked at stays unsettled, and its steps fail: carried out, they might take
    effect twice.
    """
    for target in _targets(ledger):
        path = ledger.target_key(target)
        runs = {pending.run for pending in ledger.state.pending.values() if pending.target == path}
        if not runs:
            continue
        ledger.unsettled.pop(target, None)
        try:
            table = ledger.shop.table(target)
            for run in () if ledger.dry_run else runs:
                table.recover(run_id=run)  # so that whoever reads the directory sees what was committed, too
            _settle(ledger, target, table.last_commits())
        except (IntarsiaError, OSError) as error:
            _leave_unsettled(ledger, target, error)


def _targets(ledger: Ledger) -> Iterable[str]:
    return dict.fromkeys(step.target for step in ledger.steps() if step.target is not None)


def _leave_unsettled(ledger: Ledger, target: str, error: Exception) -> None:
    log.info("pipeline %s: target %s cannot be looked at: %s", ledger.pipeline.name, target, error)
    ledger.unsettled[target] = error


def _rename_targets(ledger: Ledger) -> None:
    """The first version called every target by its path or name alone."""
    state = ledger.state
    for target in ledger.pipeline.targets:
        old, new = ledger.target_path(target), ledger.target_key(target)
        if old == new:
            continue
        known: list[dict[str, Any]] = [state.targets, state.foreign]
        known += [memory.taken for memory in state.steps.values()]
        for entries in known:
            if old in entries:
                entries[new] = entries.pop(old)
        for memory in state.steps.values():
            memory.successes = [
                replace(one, target=new) if one.target == old else one for one in memory.successes
            ]
        for name, pending in state.pending.items():
            if pending.target == old:
                state.pending[name] = replace(pending, target=new)


def _start_over(ledger: Ledger, steps: Sequence[Step]) -> None:
    """Of a target that is gone, or was never there, no file has been taken."""
    for step in steps:
        path = ledger.target_key(needed(step.target))
        memory = ledger.state.steps.get(step.name)
        if memory is not None and memory.taken.pop(path, {}):
            ledger.dirty = True


def _trust(ledger: Ledger, steps: Sequence[Step], commits: Commits) -> None:
    for step in steps:
        batch = batch_of(commits.get(ledger.step_id(step.name)))
        if batch:
            ledger.state.step(step.name).commits[ledger.target_key(needed(step.target))] = batch


def _is_unknown(ledger: Ledger, step: Step, commits: Commits) -> bool:
    """Whether the log of a step's target has commits of the step that the state does not know."""
    if ledger.state.trusting or (ledger.full_refresh and not is_append(step)):
        return False
    memory = ledger.state.steps.get(step.name)
    known = 0 if memory is None else memory.commits.get(ledger.target_key(needed(step.target)), 0)
    return batch_of(commits.get(ledger.step_id(step.name))) > known


def _refuse(ledger: Ledger, lost: list[Step]) -> None:
    told = ", ".join(repr(step.name) for step in lost)
    where = ledger.target_path(needed(lost[0].target))
    way = "run once with --full-refresh, which merges and writes every file again"
    if any(map(is_append, lost)):
        way = "remove the target to have it filled again"
    raise DamagedTable(
        f"The state of pipeline {ledger.pipeline.name!r}, {ledger.path}, does not know the last commits of"
        f" {told} that the log of {where} has: it was lost, is an old copy, or other runs of a pipeline"
        " of this name have a state of their own.",
        path=str(ledger.path),
        hint=f"restore it; or, if all that is there was taken, run once with --mark-done; or {way}.",
    )


def _settle(ledger: Ledger, target: str, commits: Commits) -> None:
    path = ledger.target_key(target)
    for name, pending in list(ledger.state.pending.items()):
        if pending.target != path:
            continue
        said = commits.get(ledger.step_id(name), {})
        is_ours = said.get("run_id", "") == pending.run or not pending.run
        if batch_of(said) == pending.batch and is_ours:
            _note_commit(ledger, name, pending, target)
            continue
        since = 0 if pending.version is None else pending.version
        if not (ledger.full_refresh or ledger.shop.table(target).knows_commits_since(since)):
            raise CommitUnknown(
                f"Nobody can say whether run {pending.run} has committed step {name!r}: the history of"
                f" {ledger.target_path(target)} does not go back to where it began.",
                path=ledger.target_path(target),
                hint="look into the table; then run once with --mark-done if the step has taken effect, or"
                " with --full-refresh to have it carried out again.",
            )
        del ledger.state.pending[name]


def _note_commit(ledger: Ledger, name: str, pending: Pending, target: str) -> None:
    now = ledger.shop.table(target).snapshot()
    ledger.snapshots[target] = now
    left = {}
    if pending.version is None or now.version == pending.version + 1:  # nobody has committed since
        left[pending.target] = digest_of_snapshot(now)
        ledger.seen.add(target)
    memory = ledger.state.step(name)
    memory.take(pending.target, pending.scope, pending.files)
    memory.commits[pending.target] = pending.batch
    definition = pending.definition or next(
        (definition_of(step, ledger.pipeline) for step in ledger.steps() if step.name == name), ""
    )
    success = Success(definition, pending.input, 0, 0, pending.target, now.version)
    ledger.state.note(name, success, changed=True, left=left)
    if pending.run:
        ledger.state.unfinished = UnfinishedRun(pending.run, name, pending.full_refresh)
    ledger.dirty = True
    log.info("pipeline %s: step %s was committed by run %s", ledger.pipeline.name, name, pending.run)


def _follow_renames(ledger: Ledger) -> None:
    """A step that was moved or renamed, and means what it meant, keeps its memory."""
    defined = {step.name: definition_of(step, ledger.pipeline) for step in ledger.steps()}
    before = copy.deepcopy(ledger.state.steps)
    for name, definition in defined.items():
        if name in before and before[name].success(definition) is not None:
            continue
        for other, memory in before.items():
            success = memory.success(definition)
            if success is None or defined.get(other) == definition:
                continue
            own = ledger.state.step(name)
            own.add(success)
            for scope, files in memory.taken.get(success.target or "", {}).items():
                own.take(success.target or "", scope, files)
            unfinished = ledger.state.unfinished
            if unfinished is not None and unfinished.after == other:
                ledger.state.unfinished = replace(unfinished, after=name)
            ledger.dirty = True
            break


def _adopt(ledger: Ledger) -> None:
    """The first version knew a digest of a merge's files: where they give it again, they were taken."""
    for step in ledger.steps():
        memory = ledger.state.steps.get(step.name)
        source = ledger.source(step)
        if memory is None or source is None or step.target is None or isinstance(step, Expect):
            continue
        path = ledger.target_key(step.target)
        success = memory.success(definition_of(step, ledger.pipeline))
        if success is None or path in memory.taken:
            continue
        try:
            there = ledger.arrived(source)
            if there is None or not ledger.snapshot(step.target).exists:
                continue
        except (IntarsiaError, OSError):  # the step will say so
            continue
        memory.take(path, ledger.scope(step), _giving(success, there.stamps))


def _giving(success: Success, there: tuple[Stamp, ...]) -> tuple[Stamp, ...]:
    """Those of the files, the oldest ones, that were the input of a success."""
    stamps = sorted(there, key=lambda stamp: stamp.mtime_ns)
    finished = datetime.fromisoformat(success.finished).timestamp() + 1 if success.finished else 0.0
    most = sum(stamp.mtime_ns <= finished * 1e9 for stamp in stamps)
    for number in (len(stamps), *range(most, max(0, most - _TRIES), -1)):
        if digest_of_files(stamps[:number]) == success.input:
            return tuple(stamps[:number])
    return ()
