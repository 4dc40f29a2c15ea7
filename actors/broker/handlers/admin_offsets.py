"""Report, reset and copy what groups have consumed.

The commands return progress, time spans and which groups consume which topics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable
from typing import Any

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.groups.consume_stats import ConsumeStats, QueueLag, QueueTimeSpan
from raymq.actors.broker.handlers.broker_command import Commands, changes, reads
from raymq.actors.errors import GroupNotFound, TopicNotFound
from raymq.actors.filter.tag_expression import Subscription
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.admin_headers import (
    CloneGroupOffset,
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryConsumeTimeSpan,
    QuerySubscriptionByConsumer,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
    ResetOffset,
)
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import coalescing_handler
from raymq.storage.cooperative_steps import Steps, map_steps

#: The work of one step: so many groups, or queues of one group.
_GROUPS_AT_ONCE = 20
_QUEUES_AT_ONCE = 100


def subscription_object(subscription: Subscription) -> dict[str, Any]:
    """Return a subscription as RocketMQ's object."""
    return {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": subscription.kind,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": [],
        "topic": subscription.topic,
    }


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    consumption = ConsumeStats(context.core, context.groups, context.statistics)
    return {**_progress(context, consumption), **_relations(context, consumption), **_changes(context, consumption)}


def _progress(context: BrokerContext, consumption: ConsumeStats) -> Commands:
    core, groups = context.core, context.groups

    def of_group(_: ServerConnection, request: Command) -> Steps[Command]:
        header = GetConsumeStats.read(request)
        if not header.strict and header.consumer_group not in core.group_settings:
            return json_body.answer(request, {"consumeTps": 0.0, "offsetTable": {}})
        parts, _behind = yield from stats(header.consumer_group, header.topic or None)
        if header.strict and (waits_for := groups.waits_for(header.consumer_group)):
            parts["raymqWaitsFor"] = [json_body.json_bytes(sorted(waits_for))]
        group = context.groups.consumer_groups().get(header.consumer_group)
        parts["raymqSubscribed"] = [json_body.json_bytes(None if group is None else sorted(group.subscriptions))]
        return json_body.object_response(request, parts)

    def of_broker(_: ServerConnection, request: Command) -> Steps[Command]:
        ordered_only = GetBrokerConsumeStats.read(request).is_order
        pieces, listed = [b"["], list[bytes]()
        lag = 0
        for number, group in enumerate(sorted(core.group_settings.all())):
            if number and number % _GROUPS_AT_ONCE == 0:
                pieces.append(b"".join(listed))
                listed.clear()
                yield None
            of_topics: list[bytes] = []
            with contextlib.suppress(GroupNotFound):  # deleted between two steps
                for topic in consumption.topics_of(group):
                    with contextlib.suppress(TopicNotFound):
                        if not ordered_only or core.topics.get(topic).order:
                            parts, behind_here = yield from stats(group, topic)
                            rate, table = map(b"".join, parts.values())
                            of_topics.append(b'{"consumeTps":%b,"offsetTable":%b}' % (rate, table))
                            lag += behind_here
            before = b"," if number else b""
            listed.append(b"%b{%b:[%b]}" % (before, json_body.json_bytes(group), b",".join(of_topics)))
        members = {
            "brokerAddr": [json_body.json_bytes(context.status().address)],
            "consumeStatsList": [*pieces, *listed, b"]"],
            "totalDiff": [b"%d" % lag],
            "totalInflightDiff": [b"0"],
        }
        return json_body.object_response(request, members)

    def stats(group: str, topic: str | None) -> Steps[tuple[dict[str, list[bytes]], int]]:
        """Return the members of RocketMQ's object as JSON, and the total lag in messages."""
        table = yield from consumption.progress_steps(group, topic)
        rate = consumption.messages_per_second(group, sorted({queue.topic for queue in table}))
        objects = ((json_body.queue_key(queue), _progress_object(each)) for queue, each in table.items())
        offsets = yield from json_body.object_steps(objects, _QUEUES_AT_ONCE)
        parts = {"consumeTps": [json_body.json_bytes(rate)], "offsetTable": offsets}
        return parts, sum(each.lag for each in table.values())

    def time_spans(_: ServerConnection, request: Command) -> Steps[Command]:
        header = QueryConsumeTimeSpan.read(request)
        found = yield from consumption.time_span_steps(header.group, header.topic)
        spans = yield from map_steps(lambda each: _span_object(*each), found.items(), _QUEUES_AT_ONCE)
        return json_body.answer(request, {"consumeTimeSpanSet": spans})

    return {
        RequestCode.GET_CONSUME_STATS: reads(coalescing_handler(of_group)),
        RequestCode.GET_BROKER_CONSUME_STATS: reads(coalescing_handler(of_broker)),
        RequestCode.QUERY_CONSUME_TIME_SPAN: reads(coalescing_handler(time_spans)),
    }


