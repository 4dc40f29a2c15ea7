"""Administration: what our own client asks for, and the families of commands that brokers serve for it."""

from __future__ import annotations

from typing import Any

from raymq.actors.protocol import BrokerInfo, MessageQueue
from raymq.actors.wire import admin_broker, admin_clients, admin_groups, admin_offsets, admin_topics, json_body
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.context import BrokerContext
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.headers.admin import (
    DeleteTopicInBroker,
    GetConsumeStats,
    GetTopicConfig,
    GetTopicStats,
    ResetOffset,
    UpdateAndCreateTopic,
)
from raymq.actors.wire.headers.route import DeleteTopicInNameServer
from raymq.actors.wire.server import Handler
from raymq.storage.topic_config import TopicConfig


def create_topic_command(topic: str, queues: int, *, ordered: bool) -> Command:
    """UPDATE_AND_CREATE_TOPIC; ours refuses to change a topic that exists (TopicExists) because of `exclusive`."""
    return UpdateAndCreateTopic(topic, queues, queues, order=ordered, exclusive=True).command()


def topic_config_command(topic: str) -> Command:
    """GET_TOPIC_CONFIG."""
    return GetTopicConfig(topic).command()


def read_topic_config(answer: Command) -> TopicConfig:
    """The settings in an answer to GET_TOPIC_CONFIG."""
    told = json_body.read_answer(answer.body)
    return TopicConfig.from_json(told["topicName"], told)


def update_topic_command(
    known: TopicConfig,
    *,
    read_queues: int | None,
    write_queues: int | None,
    permission: int | None,
    ordered: bool | None,
) -> Command:
    """UPDATE_AND_CREATE_TOPIC; what is None stays as it is known."""
    told = known.to_json()
    return UpdateAndCreateTopic(
        known.name,
        known.read_queues if read_queues is None else read_queues,
        known.write_queues if write_queues is None else write_queues,
        perm=known.perm if permission is None else permission,
        topic_filter_type=told["topicFilterType"],
        topic_sys_flag=told["topicSysFlag"],
        order=known.order if ordered is None else ordered,
    ).command()


def delete_topic_command(topic: str, *, from_broker: bool) -> Command:
    """DELETE_TOPIC_IN_BROKER or DELETE_TOPIC_IN_NAMESRV."""
    return (DeleteTopicInBroker(topic) if from_broker else DeleteTopicInNameServer(topic)).command()


def topic_stats_command(topic: str) -> Command:
    """GET_TOPIC_STATS_INFO."""
    return GetTopicStats(topic).command()


def consume_stats_command(group: str) -> Command:
    """GET_CONSUME_STATS of all topics of a group; GroupNotFound if there is none."""
    return GetConsumeStats(group, strict=True).command()


def all_groups_command() -> Command:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    return Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)


def read_groups(answer: Command) -> list[str]:
    """The names of the groups in an answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    return list(json_body.read_answer(answer.body)["subscriptionGroupTable"])


def reset_offset_command(group: str, topic: str, timestamp_ms: int) -> Command:
    """INVOKE_BROKER_TO_RESET_OFFSET of all queues of a topic; a negative time is the end."""
    return ResetOffset(topic, group, timestamp_ms).command()


def read_reset(answer: Command) -> dict[MessageQueue, int]:
    """Where the group goes on, in an answer to INVOKE_BROKER_TO_RESET_OFFSET."""
    table = json_body.read_answer(answer.body)["offsetTable"]
    return {json_body.read_queue_key(key): offset for key, offset in table.items()}


def status_command() -> Command:
    """STATUS (ours): a broker's or a name server's own account of itself."""
    return Command(RequestCode.STATUS, serialization=Serialization.MSGPACK)


def read_queue_table(answer: Command) -> dict[MessageQueue, dict[str, Any]]:
    """The offsetTable of an answer: RocketMQ's map whose keys are queues, written as quoted JSON."""
    table = json_body.read_answer(answer.body)["offsetTable"]
    return {json_body.read_queue_key(key): values for key, values in table.items()}


def read_status(answer: Command) -> BrokerInfo:
    """The status in a broker's answer to STATUS."""
    return BrokerInfo.from_dict(answer.fields)


def handlers(context: BrokerContext) -> dict[int, Handler]:
    """What a broker serves of these families."""
    families = (admin_topics, admin_groups, admin_offsets, admin_clients, admin_broker)
    return {code: handler for family in families for code, handler in family.handlers(context).items()}
