"""A long JSON object is read in steps: the parser of Python holds the interpreter until it is through."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from raymq.actors.errors import InvalidInput
from raymq.actors.wire import json_body
from raymq.actors.wire.frame import Buffer, may_say_halves
from raymq.storage.steps import Steps

#: So many characters are read in a step, one longer value apart: about a millisecond.
_STEP_CHARACTERS: Final = 50_000
_skip = re.compile(r"[ \t\n\r]*").match
_value: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().raw_decode


def reading_object(
    body: Buffer,
    *,
    depth: int,
    max_bytes: int = json_body.MAX_BODY_BYTES,
    max_values: int = json_body.MAX_VALUES,
) -> Steps[dict[str, Any]]:
    """`json_body.read_object` in steps.

    Args:
        depth: so many levels of objects and lists are read member by member, what is within them in one piece.

    Raises:
        InvalidInput: as `json_body.read_object`.
    """
    text = json_body.checked(body, max_bytes, max_values)
    if len(text) <= _STEP_CHARACTERS:
        return json_body.parsed(text)
    try:
        reader = _Reader(text.decode(), may_say_halves(text))
        value, at = yield from reader.read(reader.skip(0), depth)
        if reader.skip(at) != len(reader.text):
            raise InvalidInput("body", "JSON", f"more at character {at}")
    except InvalidInput:
        raise
    except (ValueError, RecursionError, IndexError) as error:
        raise InvalidInput("body", "JSON", str(error)) from error
    if not isinstance(value, dict):
        raise InvalidInput("body", "a JSON object", type(value).__name__)
    return value


class _Reader:
    """One text. IndexError: it ends too early; ValueError: it is no JSON."""

    def __init__(self, text: str, may_say_halves: bool) -> None:
        self.text = text
        self._may_say_halves = may_say_halves
        self._step_ends = _STEP_CHARACTERS

    def skip(self, at: int) -> int:
        """Behind the blanks that begin there."""
        found = _skip(self.text, at)
        assert found is not None
        return found.end()

    def read(self, at: int, depth: int) -> Steps[tuple[Any, int]]:
        """The value that begins there, and where it ends."""
        if self.text[at] not in "{[" or not depth:
            return self._piece(at)
        made: dict[str, Any] | list[Any] = {} if self.text[at] == "{" else []
        at = self.skip(at + 1)
        if self.text[at] == ("}" if isinstance(made, dict) else "]"):
            return made, at + 1
        while True:
            if isinstance(made, dict):
                name, at = self._piece(at)
                at = self.skip(at)
                if not isinstance(name, str) or self.text[at] != ":":
                    raise ValueError(f"no name and colon before character {at}")
                made[name], at = yield from self.read(self.skip(at + 1), depth - 1)
            else:
                value, at = yield from self.read(at, depth - 1)
                made.append(value)
            at = self.skip(at)
            mark, at = self.text[at], self.skip(at + 1)
            if mark == ("}" if isinstance(made, dict) else "]"):
                return made, at
            if mark != ",":
                raise ValueError(f"no comma before character {at}")
            if at >= self._step_ends:
                self._step_ends = at + _STEP_CHARACTERS
                yield None

    def _piece(self, at: int) -> tuple[Any, int]:
        try:
            value, end = _value(self.text, at)
        except StopIteration as error:  # what begins there is no value
            raise ValueError(f"no value at character {at}") from error
        if self._may_say_halves:
            json_body.check_halves(value)
        return value, end
