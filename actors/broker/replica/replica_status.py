"""Hold the state of a broker of a group, and report it in every role.

Coordinators, operators and RocketMQ's tools request it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from raymq.actors.broker.core.broker_runtime_info import VERSION, VERSION_NAME
from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.broker.replica.broker_sockets import BrokerSockets
from raymq.actors.broker.replica.leadership import Leadership
from raymq.actors.broker.replica.replica_connection import ReplicaConnection
from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.actors.broker.replication.frame_bodies import Hello
from raymq.actors.broker.replication.reconciliation import StreamExtent
from raymq.actors.broker.replication.replica_claims import make_nonce
from raymq.actors.broker.replication.replica_role import ReplicaRole, Role
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import Registered
from raymq.actors.protocol import BrokerInfo, BrokerSpec, Corruption
from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.admin_commands import status_answer
from raymq.actors.wire.commands.replication_commands import (
    FenceReply,
    ReplicaLag,
    ReplicaStatus,
    fence_answer,
    read_fence,
    replica_status_answer,
)
from raymq.actors.wire.frame import Command
from raymq.actors.wire.protocol_version import HELLO_FORMAT_VERSION
from raymq.actors.wire.server_connection import Handler, ServerConnection
from raymq.storage import directory_format
from raymq.storage.clock import boottime
from raymq.storage.files.directory_lock import ProcessLock
from raymq.storage.log.retention import DiskUsage
from raymq.storage.version import VERSION as RELEASE

#: A replica that has not read the register for this long could not keep a lease.
_REACHES_SECONDS: Final = 1.0
#: The state of a broker in STATUS; "running" in the other roles.
_STATES: Final = {Role.PROMOTING: "opening", Role.REFUSED: "refused"}
#: The roles in REPLICA_STATUS; "replica" and "master" are the others.
_ROLE_NAMES: Final = {**_STATES, Role.CANDIDATE: "starting"}


class ReplicaState:
    """The state of one broker process of a group, in every role.

    Belongs to its event loop.

    Attributes:
        address, replication_address: where clients and where replicas connect, in every role.
        nonce: that of this process.
        lock: kept until the service or the process has ended.
        metadata: the persistent metadata of the directory.
        stream: open for following, while the broker is not master.
        leadership, leader: set while it is master, the leader's service only once it serves.
        connection: its connection to its master.
        role: decides what the broker does in its group.
        registered: the register's last value; None: the claim is not made yet.
        read_at: when the register was read, by `boottime`.
        last_extent: the extent to report while the store is closed.
    """

    def __init__(
        self,
        spec: BrokerSpec,
        node_id: str,
        sockets: BrokerSockets,
        metadata: ReplicaFile,
        stream: ReplicaStream,
        lock: ProcessLock,
    ) -> None:
        self.spec = spec
        self.cluster, self.name, self.number = spec.cluster, spec.name, spec.replica + 1
        self.node_id = node_id
        self.address = f"{spec.host}:{sockets.port}"
        self.replication_address = f"{spec.host}:{sockets.replication_port}"
        self.nonce = make_nonce(secrets.token_hex(16), lock.place)
        self.lock = lock
        self.metadata = metadata
        self.stream: ReplicaStream | None = stream
        self.leadership: Leadership | None = None
        self.leader: LeaderService | None = None
        self.connection: ReplicaConnection | None = None
        self.registered: Registered | None = None
        self.read_at = -1e9
        self.last_extent = stream.extent
        self.role = ReplicaRole(self.number, self.nonce, metadata.now.fenced, asyncio.get_running_loop().time)

    @property
    def state(self) -> GroupState | None:
        """Return the register's value, as far as it is known."""
        if self.leadership is not None:
            return self.leadership.state
        value = None if self.registered is None else self.registered.value
        return value if isinstance(value, GroupState) else None

    @property
    def extent(self) -> StreamExtent:
        """Return which part of the stream this broker has."""
        if self.leadership is not None:
            return self.leadership.extent
        return self.last_extent if self.stream is None else self.stream.extent

    @property
    def reaches_keepers(self) -> bool:
        """Return True if this process could keep a lease."""
        holds = self.leadership is not None and self.leadership.lease.holds
        return holds or boottime() - self.read_at < _REACHES_SECONDS

    @property
    def is_healthy(self) -> bool:
        """Return True if the disk takes writes and the broker may become master."""
        if self.leader is not None:
            return self.leader.store.is_healthy
        stream = self.stream
        return stream is not None and stream.store.is_healthy


