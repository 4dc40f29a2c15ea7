"""Administration: what our own client asks for, and the families of commands that brokers serve for it."""

from __future__ import annotations

from typing import Any

from raymq.actors.protocol import BrokerInfo, MessageQueue
from raymq.actors.wire import admin_broker, admin_clients, admin_groups, admin_offsets, admin_topics, json_body
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.context import BrokerContext
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.headers.admin import DeleteTopicInBroker, GetConsumeStats, GetTopicStats, UpdateAndCreateTopic
from raymq.actors.wire.headers.route import DeleteTopicInNameServer
from raymq.actors.wire.server import Handler


def create_topic_command(topic: str, queues: int, *, ordered: bool) -> Command:
    """UPDATE_AND_CREATE_TOPIC; ours refuses to change a topic that exists (TopicExists) because of `exclusive`."""
    return UpdateAndCreateTopic(topic, queues, queues, order=ordered, exclusive=True).command()


def delete_topic_command(topic: str, *, from_broker: bool) -> Command:
    """DELETE_TOPIC_IN_BROKER or DELETE_TOPIC_IN_NAMESRV."""
    return (DeleteTopicInBroker(topic) if from_broker else DeleteTopicInNameServer(topic)).command()


def topic_stats_command(topic: str) -> Command:
    """GET_TOPIC_STATS_INFO."""
    return GetTopicStats(topic).command()


def consume_stats_command(group: str) -> Command:
    """GET_CONSUME_STATS of all topics of a group; GroupNotFound if there is none."""
    return GetConsumeStats(group, strict=True).command()


def status_command() -> Command:
    """STATUS (ours): a broker's or a name server's own account of itself."""
    return Command(RequestCode.STATUS, serialization=Serialization.MSGPACK)


def read_queue_table(answer: Command) -> dict[MessageQueue, dict[str, Any]]:
    """The offsetTable of an answer: RocketMQ's map whose keys are queues, written as quoted JSON."""
    table = json_body.read_object(answer.body)["offsetTable"]
    return {json_body.read_queue_key(key): values for key, values in table.items()}


def read_status(answer: Command) -> BrokerInfo:
    """The status in a broker's answer to STATUS."""
    return BrokerInfo.from_dict(answer.fields)


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of these families."""
    families = (admin_topics, admin_groups, admin_offsets, admin_clients, admin_broker)
    return {code: handler for family in families for code, handler in family.handlers(context).items()}
