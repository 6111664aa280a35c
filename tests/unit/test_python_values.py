"""Arrow arrays and scalars of Python values are those that PyArrow makes."""

from __future__ import annotations

import datetime
import decimal
import re
from typing import Any

import pyarrow as pa
import pytest

from intarsia.common.python_values import make_array, make_scalar

VALUES: list[tuple[list[Any], pa.DataType]] = [
    *(
        ([1, None, 0, 127], kind)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
    ),
    ([-(2**63), 2**63 - 1], pa.int64()),
    ([2**64 - 1, None], pa.uint64()),
    ([1.5, None, -0.0, float("inf")], pa.float64()),
    ([1, 2], pa.float64()),
    ([1.5], pa.float32()),
    (["a", None, "", "ü\0é"], pa.string()),
    (["a", None], pa.large_string()),
    ([b"a", None, b""], pa.binary()),
    ([b"ab", None], pa.binary(2)),
    ([True, None, False], pa.bool_()),
    ([None, None], pa.string()),
    ([], pa.int64()),
    ([], pa.list_(pa.int8())),
    ([datetime.date(2025, 1, 1), None, 5, -1, datetime.date(1, 1, 1)], pa.date32()),
    ([datetime.datetime(2025, 1, 1, 12)], pa.date32()),
    ([5, None, -(2**63)], pa.timestamp("us")),
    ([5, None, -1], pa.timestamp("ns", "America/New_York")),
    ([5, None, -1], pa.duration("s")),
    ([5, None], pa.time32("s")),
    (
        [decimal.Decimal("1.50"), None, decimal.Decimal("-999.99"), decimal.Decimal("-0.00")],
        pa.decimal128(5, 2),
    ),
    ([decimal.Decimal("1.000"), decimal.Decimal("1e2"), decimal.Decimal("0E-9")], pa.decimal128(5, 1)),
    ([decimal.Decimal("1e37"), decimal.Decimal("-9" * 1 + "9" * 37)], pa.decimal128(38, 0)),
    ([decimal.Decimal("1200"), None], pa.decimal128(5, -2)),
    *(
        ([decimal.Decimal("1.5"), None, decimal.Decimal("-7")], kind(9, 2))
        for kind in (pa.decimal128, pa.decimal256)
    ),
    ([[1], None], pa.list_(pa.int8())),
    (["a", "b", None], pa.dictionary(pa.int8(), pa.string())),
]


@pytest.mark.parametrize(("values", "dtype"), VALUES, ids=str)
def test_an_array_is_that_of_pyarrow(values: list[Any], dtype: pa.DataType) -> None:
    made = make_array(values, dtype)
    made.validate(full=True)
    assert made.equals(pa.array(values, dtype))
    assert str(made) == str(pa.array(values, dtype))  # -0.0 equals 0.0


@pytest.mark.parametrize(("values", "dtype"), VALUES, ids=str)
def test_a_scalar_is_that_of_pyarrow(values: list[Any], dtype: pa.DataType) -> None:
    for value in values:
        made = make_scalar(value, dtype)
        assert made.type == pa.scalar(value, dtype).type
        assert repr(made) == repr(pa.scalar(value, dtype))


@pytest.mark.parametrize("value", [True, 1, -1.5, "a", b"a", None, datetime.date(2025, 1, 1), [1]], ids=str)
def test_a_scalar_has_the_type_that_pyarrow_infers(value: Any) -> None:
    assert make_scalar(value).type == pa.scalar(value).type
    assert make_scalar(value).equals(pa.scalar(value))


def test_a_scalar_of_an_extension_type_is_one() -> None:
    assert make_scalar(b"0123456789abcdef", pa.uuid()).type == pa.uuid()
    assert make_scalar(None, pa.uuid()).type == pa.uuid()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (300, pa.int8()),
        (2**63, pa.int64()),
        (-1, pa.uint64()),
        (1.5, pa.int64()),
        (2**53 + 1, pa.float64()),
        ("\ud800", pa.string()),
        (b"\xff", pa.string()),
        (b"abc", pa.binary(2)),
        (2**63, None),
        (1, pa.string()),
        (2**31, pa.date32()),
        (2**63, pa.timestamp("us")),
        (decimal.Decimal("1.505"), pa.decimal128(5, 2)),
        (decimal.Decimal("1000"), pa.decimal128(3, 0)),
        (decimal.Decimal("NaN"), pa.decimal128(3, 0)),
        (decimal.Decimal("Infinity"), pa.decimal128(3, 0)),
    ],
    ids=str,
)
def test_what_does_not_fit_fails_as_in_pyarrow(value: Any, dtype: pa.DataType | None) -> None:
    try:
        expected = pa.scalar(value, dtype)
    except Exception as error:  # noqa: BLE001 - whatever PyArrow raises
        with pytest.raises(type(error), match=re.escape(str(error))):
            make_scalar(value, dtype)
        if dtype is not None:
            with pytest.raises(type(error), match=re.escape(str(error))):
                make_array([None, value], dtype)
    else:
        assert make_scalar(value, dtype).equals(expected)


@pytest.mark.parametrize("text", ["1E+9999999", "-1E+9999999", "1E-9999999"])
def test_decimals_of_any_exponent_are_refused_at_once(text: str) -> None:
    with pytest.raises(pa.ArrowInvalid):
        make_array([decimal.Decimal(text)], pa.decimal128(5, 1))