def handlers(member: ReplicaState, seals: Callable[[int], Awaitable[FenceReply]]) -> dict[int, Handler]:
    """Return the handlers that a broker of a group has in every role.

    `seals` fences the broker to an epoch.
    """

    async def fence(_: ServerConnection, request: Command) -> Command:
        return fence_answer(request, await seals(read_fence(request)))

    def status_of_replica(_: ServerConnection, request: Command) -> Command:
        return replica_status_answer(request, replica_status(member))

    def status(_: ServerConnection, request: Command) -> Command:
        return status_answer(request, broker_info(member))

    def ha_status(_: ServerConnection, request: Command) -> Command:
        return json_body.answer(request, _ha_status(member))

    def epoch_cache(_: ServerConnection, request: Command) -> Command:
        return json_body.answer(request, _epoch_cache(member))

    return {
        RequestCode.SEAL: fence,
        RequestCode.REPLICA_STATUS: status_of_replica,
        RequestCode.STATUS: status,
        RequestCode.GET_BROKER_HA_STATUS: ha_status,
        RequestCode.GET_BROKER_EPOCH_CACHE: epoch_cache,
    }


def replica_handlers(member: ReplicaState) -> dict[int, Handler]:
    """Return the additional handlers of a broker that is not master."""

    def runtime(_: ServerConnection, request: Command) -> Command:
        return json_body.answer(request, {"table": _figures(member)})

    return {RequestCode.GET_BROKER_RUNTIME_INFO: runtime}


