"""Encode and decode requests and answers as JSON message bodies.

    {"set_number": 3, "incarnation": "8a..",
     "request": {"kind": "Prepare", "key": "broker-a", "ballot": [7, 123], "moves": true}}

A body that is too long or has another form raises InvalidInput, and costs no more than reading it once.
"""

from __future__ import annotations

from typing import Any, Final

from raymq.actors.keeper.group_state import MAX_STATE_BYTES
from raymq.actors.keeper.keeper_messages import MAX_KEY_LENGTH, MAX_KEYS, Answer, KeeperCall
from raymq.storage import typed_json
from raymq.storage.errors import InvalidInput

#: The greatest length of a body, in bytes: the longest state, the longest key, and the rest of the message.
MAX_MESSAGE_BYTES: Final = 2 * MAX_STATE_BYTES
_MAX_ANSWER_BYTES: Final = MAX_KEYS * (2 * MAX_KEY_LENGTH) + MAX_MESSAGE_BYTES


def encode_call(call: KeeperCall) -> bytes:
    """Return the body of a request to a keeper."""
    return typed_json.encode(call)


def decode_call(body: bytes) -> KeeperCall:
    """Return the request in a body; raise InvalidInput if there is none."""
    return _decode(body, KeeperCall, MAX_MESSAGE_BYTES)  # type: ignore[no-any-return]


def encode_answer(answer: Answer) -> bytes:
    """Return the body of a keeper's answer."""
    return typed_json.encode(answer)


def decode_answer(body: bytes) -> Answer:
    """Return the answer in a body; raise InvalidInput if there is none."""
    return _decode(body, Answer, _MAX_ANSWER_BYTES)  # type: ignore[no-any-return]


def _decode(body: bytes, kind: Any, most: int) -> Any:
    if len(body) > most:
        raise InvalidInput("message", f"at most {most} B", len(body))
    return typed_json.decode(body, kind, "message", "a request or answer of a keeper")
