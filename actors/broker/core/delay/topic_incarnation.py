"""Determine for which topic a waiting message is meant, if its name was reused.

It is the topic that had the name when the message came, not one that was created later.
"""

from __future__ import annotations

from raymq.actors.naming import RETRY_PREFIX
from raymq.storage.store import Store


def incarnation_start(store: Store, topic: str) -> int:
    """Return the physical offset from which waiting messages are for the current topic.

    Earlier messages were meant for a deleted topic of the same name. A group's retry topic stays the same one even if
    it was recreated, so that the messages on which the group failed are not lost with it.
    """
    return 0 if topic.startswith(RETRY_PREFIX) else store.incarnation(topic)
