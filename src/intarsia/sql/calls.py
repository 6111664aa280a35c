"""Functions of SQL: sqlglot's nodes by our names, and those that need more than name and arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa
from sqlglot import exp

from intarsia.common.names import find_near_names
from intarsia.core.expr import Arithmetic, Call, Cast, Expr, Literal, Negate
from intarsia.core.expr.functions import FUNCTIONS, NOW, list_part_names
from intarsia.core.expr.nested import LIST, MAP, ROW, STRUCT
from intarsia.core.expr.types import INTERVAL
from intarsia.errors import InputError, NotSupported

# Functions that sqlglot knows: our name, and where it keeps the arguments.
CALLS: dict[type[exp.Expression], tuple[str, tuple[str, ...]]] = {
    exp.Lower: ("lower", ("this",)),
    exp.Upper: ("upper", ("this",)),
    exp.Length: ("length", ("this",)),
    exp.Substring: ("substring", ("this", "start", "length")),
    exp.Replace: ("replace", ("this", "expression", "replacement")),
    exp.StartsWith: ("starts_with", ("this", "expression")),
    exp.EndsWith: ("ends_with", ("this", "expression")),
    exp.Contains: ("contains", ("this", "expression")),
    exp.Abs: ("abs", ("this",)),
    exp.Sign: ("sign", ("this",)),
    exp.Round: ("round", ("this", "decimals")),
    exp.Floor: ("floor", ("this",)),
    exp.Ceil: ("ceil", ("this",)),
    exp.Trunc: ("trunc", ("this",)),
    exp.Sqrt: ("sqrt", ("this",)),
    exp.Pow: ("power", ("this", "expression")),
    exp.Coalesce: ("coalesce", ("this", "expressions")),
    exp.Greatest: ("greatest", ("this", "expressions")),
    exp.Least: ("least", ("this", "expressions")),
    exp.Left: ("left", ("this", "expression")),
    exp.Right: ("right", ("this", "expression")),
    exp.SplitPart: ("split_part", ("this", "delimiter", "part_index")),
    exp.StrPosition: ("strpos", ("this", "substr")),
    exp.Repeat: ("repeat", ("this", "times")),
    exp.ConcatWs: ("concat_ws", ("expressions",)),
    exp.RegexpLike: ("regexp_matches", ("this", "expression", "flag")),
    exp.RegexpFullMatch: ("regexp_full_match", ("this", "expression", "options")),
    exp.MD5: ("md5", ("this",)),
    exp.SHA: ("sha1", ("this",)),
    exp.Exp: ("exp", ("this",)),
    exp.Ln: ("ln", ("this",)),
    exp.IsNan: ("isnan", ("this",)),
    exp.IsInf: ("isinf", ("this",)),
    exp.LastDay: ("last_day", ("this",)),
    exp.Dayname: ("dayname", ("this",)),
    exp.Monthname: ("monthname", ("this",)),
    exp.TimeToUnix: ("epoch", ("this",)),
    exp.UnixToTime: ("to_timestamp", ("this",)),
    exp.DateFromParts: ("make_date", ("year", "month", "day")),
    exp.TimestampFromParts: ("make_timestamp", ("year", "month", "day", "hour", "min", "sec")),
}
PARTS: dict[type[exp.Expression], str] = {
    exp.Year: "year",
    exp.Quarter: "quarter",
    exp.Month: "month",
    exp.Week: "week",
    exp.WeekOfYear: "week",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.DayOfWeek: "dayofweek",
    exp.DayOfWeekIso: "isodow",
    exp.DayOfYear: "dayofyear",
    exp.Hour: "hour",
    exp.Minute: "minute",
    exp.Second: "second",
}
SYNONYMS = {
    "prefix": "starts_with",
    "startswith": "starts_with",
    "suffix": "ends_with",
    "endswith": "ends_with",
    "now": "current_timestamp",
    "get_current_timestamp": "current_timestamp",
    "today": "current_date",
    "nvl": "coalesce",
    "ifnull": "coalesce",
    "regexp_like": "regexp_matches",
    "is_nan": "isnan",
    "day_name": "dayname",
    "month_name": "monthname",
}
UNITS = {"yyyy": "year", "yy": "year", "mon": "month", "mm": "month", "dd": "day", "q": "quarter"}


class Builder(Protocol):
    """The builder of an expression's parts, as functions here need it."""

    @property
    def text(self) -> str: ...
    @property
    def spark(self) -> bool: ...
    def build_expr(self, node: Any) -> Expr: ...
    def build_arguments(self, node: exp.Expression, keys: tuple[str, ...]) -> tuple[Expr, ...]: ...
    def make_refusal(self, node: Any) -> NotSupported: ...


