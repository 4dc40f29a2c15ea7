"""Determine for which topic a waiting message is meant, if its name was reused.

It is the topic that had the name when the message came, not one that was created later.
"""

from __future__ import annotations

from raymq.actors.errors import TopicNotFound
from raymq.actors.naming import RETRY_PREFIX, UNSENDABLE_TOPICS
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Record
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig


def incarnation_start(store: Store, topic: str) -> int:
    """Return the physical offset from which waiting messages are for the current topic.

    Earlier messages were meant for a deleted topic of the same name. A group's retry topic stays the same one even if
    it was recreated, so that the messages on which the group failed are not lost with it.
    """
    return 0 if topic.startswith(RETRY_PREFIX) else store.incarnation(topic)


def topic_of_waiting(store: Store, record: Record) -> TopicConfig:
    """Return the topic that a waiting message is meant for.

    Raise TopicNotFound if the topic was deleted, also if another one was created under its name since.
    """
    topic = record.properties.get(names.REAL_TOPIC, "")
    config = store.topic_configs.get(topic)
    if config is None or topic in UNSENDABLE_TOPICS or record.physical_offset < incarnation_start(store, topic):
        raise TopicNotFound(f"its topic {topic!r} does not exist any more")
    return config
