"""Administrative commands that RayMQ's own client sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from raymq.actors.protocol import (
    MESSAGE_TYPE,
    PERM_READ,
    PERM_WRITE,
    BrokerInfo,
    GroupContent,
    MessageQueue,
    MessageType,
)
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.headers.admin_headers import (
    DeleteTopicInBroker,
    GetConsumeStats,
    GetTopicConfig,
    GetTopicStats,
    QueryTopicConsumeByWho,
    ResetOffset,
    UpdateAndCreateTopic,
)
from raymq.actors.wire.headers.route_headers import DeleteTopicInNameServer
from raymq.actors.wire.response_validation import number, protocol_checked, read_json_answer, read_list, table, text


@dataclass(frozen=True, slots=True)
class ConsumeProgress:
    """A broker's answer about a group in one queue.

    What it does not know is None.
    """

    committed_offset: int | None
    max_offset: int
    owner: str | None
    in_flight: int | None
    ready: int | None
    oldest_unfinished_ms: int | None


def create_topic_command(topic: str, queues: int, *, ordered: bool, message_type: MessageType | None = None) -> Command:
    """Return UPDATE_AND_CREATE_TOPIC with our `exclusive`.

    Because of it RayMQ's broker answers TopicExists instead of changing a topic that exists.
    """
    attributes = _attributes(message_type)
    return UpdateAndCreateTopic(topic, queues, queues, order=ordered, attributes=attributes, exclusive=True).command()


def _attributes(message_type: MessageType | None) -> str:
    return "" if message_type is None else f"+{MESSAGE_TYPE}={message_type.value}"


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of a topic on one broker, and its attributes."""

    request: UpdateAndCreateTopic
    attributes: Mapping[str, str]


@protocol_checked
def read_topic_settings(answer: Command) -> TopicSettings:
    """Return the settings in an answer to GET_TOPIC_CONFIG."""
    attributes = read_json_answer(answer).get("attributes") or {}
    return TopicSettings(read_topic_config(answer), {text(name): text(value) for name, value in attributes.items()})


def topic_config_command(topic: str) -> Command:
    """Return GET_TOPIC_CONFIG."""
    return GetTopicConfig(topic).command()


@protocol_checked
def read_topic_config(answer: Command) -> UpdateAndCreateTopic:
    """Return the topic settings in an answer to GET_TOPIC_CONFIG.

    They are returned as the request that would leave the topic unchanged. Raise ProtocolError if they are invalid.
    """
    config = read_json_answer(answer)
    return UpdateAndCreateTopic(
        text(config["topicName"]),
        number(config.get("readQueueNums", 16)),
        number(config.get("writeQueueNums", 16)),
        perm=number(config.get("perm", PERM_READ | PERM_WRITE)),
        topic_filter_type=text(config.get("topicFilterType", "SINGLE_TAG")),
        topic_sys_flag=number(config.get("topicSysFlag", 0)),
        order=bool(config.get("order", False)),
    )


def update_topic_command(
    known: UpdateAndCreateTopic,
    *,
    read_queues: int | None,
    write_queues: int | None,
    permission: int | None,
    ordered: bool | None,
    message_type: MessageType | None = None,
) -> Command:
    """Return UPDATE_AND_CREATE_TOPIC; settings that are None stay as in `known`."""
    return replace(
        known,
        read_queue_nums=known.read_queue_nums if read_queues is None else read_queues,
        write_queue_nums=known.write_queue_nums if write_queues is None else write_queues,
        perm=known.perm if permission is None else permission,
        order=known.order if ordered is None else ordered,
        attributes=_attributes(message_type),
    ).command()


def delete_topic_command(topic: str, *, from_broker: bool) -> Command:
    """Return DELETE_TOPIC_IN_BROKER or DELETE_TOPIC_IN_NAMESRV."""
    return (DeleteTopicInBroker(topic) if from_broker else DeleteTopicInNameServer(topic)).command()


def topic_stats_command(topic: str) -> Command:
    """Return GET_TOPIC_STATS_INFO."""
    return GetTopicStats(topic).command()


def groups_of_command(topic: str) -> Command:
    """Return QUERY_TOPIC_CONSUME_BY_WHO."""
    return QueryTopicConsumeByWho(topic).command()


@protocol_checked
def read_groups_of(answer: Command) -> list[str]:
    """Return the groups that consume a topic, from an answer to QUERY_TOPIC_CONSUME_BY_WHO."""
    return read_list(read_json_answer(answer)["groupList"], text)


def consume_stats_command(group: str) -> Command:
    """Return GET_CONSUME_STATS of all topics of a group.

    The answer is GroupNotFound if the group does not exist.
    """
    return GetConsumeStats(group, strict=True).command()


