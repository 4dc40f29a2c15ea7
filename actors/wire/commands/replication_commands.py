"""Requests to a replica of a broker group, from coordinators and from operators.

All replica numbers are those of the register, from 1 on; a position is (log offset, state sequence).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from raymq.actors.errors import InvalidInput
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.response_validation import number, protocol_checked, text

Position = tuple[int, int]

#: The most replicas in a status.
_MAX_REPLICAS: Final = 64


@dataclass(frozen=True, slots=True)
class FenceReply:
    """The state of a replica after it was fenced, read from its disk; see `election.FencedState`."""

    replica: int
    identity: str
    nonce: str
    fenced: int
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
    """The status that a replica reports.

    Attributes:
        role: "starting", "replica", "opening" (a master that opens its store), "master", or "refused" (it does not
            recover by itself; `trouble` has the reason).
        nonce: the nonce of its process; a process that claims the replica's directory requests it.
        serves: it is master, its lease is valid and its disk accepts writes.
        fenced: the epoch below which it follows no master any more.
        epoch: the epoch in which its stream ends, or a master's own epoch.
        master, master_epoch: the master (None: there is none) according to its last read of the register.
        address: where its broker listens. replication_address: where replicas connect to it if it is master.
        begin, end, confirmed: its stream. in_sync, set_epoch: the in-sync set, as far as it has received it.
        lags: of a master, by replica.
        reaches_keepers: it has read the register recently.
        trouble: its current problem; empty if there is none.
        file_bytes: of a serving master, the size of its log files; 0 otherwise, or if it does not report it.
    """

    replica: int
    role: str
    identity: str
    nonce: str
    pid: int
    serves: bool
    fenced: int
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


def fence_command(epoch: int) -> Command:
    """Return SEAL: durably refuse masters of epochs below this one, and report the state."""
    return Command(RequestCode.SEAL, {"epoch": epoch}, serialization=Serialization.MSGPACK)


def read_fence(request: Command) -> int:
    """Return the epoch of a SEAL; raise InvalidInput if it is invalid."""
    epoch = request.fields.get("epoch")
    if type(epoch) is not int or not 0 <= epoch < 1 << 31:
        raise InvalidInput("epoch", "a whole number of 31 bits", epoch)
    return epoch


def fence_answer(request: Command, fenced: FenceReply) -> Command:
    """Return the answer to SEAL."""
    fields = {
        "replica": fenced.replica,
        "identity": fenced.identity,
        "nonce": fenced.nonce,
        "sealed": fenced.fenced,
        "epoch": fenced.epoch,
        "end": list(fenced.end),
        "tail_lost": fenced.tail_lost,
        "healthy": fenced.healthy,
        "priority": fenced.priority,
        "reaches_keepers": fenced.reaches_keepers,
    }
    return request.response(ResponseCode.SUCCESS, fields)


@protocol_checked
def read_fence_reply(answer: Command) -> FenceReply:
    """Return the state in a replica's answer to SEAL; raise ProtocolError if it is invalid."""
    fields = answer.fields
    return FenceReply(
        number(fields["replica"], 1),
        text(fields["identity"]),
        text(fields["nonce"]),
        number(fields["sealed"]),
        number(fields["epoch"]),
        _position(fields["end"]),
        _truth(fields["tail_lost"]),
        _truth(fields["healthy"]),
        number(fields["priority"]),
        _truth(fields["reaches_keepers"]),
    )


def replica_status_command() -> Command:
    """Return REPLICA_STATUS."""
    return Command(RequestCode.REPLICA_STATUS, serialization=Serialization.MSGPACK)


def replica_status_answer(request: Command, status: ReplicaStatus) -> Command:
    """Return the answer to REPLICA_STATUS."""
    fields = {
        "replica": status.replica,
        "role": status.role,
        "identity": status.identity,
        "nonce": status.nonce,
        "pid": status.pid,
        "serves": status.serves,
        "sealed": status.fenced,
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


@protocol_checked
def read_replica_status(answer: Command) -> ReplicaStatus:
    """Return the status in an answer to REPLICA_STATUS; raise ProtocolError if it is invalid."""
    fields = answer.fields
    if len(fields["in_sync"]) > _MAX_REPLICAS or len(fields["lags"]) > _MAX_REPLICAS:
        raise ValueError("more replicas than a group may have")
    return ReplicaStatus(
        replica=number(fields["replica"], 1),
        role=text(fields["role"]),
        identity=text(fields["identity"]),
        nonce=text(fields["nonce"]),
        pid=number(fields["pid"]),
        serves=_truth(fields["serves"]),
        fenced=number(fields["sealed"]),
        epoch=number(fields["epoch"]),
        master=None if fields["master"] is None else number(fields["master"], 1),
        master_epoch=number(fields["master_epoch"]),
        address=text(fields["address"]),
        replication_address=text(fields["replication_address"]),
        begin=_position(fields["begin"]),
        end=_position(fields["end"]),
        confirmed=_position(fields["confirmed"]),
        in_sync=tuple(number(each, 1) for each in fields["in_sync"]),
        set_epoch=number(fields["set_epoch"]),
        reaches_keepers=_truth(fields["reaches_keepers"]),
        trouble=text(fields["trouble"]),
        lags={
            number(each, 1): ReplicaLag(number(log_bytes), number(changes), _truth(connected))
            for each, log_bytes, changes, connected in fields["lags"]
        },
        file_bytes=number(fields.get("file_bytes", 0)),
    )


def _position(value: Any) -> Position:
    offset, sequence = value
    return number(offset), number(sequence)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"neither true nor false: {value!r:.40}")
    return value
