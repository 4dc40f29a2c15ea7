"""Encode and decode values of msgspec's types as JSON, with RayMQ's errors."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from raymq.storage.errors import InvalidInput

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """Return what `decode` reads, as JSON on one line; equal values have equal bytes."""
    return msgspec.json.encode(msgspec.to_builtins(value, str_keys=True, order="deterministic"))


def decode(content: bytes | bytearray | memoryview | str, kind: type[T], field: str, allowed: str) -> T:
    """Return the value that JSON text has for msgspec's type `kind`.

    Raises:
        InvalidInput: it is no JSON of that type; the error has `field`, `allowed` and what is wrong where.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidInput(field, allowed, str(error)) from error
