"""Convert values of JSON and msgpack to values of an Arrow type.

Nothing is guessed: "12" is not a number and 1 is not a boolean; such values raise an error. Lossless conversions are
accepted: 3.0 is the integer 3, an integer is a double, and in a column of strings every JSON value is kept as its own
text.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa

#: Raises ValueError, TypeError or ArithmeticError for a value that the type cannot hold; None stays None.
Convert = Callable[[Any], Any]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def make_converter(kind: pa.DataType) -> Convert:
    """Return the conversion into `kind`; raise TypeError if messages cannot hold the type."""
    make = _maker(kind)
    if make is None:
        raise TypeError(f"no conversion into {kind}")
    return _or_none(make(kind))


def _maker(kind: pa.DataType) -> Callable[[Any], Convert] | None:
    for check, make in (
        (pa.types.is_boolean, lambda _: _boolean),
        (pa.types.is_integer, _integer),
        (pa.types.is_floating, lambda _: _double),
        (pa.types.is_string, lambda _: _string),
        (pa.types.is_binary, lambda _: _binary),
        (pa.types.is_timestamp, _timestamp),
        (pa.types.is_date, lambda _: _date),
        (pa.types.is_decimal, _decimal),
        (pa.types.is_list, _list),
        (pa.types.is_struct, _struct),
        (pa.types.is_map, _map),
        (pa.types.is_null, lambda _: _nothing),
    ):
        if check(kind):
            return make
    return None


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("no boolean")


def _integer(kind: pa.DataType) -> Convert:
    limit = 1 << (kind.bit_width - 1)

    def convert(value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is int and -limit <= value < limit:
            return value
        raise ValueError("no integer of that width")

    return convert


def _double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("no number")
    try:
        return float(value)
    except OverflowError:  # An integer beyond all doubles is infinite, as the same number with a decimal point is.
        return math.inf if value > 0 else -math.inf


def _string(value: Any) -> str:
    if isinstance(value, str):
        value.encode()  # Raises an error for a lone surrogate, which cannot be stored.
        return value
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text.encode()
    return text


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return base64.b64decode(value, validate=True)


def _timestamp(kind: pa.DataType) -> Convert:
    def convert(value: Any) -> dt.datetime:
        if isinstance(value, dt.datetime):
            moment = value
        elif isinstance(value, str):
            moment = dt.datetime.fromisoformat(value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            moment = _EPOCH + dt.timedelta(seconds=value)
        else:
            raise ValueError("no time")
        if kind.tz is None:
            return moment.replace(tzinfo=None)
        return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)

    return convert


def _date(value: Any) -> dt.date:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value
    return dt.date.fromisoformat(value)


def _decimal(kind: pa.DataType) -> Convert:
    exponent = decimal.Decimal(1).scaleb(-kind.scale)
    context = decimal.Context(prec=kind.precision, traps=[decimal.InvalidOperation, decimal.Inexact])

    def convert(value: Any) -> decimal.Decimal:
        if isinstance(value, bool):
            raise ValueError("no number")
        result = decimal.Decimal(repr(value) if isinstance(value, float) else value)
        if not result.is_finite():
            raise ValueError("no number")
        return result.quantize(exponent, context=context)

    return convert


def _list(kind: pa.DataType) -> Convert:
    item = make_converter(kind.value_type)

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError("no list")
        return [item(each) for each in value]

    return convert


def _struct(kind: pa.DataType) -> Convert:
    fields = [(field.name, make_converter(field.type)) for field in kind]

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("no object")
        return {name: field(value.get(name)) for name, field in fields}

    return convert


def _map(kind: pa.DataType) -> Convert:
    key, item = make_converter(kind.key_type), make_converter(kind.item_type)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if isinstance(value, list):  # The form of Arrow's maps.
            value = _by_key(value)
        elif isinstance(value, dict):
            value = value.items()
        else:
            raise ValueError("no object")
        pairs = [(key(name), item(each)) for name, each in value]
        if any(name is None for name, _ in pairs):
            raise ValueError("no key")
        return pairs

    return convert


def _by_key(pairs: list[Any]) -> list[tuple[Any, Any]]:
    """Keep the last of the pairs with equal keys.

    A key may be a list or an object.
    """
    try:
        return list(dict(pairs).items())
    except TypeError:
        return list({repr(name): (name, each) for name, each in pairs}.values())


def _nothing(_value: Any) -> None:
    raise ValueError("only null")
