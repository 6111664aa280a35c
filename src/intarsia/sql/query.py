"""A query over named tables: which tables and parameters it has; an engine runs it, nothing here does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from intarsia.errors import InputError, NotSupported
from intarsia.sql.parse import import_sqlglot
from intarsia.sql.query_columns import ColumnUse, find_column_use

QueryDialect = Literal["duckdb", "spark"]

VARIABLE = re.compile(r"\$(\$)|\$\{([^}]*)\}")
"""``$$``, which stands for a dollar sign, and ``${name}``, a parameter."""
MARKER = "intarsia_"
"""What the names of bound parameters begin with."""
_SIGNS = {"duckdb": "$", "spark": ":"}
_READS_FILES = re.compile(
    r"^(read\w*|\w*_scan|glob|query|query_table|iceberg\w*|delta\w*|load_aws\w*)$", re.IGNORECASE
)
"""Table functions that read what the pipeline does not know, so that no change of it would be noticed."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table that a query reads, and where the query names it first."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Query:
    """One query, with a marker of its dialect for each parameter."""

    text: str
    tables: tuple[TableName, ...]
    parameters: tuple[str, ...]
    columns: ColumnUse
    """Which columns of its tables it may read."""


def _make_error(message: str, *, line: int = 0, hint: str | None = None) -> InputError:
    return InputError(f"line {line}: {message}" if line else message, hint=hint)


def list_variables(text: str) -> tuple[str, ...]:
    """The names of a query's ``${...}`` parameters, each once."""
    return tuple(dict.fromkeys(match[2] for match in VARIABLE.finditer(text) if not match[1]))


@lru_cache(maxsize=256)
def parse_query(text: str, dialect: QueryDialect) -> Query:
    """Find the tables and the parameters of a query.

    Tables are the names that no CTE of the query defines. A parameter is bound, never pasted, so it stands
    only where a value may stand.

    Raises:
        InputError: it is not one query, a table is qualified or a function that reads files, or a parameter
            stands in quotes or in the place of a name.
        NotSupported: sqlglot is not installed.
    """
    sqlglot = import_sqlglot()
    sign, names = _SIGNS[dialect], list_variables(text)
    for name in names:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise _make_error(f"${{{name}}} names no parameter.", hint="write $${ for the characters ${")
    marked = VARIABLE.sub(lambda match: "$" if match[1] else f"{sign}{MARKER}{match[2]}", text)
    known = sqlglot.Dialect.get_or_raise(dialect)
    try:
        tokens = known.tokenize(marked)
    except sqlglot.errors.TokenError as error:
        raise _make_error(f"it cannot be read: {error}", hint="is a quote left open?") from error
    for token in tokens:  # sqlglot counts some lines twice where a query has dollar signs
        token.line = marked.count("\n", 0, token.start) + 1
    _check_quotes(tokens, sign)
    if tokens and tokens[-1].token_type.name == "SEMICOLON":
        marked = marked[: tokens.pop().start]
    tree = _parse_tree(known, tokens, marked)
    if not _is_query(tree, dialect):
        raise _make_error(f"it is {type(tree).__name__.upper()}, not a query.", hint="begin it with SELECT.")
    _check_parameters(tree, tokens)
    used = {token.text for token in tokens}
    bound = tuple(name for name in names if MARKER + name in used)
    return Query(marked, tuple(_find_tables(tree)), bound, find_column_use(tree, used))


def _parse_tree(dialect: Any, tokens: list[Any], text: str) -> Any:
    sqlglot = import_sqlglot()
    if not tokens:
        raise _make_error("it is empty.")
    try:
        trees = dialect.parser(error_level=sqlglot.ErrorLevel.IMMEDIATE).parse(tokens, text)
    except sqlglot.errors.ParseError as error:
        said = (error.errors or [{}])[-1]
        reason = said.get("description") or str(error).splitlines()[0]
        reason = reason.split(" but got <Token")[0]
        near = f", near {said['highlight']!r}" if said.get("highlight") else ""
        hint = "check the SQL, which is the engine's."
        if MARKER in text:
            hint = "check the SQL; a ${...} parameter is a value, and no name or type."
        if "{{" in text or "{%" in text:
            hint = "there are no templates: sources and targets have plain names, and a value is ${name}."
        raise _make_error(
            f"it cannot be read{near}: {reason.rstrip('. ')}.",
            line=said.get("line") or 0,
            hint=hint,
        ) from error
    except RecursionError as error:
        raise _make_error(f"it is nested too deeply ({len(text)} characters).") from error
    if len(trees) != 1 or trees[0] is None:
        raise _make_error("it has several statements.", hint="make a source of each query.")
    return trees[0]


