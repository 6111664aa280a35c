"""Which of sqlglot's nodes and words stand for which of ours."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from intarsia.core.expr.nodes import ArithmeticOp, CompareOp
from intarsia.core.expr.types import decimal

COMPARE: dict[type[exp.Expression], CompareOp] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
ARITHMETIC: dict[type[exp.Expression], ArithmeticOp] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "//",
    exp.Mod: "%",
    exp.DPipe: "||",
}
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
}
NO_VALUE_HERE = {
    exp.Query: "a subquery",
    exp.Subquery: "a subquery",
    exp.Exists: "a subquery",
    exp.AggFunc: "an aggregate",
    exp.Filter: "an aggregate",
    exp.Window: "a window function",
    exp.Placeholder: "a parameter",
    exp.Parameter: "a parameter",
    exp.Star: "*",
    exp.Lambda: "a lambda",
    exp.UDTF: "a table function",
    exp.Explode: "a table function",
}
# Hints of sqlglot's own that change nothing here, or that are looked at where they matter.
HARMLESS = {"safe", "typed", "coalesce", "ignore_nulls", "big_int", "nested", "_type", "is_string", "quoted"}
TYPES: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "INT128": decimal(38, 0),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "DATE32": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "DATETIME": pa.timestamp("us"),
    "TIMESTAMP_S": pa.timestamp("s"),
    "TIMESTAMP_MS": pa.timestamp("ms"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPLTZ": pa.timestamp("us", "UTC"),
}
INTERVALS = {
    "year": (12, 0, 0),
    "quarter": (3, 0, 0),
    "month": (1, 0, 0),
    "week": (0, 7, 0),
    "day": (0, 1, 0),
    "hour": (0, 0, 3600 * 10**9),
    "minute": (0, 0, 60 * 10**9),
    "second": (0, 0, 10**9),
    "millisecond": (0, 0, 10**6),
    "microsecond": (0, 0, 10**3),
}
UNITS = {"yyyy": "year", "yy": "year", "mon": "month", "mm": "month", "dd": "day", "q": "quarter"}
