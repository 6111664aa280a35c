"""The state brought up to date before a run: commits in the tables' logs, renamed steps, version 1."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from intarsia.common.log import get_logger
from intarsia.errors import CommitUnknown, DamagedTable, IntarsiaError
from intarsia.pipeline.inputs import FileStamp
from intarsia.pipeline.model import Expect, Step, find_written_target, require
from intarsia.pipeline.state.definitions import describe_definition, digest_files, digest_snapshot
from intarsia.pipeline.state.input_selection import is_append
from intarsia.pipeline.state.run_state import RunState, read_batch
from intarsia.pipeline.state.state_file import Pending, Success, UnfinishedRun

log = get_logger(__name__)

Commits = Mapping[str, Mapping[str, str]]
"""By the id of a step: the properties of its last commit in a table's log."""

_TRIES = 50
"""How many files may have been added during the last run of version 1."""


def recover_state(run_state: RunState) -> None:
    """Bring the state up to date with the tables' logs: a step that has committed is done.

    Raises:
        DamagedTable: a log has commits of this pipeline that the state does not know.
    """
    state = run_state.state
    if state.trusting:
        _rename_targets(run_state)
    finish_commits(run_state)
    _follow_renames(run_state)
    lost: list[Step] = []
    for target in _list_targets(run_state):
        if target in run_state.unresolved:
            continue
        left = state.targets.get(run_state.make_target_key(target))
        try:
            commits = run_state.resources.get_table(target).last_commits()
            exists = run_state.get_snapshot(target).exists
        except (IntarsiaError, OSError) as error:
            _leave_unsettled(run_state, target, error)
            continue
        steps = [one for one in run_state.list_steps() if find_written_target(one) == target]
        lost += [step for step in steps if exists and _is_unknown(run_state, step, commits)]
        if not exists:
            # A quarantine is made by its first row: what was judged before counts.
            never = left == run_state.compute_digest(target)
            _start_over(run_state, [step for step in steps if not (never and isinstance(step, Expect))])
        if state.trusting or run_state.full_refresh or not exists:
            _trust(run_state, steps, commits)
    if lost:
        _refuse(run_state, lost)
    if state.trusting:
        _adopt(run_state)
        state.trusting = False
        run_state.dirty = True


def finish_commits(run_state: RunState) -> None:
    """Resolve pending steps of a run that ended early: done where the table's log has their commit.

    Where a table cannot be read its steps stay pending and fail: if they ran, they might take effect twice.
    """
    for target in _list_targets(run_state):
        path = run_state.make_target_key(target)
        runs = {pending.run for pending in run_state.state.pending.values() if pending.target == path}
        if not runs:
            continue
        run_state.unresolved.pop(target, None)
        try:
            table = run_state.resources.get_table(target)
            for run in () if run_state.dry_run else runs:
                table.recover(run_id=run)  # publishes what was committed, for other readers of the directory
            _settle(run_state, target, table.last_commits())
        except (IntarsiaError, OSError) as error:
            _leave_unsettled(run_state, target, error)


def _list_targets(run_state: RunState) -> Iterable[str]:
    targets = (find_written_target(step) or step.target for step in run_state.list_steps())
    return dict.fromkeys(target for target in targets if target is not None)


def _leave_unsettled(run_state: RunState, target: str, error: Exception) -> None:
    log.info("pipeline %s: target %s cannot be looked at: %s", run_state.pipeline.name, target, error)
    run_state.unresolved[target] = error


def _rename_targets(run_state: RunState) -> None:
    """Give targets of version 1, which are named by their path alone, the names of version 2."""
    state = run_state.state
    for target in run_state.pipeline.targets:
        old, new = run_state.show_target_path(target), run_state.make_target_key(target)
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


def _start_over(run_state: RunState, steps: Sequence[Step]) -> None:
    """Forget the files that were taken into a target that does not exist."""
    for step in steps:
        path = run_state.make_target_key(require(find_written_target(step)))
        memory = run_state.state.steps.get(step.name)
        if memory is not None and memory.taken.pop(path, {}):
            run_state.dirty = True


def _trust(run_state: RunState, steps: Sequence[Step], commits: Commits) -> None:
    for step in steps:
        batch = read_batch(commits.get(run_state.make_step_id(step.name)))
        if batch:
            path = run_state.make_target_key(require(find_written_target(step)))
            run_state.state.get_step(step.name).commits[path] = batch


def _is_unknown(run_state: RunState, step: Step, commits: Commits) -> bool:
    """Whether the log of a step's target has later commits of the step than the state."""
    if run_state.state.trusting or (run_state.full_refresh and not is_append(step)):
        return False
    memory = run_state.state.steps.get(step.name)
    path = run_state.make_target_key(require(find_written_target(step)))
    known = 0 if memory is None else memory.commits.get(path, 0)
    return read_batch(commits.get(run_state.make_step_id(step.name))) > known


def _refuse(run_state: RunState, lost: list[Step]) -> None:
    told = ", ".join(repr(step.name) for step in lost)
    targets = list(dict.fromkeys(require(find_written_target(step)) for step in lost))
    where = ", ".join(map(run_state.show_target_path, targets))
    way = "run once with --full-refresh, which merges and writes every file again"
    if any(map(is_append, lost)):
        way = "remove the target to have it filled again"
    env = run_state.pipeline.env
    hint = f"restore it; or, if all that is there was taken, run once with --mark-done; or {way}."
    if env is not None:  # whose rows should not be mixed into tables of another
        keys = ", ".join(f"[env.{env}.targets.{name}]" for name in targets)
        hint = (
            f"give the environment {env!r} a target of its own ({keys}); or, if these are its own,"
            " restore the state, or run once with --mark-done."
        )
    raise DamagedTable(
        f"The state of pipeline {run_state.pipeline.name!r}, {run_state.path}, does not know the last"
        f" commits of {told} that the log of {where} has: it was lost, is an old copy, or other runs of a"
        " pipeline of this name have a state of their own.",
        path=str(run_state.path),
        hint=hint,
    )


