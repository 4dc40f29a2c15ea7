"""The queues of a store by topic and id, so that what is done with one topic costs what that topic has."""

from __future__ import annotations

from raymq.storage.log.consume_queue import ConsumeQueue


class QueueTable(dict[tuple[str, int], ConsumeQueue]):
    """A dict, of which entries are set and popped one by one.

    One thread changes it; any may copy it: by `copy` or `list`, not by `list(items())`, which makes a tuple for each
    entry, so that the collector may run meanwhile, and other threads with it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ids: dict[str, set[int]] = {}

    def __setitem__(self, topic_queue: tuple[str, int], queue: ConsumeQueue) -> None:
        super().__setitem__(topic_queue, queue)
        topic, queue_id = topic_queue
        self._ids.setdefault(topic, set()).add(queue_id)

    def take(self, topic: str) -> list[ConsumeQueue]:
        """Take the topic's queues out."""
        return [super(QueueTable, self).pop((topic, queue_id)) for queue_id in self._ids.pop(topic, ())]

    def of(self, topic: str) -> list[int]:
        """The ids of the topic's queues, ascending."""
        return sorted(self._ids.get(topic, ()))

    def topics(self) -> list[str]:
        """The topics that have a queue, sorted."""
        return sorted(self._ids)
