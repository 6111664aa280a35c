"""The state of a run under way: the inputs its steps take, the ids they commit under, what they have done.

Before a step commits, its id is written to the state file; the table's log says whether it has committed.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from intarsia.common.log import redact
from intarsia.core.snapshot import Snapshot
from intarsia.errors import CommitConflict, InputError, NothingMatched
from intarsia.pipeline.inputs import FileStamp, InputFiles, is_web
from intarsia.pipeline.model import (
    Expect,
    Pipeline,
    Source,
    Step,
    find_written_target,
    is_guard,
    list_names,
    require,
)
from intarsia.pipeline.quality.guards import find_judged, list_guards, select_unjudged
from intarsia.pipeline.quality.references import list_referenced_sources, list_referenced_targets
from intarsia.pipeline.resources import RunResources
from intarsia.pipeline.since import Increment, find_increment
from intarsia.pipeline.state.definitions import (
    compute_input_digest,
    describe_definition,
    describe_source,
    describe_table,
    digest_files,
    digest_snapshot,
    digest_value,
    name_steps,
)
from intarsia.pipeline.state.input_selection import (
    Selection,
    fills_target,
    is_append,
    is_taken_once,
    list_known_files,
    recognize_files,
    select_files,
)
from intarsia.pipeline.state.state_file import (
    Pending,
    PipelineState,
    Success,
    UnfinishedRun,
    write_atomically,
)


@dataclass(slots=True)
class RunState:
    """The state of one run; written to its file before and after every commit."""

    pipeline: Pipeline
    resources: RunResources
    state: PipelineState
    path: Path
    run_id: str
    dry_run: bool = False
    full_refresh: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Steps that the run does not run, since it is limited to others; with the reason."""
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    """Snapshots of targets, as of the last step that changed them."""
    seen: set[str] = field(default_factory=set)
    """Targets that were compared with what the pipeline left behind."""
    listed: dict[str, InputFiles] = field(default_factory=dict)
    """The files of sources, as first listed in this run."""
    unresolved: dict[str, Exception] = field(default_factory=dict)
    """Errors by target, of those that could not be read when the run began: their steps fail with them."""
    increments: dict[str, dict[str, Increment]] = field(default_factory=dict)
    """By step under way and target: what it reads of a target since its last success."""
    started: dict[str, Any] = field(default_factory=dict)
    """By step: the checkpoint of a stream whose query was started in this run."""
    topics: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By checkpoint, of streams of Kafka: a source and its topic that is not the one of before; or empty."""
    reached: set[str] = field(default_factory=set)
    """Sources that are streams of Kafka, for which it has answered."""
    dirty: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when streams shall end after the batch at hand."""

    # Inputs

    def list_inputs(self, source: Source) -> InputFiles | None:
        """The files of a source, as first listed in this run; None for a target and a stream."""
        if source.target is not None or source.stream is not None:
            return None
        name = next(name for name, one in self.pipeline.sources.items() if one is source)
        if name not in self.listed and source.is_computed:
            self.listed[name] = self._list_computed(name)
        if name not in self.listed:
            listing = self.resources.list_inputs(source)
            assert listing is not None
            self.listed[name], found = recognize_files(listing, self.state.files)
            if found:
                self.state.files.update(found)
                self.dirty = True
        return self.listed[name]

    def _list_computed(self, name: str) -> InputFiles:
        """The files that a query or function reads, also through other sources, and its code."""
        sources = self.resources.graph.list_sources(name)
        files = {one: self.list_inputs(self.pipeline.sources[one]) for one in sources if one != name}
        parts = {one: listing for one, listing in files.items() if listing is not None and not listing.code}
        stamps = dict.fromkeys(stamp for part in parts.values() for stamp in part.stamps)
        return InputFiles(tuple(stamps), parts=parts, code=(self._stamp_code(name),))

    def _stamp_code(self, name: str) -> FileStamp:
        """A query or function, and the declarations of what it reads, as a stamp that changes with them."""
        graph, pipeline = self.resources.graph, self.pipeline
        codes = [graph.codes[one].digest if one in graph.codes else "" for one in graph.list_sources(name)]
        sources = [describe_source(pipeline.sources[one]) for one in graph.list_sources(name)]
        tables = [describe_table(pipeline, one) for one in graph.list_targets(name)]
        guards = [
            describe_definition(one, pipeline)
            for one in self.list_steps()
            if is_guard(one) and one.writer is None and one.source in graph.list_sources(name)
        ]
        digest = digest_value([codes, sources, tables, *guards])
        return FileStamp(name, 0, int(digest[:14], 16))

    def select_inputs(self, step: Step, source: Source | None) -> Selection | None:
        """The files that a step has to take; None where it has no source of files.

        Raises:
            InputError: files that were appended have other bytes now.
            NothingMatched: there is no file, and never was one.
        """
        if source is None or source.target is not None:
            return None
        try:
            listing = self.list_inputs(source)
        except NothingMatched:
            if source.is_computed or step.fresh or not self._were_taken(step, source):
                raise
            return Selection(InputFiles(()), True, notes=("there is no file; those of before were taken",))
        assert listing is not None
        if source.is_computed:
            return Selection(listing)
        if isinstance(step, Expect):
            return self._select_expected(step, listing)
        if not is_taken_once(step, source, listing, full_refresh=self.full_refresh):
            return Selection(listing)
        return self.select_new(step, listing)

    def select_new(self, step: Step, listing: InputFiles) -> Selection:
        """The files that a step has not taken yet."""
        taken = self._list_taken(step)
        memory = self.state.steps.get(step.name)
        definition = describe_definition(step, self.pipeline)
        declared_otherwise = bool(memory and memory.successes and memory.find_success(definition) is None)
        hint = ""
        if declared_otherwise and not is_append(step):
            hint = ", when the step was declared otherwise; --full-refresh takes them again"
        selection, again = select_files(listing, taken, hint=hint)
        if again and is_append(step):
            raise InputError(
                f"{len(again)} file(s) have changed since they were appended, such as {again[0]}.",
                path=again[0],
                hint='use operation = "merge", which replaces rows by their keys.',
            )
        return selection

    def _select_expected(self, step: Step, listing: InputFiles) -> Selection:
        """The files that an expectation checks: those that the steps after it are about to take."""
        if is_guard(step) and step.quarantine is not None:
            return select_unjudged(self, step, listing)
        takers = list(self._iterate_takers(step))
        source = self.pipeline.sources[require(step.source)]
        if (
            step.fresh
            or not takers
            or not all(
                is_taken_once(taker, source, listing, full_refresh=self.full_refresh) for taker in takers
            )
        ):
            return Selection(listing)
        wanted = {stamp for taker in takers for stamp in self.select_new(taker, listing).files.stamps}
        known = [stamp for stamp in listing.stamps if stamp not in wanted]
        return select_files(listing, known)[0]

    def _iterate_takers(self, step: Step) -> Iterator[Step]:
        """The step itself; for an expectation, the steps after it that take files of the same source."""
        if not isinstance(step, Expect):
            yield step
            return
        after = False
        for other in self.list_steps():
            is_reader = other.source == step.source and step.writer in (None, other.name)
            if after and is_reader and not isinstance(other, Expect):
                yield other
            after |= other.name == step.name

    def _were_taken(self, step: Step, source: Source) -> bool:
        """Whether files were taken from a source that is empty now, as of a directory that gets cleared."""
        takers = list(self._iterate_takers(step))
        none = InputFiles((), fetched=any(map(is_web, list_names(source.path))))
        return all(
            is_taken_once(taker, source, none) and self._list_taken(taker) for taker in takers
        ) and bool(takers)

    def _list_taken(self, step: Step) -> tuple[Any, ...]:
        return self.state.list_taken(
            step.name, self.make_target_key(require(step.target)), self.compute_scope(step)
        )

    def compute_scope(self, step: Step) -> str:
        """A digest of what selects a step's rows besides its files; empty for most steps.

        Of a quarantine also its definition, and as a prefix of the run and the step that judged the files.
        """
        chosen = self.pipeline.scopes.get(step.name, "")
        if is_guard(step):
            return f"{describe_definition(step, self.pipeline)[:16]} {digest_value(chosen)[:16]} "
        return hashlib.sha256(chosen.encode()).hexdigest()[:16] if chosen else ""

    # Steps

    def digest_input(self, step: Step, listing: InputFiles | None) -> str:
        """A digest of a step's files, and of those that expectations look up keys in for it."""
        own = compute_input_digest(listing)
        _, guards = self._find_read(step)
        names = [name for one in (step, *guards) for name in list_referenced_sources(one, self.pipeline)]
        files = [self.list_inputs(self.pipeline.sources[name]) for name in dict.fromkeys(names)]
        return digest_value([own, *map(compute_input_digest, files)]) if files else own

    def is_current(self, step: Step, listing: InputFiles | None, changed: set[str]) -> bool:
        """Whether definition, input and targets of a step are what they were at its last success."""
        success = self.state.find_success(step.name, describe_definition(step, self.pipeline))
        if success is None or success.input != self.digest_input(step, listing):
            return False
        if step.fresh and "as_of" not in step.fresh:  # the clock has moved
            return False
        if self.full_refresh and not isinstance(step, Expect) and (listing is not None or success.positions):
            return False
        touched = self.find_touched_targets(step)
        if touched & changed:
            return False
        for name in touched:
            self.get_snapshot(name)  # which records whether another writer has changed it
        by_others = [self.state.foreign.get(self.make_target_key(name), 0) for name in touched]
        changes = (
            *by_others,
            *self._iterate_changes_above(step, touched),
            self._find_replacement(step, success),
            *self._iterate_judgements(step),
        )
        return all(change <= success.at for change in changes)

    def _find_replacement(self, step: Step, success: Success) -> int:
        """When a step last changed under another definition what it had made of the same input.

        Other parameters choose other rows, except where a step replaces its whole target.
        """
        if step.target is None:
            return 0
        made = (success.input, self.pipeline.scopes.get(step.name, ""))
        definition, key = describe_definition(step, self.pipeline), self.make_target_key(step.target)
        return max(
            (
                found.changed_at
                for found in self.state.list_successes(step.name)
                if found.target == key and found.definition != definition
                if fills_target(step) or (found.input, found.scope) == made
            ),
            default=0,
        )

    def _iterate_changes_above(self, step: Step, touched: set[str]) -> Iterator[int]:
        """When earlier steps last changed what this one reads or writes, as numbers of successes.

        Each set of parameters has its own memory. What a step above did under others counts where this one
        has not run since, under any, and gives the same when it is repeated.
        """
        source = self.get_source(step)
        is_repeatable = isinstance(step, Expect) or (source is not None and source.is_computed)
        last = max((found.at for found in self.state.list_successes(step.name)), default=0)
        for other in self.list_steps():
            if other.name == step.name:
                return
            if (find_written_target(other) or other.target) in touched:
                definition = describe_definition(other, self.pipeline)
                for found in self.state.list_successes(other.name):
                    if found.definition == definition or (is_repeatable and found.changed_at > last):
                        yield found.changed_at

    def _iterate_judgements(self, step: Step) -> Iterator[int]:
        """When a quarantine last changed through which a step reads: rows that were in it may pass now.

        Of a quarantine itself, and of steps below one that only drops rows: when a step below it last changed
        what its foreign keys are into.
        """
        above = self._find_read(step)[1]
        judged = [one for one in (step, *above) if is_guard(one) and (one is step or one.action == "drop")]
        referenced = {target for one in judged for target in self._list_referenced(one)}
        names = {one.name for one in above}
        for other in self.list_steps():
            if other.name != step.name and (find_written_target(other) in referenced or other.name in names):
                found = self.state.find_success(other.name, describe_definition(other, self.pipeline))
                yield 0 if found is None else found.changed_at

    def fix_increments(self, step: Step) -> dict[str, Increment]:
        """Fix what a step reads of targets since its last success; their states are noted with the next one.

        Each step has positions of its own, for each of its definitions and of the code that it runs.
        """
        sources = () if step.source is None else self.resources.graph.list_sources(step.source)
        targets = [
            require(self.pipeline.sources[name].target)
            for name in sources
            if self.pipeline.sources[name].since is not None
        ]
        found: dict[str, Increment] = {}
        for target in dict.fromkeys(targets):
            last, unknown = self._find_position(step, target)
            table, take = self.resources.get_table(target), self.resources.links.take_snapshot
            found[target] = find_increment(table, take, last, name=target, unknown=unknown)
        self.increments[step.name] = found
        return found

    def reads_new_rows(self, step: Step) -> bool:
        """Whether a step under way reads, of a target, only the rows since its last success."""
        return any(not one.is_whole for one in self.increments.get(step.name, {}).values())

    def _find_position(self, step: Step, target: str) -> tuple[Any, str]:
        """The position of a step's last success in a target it reads; None, and why there is none."""
        success = self.state.find_success(step.name, describe_definition(step, self.pipeline))
        if self.full_refresh:
            return None, "--full-refresh asks for it"
        if success is None:
            memory = self.state.steps.get(step.name)
            known = memory is not None and memory.successes
            return None, "the step is declared otherwise than before" if known else "the step runs first"
        noted = success.positions.get(self.make_target_key(target))
        if noted is None:
            return None, "its last success noted no position"
        if noted["code"] != self._describe_code(step):
            return None, "its query, its function or what that reads is declared otherwise than before"
        if self._ran_otherwise(step, success):
            return None, "the step is declared otherwise than before"
        if step.target is not None and not self.get_snapshot(step.target).has_schema:
            return None, f"{step.target} does not exist"
        return noted["position"], ""

    def _ran_otherwise(self, step: Step, success: Success) -> bool:
        """Whether a step has changed its target since a success, as it was declared in between.

        Other parameters are no other declaration.
        """
        scope = self._digest_scope(step)
        return any(
            other.changed_at > success.at
            and all(noted.get("scope", scope) == scope for noted in other.positions.values())
            for other in self.state.list_successes(step.name)
        )

    def _digest_scope(self, step: Step) -> str:
        return digest_value(self.pipeline.scopes.get(step.name, ""))[:16]

    def _describe_code(self, step: Step) -> str:
        """What a step computes its rows with; nothing where they are those of a target."""
        source = self.get_source(step)
        if source is None or not source.is_computed:
            return ""
        return digest_files([self._stamp_code(require(step.source))])

    def list_positions(self, step: Step) -> dict[str, Any]:
        """The states that a step has read since its last success, to be noted with this one."""
        code, scope = self._describe_code(step), self._digest_scope(step)
        return {
            self.make_target_key(target): {"position": dict(one.position), "code": code, "scope": scope}
            for target, one in self.increments.get(step.name, {}).items()
        }

    def check_settled(self, step: Step) -> None:
        """Raise the error of a target whose log could not be read: a step may have committed to it or not."""
        for target in sorted(self.find_touched_targets(step)):
            if target in self.unresolved:
                raise self.unresolved[target]

    def announce(self, step: Step, listing: InputFiles | None, selection: Selection | None) -> dict[str, Any]:
        """Write to the state what a step is about to commit; returns the options with its id."""
        written = find_written_target(step)
        if self.dry_run or written is None:
            return {}
        path = self.make_target_key(written)
        table = self.resources.get_table(written)
        memory = self.state.get_step(step.name)
        last = table.highest_batch(self.make_step_id(step.name)) or 0
        batch = max(last, memory.commits.get(path, 0)) + 1
        if selection is not None:
            self.state.files.update(list_known_files(selection.files, self.state.files))
        self.state.pending[step.name] = Pending(
            run=self.run_id,
            batch=batch,
            target=path,
            version=self.get_snapshot(written).version,
            definition=describe_definition(step, self.pipeline),
            input=self.digest_input(step, listing),
            scope=self.compute_scope(step) + (f"{self.run_id} {step.name}" if is_guard(step) else ""),
            files=selection.files.taken if selection is not None else (),
            full_refresh=self.full_refresh,
            positions=self.list_positions(step),
            limited=bool(self.left_out),
        )
        self.write()
        properties = {**(step.options.get("properties") or {}), "run_id": self.run_id}
        return {"app_id": self.make_step_id(step.name), "batch_id": batch, "properties": properties}

    def confirm(self, step: Step, *, changed: bool) -> None:
        """Check that a step which changed nothing was not done by another run in the meantime.

        Raises:
            CommitConflict: it was, by a run with another state file of the same pipeline.
        """
        pending = self.state.pending.get(step.name)
        if changed or pending is None:
            return
        said = (
            self.resources.get_table(require(find_written_target(step)))
            .last_commits()
            .get(self.make_step_id(step.name), {})
        )
        if read_batch(said) >= pending.batch and said.get("run_id") != self.run_id:
            raise CommitConflict(
                f"Another run of pipeline {self.pipeline.name!r} has committed step {step.name!r} meanwhile.",
                path=pending.target,
                hint="let all runs of a pipeline share one state file, and one follow the other.",
            )

    def note(self, step: Step, listing: InputFiles | None, *, changed: bool) -> None:
        """Record the success of a step, with the files it took and the commit it made."""
        written = find_written_target(step) or step.target
        path = None if written is None else self.make_target_key(written)
        version = None if written is None else self.get_snapshot(written).version
        pending = self.state.pending.get(step.name)
        if pending is not None and not pending.stream and path is not None:
            memory = self.state.get_step(step.name)
            memory.take(path, pending.scope, pending.files)
            memory.commits[path] = pending.batch
        left = {
            self.make_target_key(name): self.compute_digest(name) for name in self.find_touched_targets(step)
        }
        definition = describe_definition(step, self.pipeline)
        positions = self.list_positions(step)
        scope = self.pipeline.scopes.get(step.name, "")
        given = self.digest_input(step, listing)
        success = Success(definition, given, 0, 0, path, version, positions=positions, scope=scope)
        self.state.note(step.name, success, changed=changed, left=left)
        if not self.left_out:
            self.state.unfinished = UnfinishedRun(self.run_id, step.name, self.full_refresh)
        self.write()

    def mark_done(self) -> None:
        """Record every step as done with the inputs and targets that are there; runs nothing."""
        for step in self.list_steps():
            if step.name in self.left_out:
                continue
            pending = self.state.pending.get(step.name)
            written = find_written_target(step)
            if pending is not None and written is not None:
                self.resources.get_table(written).recover(run_id=pending.run)
            source = self.get_source(step)
            listing = None if source is None else self.list_inputs(source)
            if written is not None:
                commits = self.resources.get_table(written).last_commits()
                path = self.make_target_key(written)
                memory = self.state.get_step(step.name)
                memory.commits[path] = read_batch(commits.get(self.make_step_id(step.name)))
                if listing is not None:
                    self.state.files.update(list_known_files(listing, self.state.files))
                    judged = find_judged(self, step) if is_guard(step) else ()
                    files = [stamp for stamp in listing.taken if stamp not in judged]
                    memory.take(path, self.compute_scope(step), files)
            self.state.pending.pop(step.name, None)
            self.fix_increments(step)
            self.note(step, listing, changed=False)
        self.finish()

    def resume_at(self) -> int:
        """How many steps the unfinished run had done; 0 where there is none."""
        unfinished = self.state.unfinished
        order = [step.name for step in self.list_steps()]
        if unfinished is None or unfinished.after not in order:
            return 0
        return order.index(unfinished.after) + 1

    def finish(self) -> None:
        """Record that all steps ran: the next run starts at the first.

        A run that was limited to some steps leaves it to the next whole run to finish one that ended early.
        """
        if self.state.unfinished is not None and not self.left_out:
            self.state.unfinished = None
            self.dirty = True
        self.close()

    def close(self) -> None:
        """Write the state where it has changed."""
        if self.dirty and not self.dry_run:
            self.write()

    def write(self) -> None:
        write_atomically(self.path, self.state.as_json())
        self.dirty = False

    # Looking up

    def list_steps(self) -> tuple[Step, ...]:
        """The steps, each with its name."""
        return name_steps(self.pipeline)

    def make_step_id(self, name: str) -> str:
        """The ``app_id`` of a step's commits."""
        return f"pipeline/{self.pipeline.name}/{name}"

    def get_source(self, step: Step) -> Source | None:
        return None if step.source is None else self.pipeline.sources[step.source]

    def find_touched_targets(self, step: Step) -> set[str]:
        """The targets that a step reads or writes."""
        graph = self.resources.graph
        own = None if is_guard(step) else step.target
        sources, guards = self._find_read(step)
        read = {target for name in sources for target in graph.list_targets(name)}
        for one in (step, *guards):
            read |= self._list_referenced(one)
        return {name for name in (*read, own, find_written_target(step)) if name is not None}

    def _list_referenced(self, step: Step) -> set[str]:
        """The targets that foreign keys are looked up in, also through sources."""
        names = list_referenced_sources(step, self.pipeline)
        through = {target for name in names for target in self.resources.graph.list_targets(name)}
        return through | set(list_referenced_targets(step, self.pipeline))

    def _find_read(self, step: Step) -> tuple[list[str], list[Expect]]:
        """The sources that a step reads, also for foreign keys, and the guards through which it does."""
        graph = self.resources.graph
        above = list_guards(self.list_steps(), step)
        waiting = [step.source, *list_referenced_sources(step, self.pipeline)]
        sources: list[str] = []
        guards: list[Expect] = []
        for name in waiting:
            new = [] if name is None else [one for one in graph.list_sources(name) if one not in sources]
            sources += new
            met = [one for one in above if one.source in new]
            guards += met
            waiting += [other for one in met for other in list_referenced_sources(one, self.pipeline)]
        return sources, guards

    def show_target_path(self, target: str) -> str:
        """The path or name of a target, without credentials."""
        return redact(str(self.pipeline.targets[target].path))

    def make_target_key(self, target: str) -> str:
        """The name of a target in the state: its path, and the catalog and branch of an Iceberg table."""
        declared = self.pipeline.targets[target]
        parts = (self.show_target_path(target), declared.catalog, declared.options.get("branch"))
        return " ".join(redact(str(part)) for part in parts if part)

    def get_snapshot(self, target: str) -> Snapshot:
        """The snapshot of a target, taken after the last step that changed it."""
        if target not in self.snapshots:
            self.snapshots[target] = self.resources.get_table(target).snapshot()
        if target not in self.seen:
            self.seen.add(target)
            self.state.look(self.make_target_key(target), self.compute_digest(target))
        return self.snapshots[target]

    def forget(self, target: str) -> None:
        """Drop the snapshot of a target that has changed."""
        self.snapshots.pop(target, None)

    def compute_digest(self, target: str) -> str:
        return digest_snapshot(self.get_snapshot(target))


def read_batch(said: Mapping[str, str] | None) -> int:
    """The ``batch_id`` that is recorded with a commit; 0 for none."""
    text = "" if said is None else said.get("batch_id", "")
    return int(text) if text.isdecimal() else 0
