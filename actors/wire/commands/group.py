"""The group family: heartbeats and member lists. RocketMQ's shapes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from raymq.actors.filter.subscription import Subscription
from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.group import GetConsumerListByGroup, HeartBeat, UnregisterClient
from raymq.actors.wire.told import listed, queue, reader, text, told_in


def heartbeat_command(
    client_id: str,
    group: str,
    subscriptions: Mapping[str, Subscription],
    *,
    model: str,
    start: str,
    consume_type: str = "CONSUME_PASSIVELY",
) -> Command:
    """HEART_BEAT of one consumer; `subscriptions` are by topic, the rest are RocketMQ's words."""
    consumer = {
        "groupName": group,
        "consumeType": consume_type,
        "messageModel": model,
        "consumeFromWhere": start,
        "unitMode": False,
        "subscriptionDataSet": [
            {"topic": topic, "subString": subscription.expression, "expressionType": subscription.kind}
            for topic, subscription in sorted(subscriptions.items())
        ],
    }
    body = {"clientID": client_id, "producerDataSet": [], "consumerDataSet": [consumer]}
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
    return GetConsumerListByGroup(group, owners).command()


@reader
def read_members(answer: Command) -> list[str]:
    """The client ids in an answer to GET_CONSUMER_LIST_BY_GROUP; ProtocolError."""
    return listed(told_in(answer)["consumerIdList"], text)


@reader
def read_owners(answer: Command) -> dict[MessageQueue, str]:
    """The queues in an answer to GET_CONSUMER_LIST_BY_GROUP with `owners`, and who fetches each; ProtocolError."""
    owners = listed(told_in(answer)["raymqOwners"], tuple)
    return {queue(topic, broker, queue_id): text(owner) for topic, broker, queue_id, owner in owners}
