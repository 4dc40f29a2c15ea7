"""Create, change, list and delete topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.statistics import MINUTE
from raymq.actors.broker.core.topic_manager import FILTER_TYPES, TopicChange
from raymq.actors.broker.handlers.broker_command import Commands, changes, reads
from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.admin_headers import (
    DeleteTopicInBroker,
    GetTopicConfig,
    GetTopicStats,
    UpdateAndCreateTopic,
)
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import coalescing_handler, stepwise
from raymq.storage.cooperative_steps import Steps

#: How many topics or groups one request may change.
MAX_LISTED = 10_000


def handlers(context: BrokerContext) -> Commands:
    """Return the handlers of this family by request code."""
    return {**_changes(context), **_lists(context)}


def _changes(context: BrokerContext) -> Commands:
    topics = context.core.topics

    async def create(_: ServerConnection, request: Command) -> Command:
        header = UpdateAndCreateTopic.read(request)
        if header.exclusive:
            created = topics.create(
                header.topic,
                header.write_queue_nums,
                ordered=header.order,
                exclusive=True,
                attributes=_change_of(header).attributes,
            )
        else:
            created = header.topic not in topics
            topics.change([_change_of(header)])
        await context.settings_durable()
        await context.announce()
        return request.response(ResponseCode.SUCCESS, {"created": created})

    async def create_many(_: ServerConnection, request: Command) -> Command:
        items = json_body.read_object(request.body).get("topicConfigList")
        if not isinstance(items, list):
            raise InvalidInput("topicConfigList", "a list of topics", items)
        if len(items) > MAX_LISTED:
            raise InvalidInput("topicConfigList", f"at most {MAX_LISTED} topics", len(items))
        await stepwise(topics.change_steps(map(_read_change, items)))
        await context.settings_durable()
        await context.announce()
        return request.response(ResponseCode.SUCCESS)

    async def delete(_: ServerConnection, request: Command) -> Command:
        topic = DeleteTopicInBroker.read(request).topic
        if topics.delete(topic):
            context.statistics.forget_topic(topic)
            await context.settings_durable()
            await context.announce()
        return request.response(ResponseCode.SUCCESS)

    def delete_unused(_: ServerConnection, request: Command) -> Command:
        """Answer only: a topic's queues are deleted with it, so nothing is left to clean."""
        return request.response(ResponseCode.SUCCESS)

    return {
        RequestCode.UPDATE_AND_CREATE_TOPIC: changes(create),
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: changes(create_many),
        RequestCode.DELETE_TOPIC_IN_BROKER: changes(delete),
        RequestCode.CLEAN_UNUSED_TOPIC: changes(delete_unused),
    }


def _lists(context: BrokerContext) -> Commands:
    core = context.core

    def all_configs(_: ServerConnection, request: Command) -> Steps[Command]:
        yield None  # equal requests share one answer: 10,000 topics take 14 ms
        version = core.store.topic_configs.version.to_json()
        table = {name: config.to_json() for name, config in core.topics.all().items()}
        return json_body.answer(request, {"dataVersion": version, "topicConfigTable": table})

    def config(_: ServerConnection, request: Command) -> Command:
        return json_body.answer(request, core.topics.get(GetTopicConfig.read(request).topic).to_json())

    def system(_: ServerConnection, request: Command) -> Command:
        return json_body.answer(request, {"topicList": sorted(core.topics.system)})

    def stats(_: ServerConnection, request: Command) -> Steps[Command]:
        topic = GetTopicStats.read(request).topic
        table = {
            json_body.queue_key(MessageQueue(topic, core.name, queue_id)): {
                "minOffset": bounds.min_offset,
                "maxOffset": bounds.max_offset,
                "lastUpdateTimestamp": bounds.last_store_timestamp_ms,
            }
            for queue_id, bounds in (yield from core.range_steps(topic)).items()
        }
        counter = context.statistics.put_of(topic)
        rate = counter.sums(context.statistics.clock(), MINUTE).messages_per_second if counter else 0.0
        return json_body.answer(request, {"offsetTable": table, "topicPutTps": rate})

    return {
        RequestCode.GET_ALL_TOPIC_CONFIG: reads(coalescing_handler(all_configs)),
        RequestCode.GET_TOPIC_CONFIG: reads(config),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: reads(system),
        RequestCode.GET_TOPIC_STATS_INFO: reads(coalescing_handler(stats)),
    }


def _change_of(header: UpdateAndCreateTopic) -> TopicChange:
    pairs = (each.partition("=") for each in header.attributes.split(",") if each)
    return TopicChange(
        header.topic,
        header.read_queue_nums,
        header.write_queue_nums,
        header.perm,
        header.order,
        {name.strip(): value.strip() for name, _, value in pairs},
        header.topic_filter_type,
        header.topic_sys_flag,
    )


def _read_change(item: Any) -> TopicChange:
    if not isinstance(item, dict):
        raise InvalidInput("topicConfigList", "a list of JSON objects", item)
    attributes = item.get("attributes") or {}
    if not isinstance(attributes, Mapping):
        raise InvalidInput("attributes", "a JSON object", attributes)
    return TopicChange(
        json_body.require_text(item, "topicName"),
        _number(item, "readQueueNums", 16),
        _number(item, "writeQueueNums", 16),
        _number(item, "perm", 6),
        item.get("order") is True,
        {str(name): str(value) for name, value in attributes.items()},
        str(item.get("topicFilterType") or FILTER_TYPES[0]),
        _number(item, "topicSysFlag", 0),
    )


def _number(item: Mapping[str, Any], name: str, default: int) -> int:
    value = item.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(name, "a whole number", value)
    return value
