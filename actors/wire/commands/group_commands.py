"""The group family: heartbeats and member lists, in RocketMQ's shapes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raymq.actors.filter.tag_expression import Subscription
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.group_headers import GetConsumerListByGroup, HeartBeat, UnregisterClient
from raymq.actors.wire.response_validation import protocol_checked, queue, read_json_answer, read_list, text


@dataclass(frozen=True, slots=True)
class Member:
    """A client in a consumer group, as it describes itself to brokers.

    Attributes:
        subscriptions: by topic.
        consume_type, model, start: RocketMQ's words.
        waits_for: those of its topics that, to its knowledge, do not exist yet.
        version: of its subscription; the highest one among the group's members is in force.
    """

    client_id: str
    group: str
    subscriptions: Mapping[str, Subscription]
    consume_type: str = "CONSUME_PASSIVELY"
    model: str = "CLUSTERING"
    start: str = "CONSUME_FROM_FIRST_OFFSET"
    waits_for: frozenset[str] = frozenset()
    version: int = 0


def heartbeat_command(member: Member) -> Command:
    """Return HEART_BEAT of one consumer."""
    consumer: dict[str, Any] = {
        "groupName": member.group,
        "consumeType": member.consume_type,
        "messageModel": member.model,
        "consumeFromWhere": member.start,
        "unitMode": False,
        "raymqSubscriptionVersion": member.version,
        "subscriptionDataSet": [
            {"topic": topic, "subString": subscription.expression, "expressionType": subscription.kind}
            for topic, subscription in sorted(member.subscriptions.items())
        ],
    }
    if member.waits_for:
        consumer["raymqWaitsFor"] = sorted(member.waits_for)
    body = {"clientID": member.client_id, "producerDataSet": [], "consumerDataSet": [consumer]}
    return HeartBeat(strict=True).command(json.dumps(body).encode())


def producer_heartbeat_command(client_id: str, group: str) -> Command:
    """Return HEART_BEAT of one producer."""
    body = {"clientID": client_id, "producerDataSet": [{"groupName": group}], "consumerDataSet": []}
    return HeartBeat(strict=True).command(json.dumps(body).encode())


def unregister_producer_command(client_id: str, group: str) -> Command:
    """Return UNREGISTER_CLIENT: a producer leaves its group."""
    return UnregisterClient(client_id, producer_group=group).command()


def unregister_command(client_id: str, group: str) -> Command:
    """Return UNREGISTER_CLIENT: a consumer leaves its group."""
    return UnregisterClient(client_id, consumer_group=group).command()


def create_group_command(group: str, retry_max_times: int | None = None) -> Command:
    """Return UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: create a group and its retry topic.

    What exists already is kept. `retry_max_times` applies to the group from now on; None leaves the current value.
    """
    config = {"groupName": group} if retry_max_times is None else {"groupName": group, "retryMaxTimes": retry_max_times}
    return Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(config).encode())


def members_command(group: str, *, owners: bool = False) -> Command:
    """Return GET_CONSUMER_LIST_BY_GROUP.

    With `owners` the answer also has the member that fetches each queue.
    """
    return GetConsumerListByGroup(group, owners, waits_for=True).command()


@protocol_checked
def read_members(answer: Command) -> list[str]:
    """Return the client ids in an answer to GET_CONSUMER_LIST_BY_GROUP.

    Raise ProtocolError if they are invalid.
    """
    return read_list(read_json_answer(answer)["consumerIdList"], text)


@protocol_checked
def read_owners(answer: Command) -> dict[MessageQueue, str]:
    """Return the member that fetches each queue.

    It is read from an answer to GET_CONSUMER_LIST_BY_GROUP with `owners`. Raise ProtocolError if it is invalid.
    """
    owners = read_list(read_json_answer(answer)["raymqOwners"], tuple)
    return {queue(topic, broker, queue_id): text(owner) for topic, broker, queue_id, owner in owners}


@protocol_checked
def read_awaited_topics(answer: Command) -> set[str]:
    """Return the missing topics for which members wait.

    They are read from an answer to GET_CONSUMER_LIST_BY_GROUP. Raise ProtocolError if they are invalid.
    """
    return set(read_list(read_json_answer(answer).get("raymqWaitsFor", []), text))
