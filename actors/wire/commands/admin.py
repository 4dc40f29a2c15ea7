"""Administration: what our own client asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raymq.actors.protocol import PERM_READ, PERM_WRITE, BrokerInfo, GroupContent, MessageQueue
from raymq.actors.wire.codes import RequestCode, ResponseCode
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
from raymq.actors.wire.told import listed, number, reader, table, text, told_in

#: What a group has committed in a queue, the queue's end, and its owner; None where a broker does not know it.
Progress = tuple[int | None, int, str | None]


def create_topic_command(topic: str, queues: int, *, ordered: bool) -> Command:
    """UPDATE_AND_CREATE_TOPIC; ours refuses to change a topic that exists (TopicExists) because of `exclusive`."""
    return UpdateAndCreateTopic(topic, queues, queues, order=ordered, exclusive=True).command()


def topic_config_command(topic: str) -> Command:
    """GET_TOPIC_CONFIG."""
    return GetTopicConfig(topic).command()


@reader
def read_topic_config(answer: Command) -> UpdateAndCreateTopic:
    """The settings in an answer to GET_TOPIC_CONFIG, as the request that leaves the topic as it is; ProtocolError."""
    config = told_in(answer)
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
) -> Command:
    """UPDATE_AND_CREATE_TOPIC; what is None stays as it is known."""
    return replace(
        known,
        read_queue_nums=known.read_queue_nums if read_queues is None else read_queues,
        write_queue_nums=known.write_queue_nums if write_queues is None else write_queues,
        perm=known.perm if permission is None else permission,
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


@reader
def read_groups(answer: Command) -> list[str]:
    """The names of the groups in an answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG; ProtocolError."""
    groups: dict[str, Any] = told_in(answer)["subscriptionGroupTable"]
    return [text(group) for group in groups.keys()]  # noqa: SIM118 - what has none is refused


def delete_group_command(group: str, *, dead_letters: bool, dry_run: bool) -> Command:
    """DELETE_GROUP (ours): a group with its offsets, deliveries and retries; `dry_run` only says what there is."""
    fields = {"group": group, "dead_letters": dead_letters, "dry_run": dry_run}
    return Command(RequestCode.DELETE_GROUP, fields, serialization=Serialization.MSGPACK)


@reader
def read_group_content(answer: Command) -> GroupContent:
    """Return what a broker has of a group, from its answer to DELETE_GROUP."""
    told = answer.fields
    since = told["since_commit"]
    return GroupContent(
        exists=bool(told["exists"]),
        members=listed(told["members"], text),
        since_commit=None if since is None else float(since),
        offsets=number(told["offsets"]),
        in_flight=number(told["in_flight"]),
        retries=number(told["retries"]),
        dead_letters=number(told["dead_letters"]),
    )


def forget_topic_command(group: str, topic: str) -> Command:
    """FORGET_GROUP_TOPIC (ours): what the group has committed in the topic."""
    return Command(
        RequestCode.FORGET_GROUP_TOPIC, {"group": group, "topic": topic}, serialization=Serialization.MSGPACK
    )


@reader
def read_forgotten(answer: Command) -> int:
    """Return in how many queues a FORGET_GROUP_TOPIC has forgotten an offset."""
    return number(answer.fields["offsets"])


def reset_offset_command(group: str, topic: str, timestamp_ms: int) -> Command:
    """INVOKE_BROKER_TO_RESET_OFFSET of all queues of a topic; a negative time is the end."""
    return ResetOffset(topic, group, timestamp_ms).command()


@reader
def read_reset(answer: Command) -> dict[MessageQueue, int]:
    """Where the group goes on, in an answer to INVOKE_BROKER_TO_RESET_OFFSET; ProtocolError."""
    return table(told_in(answer)["offsetTable"], number)


def status_command() -> Command:
    """STATUS (ours): a broker's or a name server's own account of itself, with the version of its RayMQ."""
    return Command(RequestCode.STATUS, {"release": True}, serialization=Serialization.MSGPACK)


def status_answer(request: Command, status: BrokerInfo) -> Command:
    """A broker's answer to STATUS; who does not ask for the version is of a RayMQ that knows no such field."""
    told = status.as_dict()
    if not request.fields.get("release"):
        del told["version"]
    return request.response(ResponseCode.SUCCESS, told)


@reader
def read_topic_stats(answer: Command) -> dict[MessageQueue, tuple[int, int, int]]:
    """Of each queue in an answer to GET_TOPIC_STATS_INFO its minimum, its end, and when it was stored to last (ms)."""

    def stats(values: Any) -> tuple[int, int, int]:
        return number(values["minOffset"]), number(values["maxOffset"]), number(values["lastUpdateTimestamp"], -1)

    return table(told_in(answer)["offsetTable"], stats)


@reader
def read_progress(answer: Command) -> dict[MessageQueue, Progress]:
    """Of each queue in an answer to GET_CONSUME_STATS what is committed, its end, and its owner; None if unknown."""

    def progress(values: Any) -> Progress:
        committed, owner = values["raymqCommitted"], values["raymqOwner"]
        return (
            None if committed is None else number(committed),
            number(values["brokerOffset"]),
            None if owner is None else text(owner),
        )

    return table(told_in(answer)["offsetTable"], progress)


@reader
def read_waits_for(answer: Command) -> set[str]:
    """The topics that a group's members wait for in an answer to GET_CONSUME_STATS; ProtocolError."""
    return set(listed(told_in(answer).get("raymqWaitsFor", []), text))


@reader
def read_status(answer: Command) -> BrokerInfo:
    """The status in a broker's answer to STATUS; ProtocolError."""
    status = BrokerInfo.from_dict(answer.fields)
    for field in ("name", "role", "state", "address", "node_id", "store", "version"):
        text(getattr(status, field))
    for field in ("replica", "epoch", "pid"):
        number(getattr(status, field), -1)
    for field in ("confirmed_offset", "end_offset", "lag_bytes"):
        if (told := getattr(status, field)) is not None:
            number(told)
    if status.in_sync is not None:
        listed(status.in_sync, number)
    return status


@reader
def read_subscribed(answer: Command) -> set[str] | None:
    """Return the topics that a group's members subscribe to, from GET_CONSUME_STATS; None: no member is there."""
    topics = told_in(answer).get("raymqSubscribed")
    return None if topics is None else set(listed(topics, text))
