"""Encode and decode the frames between a master and a replica, as bytes only.

    0      2       3      4             8           12            20            28            36            44
    +------+-------+------+-------------+-----------+-------------+-------------+-------------+-------------+
    | "RR" | form  | kind | body length | epoch u4  | log offset  | state       | confirmed   | confirmed   |
    |      | 1     |      | u4          |           | i8          | sequence i8 | offset i8   | sequence i8 |
    +------+-------+------+-------------+-----------+-------------+-------------+-------------+-------------+
    | CRC-32 of the body u4 | CRC-32 of the 48 bytes before u4 | body                                        |
    +-----------------------+----------------------------------+---------------------------------------------+
    44                      48                                 52

All numbers are big endian. `epoch` is that of the sending master, or in a replica's frame that of the master to which
it connects. The CRC of the head is checked before its length is used, the length is bounded by the kind, and memory is
allocated only after bytes have arrived: bytes of an unknown sender cost no more than their length. A flipped bit
anywhere is an error, and an error ends the connection. The module uses no sockets and no clock.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.storage.records import crc

_HEAD: Final = struct.Struct(
    ">"
    "2s"  # magic
    "B"  # form
    "B"  # kind
    "I"  # body length
    "I"  # epoch
    "q"  # log offset
    "q"  # state sequence
    "q"  # confirmed log offset
    "q"  # confirmed state sequence
    "I"  # CRC-32 of the body
)
_CRC: Final = struct.Struct(">I")
HEAD_BYTES: Final = _HEAD.size + _CRC.size
_MAGIC: Final = b"RR"
_FORM: Final = 1

Buffer = bytes | bytearray | memoryview


class FrameKind(enum.IntEnum):
    """The kind of a frame.

    The comments name the sender and the meaning of the frame's position.
    """

    #: Replica: my identity and epochs; my stream ends at the position.
    HELLO = 1
    #: Master: continue from the position.
    GO_ON = 2
    #: Master: truncate to the position, then send HELLO again.
    CUT = 3
    #: Master: drop your state; tables of the position follow.
    SNAPSHOT = 4
    #: Master: a part of the tables.
    TABLES = 5
    #: Master: the tables are complete; send HELLO again.
    SNAPSHOT_END = 6
    #: Master: the data that follow are of a newer epoch, which begins at the position.
    EPOCH = 7
    #: Master: bytes of the log, which lie at the position.
    LOG = 8
    #: Master: state changes; the position has the sequence of the first one.
    STATE = 9
    #: Master: nothing new; its stream ends at the position.
    HEARTBEAT = 10
    #: Replica: I have everything up to the position.
    ACK = 11
    #: Either: I refuse, and close; the body contains the reason.
    REFUSED = 12


#: The longest body of each kind, in bytes.
MAX_BODY: Final = {
    FrameKind.HELLO: 2 << 20,
    FrameKind.GO_ON: 4,
    FrameKind.CUT: 4,
    FrameKind.SNAPSHOT: 2 << 20,
    FrameKind.TABLES: 1 << 20,
    FrameKind.SNAPSHOT_END: 0,
    FrameKind.EPOCH: 64,
    FrameKind.LOG: 4 << 20,
    FrameKind.STATE: 17 << 20,  # one event may have 16 MiB
    FrameKind.HEARTBEAT: 0,
    FrameKind.ACK: 0,
    FrameKind.REFUSED: 1 << 10,
}
#: The kinds by their number in a head.
_KINDS: Final = {int(kind): kind for kind in MAX_BODY}


class FrameHead(NamedTuple):
    """The head before a body."""

    kind: FrameKind
    epoch: int
    position: StreamPosition
    confirmed: StreamPosition
    body_bytes: int
    body_crc: int


class ReplicationFrame(NamedTuple):
    """A whole frame."""

    kind: FrameKind
    epoch: int
    position: StreamPosition = BEGIN
    confirmed: StreamPosition = BEGIN
    body: Buffer = b""

    def head(self) -> bytes:
        """Return the head; the body is sent after it, without a copy.

        Raises:
            ProtocolError: the body is longer than its kind may be.
        """
        if len(self.body) > MAX_BODY[self.kind]:
            raise ProtocolError(f"{len(self.body)} B are too many for {self.kind.name}")
        head = _HEAD.pack(
            _MAGIC,
            _FORM,
            self.kind,
            len(self.body),
            self.epoch,
            *self.position,
            *self.confirmed,
            crc.crc32(self.body),
        )
        return head + _CRC.pack(crc.crc32(head))

    def encode(self) -> bytes:
        """Return head and body."""
        return b"".join((self.head(), self.body))


def read_head(buffer: Buffer) -> FrameHead:
    """Decode the head in the first `HEAD_BYTES` of a buffer.

    Raises:
        ProtocolError: it is no head, or damaged, or its body length exceeds that of its kind.
    """
    (expected,) = _CRC.unpack_from(buffer, _HEAD.size)
    if crc.crc32(memoryview(buffer)[: _HEAD.size]) != expected:
        raise ProtocolError("the head of a replication frame is damaged, or the bytes are no replication frame")
    magic, form, kind, length, epoch, *numbers, body_crc = _HEAD.unpack_from(buffer)
    if magic != _MAGIC or form != _FORM:
        raise ProtocolError(f"not a replication frame of format {_FORM}")
    known = _KINDS.get(kind)
    if known is None:
        raise ProtocolError(f"a replication frame of the unknown kind {kind}")
    if length > MAX_BODY[known]:
        raise ProtocolError(f"{length} B are too many for {known.name}")
    if min(numbers) < 0:
        raise ProtocolError("a negative position")
    offset, sequence, confirmed_offset, confirmed_sequence = numbers
    return FrameHead(
        known,
        epoch,
        StreamPosition(offset, sequence),
        StreamPosition(confirmed_offset, confirmed_sequence),
        length,
        body_crc,
    )


def check_body(head: FrameHead, body: Buffer) -> None:
    """Raise ProtocolError unless this is the body that belongs to the head.

    For callers that receive bodies in place.
    """
    if len(body) != head.body_bytes or crc.crc32(body) != head.body_crc:
        raise ProtocolError(f"the body of a {head.kind.name} is damaged")
