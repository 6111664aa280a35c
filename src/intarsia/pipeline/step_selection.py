"""The steps that a run is limited to, by ``only`` or ``from_step``, and those that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from intarsia.common.names import suggest_names
from intarsia.errors import InputError
from intarsia.pipeline.model import Pipeline, name_step

__all__ = ["find_left_out"]


def find_left_out(
    pipeline: Pipeline, *, only: str | Sequence[str] | None = None, from_step: str | None = None
) -> Mapping[str, str]:
    """The steps that a run leaves out, each with the reason; none where it is not limited.

    Args:
        pipeline: its steps are in the order in which they run.
        only: the steps to run; one text may name several, with commas.
        from_step: the first step to run; those above it are left out.

    Raises:
        InputError: an unknown step, no step, or both limits.
    """
    names = [name_step(step, number) for number, step in enumerate(pipeline.steps, 1)]
    if only is not None and from_step is not None:
        raise InputError("A run has --only or --from, not both.", hint="name all steps with --only.")
    if from_step is not None:
        _check_names(pipeline, [from_step], names)
        return dict.fromkeys(names[: names.index(from_step)], f"left out: --from {from_step}")
    if only is None:
        return {}
    chosen = split_names([only] if isinstance(only, str) else only, names)
    if not chosen:
        raise InputError("--only names no step.", hint=f"there is {', '.join(map(repr, names))}.")
    _check_names(pipeline, chosen, names)
    reason = f"left out: --only {', '.join(name for name in names if name in chosen)}"
    return dict.fromkeys([name for name in names if name not in chosen], reason)


def split_names(given: Sequence[str], known: Sequence[str]) -> list[str]:
    """Names from texts that have one each, or several with commas; a known name may have commas itself."""
    found: list[str] = []
    for text in given:
        found += [text] if text in known else [part.strip() for part in text.split(",") if part.strip()]
    return found


def _check_names(pipeline: Pipeline, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            where = pipeline.origin or f"pipeline {pipeline.name!r}"
            raise InputError(
                f"{where}: there is no step {name!r}.",
                path=pipeline.origin,
                hint=suggest_names([name], known, otherwise=f"there is {', '.join(map(repr, known))}."),
            )
