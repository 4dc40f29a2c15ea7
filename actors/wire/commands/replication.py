"""What a replica of a broker group is asked by whoever elects masters, and by operators.

All numbers of replicas are those of the register, from 1 on; a position is (log offset, state sequence).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from raymq.actors.errors import InvalidInput
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.told import number, reader, text

Position = tuple[int, int]

#: A status that is asked for tells of at most so many replicas.
_MOST_REPLICAS: Final = 64


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a replica says of itself after it was sealed, read from its disk; see `election.SealedState`."""

    replica: int
    identity: str
    nonce: str
    sealed: int
    epoch: int
    end: Position
    tail_lost: bool
    healthy: bool
    priority: int
    reaches_keepers: bool


@dataclass(frozen=True, slots=True)
class ReplicaLag:
    """How far a replica is behind its master, and whether it is connected."""

    log_bytes: int
    changes: int
    connected: bool


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica's own account of itself.

    Attributes:
        role: "starting", "replica", "opening", which is a master that opens its store, "master", or "refused", which
            does not come back by itself; `trouble` says why.
        nonce: that of its process: who claims its directory asks for it.
        serves: it is master, its lease holds and its disk takes writes.
        sealed: the epoch below which it follows no master any more.
        epoch: the one that its stream ends in, or as master its own.
        master, master_epoch: whom it believes to be master, None: nobody, by what it last read in the register.
        address: where its broker listens. replication_address: where replicas connect to it if it is master.
        begin, end, confirmed: its stream. in_sync, set_epoch: as far as it knows.
        lags: as master, by replica.
        reaches_keepers: it has read the register lately.
        trouble: what is in its way; empty: nothing.
        file_bytes: as a master that serves, how large its log files are; 0: it is none, or does not say.
    """

    replica: int
    role: str
    identity: str
    nonce: str
    pid: int
    serves: bool
    sealed: int
    epoch: int
    master: int | None
    master_epoch: int
    address: str
    replication_address: str
    begin: Position
    end: Position
    confirmed: Position
    in_sync: tuple[int, ...]
    set_epoch: int
    reaches_keepers: bool
    trouble: str = ""
    lags: Mapping[int, ReplicaLag] = field(default_factory=dict)
    file_bytes: int = 0


def seal_command(epoch: int) -> Command:
    """SEAL: follow no master of an epoch before this one any more, durably, and say what is here."""
    return Command(RequestCode.SEAL, {"epoch": epoch}, serialization=Serialization.MSGPACK)


def read_seal(request: Command) -> int:
    """The epoch of a SEAL; InvalidInput."""
    epoch = request.fields.get("epoch")
    if type(epoch) is not int or not 0 <= epoch < 1 << 31:
        raise InvalidInput("epoch", "a whole number of 31 bits", epoch)
    return epoch


def sealed_answer(request: Command, sealed: Sealed) -> Command:
    """The answer to SEAL."""
    fields = {
        "replica": sealed.replica,
        "identity": sealed.identity,
        "nonce": sealed.nonce,
        "sealed": sealed.sealed,
        "epoch": sealed.epoch,
        "end": list(sealed.end),
        "tail_lost": sealed.tail_lost,
        "healthy": sealed.healthy,
        "priority": sealed.priority,
        "reaches_keepers": sealed.reaches_keepers,
    }
    return request.response(ResponseCode.SUCCESS, fields)


@reader
def read_sealed(answer: Command) -> Sealed:
    """What a replica answers to SEAL; ProtocolError."""
    told = answer.fields
    return Sealed(
        number(told["replica"], 1),
        text(told["identity"]),
        text(told["nonce"]),
        number(told["sealed"]),
        number(told["epoch"]),
        _position(told["end"]),
        _truth(told["tail_lost"]),
        _truth(told["healthy"]),
        number(told["priority"]),
        _truth(told["reaches_keepers"]),
    )


def replica_status_command() -> Command:
    """REPLICA_STATUS."""
    return Command(RequestCode.REPLICA_STATUS, serialization=Serialization.MSGPACK)


def replica_status_answer(request: Command, status: ReplicaStatus) -> Command:
    """The answer to REPLICA_STATUS."""
    fields = {
        "replica": status.replica,
        "role": status.role,
        "identity": status.identity,
        "nonce": status.nonce,
        "pid": status.pid,
        "serves": status.serves,
        "sealed": status.sealed,
        "epoch": status.epoch,
        "master": status.master,
        "master_epoch": status.master_epoch,
        "address": status.address,
        "replication_address": status.replication_address,
        "begin": list(status.begin),
        "end": list(status.end),
        "confirmed": list(status.confirmed),
        "in_sync": list(status.in_sync),
        "set_epoch": status.set_epoch,
        "reaches_keepers": status.reaches_keepers,
        "trouble": status.trouble[:1000],
        "lags": [[each, lag.log_bytes, lag.changes, lag.connected] for each, lag in status.lags.items()],
        "file_bytes": status.file_bytes,
    }
    return request.response(ResponseCode.SUCCESS, fields)


@reader
def read_replica_status(answer: Command) -> ReplicaStatus:
    """What a replica answers to REPLICA_STATUS; ProtocolError."""
    told = answer.fields
    if len(told["in_sync"]) > _MOST_REPLICAS or len(told["lags"]) > _MOST_REPLICAS:
        raise ValueError("more replicas than a group may have")
    return ReplicaStatus(
        replica=number(told["replica"], 1),
        role=text(told["role"]),
        identity=text(told["identity"]),
        nonce=text(told["nonce"]),
        pid=number(told["pid"]),
        serves=_truth(told["serves"]),
        sealed=number(told["sealed"]),
        epoch=number(told["epoch"]),
        master=None if told["master"] is None else number(told["master"], 1),
        master_epoch=number(told["master_epoch"]),
        address=text(told["address"]),
        replication_address=text(told["replication_address"]),
        begin=_position(told["begin"]),
        end=_position(told["end"]),
        confirmed=_position(told["confirmed"]),
        in_sync=tuple(number(each, 1) for each in told["in_sync"]),
        set_epoch=number(told["set_epoch"]),
        reaches_keepers=_truth(told["reaches_keepers"]),
        trouble=text(told["trouble"]),
        lags={
            number(each, 1): ReplicaLag(number(log_bytes), number(changes), _truth(connected))
            for each, log_bytes, changes, connected in told["lags"]
        },
        file_bytes=number(told.get("file_bytes", 0)),
    )


def _position(value: Any) -> Position:
    offset, sequence = value
    return number(offset), number(sequence)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"neither true nor false: {value!r:.40}")
    return value
