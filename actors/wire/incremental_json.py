"""Parse a long JSON object in steps, so that other work can run in between.

Python's own parser holds the interpreter until it is done. Short parts are left to it: an object or a list that has no
others in it, as most parts are that occur in large numbers. Everything else is parsed here, so that no value, however
long and whatever numbers it has, takes more than the work of one step.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import Any, Final

from raymq.actors.errors import InvalidInput
from raymq.actors.wire import json_body
from raymq.actors.wire.frame import Buffer, may_have_surrogates
from raymq.storage.cooperative_steps import Steps

#: So many characters are parsed in a step, except for one longer string: a few milliseconds. Each value counts as some
#: characters more.
_STEP_CHARACTERS: Final = 50_000
_VALUE_CHARACTERS: Final = 40
#: The deepest nesting; no request needs more.
_DEEPEST: Final = 64
_skip = re.compile(r"[ \t\n\r]*").match
#: Matches a short object or list without another in it; a bracket in a string may end the match too early, which the
#: caller detects.
_short = re.compile(r"[{\[][^{}\[\]]{0,1000}[}\]]").match
_value: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().raw_decode


def read_object_steps(
    body: Buffer, *, max_bytes: int = json_body.MAX_BODY_BYTES, max_values: int = json_body.MAX_VALUES
) -> Steps[dict[str, Any]]:
    """Parse the object in a body like `json_body.read_object`, in steps.

    Raises:
        InvalidInput: as `json_body.read_object`, or if values are nested deeper than 64 levels.
    """
    json_body.check(body, max_bytes, max_values)
    if len(body) <= _STEP_CHARACTERS:
        return json_body.parse_object(body)
    try:
        reader = _IncrementalParser(str(body, "utf-8"), may_have_surrogates(body))
        value, at = yield from reader.read(reader.skip(0))
        if reader.skip(at) != len(reader.text):
            raise InvalidInput("body", "JSON", f"extra text at character {at}")
    except InvalidInput:
        raise
    except (ValueError, IndexError) as error:
        raise InvalidInput("body", "JSON", str(error)) from error
    if not isinstance(value, dict):
        raise InvalidInput("body", "a JSON object", type(value).__name__)
    return value


class _IncrementalParser:
    """A parser of one text.

    It raises IndexError if the text ends too early, and ValueError if it is no JSON.
    """

    def __init__(self, text: str, may_have_surrogates: bool) -> None:
        self.text = text
        self._may_say_halves = may_have_surrogates

    def skip(self, at: int) -> int:
        """Return the position after the whitespace that begins at `at`."""
        found = _skip(self.text, at)
        assert found is not None
        return found.end()

    def read(self, at: int) -> Steps[tuple[Any, int]]:
        """Parse the value that begins at `at`; return it and its end."""
        #: The open objects and lists, and for each the member name whose value comes next.
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
        """Parse the value at `at`, or open a long object or list.

        Returns:
            the value, the position after it, False; or an empty object or list, the position of its first member, True.
        """
        mark = self.text[at]
        if mark not in "{[":
            return (*self._scalar(at), False)
        if (found := _short(self.text, at)) is not None:
            piece, value, end = found[0], None, 0
            with contextlib.suppress(ValueError, StopIteration):
                value, end = _value(piece, 0)
            if end == len(piece):  # otherwise a string has a bracket, or it is no JSON: found below
                if self._may_say_halves and "\\u" in piece:
                    json_body.reject_lone_surrogates(value)
                return value, at + end, False
        container: dict[str, Any] | list[Any] = {} if mark == "{" else []
        at = self.skip(at + 1)
        if self.text[at] == _CLOSING[mark]:
            return container, at + 1, False
        return container, at, True

    def _put(
        self, value: Any, at: int, begun: list[dict[str, Any] | list[Any]], names: list[str]
    ) -> tuple[Any, int, bool]:
        """Add a value to its container, and close the containers that end after it.

        Args:
            at: the position at which the value ends.

        Returns:
            the outermost value, the position after it, True; or None, the position of the next member, False.
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
        """Parse a member's name; return it and the position of its value."""
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
        except StopIteration as error:  # no value begins there
            raise ValueError(f"no value at character {at}") from error
        if self._may_say_halves and isinstance(value, str):
            json_body.reject_lone_surrogates(value)
        return value, end


_CLOSING: Final = {"{": "}", "[": "]"}
