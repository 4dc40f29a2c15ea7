"""Streams (ours): a register of which messages each batch of a streaming query reads, and the queues' bounds."""

from __future__ import annotations

import asyncio

from raymq.actors.broker.context import BrokerContext, integer, text
from raymq.actors.broker.handlers.by_name import by_name
from raymq.actors.errors import PermissionDenied
from raymq.actors.protocol import PERM_READ
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    core, plans = context.core, context.core.stream_plans

    def kept(_: ServerConnection, request: Command) -> Command:
        stream = text(request, "stream")
        query = text(request, "query") or plans.latest_query(stream) or ""
        known = plans.kept(stream, query) if query else []
        return request.response(ResponseCode.SUCCESS, {"query": query, "plans": known})

    async def plan(_: ServerConnection, request: Command) -> Command:
        place = text(request, "stream"), text(request, "query"), integer(request, "batch")
        standing = await asyncio.to_thread(plans.put, *place, bytes(request.body))
        return request.response(ResponseCode.SUCCESS, body=standing)

    def bounds(_: ServerConnection, request: Command) -> Command:
        topic, known = text(request, "topic"), integer(request, "epoch", 0)
        config, store = core.topic(topic), core.store
        if not config.perm & PERM_READ:
            raise PermissionDenied(f"topic {topic} may not be read on {core.name}")
        stale = known and known != store.epoch
        queues = [
            (
                queue_id,
                *core.bounds(topic, queue_id),
                store.kept_to(topic, queue_id, known) if stale else None,
                queue_id < config.read_queues,
            )
            for queue_id in range(max(config.read_queues, config.write_queues))
        ]
        # Queues that were taken from the topic: their messages are still there.
        queues += [
            (queue_id, store.min_offset(topic, queue_id), store.max_offset(topic, queue_id), None, False)
            for queue_id in store.queues(topic)
            if queue_id >= len(queues)
        ]
        fields = {
            "topicId": config.topic_id,
            "epoch": store.epoch,
            "queues": queues,
            "incarnation": store.incarnation(topic),
        }
        return request.response(ResponseCode.SUCCESS, fields)

    of_its_home = by_name(core.name, {RequestCode.STREAM_PLANS: kept, RequestCode.PLAN_BATCH: plan})
    return {**of_its_home, RequestCode.TOPIC_BOUNDS: bounds}
