"""What stands in the bodies of frames: who a replica is, epochs, and state frames.

    HELLO     count of texts u1 | (length u1 | UTF-8)* : cluster, group, replica, identity, nonce, credential, and
              to a master that speaks version 2 (`wire.own_protocol`): format, release
              begin: offset i8, sequence i8 | epochs
    SNAPSHOT  the log stays u1 | epochs           it begins at the head's position
    EPOCH     one epoch
    GO_ON     epoch u4                            the newest epoch that both have
    CUT       epoch u4
    STATE     (payload length u4 | log offset i8 | payload)*
    epochs    (epoch u4 | offset i8 | sequence i8)*

Counts follow from lengths; nothing is read that is not there. Whatever is of another form is ProtocolError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.frames import Buffer, ReplicationFrame
from raymq.actors.broker.replication.positions import StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.storage.errors import InvalidInput
from raymq.storage.state.changes import StateChange
from raymq.storage.tables.epoch_starts import MOST_EPOCHS

_EPOCH: Final = struct.Struct(">Iqq")
_POSITION: Final = struct.Struct(">qq")
_NUMBER: Final = struct.Struct(">I")
_STATE: Final = struct.Struct(">Iq")
#: How many texts a HELLO has that tells no format, and one that does. What a later version adds is passed over.
_TEXTS: Final = 6
_TEXTS_WITH_FORMAT: Final = 8
_MOST_TEXTS: Final = 32
_MOST_TEXT: Final = 255


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a replica is, and what it has; its end is the frame's position.

    Attributes:
        credential: what the cluster lets it in by; empty where access control is off.
        known_format: the newest format of a directory that its RayMQ knows (`storage.directory_format`); None: that is
            not told, as RayMQ did before masters understood it.
        release: the version of its RayMQ; empty: it is not told.
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
        """The body; InvalidInput: a text is too long."""
        texts = [self.cluster, self.group, str(self.replica), self.identity, self.nonce, self.credential]
        if self.known_format is not None:
            texts += [str(self.known_format), self.release]
        parts = [bytes([len(texts)])]
        for text in texts:
            encoded = text.encode()
            if len(encoded) > _MOST_TEXT:
                raise InvalidInput("hello", f"texts of at most {_MOST_TEXT} B", text)
            parts += [bytes([len(encoded)]), encoded]
        return b"".join((*parts, _POSITION.pack(*self.begin), encode_epochs(self.epochs)))


def read_hello(body: Buffer) -> Hello:
    """The body of a HELLO; ProtocolError."""
    view = memoryview(body)
    if not view or not (view[0] == _TEXTS or _TEXTS_WITH_FORMAT <= view[0] <= _MOST_TEXTS):
        raise ProtocolError("a HELLO of another form")
    at = 1
    texts = []
    try:
        for _ in range(view[0]):
            length = view[at]
            text = bytes(view[at + 1 : at + 1 + length])
            if len(text) != length:
                raise ProtocolError("a HELLO that ends within a text")
            texts.append(text.decode())
            at += 1 + length
        begin = StreamPosition(*_POSITION.unpack_from(view, at))
        cluster, group, replica, identity, nonce, credential, *more = texts
        number = _number_of(replica)
        known_format = _number_of(more[0]) if more else None
    except (IndexError, ValueError, struct.error) as error:
        raise ProtocolError(f"a HELLO of another form: {error}") from error
    if number < 1 or min(begin) < 0:
        raise ProtocolError("a HELLO of no replica, or from a place below 0")
    if known_format is not None and known_format < 1:
        raise ProtocolError("a HELLO of no format")
    epochs = read_epochs(view[at + _POSITION.size :])
    release = more[1] if more else ""
    return Hello(cluster, group, number, identity, nonce, begin, epochs, credential, known_format, release)


def _number_of(written: str) -> int:
    """A whole number from its digits; -1: it is none."""
    return int(written) if written.isascii() and written.isdigit() and len(written) < 12 else -1


def encode_epochs(epochs: Iterable[EpochStart]) -> bytes:
    """Epochs, the latest `MOST_EPOCHS` of them at most: an `EpochMap` has no more."""
    return b"".join(_EPOCH.pack(entry.epoch, *entry.start) for entry in epochs)


def read_epochs(body: Buffer) -> EpochMap:
    """The epochs; ProtocolError: not whole, too many, or not rising."""
    if len(body) % _EPOCH.size or len(body) > MOST_EPOCHS * _EPOCH.size:
        raise ProtocolError(f"{len(body)} B are no epochs")
    try:
        return EpochMap(
            EpochStart(epoch, StreamPosition(offset, sequence))
            for epoch, offset, sequence in _EPOCH.iter_unpack(memoryview(body))
        )
    except InvalidInput as error:
        raise ProtocolError(f"epochs that do not rise: {error}") from error


def encode_snapshot(epochs: Iterable[EpochStart], *, keeps_log: bool) -> bytes:
    """The body of a SNAPSHOT."""
    return bytes([keeps_log]) + encode_epochs(epochs)


def read_snapshot(body: Buffer) -> tuple[EpochMap, bool]:
    """The epochs of a SNAPSHOT, and whether the log before its place stays; ProtocolError."""
    view = memoryview(body)
    if not view or view[0] > 1:
        raise ProtocolError("a SNAPSHOT of another form")
    return read_epochs(view[1:]), bool(view[0])


def read_epoch(body: Buffer) -> EpochStart:
    """The one epoch of an EPOCH; ProtocolError."""
    epochs = read_epochs(body)
    if len(epochs) != 1 or epochs.last is None:
        raise ProtocolError(f"an EPOCH of {len(epochs)} epochs")
    return epochs.last


def encode_number(number: int) -> bytes:
    """The body of a GO_ON or CUT: an epoch."""
    return _NUMBER.pack(number)


def read_number(body: Buffer) -> int:
    """An epoch; ProtocolError."""
    if len(body) != _NUMBER.size:
        raise ProtocolError("no epoch")
    return int(_NUMBER.unpack(body)[0])


def encode_states(frames: Iterable[StateChange]) -> bytes:
    """The body of a STATE: frames that follow each other."""
    parts = []
    for frame in frames:
        parts += [_STATE.pack(len(frame.payload), frame.log_offset), frame.payload]
    return b"".join(parts)


def read_states(frame: ReplicationFrame) -> list[StateChange]:
    """The state frames of a STATE, with their numbers; ProtocolError."""
    view = memoryview(frame.body)
    sequence = frame.position.sequence
    found = []
    at = 0
    while at < len(view):
        if at + _STATE.size > len(view):
            raise ProtocolError("state frames that end within one")
        length, log_offset = _STATE.unpack_from(view, at)
        payload = bytes(view[at + _STATE.size : at + _STATE.size + length])
        if not length or len(payload) != length or log_offset < 0:
            raise ProtocolError("state frames that end within one")
        found.append(StateChange(sequence, log_offset, payload))
        sequence += 1
        at += _STATE.size + length
    if not found:
        raise ProtocolError("a STATE without frames")
    return found
