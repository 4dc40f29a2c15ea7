"""Handle streams (RayMQ's own): batch plans of a streaming query, and queue bounds.

A plan lists the messages that one batch of the query reads.
"""

from __future__ import annotations

import asyncio

from raymq.actors.broker.context import BrokerContext, int_field, text_field
from raymq.actors.broker.handlers.broker_command import Commands, changes, guard_target_broker, reads, reads_confirmed
from raymq.actors.errors import PermissionDenied
from raymq.actors.protocol import PERM_READ
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import ServerConnection


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    core, plans = context.core, context.core.stream_plans

    def kept(_: ServerConnection, request: Command) -> Command:
        stream = text_field(request, "stream")
        query = text_field(request, "query") or plans.latest_query(stream) or ""
        known = plans.kept(stream, query) if query else []
        return request.response(ResponseCode.SUCCESS, {"query": query, "plans": known})

    async def plan(_: ServerConnection, request: Command) -> Command:
        place = text_field(request, "stream"), text_field(request, "query"), int_field(request, "batch")
        stored = await asyncio.to_thread(plans.put, *place, bytes(request.body))
        return request.response(ResponseCode.SUCCESS, body=stored)

    def bounds(_: ServerConnection, request: Command) -> Command:
        topic, known = text_field(request, "topic"), int_field(request, "epoch", 0)
        config, store = core.topic(topic), core.store
        if not config.perm & PERM_READ:
            raise PermissionDenied(f"topic {topic} may not be read on {core.name}")
        stale = known and known != store.epoch
        queues = [
            (
                queue_id,
                *core.bounds(topic, queue_id),
                store.valid_to(topic, queue_id, known) if stale else None,
                queue_id < config.read_queues,
            )
            for queue_id in range(max(config.read_queues, config.write_queues))
        ]
        # Queues that were removed from the topic: their messages still exist.
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

    of_its_home = guard_target_broker(
        core.name, {RequestCode.STREAM_PLANS: reads_confirmed(kept), RequestCode.PLAN_BATCH: changes(plan)}
    )
    return {**of_its_home, RequestCode.TOPIC_BOUNDS: reads(bounds)}