def _figures(member: ReplicaState) -> dict[str, str]:
    """Return the figures that RocketMQ's tools show in a list of brokers.

    A replica neither receives nor serves messages.
    """
    none = "0.0 0.0 0.0"
    figures: dict[str, object] = {
        "brokerActive": "false",
        "brokerVersion": VERSION,
        "brokerVersionDesc": VERSION_NAME,
        "commitLogDiskRatio": DiskUsage.of(Path(member.spec.directory)).ratio,
        "commitLogMaxOffset": member.extent.end.offset,
        **dict.fromkeys(("putTps", "getFoundTps", "getTotalTps", "getTransferredTps", "getTransferedTps"), none),
        **dict.fromkeys(("msgPutTotalTodayNow", "msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning"), 0),
        **dict.fromkeys(("msgGetTotalTodayNow", "msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"), 0),
        **dict.fromkeys(("timerReadBehind", "timerOffsetBehind", "timerCongestNum", "pageCacheLockTimeMills"), 0),
        **dict.fromkeys(("timerEnqueueTps", "timerDequeueTps"), 0.0),
    }
    for name in ("send", "pull"):
        figures[f"{name}ThreadPoolQueueSize"] = figures[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = 0
    return {name: str(value) for name, value in figures.items()}


def lags(leadership: Leadership) -> dict[int, ReplicaLag]:
    """Return the lag of each replica that the master knows."""
    connected = leadership.shipping.connected()
    return {
        number: ReplicaLag(max(behind.offset, 0), max(behind.sequence, 0), number in connected)
        for number, behind in leadership.in_sync.lag().items()
    }


def replica_status(member: ReplicaState) -> ReplicaStatus:
    """Return the answer to REPLICA_STATUS."""
    leadership, state, extent, metadata = member.leadership, member.state, member.extent, member.metadata.now
    connection = member.connection
    serves = leadership is not None and leadership.serves and member.leader is not None and member.is_healthy
    return ReplicaStatus(
        replica=member.number,
        role=_ROLE_NAMES.get(member.role.role, "replica" if leadership is None else "master"),
        identity=metadata.identity,
        nonce=member.nonce,
        pid=os.getpid(),
        serves=serves,
        fenced=metadata.fenced,
        epoch=extent.epoch if leadership is None else leadership.epoch,
        master=None if state is None else state.master,
        master_epoch=0 if state is None else state.epoch,
        address=member.address,
        replication_address=member.replication_address,
        begin=extent.begin,
        end=extent.end,
        confirmed=_confirmed(member),
        in_sync=_in_sync(member),
        set_epoch=0 if state is None else state.set_epoch,
        reaches_keepers=member.reaches_keepers,
        trouble=member.role.refusal or member.role.trouble or ("" if connection is None else connection.trouble),
        lags={} if leadership is None else lags(leadership),
        file_bytes=0 if member.leader is None else member.leader.store.config.commitlog_file_bytes,
    )


def hello(member: ReplicaState, version: int) -> Hello:
    """Return the HELLO to its master, for the master's version of RayMQ's protocol."""
    extent, identity = member.extent, member.metadata.now.identity
    message = Hello(member.cluster, member.name, member.number, identity, member.nonce, extent.begin, extent.epochs)
    if version < HELLO_FORMAT_VERSION:
        return message
    return replace(message, known_format=directory_format.CURRENT_FORMAT, release=RELEASE)


def fenced(member: ReplicaState, epoch: int, *, healthy: bool) -> FenceReply:
    """Return the answer to SEAL, after the broker was fenced to that epoch."""
    extent, metadata = member.extent, member.metadata.now
    return FenceReply(
        member.number,
        metadata.identity,
        member.nonce,
        epoch,
        extent.epoch,
        extent.end,
        tail_lost=metadata.tail_lost or (member.stream is not None and member.stream.is_state_lost),
        healthy=healthy,
        priority=member.spec.priority,
        reaches_keepers=member.reaches_keepers,
    )


def broker_info(member: ReplicaState) -> BrokerInfo:
    """Return the answer to STATUS, for clients."""
    leadership, state, end = member.leadership, member.state, member.extent.end.offset
    if member.leader is not None:
        info = member.leader.status()
    else:
        found = () if member.stream is None else member.stream.store.recovery.corruption
        info = BrokerInfo(
            name=member.name,
            replica=member.spec.replica,
            role="replica",
            state=_STATES.get(member.role.role, "running"),
            epoch=0 if state is None else state.epoch,
            address=member.address,
            pid=os.getpid(),
            node_id=member.node_id,
            store=member.spec.directory,
            disk_ratio=DiskUsage.of(Path(member.spec.directory)).ratio,
            corruption=[Corruption(each.file, each.offset, each.reason) for each in found],
            version=RELEASE,
            metrics=member.spec.metrics_address,
        )
    behind = None if member.connection is None else max(0, member.connection.master_end - end)
    return replace(
        info,
        replica=member.spec.replica,
        epoch=info.epoch if leadership is None else leadership.epoch,
        in_sync=[each - 1 for each in _in_sync(member)],
        replicas=None if state is None else sorted(each - 1 for each in state.replicas),
        confirmed_offset=_confirmed(member).offset,
        end_offset=end,
        lag_bytes=behind if leadership is None else 0,
    )


def _in_sync(member: ReplicaState) -> tuple[int, ...]:
    if member.leadership is not None:
        return tuple(sorted(member.leadership.in_sync.members))
    return () if member.state is None else tuple(sorted(member.state.in_sync))


def _confirmed(member: ReplicaState) -> StreamPosition:
    if member.leadership is not None:
        return member.leadership.in_sync.confirmed
    return BEGIN if member.stream is None else member.stream.confirmed


def _ha_status(member: ReplicaState) -> Mapping[str, Any]:
    """Return RocketMQ's HARuntimeInfo.

    Its transfer speeds are 0, because they are not measured.
    """
    leadership = member.leadership
    if leadership is None:
        line, state = member.connection, member.state
        follows = line is not None and line.is_following
        master = None if state is None or state.master is None else state.replicas.get(state.master)
        now_ms = int(time.time() * 1000)
        return {
            "master": False,
            "masterCommitLogMaxOffset": 0,
            "inSyncSlaveNums": 0,
            "haConnectionInfo": [],
            "haClientRuntimeInfo": {
                "masterAddr": "" if master is None else master.address,
                "transferredByteInSecond": 0,
                "maxOffset": member.extent.end.offset,
                "lastReadTimestamp": now_ms,
                "lastWriteTimestamp": now_ms,
                "masterFlushOffset": 0,
                "isActivated": follows,
            },
        }
    end, in_sync = leadership.end, leadership.in_sync
    connections = []
    for number, lag in lags(leadership).items():
        has = in_sync.acknowledged_by(number) or BEGIN
        record = leadership.state.replicas.get(number)
        if lag.connected and record is not None:
            connections.append(
                {
                    "addr": record.address,
                    "slaveAckOffset": has.offset,
                    "diff": lag.log_bytes,
                    "inSync": number in in_sync.members,
                    "transferredByteInSecond": 0,
                    "transferFromWhere": has.offset,
                }
            )
    return {
        "master": True,
        "masterCommitLogMaxOffset": end.offset,
        "inSyncSlaveNums": len(in_sync.members) - 1,
        "haConnectionInfo": connections,
        "haClientRuntimeInfo": {},
    }


def _epoch_cache(member: ReplicaState) -> Mapping[str, Any]:
    """Return RocketMQ's EpochEntryCache."""
    entries, end = list(member.extent.epochs), member.extent.end
    ends = [entry.start.offset for entry in entries[1:]] + [end.offset]
    return {
        "clusterName": member.cluster,
        "brokerName": member.name,
        "brokerId": 0 if member.leadership is not None else member.number,
        "maxOffset": end.offset,
        "epochList": [
            {"epoch": entry.epoch, "startOffset": entry.start.offset, "endOffset": last}
            for entry, last in zip(entries, ends, strict=True)
        ],
    }
