"""Encode and decode the bodies of frames: HELLO, epochs and state changes.

    HELLO     count of texts u1 | (length u1 | UTF-8)* : cluster, group, replica, identity, nonce, credential, and
              to a master that speaks version 2 (`wire.own_protocol`): format, release
              begin: offset i8, sequence i8 | epochs
    SNAPSHOT  the log stays u1 | epochs           it begins at the head's position
    EPOCH     one epoch
    GO_ON     epoch u4                            the newest epoch that both have
    CUT       epoch u4
    STATE     (payload length u4 | log offset i8 | payload)*
    epochs    (epoch u4 | offset i8 | sequence i8)*

Counts follow from lengths, and nothing is read beyond the body. A body of another form raises ProtocolError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.replication_frames import Buffer, ReplicationFrame
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.storage.errors import InvalidInput
from raymq.storage.journal.journal_event import JournalEvent
from raymq.storage.tables.leader_epoch_checkpoint import MAX_EPOCHS

_EPOCH: Final = struct.Struct(">Iqq")
_POSITION: Final = struct.Struct(">qq")
_NUMBER: Final = struct.Struct(">I")
_STATE: Final = struct.Struct(">Iq")
#: How many texts a HELLO has without a format, and with one. Texts added by later versions are skipped.
_TEXTS: Final = 6
_TEXTS_WITH_FORMAT: Final = 8
_MAX_TEXTS: Final = 32
_MAX_TEXT: Final = 255


@dataclass(frozen=True, slots=True)
class Hello:
    """The identity of a replica, and the part of the stream that it has.

    Its end is the frame's position.

    Attributes:
        credential: admits it to the cluster; empty if access control is off.
        known_format: the newest directory format that its RayMQ supports (`storage.directory_format`); None: not sent,
            as by RayMQ before masters read it.
        release: the version of its RayMQ; empty: not sent.
    """

    cluster: str
    group: str
    replica: int
    identity: str
    nonce: str
    begin: StreamPosition
    epochs: EpochMap
    credential: str = ""
    known_format: int | None = None
    release: str = ""

    def encode(self) -> bytes:
        """Return the body. Raise InvalidInput if a text is too long."""
        texts = [self.cluster, self.group, str(self.replica), self.identity, self.nonce, self.credential]
        if self.known_format is not None:
            texts += [str(self.known_format), self.release]
        parts = [bytes([len(texts)])]
        for text in texts:
            encoded = text.encode()
            if len(encoded) > _MAX_TEXT:
                raise InvalidInput("hello", f"texts of at most {_MAX_TEXT} B", text)
            parts += [bytes([len(encoded)]), encoded]
        return b"".join((*parts, _POSITION.pack(*self.begin), encode_epochs(self.epochs)))


def read_hello(body: Buffer) -> Hello:
    """Decode the body of a HELLO. Raise ProtocolError if it is invalid."""
    view = memoryview(body)
    if not view or not (view[0] == _TEXTS or _TEXTS_WITH_FORMAT <= view[0] <= _MAX_TEXTS):
        raise ProtocolError("a HELLO in an unknown format")
    at = 1
    texts = []
    try:
        for _ in range(view[0]):
            length = view[at]
            text = bytes(view[at + 1 : at + 1 + length])
            if len(text) != length:
                raise ProtocolError("a HELLO with a truncated text")
            texts.append(text.decode())
            at += 1 + length
        begin = StreamPosition(*_POSITION.unpack_from(view, at))
        cluster, group, replica, identity, nonce, credential, *more = texts
        number = _number_of(replica)
        known_format = _number_of(more[0]) if more else None
    except (IndexError, ValueError, struct.error) as error:
        raise ProtocolError(f"a HELLO in an unknown format: {error}") from error
    if number < 1 or min(begin) < 0:
        raise ProtocolError("a HELLO without a replica number, or with a negative position")
    if known_format is not None and known_format < 1:
        raise ProtocolError("a HELLO with an invalid state format")
    epochs = read_epochs(view[at + _POSITION.size :])
    release = more[1] if more else ""
    return Hello(cluster, group, number, identity, nonce, begin, epochs, credential, known_format, release)


def _number_of(written: str) -> int:
    """Return the whole number of a text of digits, or -1."""
    return int(written) if written.isascii() and written.isdigit() and len(written) < 12 else -1


def encode_epochs(epochs: Iterable[EpochStart]) -> bytes:
    """Encode epochs, at most the latest `MAX_EPOCHS`: an `EpochMap` has no more."""
    return b"".join(_EPOCH.pack(entry.epoch, *entry.start) for entry in epochs)


def read_epochs(body: Buffer) -> EpochMap:
    """Decode epochs.

    Raise ProtocolError if they are incomplete, too many, or not rising.
    """
    if len(body) % _EPOCH.size or len(body) > MAX_EPOCHS * _EPOCH.size:
        raise ProtocolError(f"{len(body)} B are not a list of epochs")
    try:
        return EpochMap(
            EpochStart(epoch, StreamPosition(offset, sequence))
            for epoch, offset, sequence in _EPOCH.iter_unpack(memoryview(body))
        )
    except InvalidInput as error:
        raise ProtocolError(f"epochs that do not increase: {error}") from error


def encode_snapshot(epochs: Iterable[EpochStart], *, keeps_log: bool) -> bytes:
    """Return the body of a SNAPSHOT."""
    return bytes([keeps_log]) + encode_epochs(epochs)


def read_snapshot(body: Buffer) -> tuple[EpochMap, bool]:
    """Decode a SNAPSHOT: its epochs, and whether the log before its position stays.

    Raise ProtocolError if it is invalid.
    """
    view = memoryview(body)
    if not view or view[0] > 1:
        raise ProtocolError("a SNAPSHOT in an unknown format")
    return read_epochs(view[1:]), bool(view[0])


def read_epoch(body: Buffer) -> EpochStart:
    """Decode the one epoch of an EPOCH. Raise ProtocolError if it is invalid."""
    epochs = read_epochs(body)
    if len(epochs) != 1 or epochs.last is None:
        raise ProtocolError(f"an EPOCH with {len(epochs)} epochs, not one")
    return epochs.last


def encode_number(number: int) -> bytes:
    """Return the body of a GO_ON or CUT: an epoch."""
    return _NUMBER.pack(number)


def read_number(body: Buffer) -> int:
    """Decode the epoch of a GO_ON or CUT. Raise ProtocolError if it is invalid."""
    if len(body) != _NUMBER.size:
        raise ProtocolError("not an epoch")
    return int(_NUMBER.unpack(body)[0])


def encode_events(events: Iterable[JournalEvent]) -> bytes:
    """Return the body of a STATE: consecutive events."""
    parts = []
    for event in events:
        parts += [_STATE.pack(len(event.payload), event.log_offset), event.payload]
    return b"".join(parts)


def read_events(frame: ReplicationFrame) -> list[JournalEvent]:
    """Decode the events of a STATE, with their numbers.

    Raise ProtocolError if they are invalid.
    """
    view = memoryview(frame.body)
    sequence = frame.position.sequence
    found = []
    at = 0
    while at < len(view):
        if at + _STATE.size > len(view):
            raise ProtocolError("truncated events")
        length, log_offset = _STATE.unpack_from(view, at)
        payload = bytes(view[at + _STATE.size : at + _STATE.size + length])
        if not length or len(payload) != length or log_offset < 0:
            raise ProtocolError("truncated events")
        found.append(JournalEvent(sequence, log_offset, payload))
        sequence += 1
        at += _STATE.size + length
    if not found:
        raise ProtocolError("a STATE without frames")
    return found
