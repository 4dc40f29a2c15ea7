"""Define the topics that every broker has from its first start.

These are the broker's own topics and those that RocketMQ's clients and tools expect. Source of names and queue counts:
RocketMQ's TopicConfigManager.
"""

from __future__ import annotations

from collections.abc import Sequence

from raymq.actors.naming import (
    AUTO_CREATE_TOPIC,
    HALF_TOPIC,
    NAME_PATTERN,
    OP_HALF_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    reply_topic,
)
from raymq.actors.protocol import PERM_INHERIT, PERM_READ, PERM_WRITE
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.staged_topic import STAGED_TOPIC
from raymq.storage.tables.topic_config import TopicConfig, TopicConfigs

_READ_WRITE = PERM_READ | PERM_WRITE
_TEMPLATE = _READ_WRITE | PERM_INHERIT
_NOT_FOR_CLIENTS = 0


def install(configs: TopicConfigs, own: Sequence[TopicConfig]) -> None:
    """Create those topics of `own` that are missing.

    A topic that an administrator changed keeps its settings. AUTO_CREATE_TOPIC, the template of automatically created
    topics, is deleted if it is not in `own`, because sends may then no longer create topics.
    """
    if missing := [topic for topic in own if configs.get(topic.name) is None]:
        configs.put(*missing)
    if all(topic.name != AUTO_CREATE_TOPIC for topic in own):
        configs.delete(AUTO_CREATE_TOPIC)


def system_topics(cluster: str, broker: str, *, delay_levels: int, auto_create: bool) -> list[TopicConfig]:
    """Return every topic that a broker creates for itself.

    Topics whose names would be invalid are left out.

    Args:
        delay_levels: the number of delay levels; each level has a queue of its own in the schedule topic.
        auto_create: whether a send to an unknown topic creates it, with AUTO_CREATE_TOPIC as the template.
    """
    table = [
        # name, queues, permission
        (SCHEDULE_TOPIC, delay_levels, _READ_WRITE),
        (TIMER_TOPIC, 1, _READ_WRITE),
        ("SELF_TEST_TOPIC", 1, _READ_WRITE),
        ("BenchmarkTest", 1024, _READ_WRITE),
        ("OFFSET_MOVED_EVENT", 1, _READ_WRITE),
        (HALF_TOPIC, 1, _READ_WRITE),
        (OP_HALF_TOPIC, 1, _READ_WRITE),
        (STAGED_TOPIC, 1, _NOT_FOR_CLIENTS),
        (TRACE_TOPIC, 1, _READ_WRITE),
        (cluster, 16, _TEMPLATE),
        (broker, 1, _TEMPLATE),
        (reply_topic(cluster), 1, _READ_WRITE),
    ]
    if auto_create:
        table.append((AUTO_CREATE_TOPIC, 8, _TEMPLATE))
    return [TopicConfig(name, queues, queues, perm) for name, queues, perm in table if NAME_PATTERN.fullmatch(name)]
