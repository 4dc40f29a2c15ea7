"""What is asked of a whole broker when brokers come and go: what it lets clients do, all its topics and groups."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from raymq.actors.wire import java_properties
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.told import reader, text, told_in

#: RocketMQ's setting: a sum of 4 (read) and 2 (write) for all topics of the broker.
_PERMISSION = "brokerPermission"


def settings_command() -> Command:
    """GET_BROKER_CONFIG."""
    return Command(RequestCode.GET_BROKER_CONFIG)


@reader
def read_permission(answer: Command) -> int:
    """What the broker lets clients do with its topics."""
    return int(java_properties.read(answer.body)[_PERMISSION])


def permit_command(permission: int) -> Command:
    """UPDATE_BROKER_CONFIG: let clients do this from now on; it survives restarts."""
    return Command(RequestCode.UPDATE_BROKER_CONFIG, body=java_properties.write({_PERMISSION: str(permission)}))


def all_topics_command() -> Command:
    """GET_ALL_TOPIC_CONFIG."""
    return Command(RequestCode.GET_ALL_TOPIC_CONFIG)


def all_groups_command() -> Command:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    return Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)


@reader
def read_all_topics(answer: Command) -> dict[str, dict[str, Any]]:
    """Each topic's settings as RocketMQ's object."""
    return _objects(told_in(answer)["topicConfigTable"])


@reader
def read_all_groups(answer: Command) -> dict[str, dict[str, Any]]:
    """Each consumer group's settings as RocketMQ's object."""
    return _objects(told_in(answer)["subscriptionGroupTable"])


def make_topics_command(topics: Sequence[Mapping[str, Any]]) -> Command:
    """UPDATE_AND_CREATE_TOPIC_LIST."""
    return Command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=json.dumps({"topicConfigList": topics}).encode())


def make_groups_command(groups: Sequence[Mapping[str, Any]]) -> Command:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""
    body = json.dumps({"groupConfigList": groups}).encode()
    return Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body)


def _objects(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {text(name): dict(each) for name, each in table.items()}