def find_near_functions(name: str) -> str:
    """A hint that names similar functions; of hashes only the standard ones, which all engines share."""
    if "hash" in name:
        return "there are md5, sha1, sha256 and sha512"
    close = find_near_names(
        name, [*FUNCTIONS, *NOW, *list_part_names(), *SYNONYMS, "nullif", "extract", "try_cast"]
    )
    told = f"did you mean {', '.join(close)}? " if close else ""
    return f"{told}All functions are listed in docs/sql.md"


def build_pad(builder: Builder, node: Any) -> Expr:
    return Call(
        "lpad" if node.args.get("is_left") else "rpad",
        builder.build_arguments(node, ("this", "expression", "fill_pattern")),
    )


def build_regexp_extract(builder: Builder, node: Any) -> Expr:
    args = builder.build_arguments(node, ("this", "expression", "group", "parameters"))
    return Call("regexp_extract", args)


def build_regexp_replace(builder: Builder, node: Any) -> Expr:
    args = builder.build_arguments(node, ("this", "expression", "replacement", "modifiers"))
    if builder.spark and len(args) == 3 and isinstance(args[2], Literal):  # all places; Java names groups $1
        new = re.sub(r"\$(\d)", r"\\\1", str(args[2].value))
        args = (*args[:2], Literal(new, pa.string()), Literal("g", pa.string()))
    return Call("regexp_replace", args)


def build_hash(builder: Builder, node: Any) -> Expr:
    length = node.args.get("length")
    bits = "256" if length is None or length.name == "0" else length.name
    if f"sha{bits}" not in FUNCTIONS:
        raise NotSupported(
            f"there is no hash sha{bits} for {builder.text!r}", hint=find_near_functions("hash")
        )
    return Call(f"sha{bits}", (builder.build_expr(node.this),))


def build_log(builder: Builder, node: Any) -> Expr:
    if node.expression is None:
        return Call("log10", (builder.build_expr(node.this),))
    base, value = builder.build_expr(node.this), builder.build_expr(node.expression)
    if isinstance(base, Literal) and base.value in (2, 10):
        return Call(f"log{base.value}", (value,))
    return Call("log", (base, value))


def build_date_diff(builder: Builder, node: Any) -> Expr:
    unit = node.args.get("unit")
    name = "day" if unit is None else unit.name.lower()
    start, end = builder.build_expr(node.expression), builder.build_expr(node.this)
    return Call("date_diff", (Literal(UNITS.get(name, name), pa.string()), start, end))


def build_add_days(builder: Builder, node: Any) -> Expr:
    unit = node.args.get("unit")
    if unit is not None and unit.name.lower() != "day":
        raise builder.make_refusal(node)
    return Arithmetic(
        "+", Cast(builder.build_expr(node.this), pa.date32()), builder.build_expr(node.expression)
    )


def build_add_months(builder: Builder, node: Any) -> Expr:
    months = builder.build_expr(node.expression)
    if isinstance(months, Negate) and isinstance(months.operand, Literal):
        months = Literal(-months.operand.value, months.operand.type)
    if not isinstance(months, Literal) or not isinstance(months.value, int):
        raise NotSupported(f"{node.sql()}: the number of months must be a constant")
    return Arithmetic("+", builder.build_expr(node.this), Literal((months.value, 0, 0), INTERVAL))


def build_format_time(builder: Builder, node: Any) -> Expr:
    value = node.this.this if isinstance(node.this, exp.TimeStrToTime) else node.this
    return Call("strftime", (builder.build_expr(value), translate_format(builder, node)))


def build_parse_time(builder: Builder, node: Any) -> Expr:
    return Call("strptime", (builder.build_expr(node.this), translate_format(builder, node)))


def build_to_date(builder: Builder, node: Any) -> Expr:
    if node.args.get("format") is not None:
        return Cast(
            Call("strptime", (builder.build_expr(node.this), translate_format(builder, node))), pa.date32()
        )
    return Cast(builder.build_expr(node.this), pa.date32())


