"""The administration family: topics, statistics of queues and groups, a broker's own status."""

from __future__ import annotations

import json
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import BrokerInfo, MessageQueue
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.context import BrokerContext, integer, text
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.server import Handler, ServerConnection


def create_topic_command(topic: str, queues: int, *, ordered: bool) -> Command:
    """UPDATE_AND_CREATE_TOPIC; ours refuses to change a topic that exists (TopicExists) because of `exclusive`."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": ordered,
        "exclusive": True,
    }
    return Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def delete_topic_command(topic: str, *, from_broker: bool) -> Command:
    """DELETE_TOPIC_IN_BROKER or DELETE_TOPIC_IN_NAMESRV."""
    code = RequestCode.DELETE_TOPIC_IN_BROKER if from_broker else RequestCode.DELETE_TOPIC_IN_NAMESRV
    return Command(code, {"topic": topic})


def topic_stats_command(topic: str) -> Command:
    """GET_TOPIC_STATS_INFO."""
    return Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})


def consume_stats_command(group: str) -> Command:
    """GET_CONSUME_STATS of all topics of a group."""
    return Command(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group})


def status_command() -> Command:
    """STATUS (ours): a broker's or a name server's own account of itself."""
    return Command(RequestCode.STATUS, serialization=Serialization.MSGPACK)


def read_queue_table(answer: Command) -> dict[MessageQueue, dict[str, Any]]:
    """The offsetTable of an answer: RocketMQ's map whose keys are queues, written as quoted JSON."""
    table = {}
    for told, values in json.loads(bytes(answer.body))["offsetTable"].items():
        key = json.loads(told)
        table[MessageQueue(key["topic"], key["brokerName"], key["queueId"])] = values
    return table


def read_status(answer: Command) -> BrokerInfo:
    """The status in a broker's answer to STATUS."""
    return BrokerInfo.from_dict(answer.fields)


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of this family."""
    core = context.core

    async def create_topic(_: ServerConnection, request: Command) -> Command:
        read, write = integer(request, "readQueueNums"), integer(request, "writeQueueNums")
        if read != write:
            raise InvalidInput("readQueueNums", "the same as writeQueueNums", read)
        made = core.create_topic(
            text(request, "topic"),
            write,
            ordered=request.fields.get("order") == "true",
            exclusive=request.fields.get("exclusive") == "true",
        )
        await context.announce()
        return request.response(ResponseCode.SUCCESS, {"created": made})

    async def delete_topic(_: ServerConnection, request: Command) -> Command:
        if core.delete_topic(text(request, "topic")):
            await context.announce()
        return request.response(ResponseCode.SUCCESS)

    def topic_stats(_: ServerConnection, request: Command) -> Command:
        topic = text(request, "topic")
        table = {
            _queue_key(topic, core.name, queue_id): {
                "minOffset": bounds.min_offset,
                "maxOffset": bounds.max_offset,
                "lastUpdateTimestamp": bounds.last_store_timestamp_ms,
            }
            for queue_id, bounds in core.ranges(topic).items()
        }
        return request.response(ResponseCode.SUCCESS, body=json.dumps({"offsetTable": table}).encode())

    def consume_stats(_: ServerConnection, request: Command) -> Command:
        group = text(request, "consumerGroup")
        table = {}
        for topic in core.consumed_topics(group):
            for queue_id, bounds in core.ranges(topic).items():
                committed = core.committed(group, topic, queue_id)
                table[_queue_key(topic, core.name, queue_id)] = {
                    "brokerOffset": bounds.max_offset,
                    "consumerOffset": -1 if committed is None else committed,
                    "pullOffset": -1,
                    "lastTimestamp": 0,
                }
        body = {"consumeTps": 0.0, "offsetTable": table}
        return request.response(ResponseCode.SUCCESS, body=json.dumps(body).encode())

    def status(_: ServerConnection, request: Command) -> Command:
        return request.response(ResponseCode.SUCCESS, context.status().as_dict())

    return {
        RequestCode.UPDATE_AND_CREATE_TOPIC: create_topic,
        RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
        RequestCode.GET_TOPIC_STATS_INFO: topic_stats,
        RequestCode.GET_CONSUME_STATS: consume_stats,
        RequestCode.STATUS: status,
    }


def _queue_key(topic: str, broker: str, queue_id: int) -> str:
    return json.dumps({"brokerName": broker, "queueId": queue_id, "topic": topic}, separators=(",", ":"))
