"""Encode and decode values of msgspec's types as JSON, with RayMQ's errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from raymq.storage.errors import InvalidInput

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """Return what `decode` reads, as JSON on one line; equal values have equal bytes."""
    return msgspec.json.encode(msgspec.to_builtins(value, str_keys=True, order="deterministic"))


def decode(
    content: bytes | bytearray | memoryview | str,
    kind: type[T],
    field: str,
    allowed: str,
    parse_float: Callable[[str], float] | None = None,
) -> T:
    """Return the value that JSON text has for msgspec's type `kind`.

    `parse_float` parses the numbers with a fraction or an exponent, where the type is Any; None: msgspec does.

    Raises:
        InvalidInput: it is no JSON of that type; the error has `field`, `allowed` and what is wrong where.
    """
    try:
        if parse_float is not None:
            return msgspec.json.Decoder(kind, float_hook=parse_float).decode(content)
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidInput(field, allowed, str(error)) from error
