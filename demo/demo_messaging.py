"""Send the demo's rows through a producer, and consume them.

The listener fails on dirty rows.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from raymq.client import (
    ConsumeResult,
    Message,
    NotStored,
    OutcomeUnknown,
    Producer,
    PullConsumer,
    ReceivedMessage,
    TopicNotFound,
)
from raymq.demo.demo_input import InputRecord, message_key
from raymq.demo.dirty_rule import DirtyRule

#: Rows of one batch, which goes to one queue.
BATCH_ROWS = 200
#: The seconds for which a batch is resent before the demo fails: a killed broker is back after two seconds.
SEND_TIMEOUT_SECONDS = 60.0
#: The property that identifies a row, so that it is counted once however often it is sent or delivered.
ROW = "row"


def as_message(topic: str, record: InputRecord, tag_column: str | None) -> Message:
    """Return one input record as a message."""
    value = str(record.values.get(tag_column) or "") if tag_column else ""
    return Message(
        topic,
        record.body,
        tags=message_key(value).replace("|", "%7C") or "none",
        keys=[message_key(record.key)] if record.key else [],
        properties={ROW: str(record.number)},
    )


def produce(producer: Producer, messages: Iterable[Message]) -> Iterator[int]:
    """Send all messages in batches; yield the number of acknowledged messages of each batch.

    A batch whose outcome is unknown is sent again. It may be stored twice, so rows are counted by number.
    """
    rows = iter(messages)
    while batch := list(itertools.islice(rows, BATCH_ROWS)):
        deadline = time.monotonic() + SEND_TIMEOUT_SECONDS
        while True:
            try:
                yield len(producer.send_batch(batch))
                break
            except (NotStored, OutcomeUnknown):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


class RowListener:
    """The demo's listener, which accepts clean rows and fails on dirty ones. Thread-safe."""

    def __init__(self, rule: DirtyRule) -> None:
        self._rule = rule
        self._lock = threading.Lock()
        self._taken: set[str] = set()
        self._seen: set[tuple[str, int]] = set()
        self.deliveries = 0
        self.retries = 0
        self.duplicates = 0

    @property
    def consumed(self) -> int:
        """Return the number of rows that were consumed successfully."""
        return len(self._taken)

    def __call__(self, messages: list[ReceivedMessage]) -> list[ConsumeResult]:
        """Return one result per message."""
        dirty = [self._rule.reason(message.body) is not None for message in messages]
        with self._lock:
            for message, is_dirty in zip(messages, dirty, strict=True):
                row = message.properties[ROW]
                delivery = (row, message.reconsume_times)
                self.duplicates += delivery in self._seen
                self._seen.add(delivery)
                self.deliveries += 1
                self.retries += message.reconsume_times > 0
                if not is_dirty:
                    self._taken.add(row)
        return [ConsumeResult.RECONSUME_LATER if is_dirty else ConsumeResult.SUCCESS for is_dirty in dirty]


class DeadLetterReader:
    """A reader of a growing dead-letter topic, which may not exist yet."""

    def __init__(self, consumer: PullConsumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic
        self.rows: set[str] = set()

    def poll(self) -> int:
        """Read the new messages; return the number of rows so far."""
        try:
            queues = self._consumer.queues(self._topic)
        except TopicNotFound:
            return 0
        for queue in queues:
            while found := self._consumer.poll(queue, 1_000, 0.0):
                self.rows.update(message.properties[ROW] for message in found)
        return len(self.rows)


def wait_until(done: Callable[[], bool], progress: Callable[[], int], seconds: float) -> bool:
    """Poll until `done`; return False if `progress` does not change for `seconds`."""
    last, since = progress(), time.monotonic()
    while not done():
        time.sleep(0.05)
        now = progress()
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > seconds:
            return False
    return True
