"""Provide a broker core over a real store, with a fake clock and simulated crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.broker import BrokerCore
from raymq.client import Message
from raymq.storage.config import StoreConfig
from raymq.storage.records.record import OFFSET_QUEUE_ID, Record
from raymq.storage.store import Store
from tests.unit.actors.clock import FakeClock

CONFIG = StoreConfig(
    commitlog_file_bytes=1 << 20,
    consume_queue_file_entries=1_000,
    index_slots=100,
    index_entries=1_000,
    delay_levels="1s 5s 10s 30s",
)
HOST = bytes([127, 0, 0, 1, 0, 0, 0, 0])


class Bench:
    """Run a broker core over a store in `directory` that can crash and reopen."""

    def __init__(self, directory: Path, config: StoreConfig = CONFIG) -> None:
        self.directory = directory
        self.config = config
        self.clock = FakeClock(1_700_000_000.0)
        self.elapsed = FakeClock(1_000.0)
        self.open()

    def open(self) -> None:
        self.store = Store.open(self.directory, self.config, now_ms=lambda: int(self.clock.now * 1000))
        self.core = BrokerCore("broker-a", self.store, clock=self.clock, elapsed=self.elapsed)
        self.arrivals: list[tuple[str, int]] = []
        self.core.on_arrival = self.arrivals.extend

    def crash(self) -> None:
        """Simulate SIGKILL: the abort file stays and nothing more is flushed."""
        self.store._flusher.stop()
        self.store._abandon()
        self.open()

    def append(self, *messages: Message, queue_id: int = 0, delayed: bool = False) -> Any:
        records, sizes = encoded(*messages, queue_id=queue_id)
        return self.core.append(messages[0].topic, queue_id, memoryview(records), sizes, delayed=delayed)

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        if queue_id not in self.store.queues(topic):
            return []
        with self.store.read(topic, queue_id, 0, 10_000) as lease:
            return lease.messages()

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]


def encoded(*messages: Message, queue_id: int = 0) -> tuple[bytes, npt.NDArray[np.int32]]:
    records = []
    for message in messages:
        record = bytearray(message.encode(1_600_000_000_000, HOST))
        record[OFFSET_QUEUE_ID : OFFSET_QUEUE_ID + 4] = queue_id.to_bytes(4, "big")
        records.append(bytes(record))
    return b"".join(records), np.array([len(record) for record in records], np.int32)
