"""Which topic a waiting message is meant for: the one of that name that was there when it came, and no later one."""

from __future__ import annotations

from raymq.actors.naming import RETRY_PREFIX
from raymq.storage.store import Store


def waits_since(store: Store, topic: str) -> int:
    """From which place of the log on waiting messages are meant for the topic that has this name now.

    What lies before it was meant for one that was deleted. A group's retry topic stays that of the group, also where it
    was made again: what the group failed on is not lost with it.
    """
    return 0 if topic.startswith(RETRY_PREFIX) else store.incarnation(topic)