def _relations(context: BrokerContext, consumption: ConsumeStats) -> Commands:
    def groups_of(_: ServerConnection, request: Command) -> Command:
        return json_body.answer(
            request, {"groupList": consumption.groups_of(QueryTopicConsumeByWho.read(request).topic)}
        )

    def topics_of(_: ServerConnection, request: Command) -> Command:
        group = QueryTopicsByConsumer.read(request).group
        known = group in context.core.group_settings
        return json_body.answer(request, {"topicList": consumption.topics_of(group) if known else []})

    def subscription(_: ServerConnection, request: Command) -> Command:
        header = QuerySubscriptionByConsumer.read(request)
        group = context.groups.consumer_groups().get(header.group)
        found = None if group is None else group.subscriptions.get(header.topic)
        body = {
            "group": header.group,
            "subscriptionData": None if found is None else subscription_object(found),
            "topic": header.topic,
        }
        return json_body.answer(request, body)

    return {
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: reads(groups_of),
        RequestCode.QUERY_TOPICS_BY_CONSUMER: reads(topics_of),
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: reads(subscription),
    }


def _changes(context: BrokerContext, consumption: ConsumeStats) -> Commands:
    def reset(_: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        header = ResetOffset.read(request)
        queue_id = header.queue_id if header.queue_id >= 0 else None
        targets = yield from consumption.reset_steps(
            header.group,
            header.topic,
            timestamp_ms=header.timestamp,
            queue_id=queue_id,
            offset=header.offset if header.offset >= 0 and queue_id is not None else None,
            back_only=not header.is_force,
        )
        return json_body.answer(request, {"offsetTable": _offset_table(targets)})

    def clone(_: ServerConnection, request: Command) -> Steps[Command | Awaitable[Command]]:
        header = CloneGroupOffset.read(request)
        yield from consumption.copy_offsets_steps(header.src_group, header.dest_group, header.topic or None)
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: changes(context.in_order.claim(reset)),
        RequestCode.CLONE_GROUP_OFFSET: changes(
            context.in_order.release(clone)
        ),  # else a group could get only half of them
    }


def _span_object(queue: MessageQueue, span: QueueTimeSpan) -> dict[str, Any]:
    """Return RocketMQ's object of one queue's time span."""
    return {
        "consumeTimeStamp": span.consumed_ms,
        "delayTime": span.delay_ms,
        "maxTimeStamp": span.last_ms,
        "messageQueue": json_body.queue_object(queue),
        "minTimeStamp": span.first_ms,
    }


def _progress_object(progress: QueueLag) -> dict[str, Any]:
    """Return RocketMQ's object of one queue's progress.

    Without a committed offset it has the minimum offset: RocketMQ's clients would treat a negative number as an offset.
    """
    consumed = progress.min_offset if progress.committed is None else progress.committed
    return {
        "brokerOffset": progress.max_offset,
        "consumerOffset": consumed,
        "lastTimestamp": progress.last_consumed_ms,
        "pullOffset": consumed,
        "raymqCommitted": progress.committed,
        "raymqOwner": progress.owner,
    }


def _offset_table(offsets: dict[MessageQueue, int]) -> dict[str, int]:
    return {json_body.queue_key(queue): offset for queue, offset in offsets.items()}