def _is_query(tree: Any, dialect: QueryDialect) -> bool:
    exp = import_sqlglot().exp
    pivots = isinstance(tree, exp.Pivot) and dialect == "duckdb"
    return isinstance(tree, (exp.Query, exp.Values)) or pivots


def _check_quotes(tokens: list[Any], sign: str) -> None:
    """Refuse a parameter inside of quotes, where it would be text and no parameter."""
    for token in tokens:
        found = re.search(rf"{re.escape(sign)}{MARKER}(\w+)", token.text)
        if found is not None and token.token_type.name not in ("VAR", "PARAMETER", "PLACEHOLDER"):
            raise _make_error(
                f"${{{found[1]}}} is in quotes.",
                line=token.line,
                hint="leave the quotes out: a parameter is passed as a value.",
            )


def _check_parameters(tree: Any, tokens: list[Any]) -> None:
    """Refuse a parameter that stands where a name has to stand, and markers of the engine's own."""
    exp = import_sqlglot().exp
    values: set[str] = set()
    names: set[str] = set()
    for node in tree.find_all(exp.Placeholder, exp.Parameter):
        if not node.name.startswith(MARKER):
            raise _make_error(f"it has a marker {node.name!r}.", hint="write parameters as ${name}.")
        is_name = isinstance(node.parent, (exp.Table, exp.TableAlias, exp.Column, exp.Dot, exp.Identifier))
        (names if is_name or node.arg_key == "alias" else values).add(node.name)
    for token in tokens:
        if token.text.startswith(MARKER) and (token.text in names or token.text not in values):
            raise _make_error(
                f"${{{token.text.removeprefix(MARKER)}}} stands for a name, and a parameter is a value.",
                line=token.line,
                hint="parameters are never pasted into a query: write the name.",
            )


def _find_tables(tree: Any) -> Iterator[TableName]:
    exp = import_sqlglot().exp
    found: dict[str, TableName] = {}
    for table in tree.find_all(exp.Table):
        name, line = table.this, int(table.this.meta.get("line") or 0)
        if not isinstance(name, exp.Identifier):
            _check_function(name, line)
            continue
        if table.db:
            if _is_column_of(table, exp):
                continue
            whole = ".".join(part.name for part in table.parts)
            raise _make_error(
                f"{whole} is a table of a schema.",
                line=line,
                hint="a query reads sources and targets of the pipeline, by their names alone.",
            )
        if not _is_defined(table, exp):
            found.setdefault(name.name.casefold(), TableName(name.name, line))
    yield from sorted(found.values(), key=lambda table: table.line)


def _check_function(function: Any, line: int) -> None:
    name = function.name if function.key == "anonymous" else function.sql_name()
    if _READS_FILES.match(name):
        raise _make_error(
            f"{name.lower()}(...) reads what the pipeline does not know.",
            line=line,
            hint="make it a source of its own: [sources.<name>] with its path.",
        )


def _is_column_of(table: Any, exp: Any) -> bool:
    """Whether ``a.b`` in a FROM clause is the list ``b`` of the table ``a`` beside it."""
    select = table.find_ancestor(exp.Select)
    if select is None:
        return False
    beside = [one for one in select.find_all(exp.Table) if one is not table and not one.db]
    return any(one.alias_or_name.casefold() == table.db.casefold() for one in beside)


def _is_defined(table: Any, exp: Any) -> bool:
    """Whether a CTE that the table's place can see has its name."""
    name, below = table.name.casefold(), table
    while below.parent is not None:
        holder = below.parent
        if isinstance(holder, exp.With):  # in a CTE, those before it are seen, and itself where it recurs
            own = [cte.alias.casefold() for cte in holder.expressions]
            at = next(number for number, cte in enumerate(holder.expressions) if cte is below)
            if name in own[: at + bool(holder.args.get("recursive"))]:
                return True
        else:
            for cte in getattr(holder, "ctes", ()):
                if not _is_below(table, cte) and cte.alias.casefold() == name:
                    return True
        below = holder
    return False


def _is_below(node: Any, holder: Any) -> bool:
    while node is not None:
        if node is holder:
            return True
        node = node.parent
    return False


def check_dialect(engine: str) -> QueryDialect:
    """The dialect of an engine's own SQL. Raises NotSupported for an engine that has none."""
    match engine:
        case "duckdb" | "spark":
            return engine
        case _:
            raise NotSupported(
                f"the engine {engine!r} runs no queries.", hint='use engine = "duckdb" or engine = "spark".'
            )
