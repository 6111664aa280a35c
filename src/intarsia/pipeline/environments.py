"""Environments of a pipeline, as ``[env.dev]``: what they override, and where their state and reports are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from intarsia.common.names import suggest_names
from intarsia.errors import InputError
from intarsia.pipeline.graph import SourceGraph
from intarsia.pipeline.model import Pipeline, find_written_target
from intarsia.pipeline.quality.references import list_referenced_sources, list_referenced_targets

__all__ = ["VARIABLE", "apply_environment", "check_additions", "choose_environment", "move_state"]

VARIABLE = "INTARSIA_ENV"
"""The environment variable that names the environment of runs which name none themselves."""
KINDS_OF_SOURCE = ("path", "target", "sql", "sql_file", "python", "stream")
"""Keys of a source of which it has one: an environment that gives one replaces whichever is there."""
_NAME = re.compile(r"[\w][\w.\-]*")

Fail = Callable[[str, str, str | None], InputError]
"""Makes the error of a place, a message and a hint."""


def choose_environment(given: str | None) -> str | None:
    """The environment of a run: the given one, else the one that ``INTARSIA_ENV`` names, else none."""
    return (os.environ.get(VARIABLE) or None) if given is None else given


def apply_environment(
    raw: Mapping[str, Any], chosen: str | None, known: Sequence[str], fail: Fail
) -> dict[str, Any]:
    """The tables of a pipeline file with those of an environment laid over them.

    Tables are merged, any other value is replaced; steps are overridden by their names. All environments are
    checked for unknown keys and steps, also those that are not chosen.

    Args:
        raw: the tables of the file.
        chosen: the name of the environment; None for none.
        known: the keys that a file has at its top.
        fail: makes the error of a place, a message and a hint.

    Raises:
        InputError: there is no such environment, or one overrides what is not there.
    """
    rest = {key: value for key, value in raw.items() if key != "env"}
    declared = raw.get("env", {})
    if not isinstance(declared, Mapping):
        raise fail("[env]", "environments are tables: [env.dev].", None)
    merged = {name: _merge(rest, name, table, known, fail) for name, table in declared.items()}
    if chosen is None:
        return rest
    if chosen not in merged:
        names = sorted(merged)
        there = f"there is {', '.join(names)}." if names else f"declare it as [env.{chosen}]."
        raise fail(
            "env", f"there is no environment {chosen!r}.", suggest_names([chosen], names, otherwise=there)
        )
    return merged[chosen]


def check_additions(raw: Mapping[str, Any], pipeline: Pipeline, fail: Fail) -> None:
    """Refuse a source or target that only the environment declares and that no step has to do with.

    It is taken for a mistyped name: what was to be overridden would stay as it is, such as a path of
    production.

    Args:
        raw: the tables of the file, as :func:`apply_environment` takes them.
        pipeline: what was made of them.
        fail: makes the error of a place, a message and a hint.

    Raises:
        InputError: there is one.
    """
    graph = SourceGraph(pipeline)
    read = {name for step in pipeline.steps for name in list_referenced_sources(step, pipeline)}
    read |= {step.source for step in pipeline.steps if step.source is not None}
    sources = {name for one in read for name in graph.list_sources(one)}
    targets = {target for name in sources for target in graph.list_targets(name)}
    for step in pipeline.steps:
        named = (step.target, find_written_target(step), *list_referenced_targets(step, pipeline))
        targets |= {target for target in named if target is not None}
    own = raw["env"][pipeline.env]
    for key, used in (("sources", sources), ("targets", targets)):
        known = sorted(raw.get(key, {}))
        for name in own.get(key, {}):
            if name not in known and name not in used:
                there = f"there is {', '.join(map(repr, known))}." if known else None
                raise fail(
                    f"[env.{pipeline.env}.{key}.{name}]",
                    f"it overrides no {key.removesuffix('s')} of the file, and no step uses it.",
                    suggest_names([name], known, otherwise=there),
                )


def _merge(rest: dict[str, Any], name: str, table: Any, known: Sequence[str], fail: Fail) -> dict[str, Any]:
    place = f"[env.{name}]"
    if not _NAME.fullmatch(name):
        raise fail(place, f"{name!r} cannot be part of the name of a file.", "use letters, digits, - _")
    if not isinstance(table, Mapping):
        raise fail(place, "it must be a table.", None)
    for key in table:
        if key == "env" or key not in known:
            others = sorted({*known} - {"env"})
            raise fail(place, f"the key {key!r} is not known.", suggest_names([key], others))
    plain = {key: value for key, value in table.items() if key not in ("sources", "steps")}
    made = _merge_tables(rest, plain)
    if "sources" in table:
        made["sources"] = _merge_sources(rest.get("sources", {}), table["sources"])
    if "steps" in table:
        made["steps"] = _merge_steps(rest.get("steps", []), table["steps"], f"{place} steps", fail)
    return made


def _merge_tables(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(below)
    for key, value in above.items():
        under = made.get(key)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            value = _merge_tables(under, value)
        made[key] = value
    return made


def _merge_sources(below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    cleared = dict(below)
    for name, table in above.items():
        under = cleared.get(name)
        if (
            isinstance(under, Mapping)
            and isinstance(table, Mapping)
            and any(k in table for k in KINDS_OF_SOURCE)
        ):
            cleared[name] = {key: value for key, value in under.items() if key not in KINDS_OF_SOURCE}
    return _merge_tables(cleared, above)


def _merge_steps(below: Any, above: Any, place: str, fail: Fail) -> Any:
    if not isinstance(above, Mapping) or not all(isinstance(one, Mapping) for one in above.values()):
        raise fail(place, "steps are overridden by their names: [env.dev.steps.upsert].", None)
    if not isinstance(below, list) or not all(isinstance(one, dict) for one in below):
        return below  # which is refused where the steps are read
    names = [name_raw_step(step, number) for number, step in enumerate(below, 1)]
    for name in above:
        if name not in names:
            hint = suggest_names([name], names, otherwise=f"there is {', '.join(map(repr, names))}.")
            raise fail(place, f"there is no step {name!r}.", hint)
    return [
        _merge_tables(step, above[name]) if name in above else step
        for name, step in zip(names, below, strict=True)
    ]


def name_raw_step(step: Mapping[str, Any], number: int) -> str:
    """The name of a step that is not read yet, as :func:`intarsia.pipeline.model.name_step` makes it."""
    where = step.get("target") or step.get("source") or ""
    return str(step.get("name") or f"{number}-{step.get('operation')}-{where}")


def move_state(
    name: str, env: str, *, reports: str, state: str | None, own: Mapping[str, Any]
) -> tuple[str, str]:
    """The reports and the state of an environment: apart from others', unless it says where they are.

    Args:
        name: of the pipeline.
        env: of the environment.
        reports: the directory of the reports, without an environment or as it says.
        state: the file of the state likewise; None where none is named.
        own: what the environment itself declares.
    """
    if state is None:
        state = str(Path(reports).absolute().parent / ".intarsia" / f"{name}.{env}.state.json")
    elif "state" not in own:
        path = Path(state)
        state = str(path.with_name(f"{path.stem}.{env}{path.suffix}"))
    return reports if "reports" in own else os.path.join(reports, env), state
