"""Report, reset and copy what groups have consumed.

The commands return progress, time spans and which groups consume which topics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable
from typing import Any

import msgspec

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
from raymq.actors.wire.stepwise_handlers import coalescing_handler, steps_handler
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
    return {**_progress(context, consumption), **_relations(context, consumption), **_changes(consumption)}


def _progress(context: BrokerContext, consumption: ConsumeStats) -> Commands:
    core, groups = context.core, context.groups

    def of_group(_: ServerConnection, request: Command) -> Steps[Command]:
        header = GetConsumeStats.read(request)
        if not header.strict and header.consumer_group not in core.group_settings:
            return json_body.answer(request, {"consumeTps": 0.0, "offsetTable": {}})
        body, _lag = yield from stats(header.consumer_group, header.topic or None)
        if header.strict and (waits_for := groups.waits_for(header.consumer_group)):
            body["raymqWaitsFor"] = sorted(waits_for)
        group = context.groups.consumer_groups().get(header.consumer_group)
        body["raymqSubscribed"] = None if group is None else sorted(group.subscriptions)
        return json_body.answer(request, body)

    def of_broker(_: ServerConnection, request: Command) -> Steps[Command]:
        ordered_only = GetBrokerConsumeStats.read(request).is_order
        listed: list[msgspec.Raw] = []  # encoded with its step: a broker may have 200,000 queues of groups
        total_lag = 0
        for number, group in enumerate(sorted(core.group_settings.all())):
            if number and number % _GROUPS_AT_ONCE == 0:
                yield None
            of_topics: list[dict[str, Any]] = []
            with contextlib.suppress(GroupNotFound):  # deleted between two steps
                for topic in consumption.topics_of(group):
                    with contextlib.suppress(TopicNotFound):
                        if not ordered_only or core.topics.get(topic).order:
                            body, lag = yield from stats(group, topic)
                            of_topics.append(body)
                            total_lag += lag
            listed.append(msgspec.Raw(json_body.encode({group: of_topics})))
        members = {
            "brokerAddr": context.status().address,
            "consumeStatsList": listed,
            "totalDiff": total_lag,
            "totalInflightDiff": 0,
        }
        return json_body.answer(request, members)

    def stats(group: str, topic: str | None) -> Steps[tuple[dict[str, Any], int]]:
        """Return RocketMQ's object, and the total lag in messages."""
        lags = yield from consumption.progress_steps(group, topic)
        rate = consumption.messages_per_second(group, sorted({queue.topic for queue in lags}))
        table = yield from map_steps(lambda item: _progress_object(*item), lags.items(), _QUEUES_AT_ONCE)
        return {"consumeTps": rate, "offsetTable": dict(table)}, sum(each.lag for each in lags.values())

    def time_spans(_: ServerConnection, request: Command) -> Steps[Command]:
        header = QueryConsumeTimeSpan.read(request)
        found = yield from consumption.time_span_steps(header.group, header.topic)
        return json_body.answer(request, {"consumeTimeSpanSet": [_span_object(*each) for each in found.items()]})

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


def _changes(consumption: ConsumeStats) -> Commands:
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
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: changes(steps_handler(reset)),
        RequestCode.CLONE_GROUP_OFFSET: changes(steps_handler(clone)),
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


def _progress_object(queue: MessageQueue, progress: QueueLag) -> tuple[str, dict[str, Any]]:
    """Return RocketMQ's key and object of one queue's progress.

    Without a committed offset it has the minimum offset: RocketMQ's clients would treat a negative number as an offset.
    """
    consumed = progress.min_offset if progress.committed is None else progress.committed
    left = progress.left
    return json_body.queue_key(queue), {
        "brokerOffset": progress.max_offset,
        "consumerOffset": consumed,
        "lastTimestamp": progress.last_consumed_ms,
        "pullOffset": consumed if left is None else consumed + (left.in_flight or 0),
        "raymqCommitted": progress.committed,
        "raymqOwner": progress.owner,
        "raymqInFlight": None if left is None else left.in_flight,
        "raymqReady": None if left is None else left.ready,
        "raymqUnfinishedMillis": None if left is None else left.unfinished_ms,
    }


def _offset_table(offsets: dict[MessageQueue, int]) -> dict[str, int]:
    return {json_body.queue_key(queue): offset for queue, offset in offsets.items()}
