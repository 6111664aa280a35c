"""Whether a pipeline hangs together: names that exist, steps that can run, no circle; reads no data."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from intarsia.errors import InputError, NotSupported
from intarsia.pipeline.model import (
    KINDS,
    Expect,
    Merge,
    Optimize,
    Pipeline,
    Step,
    Update,
    Write,
    names,
    source_of,
    step_name,
)

_NAME = re.compile(r"^[\w][\w .\-]*$")


def check(pipeline: Pipeline) -> None:
    """Refuse a pipeline that cannot run.

    Raises:
        InputError: an unknown or repeated name, a source without files, a step that expects nothing, a
            circle of sources and targets; the message names the file, the table and the key.
        NotSupported: a target of a kind that this version does not have.
    """
    _Check(pipeline).run()


def close(word: str, known: Iterable[str]) -> str:
    """A hint: the known word that is meant, or all of them."""
    words = sorted(known)
    if not words:
        return "there are none."
    near = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there is {', '.join(words)}."


class _Check:
    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.where = pipeline.origin or f"pipeline {pipeline.name!r}"

    def wrong(self, place: str, message: str, hint: str | None = None) -> InputError:
        path = self.pipeline.origin
        return InputError(f"{self.where}, {place}: {message}", path=path, hint=hint)

    def run(self) -> None:
        pipeline = self.pipeline
        if not _NAME.match(pipeline.name):
            raise self.wrong(
                "name", f"{pipeline.name!r} cannot be the name of files.", "use letters, digits, - _"
            )
        if pipeline.engine not in ("spark", "arrow"):
            raise self.wrong("engine", f"there is no {pipeline.engine!r}.", "it is spark or arrow.")
        if not pipeline.steps:
            raise self.wrong("steps", "there is no step to run.")
        for name, target in pipeline.targets.items():
            if target.kind != "parquet":
                raise NotSupported(
                    f"{self.where}, [targets.{name}] kind: this version has no {target.kind} tables.",
                    path=pipeline.origin,
                    hint='use kind = "parquet".',
                )
            if not target.path:
                raise self.wrong(f"[targets.{name}] path", "it is empty.")
        self._sources()
        self._steps()
        self._circles()

    def _sources(self) -> None:
        for name, source in self.pipeline.sources.items():
            place = f"[sources.{name}]"
            if bool(names(source.path)) == (source.target is not None):
                raise self.wrong(place, "it needs a path or a target, one of the two.")
            if source.target is not None:
                self._known(place, "target", source.target, self.pipeline.targets)
                if source.new_files_only:
                    raise self.wrong(
                        f"{place} new_files_only", "a target's files are rewritten, so none of them is new."
                    )

    def _steps(self) -> None:
        seen: dict[str, int] = {}
        for number, step in enumerate(self.pipeline.steps, 1):
            name = step_name(step, number)
            place = f"[[steps]] {number} ({name})"
            if not isinstance(step, tuple(KINDS.values())):
                raise self.wrong(place, f"{type(step).__name__} is no step.")
            if name in seen:
                raise self.wrong(f"{place} name", f"step {seen[name]} has the same name.")
            seen[name] = number
            if step.target is not None:
                self._known(place, "target", step.target, self.pipeline.targets)
            source = source_of(step)
            if source is not None:
                self._known(place, "source", source, self.pipeline.sources)
            self._step(place, step)

    def _step(self, place: str, step: Step) -> None:
        match step:
            case Expect():
                if (step.source is None) == (step.target is None):
                    raise self.wrong(place, "it looks at a source or at a target, one of the two.")
                asked = (step.not_null, step.unique, step.accepted, step.holds)
                if not any(asked) and step.min_rows is None and step.max_rows is None:
                    raise self.wrong(
                        place,
                        "it expects nothing.",
                        "give not_null, unique, min_rows, max_rows, accepted or holds.",
                    )
            case Merge():
                if not names(step.on):
                    raise self.wrong(f"{place} on", "a merge needs key columns.")
                if step.dedup_order_by and step.strategy != "deduplicate":
                    raise self.wrong(f"{place} dedup_order_by", 'it goes with strategy = "deduplicate".')
            case Optimize():
                if not names(step.by):
                    raise self.wrong(f"{place} by", "it needs the columns to order by.")
            case Update():
                if not step.set:
                    raise self.wrong(f"{place} set", "it assigns nothing.")
            case Write() if step.mode == "append":
                source = self.pipeline.sources[step.source]
                if source.target is not None:
                    raise self.wrong(
                        f"{place} source",
                        f"appending the target {source.target!r} again and again would double its rows.",
                        'use operation = "merge", or mode = "overwrite".',
                    )

    def _known(self, place: str, key: str, name: str, known: Iterable[str]) -> None:
        if name not in known:
            raise self.wrong(f"{place} {key}", f"there is no {key} {name!r}.", close(name, known))

    def _circles(self) -> None:
        """A target that is made from itself never comes to rest."""
        flows: dict[str, list[str]] = {}
        for step in self.pipeline.steps:
            if isinstance(step, (Merge, Write)):
                start = self.pipeline.sources[step.source].target
                if start is not None:
                    flows.setdefault(start, []).append(step.target)
        for start in flows:
            circle = _way_back(start, flows)
            if circle:
                raise self.wrong("[[steps]]", f"the data goes round in a circle: {' -> '.join(circle)}.")


def _way_back(start: str, flows: dict[str, list[str]]) -> Sequence[str]:
    """The way from a target to itself, or nothing."""
    ways = [[start]]
    seen: set[str] = set()
    while ways:
        way = ways.pop()
        for target in flows.get(way[-1], ()):
            if target == start:
                return [*way, start]
            if target not in seen:
                seen.add(target)
                ways.append([*way, target])
    return []
