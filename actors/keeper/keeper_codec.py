"""Encode and decode requests and answers as JSON message bodies.

    {"kind": "Prepare", "key": "broker-a", "ballot": [7, 123], "moves": true}

A body that is too long or has another form raises InvalidInput, and costs no more than reading it once.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from raymq.actors.keeper.group_state import MAX_STATE_BYTES, GroupState
from raymq.actors.keeper.keeper_messages import (
    MAX_KEY_LENGTH,
    Answer,
    Ballot,
    KeeperCall,
    LeaseClaim,
    Reason,
    Registered,
    Request,
)
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.storage.errors import InvalidInput

#: The greatest length of a body, in bytes: the longest state, the longest key, and the rest of the message.
MAX_MESSAGE_BYTES: Final = 2 * MAX_STATE_BYTES
#: The most keys in one answer.
MAX_KEYS: Final = 10_000
_MAX_ANSWER_BYTES: Final = MAX_KEYS * (2 * MAX_KEY_LENGTH) + MAX_MESSAGE_BYTES
_MAX_NUMBER: Final = 1 << 63

_REQUESTS: Final = {each.__name__: each for each in Request.__args__}
_ANSWERS: Final = {each.__name__: each for each in Answer.__args__}


def encode_call(call: KeeperCall) -> bytes:
    """Return the body of a request to a keeper."""
    content = {"set": call.set_number, "to": call.incarnation, **_as_json(call.request)}
    return json.dumps(content, separators=(",", ":")).encode()


def decode_call(body: bytes) -> KeeperCall:
    """Return the request in a body; raise InvalidInput if there is none."""
    raw = _object(body, MAX_MESSAGE_BYTES)
    call: KeeperCall = _reading(
        lambda: KeeperCall(_number(raw.pop("set")), _text(raw.pop("to"), MAX_KEY_LENGTH), _made(_REQUESTS, raw))
    )
    return call


def encode_answer(answer: Answer) -> bytes:
    """Return the body of a keeper's answer."""
    return json.dumps(_as_json(answer), separators=(",", ":")).encode()


def decode_answer(body: bytes) -> Answer:
    """Return the answer in a body; raise InvalidInput if there is none."""
    raw = _object(body, _MAX_ANSWER_BYTES)
    answer: Answer = _reading(lambda: _made(_ANSWERS, raw))
    return answer


def registered_json(entry: Registered) -> dict[str, Any]:
    """Return a value of the register as JSON values."""
    kind = {GroupState: "group", KeeperSet: "keepers"}.get(type(entry.value), "")
    content = None if entry.value is None else entry.value.to_json()
    return {"version": entry.version, "change": entry.change, "kind": kind, "value": content}


def registered_from(raw: Mapping[str, Any]) -> Registered:
    """Return the value that `registered_json` encoded.

    Raises:
        InvalidInput, LookupError, TypeError, ValueError: it is of another form.
    """
    kind = raw["kind"]
    value: GroupState | KeeperSet | None = None
    if kind == "group":
        value = GroupState.from_json(raw["value"])
    elif kind == "keepers":
        value = KeeperSet.from_json(raw["value"])
    elif kind != "" or raw["value"] is not None:
        raise ValueError(f"unknown kind of value {kind!r}")
    return Registered(_number(raw["version"]), _text(raw["change"], MAX_KEY_LENGTH), value)


def ballot_from(raw: object) -> Ballot:
    """Return the ballot in a list of two numbers.

    Raise TypeError or ValueError if the list is no ballot.
    """
    if not isinstance(raw, list) or len(raw) != 2:
        raise TypeError(f"{raw!r} is not a ballot")
    return Ballot(_number(raw[0]), _number(raw[1]))


def _as_json(message: Request | Answer) -> dict[str, Any]:
    content: dict[str, Any] = {"kind": type(message).__name__}
    for each in dataclasses.fields(message):
        value = getattr(message, each.name)
        if isinstance(value, Registered):
            value = registered_json(value)
        elif isinstance(value, KeeperSet):
            value = value.to_json()
        elif isinstance(value, LeaseClaim):
            value = dataclasses.asdict(value)
        elif isinstance(value, Reason):
            value = value.value
        content[each.name] = value
    return content


def _made(kinds: Mapping[str, type[Any]], raw: dict[str, Any]) -> Any:
    kind = kinds[raw.pop("kind")]
    names = {each.name for each in dataclasses.fields(kind)}
    if raw.keys() != names:
        raise ValueError(f"{kind.__name__} with the fields {sorted(raw)}")
    return kind(**{name: _FIELDS[name](value) for name, value in raw.items()})


def _reading(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except InvalidInput:
        raise
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
        raise InvalidInput("message", "a request or answer of a keeper", f"{error!r}") from error


def _object(body: bytes, most: int) -> dict[str, Any]:
    if len(body) > most:
        raise InvalidInput("message", f"at most {most} B", len(body))
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("message", "JSON", f"{error!r}") from error
    if not isinstance(raw, dict):
        raise InvalidInput("message", "an object", type(raw).__name__)
    return raw


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MAX_NUMBER:
        raise TypeError(f"{value!r} is not a whole number from 0")
    return value


def _text(value: object, most: int) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise TypeError(f"not a text of at most {most} characters")
    return value


def _seconds(value: object) -> float:
    if type(value) not in {int, float} or not 0 <= value < 3600:  # type: ignore[operator] # a number by then
        raise TypeError(f"{value!r} is not a number of seconds")
    return float(value)  # type: ignore[arg-type] # a number by now


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _claim(value: Any) -> LeaseClaim:
    return LeaseClaim(_number(value["replica"]), _text(value["nonce"], MAX_KEY_LENGTH), _number(value["epoch"]))


def _keys(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_KEYS:
        raise TypeError("not a list of keys")
    return tuple(_text(each, MAX_KEY_LENGTH) for each in value)


#: The decoder of each field of a message; a field name has the same meaning in all messages.
_FIELDS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "key": lambda value: _text(value, MAX_KEY_LENGTH),
    "keys": _keys,
    "ballot": ballot_from,
    "promised": ballot_from,
    "accepted": ballot_from,
    "moves": _truth,
    "entry": registered_from,
    "claim": _claim,
    "seconds": _seconds,
    "wait_seconds": _seconds,
    "reason": Reason,
    "keepers": lambda value: None if value is None else KeeperSet.from_json(value),
}
