"""Report the status of a broker of a group, as replica or master.

Coordinators, operators and RocketMQ's tools request it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from raymq.actors.broker.core.broker_runtime_info import VERSION, VERSION_NAME
from raymq.actors.broker.replica.leadership import Leadership
from raymq.actors.broker.replica.replica_process import ReplicaProcess
from raymq.actors.broker.replication.frame_bodies import Hello
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.protocol import BrokerInfo, Corruption
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
from raymq.storage.version import VERSION as RELEASE


def handlers(member: ReplicaProcess, seals: Callable[[int], Awaitable[FenceReply]]) -> dict[int, Handler]:
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


def replica_handlers(member: ReplicaProcess) -> dict[int, Handler]:
    """Return the additional handlers of a broker that is not master."""

    def runtime(_: ServerConnection, request: Command) -> Command:
        return json_body.answer(request, {"table": _figures(member)})

    return {RequestCode.GET_BROKER_RUNTIME_INFO: runtime}


def _figures(member: ReplicaProcess) -> dict[str, str]:
    """Return the figures that RocketMQ's tools show in a list of brokers.

    A replica neither receives nor serves messages.
    """
    usage = shutil.disk_usage(member.spec.directory)
    none = "0.0 0.0 0.0"
    figures: dict[str, object] = {
        "brokerActive": "false",
        "brokerVersion": VERSION,
        "brokerVersionDesc": VERSION_NAME,
        "commitLogDiskRatio": usage.used / usage.total,
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


def replica_status(member: ReplicaProcess) -> ReplicaStatus:
    """Return the answer to REPLICA_STATUS."""
    leadership, state, extent, metadata = member.leadership, member.state, member.extent, member.metadata.now
    role = "replica" if member.is_claimed else "starting"
    if leadership is not None:
        role = "opening" if _is_opening(member) else "master"
    serves = leadership is not None and leadership.serves and member.service is not None and member.is_healthy
    return ReplicaStatus(
        replica=member.number,
        role="refused" if member.refused else role,
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
        trouble=member.refused or member.trouble or ("" if member.connection is None else member.connection.trouble),
        lags={} if leadership is None else lags(leadership),
        file_bytes=0 if member.service is None else member.service.store.config.commitlog_file_bytes,
    )


def hello(member: ReplicaProcess, version: int) -> Hello:
    """Return the HELLO to its master, for the master's version of RayMQ's protocol."""
    extent, identity = member.extent, member.metadata.now.identity
    message = Hello(member.cluster, member.name, member.number, identity, member.nonce, extent.begin, extent.epochs)
    if version < HELLO_FORMAT_VERSION:
        return message
    return replace(message, known_format=directory_format.CURRENT_FORMAT, release=RELEASE)


def fenced(member: ReplicaProcess, epoch: int, *, healthy: bool) -> FenceReply:
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


def broker_info(member: ReplicaProcess) -> BrokerInfo:
    """Return the answer to STATUS, for clients."""
    leadership, state, end = member.leadership, member.state, member.extent.end.offset
    if member.service is not None:
        info = member.service.status()
    else:
        usage = shutil.disk_usage(member.spec.directory)
        found = () if member.stream is None else member.stream.store.recovery.corruption
        info = BrokerInfo(
            name=member.name,
            replica=member.spec.replica,
            role="replica",
            state="refused" if member.refused else "opening" if _is_opening(member) else "running",
            epoch=0 if state is None else state.epoch,
            address=member.address,
            pid=os.getpid(),
            node_id=member.node_id,
            store=member.spec.directory,
            disk_ratio=usage.used / usage.total,
            corruption=[Corruption(each.file, each.offset, each.reason) for each in found],
            version=RELEASE,
        )
    behind = None if member.connection is None else max(0, member.connection.master_end - end)
    return replace(
        info,
        replica=member.spec.replica,
        epoch=info.epoch if leadership is None else leadership.epoch,
        in_sync=[each - 1 for each in _in_sync(member)],
        confirmed_offset=_confirmed(member).offset,
        end_offset=end,
        lag_bytes=behind if leadership is None else 0,
    )


def _is_opening(member: ReplicaProcess) -> bool:
    """Return True if the broker is master and its store is being opened."""
    return member.leadership is not None and member.service is None and not member.leadership.has_ended


def _in_sync(member: ReplicaProcess) -> tuple[int, ...]:
    if member.leadership is not None:
        return tuple(sorted(member.leadership.in_sync.members))
    return () if member.state is None else tuple(sorted(member.state.in_sync))


def _confirmed(member: ReplicaProcess) -> StreamPosition:
    if member.leadership is not None:
        return member.leadership.in_sync.confirmed
    return BEGIN if member.stream is None else member.stream.confirmed


def _ha_status(member: ReplicaProcess) -> Mapping[str, Any]:
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


def _epoch_cache(member: ReplicaProcess) -> Mapping[str, Any]:
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
