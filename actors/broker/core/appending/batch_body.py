"""Decode the body of a batch: messages as a client packs them.

    size i4 | magic i4 | body CRC i4 | flag i4 | body length i4 + body | properties length i2 + properties

The messages follow each other without gaps. They have no queues or offsets, which only a broker can assign. RocketMQ's
clients send magic and CRC as 0, without a meaning.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from raymq.actors.errors import MessageIllegal
from raymq.actors.request_limits import check_batch
from raymq.storage.cooperative_steps import Steps

_HEAD = struct.Struct(">iiiii")
_PROPERTIES_LENGTH = struct.Struct(">H")
_LEAST = _HEAD.size + _PROPERTIES_LENGTH.size
#: How many messages one step of work handles.
AT_ONCE: Final = 1_000


class BatchMember(NamedTuple):
    """One message of a batch; `properties` are encoded as in a record."""

    flag: int
    body: bytes
    properties: bytes


def split_steps(batch: bytes) -> Steps[list[BatchMember]]:
    """Return the messages of a batch, at least one, in steps.

    Raises:
        MessageIllegal: the lengths contradict each other or the total size, or there are too many messages.
    """
    members: list[BatchMember] = []
    position, end = 0, len(batch)
    while position < end:
        if members and len(members) % AT_ONCE == 0:
            check_batch(len(members) + 1)
            yield None
        if end - position < _LEAST:
            raise _illegal("a whole message", position, end)
        size, _magic, _crc, flag, body_bytes = _HEAD.unpack_from(batch, position)
        following = position + size
        body_at = position + _HEAD.size
        properties_at = body_at + body_bytes + _PROPERTIES_LENGTH.size
        if following > end or body_bytes < 1 or properties_at > following:
            raise _illegal("a body and properties within the batch", position, end)
        (properties_bytes,) = _PROPERTIES_LENGTH.unpack_from(batch, properties_at - _PROPERTIES_LENGTH.size)
        if properties_at + properties_bytes != following:
            raise _illegal("lengths that add up to the message's size", position, end)
        members.append(BatchMember(flag, batch[body_at : body_at + body_bytes], batch[properties_at:following]))
        position = following
    if not members:
        raise _illegal("at least one message", position, end)
    return members


def _illegal(limit: str, position: int, end: int) -> MessageIllegal:
    return MessageIllegal("batch", limit, f"byte {position} of {end}")
