"""The topics that every broker has from its first start: its own, and those that RocketMQ's clients and tools expect.

Source of names and queue counts: RocketMQ's TopicConfigManager.
"""

from __future__ import annotations

from collections.abc import Sequence

from raymq.actors.naming import AUTO_CREATE_TOPIC, NAME_PATTERN, TIMER_TOPIC, reply_topic
from raymq.actors.protocol import PERM_INHERIT, PERM_READ, PERM_WRITE
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.tables.topic_config import TopicConfig, TopicConfigs

_READ_WRITE = PERM_READ | PERM_WRITE
_TEMPLATE = _READ_WRITE | PERM_INHERIT


def install(configs: TopicConfigs, own: Sequence[TopicConfig]) -> None:
    """Make those of `own` that are missing; one that an administrator changed stays so.

    The model of topics that messages make goes if it is not among them: they may not make any more.
    """
    if missing := [topic for topic in own if configs.get(topic.name) is None]:
        configs.put(*missing)
    if all(topic.name != AUTO_CREATE_TOPIC for topic in own):
        configs.delete(AUTO_CREATE_TOPIC)


def system_topics(cluster: str, broker: str, *, delay_levels: int, auto_create: bool) -> list[TopicConfig]:
    """Every topic that a broker makes for itself; those that would have no valid name are left out.

    Args:
        delay_levels: each level waits in a queue of its own.
        auto_create: whether a send to an unknown topic makes it, after the model of AUTO_CREATE_TOPIC.
    """
    table = [
        # name, queues, permission
        (SCHEDULE_TOPIC, delay_levels, _READ_WRITE),
        (TIMER_TOPIC, 1, _READ_WRITE),
        ("SELF_TEST_TOPIC", 1, _READ_WRITE),
        ("BenchmarkTest", 1024, _READ_WRITE),
        ("OFFSET_MOVED_EVENT", 1, _READ_WRITE),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 1, _READ_WRITE),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, _READ_WRITE),
        (cluster, 16, _TEMPLATE),
        (broker, 1, _TEMPLATE),
        (reply_topic(cluster), 1, _READ_WRITE),
    ]
    if auto_create:
        table.append((AUTO_CREATE_TOPIC, 8, _TEMPLATE))
    return [TopicConfig(name, queues, queues, perm) for name, queues, perm in table if NAME_PATTERN.fullmatch(name)]
