"""The outcome of one expectation: its counts, how many rows may violate it, and what was done about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from intarsia.errors import InputError
from intarsia.pipeline.model import Expect
from intarsia.show import units

Outcome = Literal["held", "failed", "warned", "dropped", "quarantined"]

ANY = "all of these"
"""The expectation that a row violates nothing, where there are several; each row counts once."""
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True, slots=True)
class Limit:
    """How many rows may violate an expectation: a number of rows, or a share of those checked."""

    text: str
    rows: int | None = None
    share: Fraction | None = None

    def allows(self, failing: int, rows: int) -> bool:
        """Whether so many of the rows may fail; computed exactly."""
        if self.share is not None:
            return failing <= self.share * rows
        return self.rows is not None and failing <= self.rows


def parse_limit(at_most: int | str | None) -> Limit | None:
    """The limit that ``at_most`` says: ``100``, ``"100"`` or ``"0.1 %"``. Raises InputError."""
    if at_most is None:
        return None
    text = str(at_most).strip()
    share = _SHARE.fullmatch(text)
    if share is not None and Fraction(share[1]) <= 100:
        return Limit(f"{share[1]} %", share=Fraction(share[1]) / 100)
    if isinstance(at_most, bool) or not text.isascii() or not text.isdecimal():
        raise InputError(
            f"{at_most!r} is neither a number of rows nor a share of them.",
            hint='write at_most = 100 for rows, at_most = "0.1 %" for a share.',
        )
    return Limit(units.format_count(int(text), "row"), rows=int(text))


@dataclass(frozen=True, slots=True)
class Check:
    """One expectation, how many rows violate it, and what follows from it."""

    expectation: str
    failing: int
    found: str = ""
    """What there is instead, where the expectation is on all rows together."""
    rows: int | None = None
    """How many rows were checked."""
    outcome: Outcome = "held"
    limit: str = ""
    """How many rows may violate it, where that is not none."""
    into: str | None = None
    """The target that the rows were quarantined into."""

    @property
    def ok(self) -> bool:
        """Whether it holds, of all rows or of as many as it has to."""
        return self.outcome == "held"

    @property
    def is_total(self) -> bool:
        """Whether it counts the rows of all expectations of its step together."""
        return self.expectation == ANY

    @property
    def share(self) -> float | None:
        """The share of the checked rows that violate it, for reading; nothing is decided by it."""
        return None if not self.rows else self.failing / self.rows


def judge_rows(step: Expect, expectation: str, failing: int, rows: int) -> Check:
    """The check of an expectation on rows, of which some violate it."""
    limit = parse_limit(step.at_most)
    said = "" if limit is None else limit.text
    outcome: Outcome = "held"
    if failing and limit is not None and not limit.allows(failing, rows):
        outcome = "failed"
    elif failing:
        mild: dict[str, Outcome] = {"warn": "warned", "drop": "dropped", "quarantine": "quarantined"}
        outcome = mild.get(step.action, "failed" if limit is None else "held")
    return Check(expectation, failing, rows=rows, outcome=outcome, limit=said, into=step.quarantine)


def judge_whole(step: Expect, expectation: str, failing: int, found: str) -> Check:
    """The check of an expectation on all rows together; it holds where nothing fails."""
    outcome: Outcome = "held" if not failing else "warned" if step.action == "warn" else "failed"
    return Check(expectation, failing, found, outcome=outcome)


def refuse_check(check: Check) -> Check:
    """The check of a step that failed by another: no row was dropped."""
    return check if check.ok else replace(check, outcome="warned", into=None)


def make_failure(checks: Sequence[Check], where: str) -> InputError | None:
    """The error of failed checks; None where none has failed."""
    failed = [check for check in checks if check.outcome == "failed"]
    wrong = [check for check in failed if not check.is_total] or failed
    if not wrong:
        return None
    told = "; ".join(f"{check.expectation} ({describe_failing(check)})" for check in wrong)
    what = "expectation does" if len(wrong) == 1 else "expectations do"
    hint = None
    if where.startswith("source ") and not any(check.found or check.limit for check in wrong):
        hint = (
            'correct the rows; action = "quarantine" or "drop" leaves them out, action = "warn" takes them.'
        )
    return InputError(f"{len(wrong)} {what} not hold of {where}: {told}.", path=where, hint=hint)


def describe_failing(check: Check) -> str:
    """How many rows violate an expectation, or what there is instead."""
    if check.found:
        return check.found
    told = f"{units.format_count(check.failing, 'row')} against it"
    if check.limit and check.rows is not None:
        more = "more than" if check.outcome == "failed" else "at most"
        told = (
            f"{check.failing:,} of {units.format_count(check.rows, 'row')} against it, {more} {check.limit}"
        )
    return told


def describe_outcome(check: Check) -> str:
    """An expectation and its outcome in one line."""
    if not check.failing:
        return check.expectation
    told = f"{check.expectation}: {describe_failing(check)}"
    match check.outcome:
        case "dropped":
            return f"{told}, dropped"
        case "quarantined":
            return f"{told}, quarantined into {check.into}"
        case "warned":
            return f"{told}, a warning"
        case _:
            return told


def describe_outcomes(checks: Sequence[Check]) -> list[str]:
    """What does not hold: a line for each, or one where rows of several were dropped together."""
    wrong = [check for check in checks if not check.ok]
    total = next((check for check in wrong if check.is_total and check.outcome != "failed"), None)
    if total is None or total.rows is None:
        return [describe_outcome(check) for check in wrong]
    done = f"{total.outcome} into {total.into}" if total.outcome == "quarantined" else total.outcome
    limit = f", at most {total.limit}" if total.limit else ""
    each = "; ".join(f"{check.expectation}: {check.failing:,}" for check in wrong if not check.is_total)
    return [f"{total.failing:,} of {units.format_count(total.rows, 'row')} {done}{limit} ({each})"]
