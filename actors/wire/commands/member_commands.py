"""The member family.

The members of a group with their subscriptions, and what one of them is doing.

The shapes are RocketMQ's. What a member reports about its listener calls is in fields of our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raymq.actors.filter.tag_expression import Subscription
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire import json_body
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.admin_headers import (
    GetConsumerConnectionList,
    GetConsumerRunningInfo,
    UpdateAndGetGroupForbidden,
    ViewBrokerStats,
)
from raymq.actors.wire.response_validation import (
    number,
    parse_queue,
    protocol_checked,
    read_json_answer,
    read_list,
    text,
)

_MAX_CALLS = 1_000


@dataclass(frozen=True, slots=True)
class ConnectedMember:
    """A client that a broker has in a consumer group."""

    client_id: str
    address: str
    language: str


@dataclass(frozen=True, slots=True)
class GroupConnections:
    """The members of a group at one broker.

    `subscriptions` are those that a member sent last, by topic: the kind ("TAG" or "SQL92") and the expression.
    """

    members: Sequence[ConnectedMember]
    consume_type: str
    message_model: str
    subscriptions: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class CallStatus:
    """A running call of a member's listener with messages of one queue."""

    queue: MessageQueue
    seconds: float


@dataclass(frozen=True, slots=True)
class RepeatedMessage:
    """A message of an ordered queue that failed and is tried again in place."""

    queue: MessageQueue
    queue_offset: int
    message_id: str
    tries: int
    failure: str


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What a member of a group is doing, as it reports itself."""

    calls: Sequence[CallStatus] = ()
    repeated: Sequence[RepeatedMessage] = ()
    paused: bool = False


def connections_command(group: str) -> Command:
    """Return GET_CONSUMER_CONNECTION_LIST."""
    return GetConsumerConnectionList(group).command()


@protocol_checked
def read_connections(answer: Command) -> GroupConnections:
    """Return the members in an answer to GET_CONSUMER_CONNECTION_LIST."""
    body = read_json_answer(answer)

    def member(data: Any) -> ConnectedMember:
        return ConnectedMember(text(data["clientId"]), text(data["clientAddr"]), text(data["language"]))

    def subscription(data: Any) -> tuple[str, str]:
        return text(data["expressionType"]), text(data["subString"])

    return GroupConnections(
        read_list(body["connectionSet"], member),
        text(body["consumeType"]),
        text(body["messageModel"]),
        {text(topic): subscription(data) for topic, data in body["subscriptionTable"].items()},
    )


def member_status_command(group: str, client_id: str) -> Command:
    """Return GET_CONSUMER_RUNNING_INFO, which a broker of the group relays to the member."""
    return GetConsumerRunningInfo(group, client_id).command()


def is_status_request(request: Command, group: str, client_id: str) -> bool:
    """Return True if a broker's request asks this member of this group for its status."""
    if request.code != GetConsumerRunningInfo.CODE:
        return False
    header = GetConsumerRunningInfo.read(request)
    return (header.consumer_group, header.client_id) == (group, client_id)


def member_status_answer(
    request: Command, status: MemberStatus, subscriptions: Mapping[str, Subscription], in_flight: Mapping[str, int]
) -> Command:
    """Return a member's answer to GET_CONSUMER_RUNNING_INFO, for RocketMQ's tools too.

    `in_flight` are the numbers of its fetched messages that are not finished, by topic.
    """
    body = {
        "properties": {"raymqPaused": str(status.paused).lower()},
        "subscriptionSet": [
            {"topic": topic, "subString": each.expression, "expressionType": each.kind}
            for topic, each in sorted(subscriptions.items())
        ],
        "mqTable": {},
        "statusTable": {},
        "raymqInFlight": dict(in_flight),
        "raymqPaused": status.paused,
        "raymqCalls": [
            {**json_body.queue_object(each.queue), "milliseconds": int(each.seconds * 1000)}
            for each in status.calls[:_MAX_CALLS]
        ],
        "raymqRepeated": [
            {
                **json_body.queue_object(each.queue),
                "queueOffset": each.queue_offset,
                "msgId": each.message_id,
                "tries": each.tries,
                "failure": each.failure,
            }
            for each in status.repeated[:_MAX_CALLS]
        ],
    }
    return json_body.answer(request, body)


@protocol_checked
def read_member_status(answer: Command) -> MemberStatus:
    """Return what a member answered to GET_CONSUMER_RUNNING_INFO.

    Raise ProtocolError for the answer of a client that is not RayMQ's.
    """
    body = read_json_answer(answer)

    def call(data: Any) -> CallStatus:
        return CallStatus(parse_queue(data), number(data["milliseconds"]) / 1000)

    def message(data: Any) -> RepeatedMessage:
        return RepeatedMessage(
            parse_queue(data),
            number(data["queueOffset"]),
            text(data["msgId"]),
            number(data["tries"]),
            text(data["failure"]),
        )

    return MemberStatus(
        read_list(body["raymqCalls"], call),
        read_list(body["raymqRepeated"], message),
        body["raymqPaused"] is True,
    )


def forbidden_command(group: str, topic: str) -> Command:
    """Return UPDATE_AND_GET_GROUP_FORBIDDEN that only asks whether a group may read a topic."""
    return UpdateAndGetGroupForbidden(group, topic).command()


@protocol_checked
def read_is_readable(answer: Command) -> bool:
    """Return whether the group may read the topic."""
    return read_json_answer(answer)["readable"] is not False


def counter_command(name: str, key: str) -> Command:
    """Return VIEW_BROKER_STATS_DATA of one counter, such as TOPIC_PUT_NUMS of a topic."""
    return ViewBrokerStats(name, key).command()


@protocol_checked
def read_rate(answer: Command) -> float:
    """Return the mean of a counter per second over the last minute."""
    rate = read_json_answer(answer)["statsMinute"]["tps"]
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise TypeError(f"not a number: {rate!r:.40}")
    return float(rate)
