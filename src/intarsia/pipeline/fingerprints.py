"""Digests of what a step means, of its input files and of the tables it leaves; reads nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any

from intarsia.core.files import Snapshot
from intarsia.pipeline.inputs import Stamp
from intarsia.pipeline.model import Pipeline, Source, Step, names

_ALWAYS = ("path", "format", "target", "columns", "derive", "where", "options")
"""Keys of a source that were part of a definition from the first version on, also where not given."""


def definition_of(step: Step, pipeline: Pipeline) -> str:
    """A digest of all that a step's meaning depends on beside its data; its name is not part of it.

    Nor is how its tables are opened (credentials, locks), nor what goes without saying, so that an option
    that comes with a later version lets nothing run again.
    """
    source = pipeline.sources.get(step.source or "")
    meaning = {
        "operation": step.operation,
        "step": {name: value for name, value in step.given().items() if name != "name"},
        "source": None if source is None else _source(source),
        "from": None if source is None else _table(pipeline, source.target),
        "target": _table(pipeline, step.target),
    }
    return _digest(meaning)


def _source(source: Source) -> dict[str, Any]:
    said = asdict(source)
    usual = {
        entry.name: entry.default_factory() if entry.default_factory is not MISSING else entry.default
        for entry in fields(source)
    }
    kept = {name: value for name, value in said.items() if name in _ALWAYS or value != usual[name]}
    return kept | {"new_files_only": bool(source.new_files_only)}


def _table(pipeline: Pipeline, target: str | None) -> Any:
    if target is None:
        return None
    declared = pipeline.targets[target]
    known = [declared.kind, declared.path, list(names(declared.partition_by))]
    if not declared.catalog:
        return known
    return [*known, declared.catalog, declared.options.get("branch")]


def digest_of_files(stamps: Iterable[Stamp]) -> str:
    return _digest(sorted(stamp.as_list() for stamp in stamps))


def digest_of_snapshot(snapshot: Snapshot) -> str:
    """Differs where any file of the table does."""
    files: Sequence[Any] = sorted([file.path, list(file.fingerprint), file.size] for file in snapshot.files)
    if snapshot.spread is not None:  # rows may be veiled while every file stays
        return _digest([snapshot.exists, files, snapshot.version])
    return _digest([snapshot.exists, files])


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