def all_groups_command() -> Command:
    """Return GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    return Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)


@protocol_checked
def read_groups(answer: Command) -> list[str]:
    """Return the names of the groups in an answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG.

    Raise ProtocolError if it is invalid.
    """
    groups: dict[str, Any] = read_json_answer(answer)["subscriptionGroupTable"]
    return [text(group) for group in groups.keys()]  # noqa: SIM118 - an object without keys() is refused


def delete_group_command(group: str, *, dead_letters: bool, dry_run: bool) -> Command:
    """Return DELETE_GROUP (ours): delete a group with its offsets, deliveries and retries.

    With `dry_run` the broker only reports what there is.
    """
    fields = {"group": group, "dead_letters": dead_letters, "dry_run": dry_run}
    return Command(RequestCode.DELETE_GROUP, fields, serialization=Serialization.MSGPACK)


@protocol_checked
def read_group_content(answer: Command) -> GroupContent:
    """Return a broker's data of a group, from its answer to DELETE_GROUP."""
    fields = answer.fields
    since = fields["since_commit"]
    return GroupContent(
        exists=bool(fields["exists"]),
        members=read_list(fields["members"], text),
        since_commit=None if since is None else float(since),
        offsets=number(fields["offsets"]),
        in_flight=number(fields["in_flight"]),
        retries=number(fields["retries"]),
        dead_letters=number(fields["dead_letters"]),
    )


def forget_topic_command(group: str, topic: str) -> Command:
    """Return FORGET_GROUP_TOPIC (ours): delete the group's committed offsets in the topic."""
    return Command(
        RequestCode.FORGET_GROUP_TOPIC, {"group": group, "topic": topic}, serialization=Serialization.MSGPACK
    )


@protocol_checked
def read_forgotten(answer: Command) -> int:
    """Return in how many queues a FORGET_GROUP_TOPIC has deleted an offset."""
    return number(answer.fields["offsets"])


def reset_offset_command(group: str, topic: str, timestamp_ms: int) -> Command:
    """Return INVOKE_BROKER_TO_RESET_OFFSET for all queues of a topic.

    A negative time means the end of the queues.
    """
    return ResetOffset(topic, group, timestamp_ms).command()


@protocol_checked
def read_reset(answer: Command) -> dict[MessageQueue, int]:
    """Return the new offsets in an answer to INVOKE_BROKER_TO_RESET_OFFSET.

    Raise ProtocolError if they are invalid.
    """
    return table(read_json_answer(answer)["offsetTable"], number)


def status_command() -> Command:
    """Return STATUS (ours): request the status of a broker or a name server.

    The answer includes the version of its RayMQ.
    """
    return Command(RequestCode.STATUS, {"release": True}, serialization=Serialization.MSGPACK)


def status_answer(request: Command, status: BrokerInfo) -> Command:
    """Return a broker's answer to STATUS.

    The version is left out if the request does not ask for it: the client's RayMQ does not know that field.
    """
    fields = status.as_dict()
    if not request.fields.get("release"):
        del fields["version"]
    return request.response(ResponseCode.SUCCESS, fields)


@protocol_checked
def read_topic_stats(answer: Command) -> dict[MessageQueue, tuple[int, int, int]]:
    """Return (minimum, end, last store time in ms) of each queue.

    They are read from an answer to GET_TOPIC_STATS_INFO.
    """

    def stats(values: Any) -> tuple[int, int, int]:
        return number(values["minOffset"]), number(values["maxOffset"]), number(values["lastUpdateTimestamp"], -1)

    return table(read_json_answer(answer)["offsetTable"], stats)


@protocol_checked
def read_progress(answer: Command) -> dict[MessageQueue, ConsumeProgress]:
    """Return each queue's progress from an answer to GET_CONSUME_STATS."""

    def known(value: Any) -> int | None:
        return None if value is None else number(value)

    def progress(values: Any) -> ConsumeProgress:
        owner = values["raymqOwner"]
        return ConsumeProgress(
            known(values["raymqCommitted"]),
            number(values["brokerOffset"]),
            None if owner is None else text(owner),
            known(values.get("raymqInFlight")),
            known(values.get("raymqReady")),
            known(values.get("raymqUnfinishedMillis")),
        )

    return table(read_json_answer(answer)["offsetTable"], progress)


@protocol_checked
def read_missing_topics(answer: Command) -> set[str]:
    """Return the missing topics for which a group's members wait.

    They are read from an answer to GET_CONSUME_STATS. Raise ProtocolError if they are invalid.
    """
    return set(read_list(read_json_answer(answer).get("raymqWaitsFor", []), text))


@protocol_checked
def read_status(answer: Command) -> BrokerInfo:
    """Return the status in a broker's answer to STATUS; raise ProtocolError if it is invalid."""
    status = BrokerInfo.from_dict(answer.fields)
    for field in ("name", "role", "state", "address", "node_id", "store", "version"):
        text(getattr(status, field))
    for field in ("replica", "epoch", "pid"):
        number(getattr(status, field), -1)
    for field in ("confirmed_offset", "end_offset", "lag_bytes"):
        if (value := getattr(status, field)) is not None:
            number(value)
    if status.in_sync is not None:
        read_list(status.in_sync, number)
    return status


@protocol_checked
def read_subscribed(answer: Command) -> set[str] | None:
    """Return the topics to which a group's members subscribe; None without a member.

    They are read from an answer to GET_CONSUME_STATS.
    """
    topics = read_json_answer(answer).get("raymqSubscribed")
    return None if topics is None else set(read_list(topics, text))
