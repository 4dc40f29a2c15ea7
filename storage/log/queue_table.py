"""The queues of a store by topic and id.

Operations on one topic take time only for that topic's queues.
"""

from __future__ import annotations

from raymq.storage.log.consume_queue import ConsumeQueue


class QueueTable(dict[tuple[str, int], ConsumeQueue]):
    """A dict of queues by topic and queue id, changed one entry at a time.

    Only one thread may change it. Any thread may copy it, with `copy` or `list`, but not with `list(items())`: that
    makes a tuple for each entry, so the garbage collector, and with it other threads, may run meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ids: dict[str, set[int]] = {}

    def __setitem__(self, topic_queue: tuple[str, int], queue: ConsumeQueue) -> None:
        super().__setitem__(topic_queue, queue)
        topic, queue_id = topic_queue
        self._ids.setdefault(topic, set()).add(queue_id)

    def take(self, topic: str) -> list[ConsumeQueue]:
        """Remove the topic's queues and return them."""
        return [super(QueueTable, self).pop((topic, queue_id)) for queue_id in self._ids.pop(topic, ())]

    def of(self, topic: str) -> list[int]:
        """Return the ids of the topic's queues, ascending."""
        return sorted(self._ids.get(topic, ()))

    def topics(self) -> list[str]:
        """Return the topics that have a queue, sorted."""
        return sorted(self._ids)
