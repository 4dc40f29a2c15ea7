"""Administer the broker itself: its settings, its statistics and its cleaning."""

from __future__ import annotations

import json

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.broker_runtime_info import broker_runtime_info
from raymq.actors.broker.core.statistics import DAY, HOUR, MINUTE, Counter, Statistics
from raymq.actors.broker.handlers.broker_command import Commands, administrates, changes, reads
from raymq.actors.errors import ProtocolError
from raymq.actors.wire import java_properties as properties
from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.admin_commands import status_answer
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.admin_headers import ViewBrokerStats
from raymq.actors.wire.server_connection import ServerConnection


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    return {**_settings(context), **_figures(context), **_housekeeping(context)}


def _settings(context: BrokerContext) -> Commands:
    settings, topics = context.settings, context.core.topics

    async def update(_: ServerConnection, request: Command) -> Command:
        permission = topics.permission
        settings.update(properties.read(request.body))
        if topics.permission != permission:  # the next heartbeat is seconds away
            await context.announce()
        return request.response(ResponseCode.SUCCESS)

    def get(_: ServerConnection, request: Command) -> Command:
        version = json.dumps(settings.version.to_json())
        return request.response(ResponseCode.SUCCESS, {"version": version}, properties.write(settings.all()))

    return {RequestCode.UPDATE_BROKER_CONFIG: changes(update), RequestCode.GET_BROKER_CONFIG: reads(get)}


def _figures(context: BrokerContext) -> Commands:
    core = context.core

    def runtime(_: ServerConnection, request: Command) -> Command:
        return json_body.answer(request, {"table": broker_runtime_info(core, context.statistics, context.groups)})

    def counter(_: ServerConnection, request: Command) -> Command:
        header = ViewBrokerStats.read(request)
        found = _counter(context.statistics, header.stats_name, header.stats_key)
        if found is None:
            raise ProtocolError(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        now, in_bytes = context.statistics.clock(), header.stats_name.endswith("_SIZE")
        body = {
            f"stats{window}": _window_object(found, now, seconds, in_bytes)
            for window, seconds in (("Minute", MINUTE), ("Hour", HOUR), ("Day", DAY))
        }
        return json_body.answer(request, body)

    def replication(_: ServerConnection, request: Command) -> Command:
        body = {
            "haClientRuntimeInfo": {},
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": True,
            "masterCommitLogMaxOffset": core.store.max_physical_offset,
        }
        return json_body.answer(request, body)

    def status(_: ServerConnection, request: Command) -> Command:
        return status_answer(request, context.status())

    return {
        RequestCode.GET_BROKER_RUNTIME_INFO: reads(runtime),
        RequestCode.VIEW_BROKER_STATS_DATA: reads(counter),
        RequestCode.GET_BROKER_HA_STATUS: reads(replication),
        RequestCode.STATUS: reads(status),
    }


def _housekeeping(context: BrokerContext) -> Commands:
    def delete_expired(_: ServerConnection, request: Command) -> Command:
        context.core.delete_expired(asked=request.code == RequestCode.DELETE_EXPIRED_COMMITLOG)
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: administrates(delete_expired),
        RequestCode.DELETE_EXPIRED_COMMITLOG: administrates(delete_expired),
    }


def _counter(statistics: Statistics, name: str, key: str) -> Counter | None:
    """Return the counter of RocketMQ's name and key.

    The key of the broker's own counters is the cluster's name.
    """
    topic, _, group = key.partition("@")
    match name:
        case "TOPIC_PUT_NUMS" | "TOPIC_PUT_SIZE":
            return statistics.put_of(key)
        case "GROUP_GET_NUMS" | "GROUP_GET_SIZE":
            return statistics.get_of(group, topic)
        case "SNDBCK_PUT_NUMS":
            return statistics.sent_back_of(group, topic)
        case "BROKER_PUT_NUMS":
            return statistics.total_put
        case "BROKER_GET_NUMS":
            return statistics.total_get
    return None


def _window_object(counter: Counter, now: float, seconds: float, in_bytes: bool) -> dict[str, float]:
    sums = counter.sums(now, seconds)
    total = sums.bytes if in_bytes else sums.messages
    return {"avgpt": total / max(1, sums.calls), "sum": total, "tps": total / seconds}
