"""Provide a broker core that accepts foreign messages, for the tests of `appending.foreign_send`."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raymq.actors.broker.core.appending.inbound_message import InboundMessage
from raymq.actors.broker.core.appending.send_message_processor import PutMessageResult
from raymq.actors.broker.core.broker import BrokerCore
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.records.record import Record, encode_properties
from raymq.storage.store import Store
from tests.unit.actors.bench import CONFIG
from tests.unit.actors.clock import FakeClock

CLUSTER = "a-cluster"
BORN_HOST = bytes([10, 1, 2, 3, 0, 0, 0x30, 0x39])
UNIQUE_KEY = "7F00000156E5251AAF1C0B0A00000000"


class Intake:
    """Run a core with topic "t" of 4 queues, whose last queue is "any queue"."""

    def __init__(self, directory: Path, *, auto_create_topics: bool = False, max_message_bytes: int = 4_000) -> None:
        config = replace(CONFIG, max_message_bytes=max_message_bytes, store_host="10.9.8.7:10911")
        self.clock = FakeClock(1_700_000_000.0)
        self.store = Store.open(directory, config, now_ms=lambda: int(self.clock.now * 1000))
        self.core = BrokerCore(
            "broker-a", self.store, cluster=CLUSTER, auto_create_topics=auto_create_topics, clock=self.clock
        )
        self.core.send_processor.choose = lambda below: below - 1
        self.core.topics.create("t", 4)

    def accept(self, **changes: Any) -> PutMessageResult:
        return self.core.send_processor.accept(draft(**changes))

    def accept_batch(self, *members: bytes, **changes: Any) -> PutMessageResult:
        return run_steps(self.core.send_processor.accept_batch_steps(draft(**{"body": b"".join(members), **changes})))()

    def records(self, topic: str = "t", queue_id: int = 0) -> list[Record]:
        if queue_id not in self.store.queues(topic):
            return []
        with self.store.read(topic, queue_id, 0, 1_000) as lease:
            return lease.messages()

    def state(self) -> tuple[int, set[str]]:
        """Return what a refused message must not change: the log end and the topics."""
        return self.store.max_physical_offset, set(self.core.topics.all())


def draft(**changes: Any) -> InboundMessage:
    """Build a message to queue 0 of "t", with changes."""
    fields: dict[str, Any] = {
        "topic": "t",
        "queue_id": 0,
        "body": b"body",
        "properties": {"UNIQ_KEY": UNIQUE_KEY},
        "born_timestamp_ms": 1_600_000_000_123,
        "born_host": BORN_HOST,
        "default_topic": "TBW102",
        "default_queues": 4,
    }
    return InboundMessage(**fields | changes)


def member(body: bytes, properties: Mapping[str, str] | bytes, flag: int = 0) -> bytes:
    """Pack one message of a batch as RocketMQ's clients do."""
    fields = properties if isinstance(properties, bytes) else encode_properties(properties)
    size = 22 + len(body) + len(fields)
    return struct.pack(">iiiii", size, 0, 0, flag, len(body)) + body + struct.pack(">H", len(fields)) + fields
