"""Read the fields of a form or of a JSON object in a request's body."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from raymq.client import InvalidInput, arguments

CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "X-CSRF-Token"
_FORM: Final = "a form (application/x-www-form-urlencoded) in UTF-8, or a JSON object"
_ON: Final = ("1", "on", "true", "yes")


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields by name; a field that a form has several times is a list."""

    by_name: Mapping[str, Any]

    def value(self, name: str) -> Any:
        """Return a field as it was sent; None if it is missing."""
        return self.by_name.get(name)

    def text(self, name: str) -> str:
        """Return a field as text; empty if it is missing.

        Raises:
            InvalidInput: it is no text.
        """
        value = self.by_name.get(name)
        if value is None:
            return ""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise InvalidInput(name, "a text", value)
        return value

    def flag(self, name: str) -> bool:
        """Return True if a box is ticked, or a JSON field is true."""
        value = self.by_name.get(name)
        return value is True or (isinstance(value, str) and value.lower() in _ON)

    def texts(self, name: str) -> list[str]:
        """Return a field's texts; empty if it is missing.

        Raises:
            InvalidInput: it is neither a text nor a list of texts.
        """
        value = self.by_name.get(name)
        found = [value] if isinstance(value, str) else value or []
        if not isinstance(found, Sequence) or not all(isinstance(each, str) for each in found):
            raise InvalidInput(name, "a list of texts", value)
        return list(found)

    def rate(self, name: str) -> float | None:
        """Return a rate per second; None if the field is empty.

        Raises:
            InvalidInput: it is no number, or no rate that brokers keep.
        """
        text = self.text(name).strip()
        if not text:
            return None
        try:
            rate = float(text)
        except ValueError:
            raise InvalidInput(name, "a number of messages per second", text) from None
        return arguments.per_second(name, rate)


#: The fields of a request whose body was read.
_FIELDS: Final = web.RequestKey("FIELDS", Fields)


async def read_fields(request: web.Request) -> Fields:
    """Return the fields of a request; its body is read once.

    Raises:
        InvalidInput: the body is neither a form nor a JSON object, or its text cannot be decoded.
    """
    known = request.get(_FIELDS)
    if known is None:
        known = request[_FIELDS] = Fields(await _fields(request))
    return known


async def _fields(request: web.Request) -> dict[str, Any]:
    if request.content_type == "application/json":
        return json_fields(await request.read())
    if request.content_type.startswith("multipart/"):
        raise InvalidInput("body", _FORM, request.content_type)
    try:
        form = await request.post()
        named = {name: values[0] if len(values := form.getall(name)) == 1 else values for name in form}
        json.dumps(named, ensure_ascii=False).encode()  # Some charsets decode to lone surrogates.
    except (LookupError, ValueError) as error:
        raise InvalidInput("body", _FORM, str(error)) from None
    return named


def json_fields(body: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object.

    Raises:
        InvalidInput: it is no JSON object, or has numbers that are not finite or text that UTF-8 cannot express.
    """
    try:
        found = json.loads(body or b"{}")
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise InvalidInput("body", "a JSON object of finite numbers and text in UTF-8", "something else") from None
    if not isinstance(found, dict):
        raise InvalidInput("body", "a JSON object", type(found).__name__)
    return found
