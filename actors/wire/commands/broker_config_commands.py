"""Requests to a whole broker, for adding and removing brokers.

They concern the broker's permission, and all its topics and groups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from raymq.actors.wire import java_properties
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.response_validation import protocol_checked, read_json_answer, text

#: RocketMQ's setting: a sum of 4 (read) and 2 (write) for all topics of the broker.
_PERMISSION = "brokerPermission"


def broker_config_command() -> Command:
    """Return GET_BROKER_CONFIG."""
    return Command(RequestCode.GET_BROKER_CONFIG)


@protocol_checked
def read_permission(answer: Command) -> int:
    """Return the broker's permission for all its topics, from GET_BROKER_CONFIG's answer."""
    return int(java_properties.read(answer.body)[_PERMISSION])


def set_permission_command(permission: int) -> Command:
    """Return UPDATE_BROKER_CONFIG that sets the broker's permission; it survives restarts."""
    return Command(RequestCode.UPDATE_BROKER_CONFIG, body=java_properties.write({_PERMISSION: str(permission)}))


def all_topics_command() -> Command:
    """Return GET_ALL_TOPIC_CONFIG."""
    return Command(RequestCode.GET_ALL_TOPIC_CONFIG)


def all_groups_command() -> Command:
    """Return GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    return Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)


@protocol_checked
def read_all_topics(answer: Command) -> dict[str, dict[str, Any]]:
    """Return each topic's settings as RocketMQ's JSON object."""
    return _objects(read_json_answer(answer)["topicConfigTable"])


@protocol_checked
def read_all_groups(answer: Command) -> dict[str, dict[str, Any]]:
    """Return each consumer group's settings as RocketMQ's JSON object."""
    return _objects(read_json_answer(answer)["subscriptionGroupTable"])


def create_topics_command(topics: Sequence[Mapping[str, Any]]) -> Command:
    """Return UPDATE_AND_CREATE_TOPIC_LIST."""
    return Command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=json.dumps({"topicConfigList": topics}).encode())


def create_groups_command(groups: Sequence[Mapping[str, Any]]) -> Command:
    """Return UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""
    body = json.dumps({"groupConfigList": groups}).encode()
    return Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body)


def _objects(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {text(name): dict(each) for name, each in table.items()}
