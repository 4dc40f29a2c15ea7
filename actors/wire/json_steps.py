"""A long JSON object is read in steps: the parser of Python holds the interpreter until it is through.

What is short is left to that parser: an object or a list without others in it, as most are of which there are many. All
else is taken apart here, so that no value, however long and of whatever numbers, is more than a step's work.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import Any, Final

from raymq.actors.errors import InvalidInput
from raymq.actors.wire import json_body
from raymq.actors.wire.frame import Buffer, may_say_halves
from raymq.storage.steps import Steps

#: So many characters are read in a step, one longer text apart: a few milliseconds. Each value counts as some more.
_STEP_CHARACTERS: Final = 50_000
_VALUE_CHARACTERS: Final = 40
#: No request nests deeper.
_DEEPEST: Final = 64
_skip = re.compile(r"[ \t\n\r]*").match
#: An object or list that is short and has no other in it; a text within it may end that too early, which is seen then.
_short = re.compile(r"[{\[][^{}\[\]]{0,1000}[}\]]").match
_value: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().raw_decode


def reading_object(
    body: Buffer, *, max_bytes: int = json_body.MAX_BODY_BYTES, max_values: int = json_body.MAX_VALUES
) -> Steps[dict[str, Any]]:
    """`json_body.read_object` in steps.

    Raises:
        InvalidInput: as `json_body.read_object`; or values are nested deeper than 64 levels.
    """
    json_body.check(body, max_bytes, max_values)
    if len(body) <= _STEP_CHARACTERS:
        return json_body.parsed(body)
    try:
        reader = _Reader(str(body, "utf-8"), may_say_halves(body))
        value, at = yield from reader.read(reader.skip(0))
        if reader.skip(at) != len(reader.text):
            raise InvalidInput("body", "JSON", f"more at character {at}")
    except InvalidInput:
        raise
    except (ValueError, IndexError) as error:
        raise InvalidInput("body", "JSON", str(error)) from error
    if not isinstance(value, dict):
        raise InvalidInput("body", "a JSON object", type(value).__name__)
    return value


class _Reader:
    """One text. IndexError: it ends too early; ValueError: it is no JSON."""

    def __init__(self, text: str, may_say_halves: bool) -> None:
        self.text = text
        self._may_say_halves = may_say_halves

    def skip(self, at: int) -> int:
        """Behind the blanks that begin there."""
        found = _skip(self.text, at)
        assert found is not None
        return found.end()

    def read(self, at: int) -> Steps[tuple[Any, int]]:
        """The value that begins there, and where it ends."""
        #: The objects and lists that have begun, and of each the name that waits for its value.
        begun: list[dict[str, Any] | list[Any]] = []
        names: list[str] = []
        work = 0
        while True:
            first = at
            value, at, is_begun = self._next(at)
            if is_begun:
                begun.append(value)
                names.append("")
                if len(begun) > _DEEPEST:
                    raise ValueError("values are nested too deep")
            else:
                value, at, ended = self._put(value, at, begun, names)
                if ended:
                    return value, at
            if isinstance(begun[-1], dict):
                names[-1], at = self._name(at)
            work += at - first + _VALUE_CHARACTERS
            if work >= _STEP_CHARACTERS:
                work = 0
                yield None

    def _next(self, at: int) -> tuple[Any, int, bool]:
        """The value there and where it ends; or one that only begins there, and where its first member stands."""
        mark = self.text[at]
        if mark not in "{[":
            return (*self._scalar(at), False)
        if (found := _short(self.text, at)) is not None:
            piece, value, end = found[0], None, 0
            with contextlib.suppress(ValueError, StopIteration):
                value, end = _value(piece, 0)
            if end == len(piece):  # else a text within it has one of the marks, or it is no JSON: that is seen below
                if self._may_say_halves and "\\u" in piece:
                    json_body.check_halves(value)
                return value, at + end, False
        made: dict[str, Any] | list[Any] = {} if mark == "{" else []
        at = self.skip(at + 1)
        if self.text[at] == _CLOSING[mark]:
            return made, at + 1, False
        return made, at, True

    def _put(
        self, value: Any, at: int, begun: list[dict[str, Any] | list[Any]], names: list[str]
    ) -> tuple[Any, int, bool]:
        """Put a value that ends there where it belongs, and so what ends with it.

        Returns:
            the value of all and where it ends, True; or nothing, where the next member stands, False.
        """
        while begun:
            within = begun[-1]
            if isinstance(within, dict):
                within[names[-1]] = value
            else:
                within.append(value)
            at = self.skip(at)
            mark = self.text[at]
            if mark == ",":
                return None, self.skip(at + 1), False
            if mark != ("}" if isinstance(within, dict) else "]"):
                raise ValueError(f"no comma at character {at}")
            value = begun.pop()
            names.pop()
            at += 1
        return value, at, True

    def _name(self, at: int) -> tuple[str, int]:
        """A member's name, and where its value stands."""
        if self.text[at] != '"':
            raise ValueError(f"no name at character {at}")
        name, at = self._scalar(at)
        at = self.skip(at)
        if self.text[at] != ":":
            raise ValueError(f"no colon at character {at}")
        return name, self.skip(at + 1)

    def _scalar(self, at: int) -> tuple[Any, int]:
        try:
            value, end = _value(self.text, at)
        except StopIteration as error:  # what begins there is no value
            raise ValueError(f"no value at character {at}") from error
        if self._may_say_halves and isinstance(value, str):
            json_body.check_halves(value)
        return value, end


_CLOSING: Final = {"{": "}", "[": "]"}
