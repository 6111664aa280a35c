"""The WHEN clauses of SQL's MERGE as clauses of ours; the expressions in them stay text, parsed later.

::

    when matched and source.cancelled then delete
    when matched then update set price = source.price, note = 'new'
    when not matched then insert (id, price) values (source.id, source.price)
    when not matched by source and target.day < date '2025-01-01' then delete
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from intarsia.common.names import suggest_names
from intarsia.core.rule import Clause, When, when_matched, when_not_matched, when_not_matched_by_source
from intarsia.errors import InputError, NotSupported
from intarsia.sql.parse import tokenize

__all__ = ["parse_clauses"]

_OPENING = ("L_PAREN", "L_BRACKET", "L_BRACE", "CASE")
_CLOSING = ("R_PAREN", "R_BRACKET", "R_BRACE", "END")
_EXAMPLE = "such as: when matched then update set *"


def parse_clauses(text: str, *, dialect: str | None = None) -> tuple[Clause, ...]:
    """Parse a text of clauses, in order; the WHEN of the first may be left out.

    ``update set *`` and ``insert *`` take the whole source row.

    Raises:
        InputError: it is no list of clauses; the message says where, the hint what may be meant.
        NotSupported: an action that merges do not have, or sqlglot is not installed.
    """
    tokens = tokenize(text, dialect=dialect)
    starts = [at for at in _find_at_top(tokens) if _is(tokens[at], "WHEN")]
    if not starts or starts[0] != 0:
        starts.insert(0, -1)
    ends = [*starts[1:], len(tokens)]
    return tuple(
        _Reader(text, tokens[start + 1 : end]).read_clause() for start, end in zip(starts, ends, strict=True)
    )


def _is(token: Any, word: str) -> bool:
    return bool(token.text.upper() == word and token.token_type.name not in ("STRING", "IDENTIFIER"))


def _find_at_top(tokens: Sequence[Any]) -> list[int]:
    """The positions of tokens that are neither in brackets nor in a CASE."""
    depth = 0
    found = []
    for at, token in enumerate(tokens):
        kind = token.token_type.name
        if kind in _CLOSING:
            depth = max(0, depth - 1)
        elif depth == 0:
            found.append(at)
        if kind in _OPENING:
            depth += 1
    return found


@dataclass(slots=True)
class _Reader:
    """Parses the tokens of one clause."""

    text: str
    tokens: Sequence[Any]
    at: int = 0

    def read_clause(self) -> Clause:
        negated = self.take("NOT")
        self.require("MATCHED", or_else=() if negated else ("NOT MATCHED",))
        by = self.require("SOURCE", "TARGET") if self.take("BY") else "TARGET"
        if by == "SOURCE" and not negated:
            self.refuse("there is no MATCHED BY SOURCE.", "write: when not matched by source")
        condition = self.read_condition() if self.take("AND") else None
        self.require("THEN", or_else=() if condition else ("AND",))
        when = when_not_matched if negated else when_matched
        made = self.read_action((when_not_matched_by_source if by == "SOURCE" else when)(condition))
        if self.at < len(self.tokens):
            self.refuse(
                f"{self.show(self.tokens[self.at :])!r} is too much.", "each clause starts with WHEN."
            )
        return made

    def read_condition(self) -> str:
        rest = self.tokens[self.at :]
        end = next((at for at in _find_at_top(rest) if _is(rest[at], "THEN")), len(rest))
        if not end:
            self.refuse("there is no condition after AND.")
        self.at += end
        return self.show(rest[:end])

    def read_action(self, when: When) -> Clause:
        words = {
            "matched": ("UPDATE", "DELETE"),
            "target_only": ("UPDATE", "DELETE"),
            "source_only": ("INSERT",),
        }
        if self.is_next("DO"):
            raise NotSupported(
                f"DO NOTHING is not an action of a merge: {self.text!r}.",
                hint="leave these rows out by the conditions of the other clauses.",
            )
        match self.require(*words[when.side]):
            case "DELETE":
                return when.delete()
            case "UPDATE":
                self.require("SET")
                if when.side == "target_only" and self.is_next("*"):
                    self.refuse("there is no source row to take.", "name the columns to set.")
                return when.update_all() if self.take_whole_row() else when.update(self.read_assignments())
            case _:
                return (
                    when.insert_all()
                    if self.take_whole_row()
                    else when.insert(self.read_columns_and_values())
                )

    def take_whole_row(self) -> bool:
        return self.at == len(self.tokens) - 1 and self.take("*")

    def read_assignments(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in self.split(self.tokens[self.at :]):
            equals = next((n for n in _find_at_top(part) if _is(part[n], "=")), 0)
            if not 0 < equals < len(part) - 1:
                self.refuse(
                    f"{self.show(part)!r} assigns nothing.", "such as: update set price = source.price"
                )
            self.put(found, self.show(part[:equals]), self.show(part[equals + 1 :]))
        self.at = len(self.tokens)
        return found

    def read_columns_and_values(self) -> dict[str, str]:
        names = self.read_bracketed("the columns")
        self.require("VALUES")
        values = self.read_bracketed("the values")
        if len(names) != len(values):
            self.refuse(f"INSERT has {len(names)} column(s) and {len(values)} value(s).")
        found: dict[str, str] = {}
        for name, value in zip(names, values, strict=True):
            self.put(found, name, value)
        return found

    def put(self, found: dict[str, str], name: str, value: str) -> None:
        if name in found:
            self.refuse(f"{name} is set twice.")
        found[name] = value

    def read_bracketed(self, what: str) -> list[str]:
        if not self.is_next("("):
            self.refuse(
                f"{what} of INSERT are missing.", "write insert *, or: insert (id, n) values (source.id, 'x')"
            )
        rest = self.tokens[self.at :]
        end = _find_bracket_end(rest)
        if not end:
            self.refuse("a bracket is not closed.")
        self.at += end
        return [self.show(part) for part in self.split(rest[1 : end - 1])]

    def split(self, tokens: Sequence[Any]) -> list[Sequence[Any]]:
        commas = [at for at in _find_at_top(tokens) if tokens[at].token_type.name == "COMMA"]
        parts = [
            tokens[start + 1 : end] for start, end in zip([-1, *commas], [*commas, len(tokens)], strict=True)
        ]
        if not all(parts):
            self.refuse(
                "something is missing beside a comma." if commas else "there is nothing to set.", _EXAMPLE
            )
        return parts

    # Words

    def is_next(self, word: str) -> bool:
        return self.at < len(self.tokens) and _is(self.tokens[self.at], word)

    def take(self, word: str) -> bool:
        found = self.is_next(word)
        self.at += found
        return found

    def require(self, *words: str, or_else: Sequence[str] = ()) -> str:
        """Take the next token, which must be one of the words; ``or_else`` lists others for the error."""
        for word in words:
            if self.take(word):
                return word
        wanted = (*words, *or_else)
        if self.at == len(self.tokens):
            self.refuse(f"{' or '.join(wanted)} is missing at its end.", _EXAMPLE)
        found = self.tokens[self.at].text
        raise self.make_error(
            f"{found!r} stands where {' or '.join(wanted)} should.", suggest_names([found.upper()], words)
        )

    def show(self, tokens: Sequence[Any]) -> str:
        return self.text[tokens[0].start : tokens[-1].end + 1] if tokens else ""

    def refuse(self, message: str, hint: str | None = None) -> NoReturn:
        raise self.make_error(message, hint)

    def make_error(self, message: str, hint: str | None) -> InputError:
        clause = self.show(self.tokens) or self.text
        return InputError(f"The clause {clause!r} cannot be read: {message}", hint=hint)


def _find_bracket_end(tokens: Sequence[Any]) -> int:
    """The position after the bracket that the tokens start with; the end if it is not closed."""
    depth = 0
    for at, token in enumerate(tokens, 1):
        depth += (token.token_type.name in _OPENING) - (token.token_type.name in _CLOSING)
        if depth == 0:
            return at
    return 0