def translate_format(builder: Builder, node: Any) -> Expr:
    """The format in strftime's notation; sqlglot marks fields that Spark reads with a fixed width."""
    found = builder.build_expr(node.args["format"])
    if isinstance(found, Literal) and isinstance(found.value, str):
        return Literal(re.sub(r"(%-?[A-Za-z])strict", r"\1", found.value), found.type)
    return found


def build_list(builder: Builder, node: Any) -> Expr:
    return Call(LIST, tuple(builder.build_expr(item) for item in node.expressions))


def build_struct(builder: Builder, node: Any) -> Expr:
    """A struct of named fields; of values without names, a row."""
    named = [isinstance(item, exp.PropertyEQ) for item in node.expressions]
    if not all(named):
        if any(named):
            raise NotSupported(f"{node.sql()}: either all fields have names or none in {builder.text!r}")
        return build_row(builder, node)
    names = [item.this.name for item in node.expressions]
    values = [builder.build_expr(item.expression) for item in node.expressions]
    return _make_struct(builder, names, values)


def _make_struct(builder: Builder, names: list[str], values: list[Expr]) -> Expr:
    if not names or len({name.lower() for name in names}) < len(names):
        raise InputError(f"a struct needs fields of different names in {builder.text!r}")
    pairs = zip(names, values, strict=True)
    return Call(STRUCT, tuple(part for name, value in pairs for part in (Literal(name, pa.string()), value)))


def build_row(builder: Builder, node: Any) -> Expr:
    if not node.expressions:
        raise InputError(f"a row needs a value in {builder.text!r}")
    return Call(ROW, tuple(builder.build_expr(item) for item in node.expressions))


def build_named_struct(builder: Builder, node: Any) -> Expr:
    names, values = node.expressions[::2], node.expressions[1::2]
    if len(names) != len(values) or not all(isinstance(each, exp.Literal) for each in names):
        raise InputError(f"named_struct('name', value, ...) takes names and values in {builder.text!r}")
    return _make_struct(builder, [each.name for each in names], [builder.build_expr(each) for each in values])


def build_map(builder: Builder, node: Any) -> Expr:
    if isinstance(node, exp.ToMap):
        entries = node.this.expressions if isinstance(node.this, exp.Struct) else None
        if entries is None or not all(isinstance(item, exp.PropertyEQ) for item in entries):
            raise builder.make_refusal(node)
        keys, items = [item.this for item in entries], [item.expression for item in entries]
    else:
        lists = node.args.get("keys"), node.args.get("values")
        if not all(isinstance(each, exp.Array) for each in lists):
            raise NotSupported(f"{node.sql()}: the keys and values of a map are lists in {builder.text!r}")
        keys, items = (each.expressions for each in lists)
    if len(keys) != len(items):
        raise InputError(f"a map has {len(keys)} keys and {len(items)} values in {builder.text!r}")
    return Call(
        MAP, tuple(builder.build_expr(part) for pair in zip(keys, items, strict=True) for part in pair)
    )


SPECIAL_CALLS: dict[type[Any], tuple[tuple[str, ...], Callable[[Builder, Any], Expr]]] = {
    exp.Pad: (("this", "expression", "fill_pattern"), build_pad),
    exp.RegexpExtract: (("this", "expression", "group", "parameters"), build_regexp_extract),
    exp.RegexpReplace: (("this", "expression", "replacement", "modifiers"), build_regexp_replace),
    exp.SHA2: (("this", "length"), build_hash),
    exp.Log: (("this", "expression"), build_log),
    exp.DateDiff: (("this", "expression", "unit"), build_date_diff),
    exp.TsOrDsAdd: (("this", "expression", "unit"), build_add_days),
    exp.AddMonths: (("this", "expression"), build_add_months),
    exp.TimeToStr: (("this", "format"), build_format_time),
    exp.StrToTime: (("this", "format"), build_parse_time),
    exp.TsOrDsToDate: (("this", "format"), build_to_date),
    exp.Date: (("this",), build_to_date),
    exp.Array: (("expressions",), build_list),
    exp.Struct: (("expressions",), build_struct),
    exp.ToMap: (("this",), build_map),
    exp.Map: (("keys", "values"), build_map),
    exp.VarMap: (("keys", "values"), build_map),
}
