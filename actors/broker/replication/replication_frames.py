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
from typing import Final, NamedTuple, Self

from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.storage.records import crc

_HEAD: Final = struct.Struct(
    ">"
    "3s"  # magic and form
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
_FORM: Final = 1
_BEGIN: Final = b"RR" + bytes([_FORM])

Buffer = bytes | bytearray | memoryview


class FrameKind(enum.IntEnum):
    """The kind of a frame: its number in a head, and the longest body.

    The comments name the sender and the meaning of the frame's position.
    """

    max_body_bytes: int

    def __new__(cls, number: int, max_body_bytes: int) -> Self:
        kind = int.__new__(cls, number)
        kind._value_ = number
        kind.max_body_bytes = max_body_bytes
        return kind

    #: Replica: my identity and epochs; my stream ends at the position.
    HELLO = 1, 2 << 20
    #: Master: continue from the position.
    GO_ON = 2, 4
    #: Master: truncate to the position, then send HELLO again.
    CUT = 3, 4
    #: Master: drop your state; tables of the position follow.
    SNAPSHOT = 4, 2 << 20
    #: Master: a part of the tables.
    TABLES = 5, 1 << 20
    #: Master: the tables are complete; send HELLO again.
    SNAPSHOT_END = 6, 0
    #: Master: the data that follow are of a newer epoch, which begins at the position.
    EPOCH = 7, 64
    #: Master: bytes of the log, which lie at the position.
    LOG = 8, 4 << 20
    #: Master: state changes; the position has the sequence of the first one. One event may have 16 MiB.
    STATE = 9, 17 << 20
    #: Master: nothing new; its stream ends at the position.
    HEARTBEAT = 10, 0
    #: Replica: I have everything up to the position.
    ACK = 11, 0
    #: Either: I refuse, and close; the body contains the reason.
    REFUSED = 12, 1 << 10


#: The kinds by their number in a head.
_KINDS: Final = {int(kind): kind for kind in FrameKind}


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
        kind, epoch, position, confirmed, body = self
        if len(body) > kind.max_body_bytes:
            raise ProtocolError(f"{len(body)} B are too many for {kind.name}")
        head = _HEAD.pack(_BEGIN, kind, len(body), epoch, *position, *confirmed, crc.crc32(body))
        return head + _CRC.pack(crc.crc32(head))

    def encode(self) -> bytes:
        """Return head and body."""
        return b"".join((self.head(), self.body))


class FrameHead(NamedTuple):
    """The decoded head of a frame whose body has not arrived completely."""

    kind: FrameKind
    epoch: int
    position: StreamPosition
    confirmed: StreamPosition
    body_bytes: int
    body_crc: int

    def frame(self, body: Buffer) -> ReplicationFrame:
        """Return the frame with its body. Raise ProtocolError if the body is damaged."""
        kind, epoch, position, confirmed, body_bytes, body_crc = self
        if len(body) != body_bytes or crc.crc32(body) != body_crc:
            raise ProtocolError(f"the body of a {kind.name} is damaged")
        return ReplicationFrame(kind, epoch, position, confirmed, body)


def read_head(buffer: Buffer, at: int = 0) -> FrameHead:
    """Decode the head in the `HEAD_BYTES` of a buffer from `at` on.

    Raises:
        ProtocolError: it is no head, or damaged, or its body length exceeds that of its kind.
    """
    (expected,) = _CRC.unpack_from(buffer, at + _HEAD.size)
    if crc.crc32(buffer[at : at + _HEAD.size]) != expected:
        raise ProtocolError("the head of a replication frame is damaged, or the bytes are no replication frame")
    begin, number, length, epoch, offset, sequence, confirmed_offset, confirmed_sequence, body_crc = _HEAD.unpack_from(
        buffer, at
    )
    if begin != _BEGIN:
        raise ProtocolError(f"not a replication frame of format {_FORM}")
    kind = _KINDS.get(number)
    if kind is None:
        raise ProtocolError(f"a replication frame of the unknown kind {number}")
    if length > kind.max_body_bytes:
        raise ProtocolError(f"{length} B are too many for {kind.name}")
    if offset < 0 or sequence < 0 or confirmed_offset < 0 or confirmed_sequence < 0:
        raise ProtocolError("a negative position")
    confirmed = StreamPosition(confirmed_offset, confirmed_sequence)
    return FrameHead(kind, epoch, StreamPosition(offset, sequence), confirmed, length, body_crc)
