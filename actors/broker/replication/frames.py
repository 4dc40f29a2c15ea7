"""The frames of a connection between a master and a replica. Bytes only: no socket, no clock.

    0      2       3      4             8           12            20            28            36            44
    +------+-------+------+-------------+-----------+-------------+-------------+-------------+-------------+
    | "RR" | form  | kind | body length | epoch u4  | log offset  | state       | confirmed   | confirmed   |
    |      | 1     |      | u4          |           | i8          | sequence i8 | offset i8   | sequence i8 |
    +------+-------+------+-------------+-----------+-------------+-------------+-------------+-------------+
    | CRC-32 of the body u4 | CRC-32 of the 48 bytes before u4 | body                                        |
    +-----------------------+----------------------------------+---------------------------------------------+
    44                      48                                 52

All numbers are big endian. `epoch` is that of the master who speaks, or whom the replica believes to speak to. The CRC
of the head is looked at before its length is believed, the length is bounded by the kind, and no memory is taken before
bytes have come: what a stranger sends costs no more than its length. A flipped bit anywhere is an error, and an error
ends the connection.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from raymq.actors.broker.replication.positions import BEGIN, StreamPosition
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
    """What a frame is; the words say who sends it and what its position means."""

    #: Replica: who I am, which epochs I know, and where my stream ends.
    HELLO = 1
    #: Master: go on from there.
    GO_ON = 2
    #: Master: cut to there, then say HELLO anew.
    CUT = 3
    #: Master: drop your state; tables follow that are of there.
    SNAPSHOT = 4
    #: Master: a part of the tables.
    TABLES = 5
    #: Master: the tables are whole; say HELLO anew.
    SNAPSHOT_END = 6
    #: Master: what follows is of a newer epoch, which begins there.
    EPOCH = 7
    #: Master: bytes of the log, which lie there.
    LOG = 8
    #: Master: state frames, of which the first has that sequence.
    STATE = 9
    #: Master: nothing new; its stream ends there.
    HEARTBEAT = 10
    #: Replica: I have everything up to there.
    ACK = 11
    #: Either: I refuse, and close; the body says why.
    REFUSED = 12


#: How long a body may be, in bytes.
MOST_BODY: Final = {
    FrameKind.HELLO: 2 << 20,
    FrameKind.GO_ON: 4,
    FrameKind.CUT: 4,
    FrameKind.SNAPSHOT: 2 << 20,
    FrameKind.TABLES: 1 << 20,
    FrameKind.SNAPSHOT_END: 0,
    FrameKind.EPOCH: 64,
    FrameKind.LOG: 4 << 20,
    FrameKind.STATE: 4 << 20,
    FrameKind.HEARTBEAT: 0,
    FrameKind.ACK: 0,
    FrameKind.REFUSED: 1 << 10,
}
#: By the number that stands in a head.
_KINDS: Final = {int(kind): kind for kind in MOST_BODY}


class FrameHead(NamedTuple):
    """What stands before a body."""

    kind: FrameKind
    epoch: int
    position: StreamPosition
    confirmed: StreamPosition
    body_bytes: int
    body_crc: int


class ReplicationFrame(NamedTuple):
    """A whole frame. What `ReplicationReader` gives has a body of its own."""

    kind: FrameKind
    epoch: int
    position: StreamPosition = BEGIN
    confirmed: StreamPosition = BEGIN
    body: Buffer = b""

    def head(self) -> bytes:
        """The head; the body follows it as it is, from wherever it lies.

        Raises:
            ProtocolError: the body is longer than its kind may be.
        """
        if len(self.body) > MOST_BODY[self.kind]:
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
        """Head and body."""
        return b"".join((self.head(), self.body))


def read_head(buffer: Buffer) -> FrameHead:
    """The head in the first `HEAD_BYTES` of a buffer.

    Raises:
        ProtocolError: it is none, or damaged, or announces more than its kind may have.
    """
    (expected,) = _CRC.unpack_from(buffer, _HEAD.size)
    if crc.crc32(memoryview(buffer)[: _HEAD.size]) != expected:
        raise ProtocolError("a replication frame's head is damaged, or this is none")
    magic, form, kind, length, epoch, *numbers, body_crc = _HEAD.unpack_from(buffer)
    if magic != _MAGIC or form != _FORM:
        raise ProtocolError(f"not a replication frame of form {_FORM}")
    known = _KINDS.get(kind)
    if known is None:
        raise ProtocolError(f"a replication frame of kind {kind}")
    if length > MOST_BODY[known]:
        raise ProtocolError(f"{length} B are too many for {known.name}")
    if min(numbers) < 0:
        raise ProtocolError("a position below 0")
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
    """ProtocolError unless this is the body that the head was made for; for who receives bodies in place."""
    if len(body) != head.body_bytes or crc.crc32(body) != head.body_crc:
        raise ProtocolError(f"the body of a {head.kind.name} is damaged")


class ReplicationReader:
    """Cuts a stream of bytes into frames. After an error it gives nothing any more."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: FrameHead | None = None
        self._broken = False

    def feed(self, received: Buffer) -> Iterator[ReplicationFrame]:
        """The frames that are whole with these bytes; consume all of them before the next call.

        Raises:
            ProtocolError: the bytes are no frames, or damaged; the connection is to be closed.
        """
        if self._broken:
            raise ProtocolError("the connection broke the protocol before")
        self._buffer += received
        try:
            while (frame := self._next()) is not None:
                yield frame
        except ProtocolError:
            self._broken = True
            self._buffer.clear()
            raise

    def _next(self) -> ReplicationFrame | None:
        if self._head is None:
            if len(self._buffer) < HEAD_BYTES:
                return None
            self._head = read_head(bytes(self._buffer[:HEAD_BYTES]))
            del self._buffer[:HEAD_BYTES]
        head = self._head
        if len(self._buffer) < head.body_bytes:
            return None
        body = bytes(self._buffer[: head.body_bytes])
        del self._buffer[: head.body_bytes]
        self._head = None
        check_body(head, body)
        return ReplicationFrame(head.kind, head.epoch, head.position, head.confirmed, body)