def _settle(run_state: RunState, target: str, commits: Commits) -> None:
    path = run_state.make_target_key(target)
    for name, pending in list(run_state.state.pending.items()):
        if pending.target != path:
            continue
        if pending.stream:
            _settle_stream(run_state, name, pending, target)
            continue
        said = commits.get(run_state.make_step_id(name), {})
        is_ours = said.get("run_id", "") == pending.run or not pending.run
        if read_batch(said) == pending.batch and is_ours:
            _note_commit(run_state, name, pending, target)
            continue
        since = 0 if pending.version is None else pending.version
        if not (run_state.full_refresh or run_state.resources.get_table(target).knows_commits_since(since)):
            raise CommitUnknown(
                f"Nobody can say whether run {pending.run} has committed step {name!r}: the history of"
                f" {run_state.show_target_path(target)} does not go back to where it began.",
                path=run_state.show_target_path(target),
                hint="look into the table; then run once with --mark-done if the step has taken effect, or"
                " with --full-refresh to have it carried out again.",
            )
        del run_state.state.pending[name]


def _settle_stream(run_state: RunState, name: str, pending: Pending, target: str) -> None:
    """Note the batches that a stream has committed in a run that ended early: no other writer has.

    The step itself is not done: it is run again, and goes on after them.
    """
    table = run_state.resources.get_table(target)
    made = table.list_commits_since(pending.version or 0)
    del run_state.state.pending[name]
    run_state.dirty = True
    if not made or any(one.get("run_id") != pending.run for one in made):
        return
    now = table.snapshot()
    run_state.snapshots[target] = now
    run_state.seen.add(target)
    success = Success(pending.definition, pending.input, 0, 0, pending.target, now.version)
    run_state.state.note(name, success, changed=True, left={pending.target: digest_snapshot(now)})


def _note_commit(run_state: RunState, name: str, pending: Pending, target: str) -> None:
    now = run_state.resources.get_table(target).snapshot()
    run_state.snapshots[target] = now
    left = {}
    if pending.version is None or now.version == pending.version + 1:  # no other commit since
        left[pending.target] = digest_snapshot(now)
        run_state.seen.add(target)
    memory = run_state.state.get_step(name)
    memory.take(pending.target, pending.scope, pending.files)
    memory.commits[pending.target] = pending.batch
    definition = pending.definition or next(
        (
            describe_definition(step, run_state.pipeline)
            for step in run_state.list_steps()
            if step.name == name
        ),
        "",
    )
    success = Success(
        definition, pending.input, 0, 0, pending.target, now.version, positions=pending.positions
    )
    run_state.state.note(name, success, changed=True, left=left)
    if pending.run and not pending.limited:
        run_state.state.unfinished = UnfinishedRun(pending.run, name, pending.full_refresh)
    run_state.dirty = True
    log.info("pipeline %s: step %s was committed by run %s", run_state.pipeline.name, name, pending.run)


def _follow_renames(run_state: RunState) -> None:
    """Copy what is known of a step to its new name, found by its unchanged definition.

    Of several names that it has had, the one of the last success counts; it may have had the new one before.
    """
    defined = {step.name: describe_definition(step, run_state.pipeline) for step in run_state.list_steps()}
    before = copy.deepcopy(run_state.state.steps)
    for name, definition in defined.items():
        found = {
            other: success
            for other, memory in before.items()
            if (other == name or defined.get(other) != definition)
            and (success := memory.find_success(definition)) is not None
        }
        last = max(found, key=lambda other: (found[other].at, other == name), default=name)
        if last == name:
            continue
        own, success = run_state.state.get_step(name), found[last]
        own.add(success)
        for scope, files in before[last].taken.get(success.target or "", {}).items():
            own.take(success.target or "", scope, files)
        unfinished = run_state.state.unfinished
        if unfinished is not None and unfinished.after == last:
            run_state.state.unfinished = replace(unfinished, after=name)
        run_state.dirty = True


def _adopt(run_state: RunState) -> None:
    """Find the files that merges of version 1 took, by the digest that it has of them."""
    for step in run_state.list_steps():
        memory = run_state.state.steps.get(step.name)
        source = run_state.get_source(step)
        if memory is None or source is None or step.target is None or isinstance(step, Expect):
            continue
        path = run_state.make_target_key(step.target)
        success = memory.find_success(describe_definition(step, run_state.pipeline))
        if success is None or path in memory.taken:
            continue
        try:
            listing = run_state.list_inputs(source)
            if listing is None or not run_state.get_snapshot(step.target).exists:
                continue
        except (IntarsiaError, OSError):  # the step will say so
            continue
        memory.take(path, run_state.compute_scope(step), _find_input_files(success, listing.stamps))


def _find_input_files(success: Success, listing: tuple[FileStamp, ...]) -> tuple[FileStamp, ...]:
    """The oldest files, as many as have the digest of a success's input; none where no number has."""
    stamps = sorted(listing, key=lambda stamp: stamp.mtime_ns)
    finished = datetime.fromisoformat(success.finished).timestamp() + 1 if success.finished else 0.0
    most = sum(stamp.mtime_ns <= finished * 1e9 for stamp in stamps)
    for number in (len(stamps), *range(most, max(0, most - _TRIES), -1)):
        if digest_files(stamps[:number]) == success.input:
            return tuple(stamps[:number])
    return ()
