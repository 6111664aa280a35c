"""Which files a quarantine has judged, by the state, and which it has to judge now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from intarsia.pipeline.guards import Judgement, list_guards
from intarsia.pipeline.input_selection import Selection, is_taken_once, select_files
from intarsia.pipeline.inputs import FileStamp, InputFiles, is_web
from intarsia.pipeline.model import Expect, Step, is_guard, list_names, require

if TYPE_CHECKING:
    from intarsia.pipeline.run_state import RunState


def enter_step(run_state: RunState, step: Step) -> None:
    """Set the guards through which a step reads its source."""
    guards = run_state.resources.guards
    guards.above = list_guards(run_state.list_steps(), step.name)
    judging = (*guards.above, step) if is_guard(step) else guards.above
    guards.judged = {
        guard.name: find_judged(run_state, guard) for guard in judging if judges_once(run_state, guard)
    }


def select_unjudged(run_state: RunState, step: Expect, listing: InputFiles) -> Selection:
    """The files that a quarantine has not judged, of those that steps below are about to take."""
    if not judges_once(run_state, step):
        return Selection(listing)
    source = run_state.pipeline.sources[require(step.source)]
    wanted: set[FileStamp] = set()
    for reader in _iterate_readers(run_state, step):
        is_once = reader.source == step.source and is_taken_once(
            reader, source, listing, full_refresh=run_state.full_refresh
        )
        wanted |= set(run_state.select_new(reader, listing).files.stamps if is_once else listing.stamps)
    judged = find_judged(run_state, step)
    known = [stamp for stamp in listing.stamps if stamp not in wanted or stamp in judged]
    return select_files(listing, known)[0]


def judges_once(run_state: RunState, step: Expect) -> bool:
    """Whether a quarantine judges each file once, since a step below takes each once.

    Else it judges all rows whenever one has changed, and its rows take the place of those before.
    """
    source = run_state.pipeline.sources[require(step.source)]
    if step.quarantine is None or source.is_computed or source.target is not None:
        return False
    listing = InputFiles((), fetched=any(map(is_web, list_names(source.path))))
    return any(
        other.source == step.source and is_taken_once(other, source, listing)
        for other in _iterate_readers(run_state, step)
    )


def find_judged(run_state: RunState, step: Expect) -> dict[FileStamp, Judgement]:
    """The files that a quarantine has judged as it is declared now, each with when it did."""
    found: dict[FileStamp, Judgement] = {}
    for judgement, files in _iterate_judgements(run_state, step):
        found |= dict.fromkeys(files, judgement)
    return found


def list_former_names(run_state: RunState, step: Expect) -> tuple[str, ...]:
    """The names under which a quarantine has judged, and its own."""
    names = [judgement.step for judgement, _ in _iterate_judgements(run_state, step)]
    return tuple(dict.fromkeys((step.name, *filter(None, names))))


def _iterate_judgements(
    run_state: RunState, step: Expect
) -> Iterator[tuple[Judgement, tuple[FileStamp, ...]]]:
    memory = run_state.state.steps.get(step.name)
    target = run_state.make_target_key(require(step.quarantine))
    scope = run_state.compute_scope(step)
    for known, files in ({} if memory is None else memory.taken.get(target, {})).items():
        if known.startswith(scope):
            run, _, name = known.removeprefix(scope).partition(" ")
            yield Judgement(run, name), files


def _iterate_readers(run_state: RunState, step: Expect) -> Iterator[Step]:
    """The steps below a guard that read its source, also through other sources."""
    is_below = False
    for other in run_state.list_steps():
        if is_below and other.source is not None and not isinstance(other, Expect):
            read = run_state.resources.graph.list_sources(other.source)
            if step.source in read:
                yield other
        is_below |= other.name == step.name
