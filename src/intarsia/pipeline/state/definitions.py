"""What steps, sources, inputs and targets are to the state: digests that change where they do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, fields, replace
from typing import Any

from intarsia.core.snapshot import Snapshot
from intarsia.pipeline.inputs import FileStamp, InputFiles
from intarsia.pipeline.model import Pipeline, Source, Step, list_names, name_step
from intarsia.pipeline.quality.guards import list_guards
from intarsia.pipeline.quality.references import list_referenced_sources


def name_steps(pipeline: Pipeline) -> tuple[Step, ...]:
    """The steps of a pipeline, each with its name."""
    return tuple(replace(step, name=name_step(step, number)) for number, step in enumerate(pipeline.steps, 1))


def compute_input_digest(listing: InputFiles | None) -> str:
    return "" if listing is None else digest_files((*listing.stamps, *listing.code))


_ALWAYS = ("path", "format", "target", "columns", "derive", "where", "options")
"""Fields of a source that are part of a definition also at their defaults, as in the first version."""


def describe_definition(step: Step, pipeline: Pipeline) -> str:
    """A digest of a step's declaration, its source's and its targets'; where it changes, the step runs again.

    Left out are the step's name, how its tables are opened (credentials, locks), and fields at their
    defaults: a field that a later version adds lets nothing run again.
    """
    source = pipeline.sources.get(step.source or "")
    if source is not None and source.is_computed:
        # The code is part of the input: changed and changed back, it is not what the step last ran with.
        own = {"source": step.source, "params": source.params, "scope": pipeline.scopes.get(step.name, "")}
        return _describe_step(step, pipeline, own, None)
    described = None if source is None else describe_source(source)
    return _describe_step(step, pipeline, described, None if source is None else source.target)


def _describe_step(step: Step, pipeline: Pipeline, source: Any, read: str | None) -> str:
    meaning = {
        "operation": step.operation,
        "step": _describe_fields(step, pipeline),
        "source": source,
        "from": describe_table(pipeline, read),
        "target": describe_table(pipeline, step.target),
    }
    guards = list_guards(name_steps(pipeline), step)
    passed = [_describe_fields(one, pipeline) for one in guards if one.source == step.source]
    if passed:
        meaning["guards"] = passed
    return digest_value(meaning)


def _describe_fields(step: Step, pipeline: Pipeline) -> dict[str, Any]:
    """What a step says, and the sources that it looks up keys in."""
    said = {name: value for name, value in step.list_given().items() if name not in ("name", "writer")}
    referenced = [describe_source(pipeline.sources[one]) for one in list_referenced_sources(step, pipeline)]
    return said | {"keys": referenced} if referenced else said


def describe_source(source: Source) -> dict[str, Any]:
    said = asdict(source)
    usual = {
        entry.name: entry.default_factory() if entry.default_factory is not MISSING else entry.default
        for entry in fields(source)
    }
    kept = {name: value for name, value in said.items() if name in _ALWAYS or value != usual[name]}
    return kept | {"new_files_only": bool(source.new_files_only)}


def describe_table(pipeline: Pipeline, target: str | None) -> Any:
    if target is None:
        return None
    declared = pipeline.targets[target]
    known = [declared.kind, declared.path, list(list_names(declared.partition_by))]
    if not declared.catalog:
        return known
    return [*known, declared.catalog, declared.options.get("branch")]


def digest_files(stamps: Iterable[FileStamp]) -> str:
    return digest_value(sorted(stamp.as_list() for stamp in stamps))


def digest_snapshot(snapshot: Snapshot) -> str:
    """A digest of a table's files; of an Iceberg table also of its version."""
    files: Sequence[Any] = sorted([file.path, list(file.fingerprint), file.size] for file in snapshot.files)
    if not snapshot.replaces_in_place:  # rows may be deleted while every file stays
        return digest_value([snapshot.exists, files, snapshot.version])
    return digest_value([snapshot.exists, files])


def digest_value(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
