"""The group family: heartbeats and member lists. RocketMQ's shapes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raymq.actors.filter.subscription import Subscription
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.group import GetConsumerListByGroup, HeartBeat, UnregisterClient
from raymq.actors.wire.told import listed, queue, reader, text, told_in


@dataclass(frozen=True, slots=True)
class Member:
    """A client in a consumer group, as it tells brokers of itself.

    Attributes:
        subscriptions: by topic.
        consume_type, model, start: RocketMQ's words.
        waits_for: those of its topics that do not exist yet, as far as it knows.
        version: of its subscription; the highest of the group's members counts.
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
    """HEART_BEAT of one consumer."""
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


def unregister_command(client_id: str, group: str) -> Command:
    """UNREGISTER_CLIENT: a consumer leaves its group."""
    return UnregisterClient(client_id, consumer_group=group).command()


def create_group_command(group: str, retry_max_times: int | None = None) -> Command:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: make a group, with its retry topic, where it is missing.

    `retry_max_times` holds for the group from now on; None leaves what holds.
    """
    told = {"groupName": group} if retry_max_times is None else {"groupName": group, "retryMaxTimes": retry_max_times}
    return Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(told).encode())


def members_command(group: str, *, owners: bool = False) -> Command:
    """GET_CONSUMER_LIST_BY_GROUP; with `owners` also which of them fetches which queue."""
    return GetConsumerListByGroup(group, owners, waits_for=True).command()


@reader
def read_members(answer: Command) -> list[str]:
    """The client ids in an answer to GET_CONSUMER_LIST_BY_GROUP; ProtocolError."""
    return listed(told_in(answer)["consumerIdList"], text)


@reader
def read_owners(answer: Command) -> dict[MessageQueue, str]:
    """The queues in an answer to GET_CONSUMER_LIST_BY_GROUP with `owners`, and who fetches each; ProtocolError."""
    owners = listed(told_in(answer)["raymqOwners"], tuple)
    return {queue(topic, broker, queue_id): text(owner) for topic, broker, queue_id, owner in owners}


@reader
def read_awaited(answer: Command) -> set[str]:
    """The topics that members wait for in an answer to GET_CONSUMER_LIST_BY_GROUP; ProtocolError."""
    return set(listed(told_in(answer).get("raymqWaitsFor", []), text))
