"""Provide a broker core for timer tests, with a fake clock and simulated kills."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.protocol import RecallStatus, RecordPositions
from raymq.actors.recall_handle import RecallHandle
from raymq.client import Message
from raymq.storage.config import StoreConfig
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.records.record import Record
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig
from tests.store_records import EXPIRING
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants

#: Seconds.
HOUR = 3_600.0
DAY = 24 * HOUR
HOST = bytes([127, 0, 0, 1, 0, 0, 0, 0])
CONFIG = replace(EXPIRING, index_slots=100, index_entries=10_000)


class TimerBench:
    """Run one broker with the topic "t" of two queues."""

    def __init__(self, directory: Path, config: StoreConfig = CONFIG) -> None:
        self.directory = directory
        self.config = config
        self.clock = FakeClock(1_700_000_000.0)
        self.open()
        self.store.topic_configs.put(TopicConfig("t", 2, 2))

    def open(self) -> None:
        self.store = Store.open(self.directory, self.config, now_ms=self.now_ms)
        self.core = BrokerCore("broker-a", self.store, clock=self.clock)

    def now_ms(self) -> int:
        return int(self.clock.now * 1000)

    def kill(self) -> None:
        """Simulate a SIGKILL: reopen the store without closing it."""
        self.store.wait_for_removals()
        self.store._flusher.stop()
        self.store._abandon()
        self.open()

    def restart(self) -> None:
        self.close()
        self.open()

    def close(self) -> None:
        self.core.timers.close()
        self.store.close()

    def checkpoint(self) -> None:
        write = self.core.timers.checkpoint()
        if write is not None:
            write()

    def forget(self) -> None:
        """Write checkpoints, so that the timer log forgets finished entries of its runs."""
        for _ in range(3):
            filler = Message("filler", b"the log goes on").encode(1, HOST)
            self.store.append(filler, np.array([len(filler)], np.int32))
            self.store.flush()
            self.checkpoint()

    def rescue(self, log_min: int) -> int:
        """Relocate in flushed steps up to `log_min`; return the position before which nothing waits."""
        while self.core.rescue.relocate_before(log_min) < log_min:
            check_invariants(self.core.timers._wheel)
            self.store.flush()
        return self.core.rescue.relocate_before(log_min)

    def let_go(self) -> None:
        """Run retention, with a flush after each run, until no more files are deleted."""
        while (
            self.core.rescue.step()
            or self.core.delete_expired(asked=True).log_files
            or self.store.flushed_offset < self.store.max_physical_offset
        ):
            self.store.flush()

    def send(self, *bodies: bytes, after: float, queue_id: int = 0) -> list[Message]:
        """Send messages that are due `after` seconds from now."""
        messages = [Message("t", body, deliver_at=self.clock.now + after) for body in bodies]
        self.append(*messages, queue_id=queue_id)
        return messages

    def append(self, *messages: Message, queue_id: int = 0, born_ms: int = 1) -> RecordPositions:
        records = [bytearray(message.encode(born_ms, HOST)) for message in messages]
        for record in records:
            record[12:16] = queue_id.to_bytes(4, "big")
        sizes = np.array([len(record) for record in records], np.int32)
        return self.core.append("t", queue_id, memoryview(b"".join(records)), sizes, delayed=True)

    def deliver(self) -> list[bytes]:
        """Deliver all due messages; return their bodies."""
        before = len(self.delivered())
        behind = True
        while behind:
            report = self.core.deliver_due()
            behind = report.delivered > 0 or (report.next_due_ms is not None and report.next_due_ms <= self.now_ms())
            check_invariants(self.core.timers._wheel)
        return [record.body for record in self.delivered()[before:]]

    def recall(self, message: Message) -> RecallStatus:
        assert message.due_ms is not None
        return run_steps(
            self.core.recalls.recall_steps(RecallHandle("t", "broker-a", message.due_ms, message.unique_key))
        )

    def delivered(self) -> list[Record]:
        """Return the records of the topic in the order of the log."""
        found: list[Record] = []
        for queue_id in self.store.queues("t"):
            offset = self.store.min_offset("t", queue_id)
            while offset < self.store.max_offset("t", queue_id):
                with self.store.read("t", queue_id, offset, 10_000) as lease:
                    found += lease.messages()
                    offset = lease.next_offset
        return sorted(found, key=lambda record: record.physical_offset)
