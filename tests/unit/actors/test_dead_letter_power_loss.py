"""Test that an exhausted pop delivery ends only when its dead letter is on disk.

In each flush mode a loss of power takes both, or none.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.pop.pop_request import PopRequest
from raymq.actors.naming import dlq_topic
from raymq.client import Message
from raymq.storage.errors import QueueNotFound
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.topic_config import TopicConfig
from tests.crash.power_loss import Disk
from tests.store_records import SMALL
from tests.unit.actors.bench import encoded
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants

CONFIG = replace(SMALL, flush="sync", flush_interval_ms=3_600_000)
POP_REQUEST = PopRequest("g", "t", range(1), 8, 1 << 20, 5_000, 0)


class Bench:
    """Run a core that pops, with messages whose only try is over."""

    def __init__(self, directory: Path, clock: FakeClock, flush: Literal["sync", "async"] = "sync") -> None:
        self.clock = clock
        config = replace(CONFIG, flush=flush)
        self.store = Store.open(directory, config, now_ms=lambda: int(clock.now * 1000))
        self.core = BrokerCore("broker-a", self.store, clock=clock)

    def send_messages(self, count: int) -> None:
        self.store.topic_configs.put(TopicConfig("t", 1, 1))
        self.store.group_configs.put(GroupConfig("g"))
        records, sizes = encoded(*(Message("t", b"%d" % number) for number in range(count)))
        self.core.append("t", 0, memoryview(records), np.array(sizes))
        self.store.flush()

    def exhaust_tries(self) -> None:
        assert [len(part.taken.offsets) for part in self.core.pop.receive(POP_REQUEST).queues] == [3]
        self.clock.advance(6)

    def sweep(self) -> None:
        self.core.pop.sweep()
        check_invariants(self.core.pop)

    def letters(self) -> int:
        try:
            return self.store.max_offset(dlq_topic("g"), 0)
        except QueueNotFound:
            return 0

    def abandon(self) -> None:
        self.store._flusher.stop()
        self.core.timers.log.close()
        self.store._abandon()


@pytest.mark.parametrize("luck", [0.0, 1.0])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_message_is_done_only_after_dead_letter_is_on_disk(
    tmp_path: Path, luck: float, flush: Literal["sync", "async"]
) -> None:
    """Guard against a committed offset on disk whose dead letter is lost."""
    clock = FakeClock(1_700_000_000.0)
    (tmp_path / "0").mkdir()
    disk = Disk(tmp_path / "0")
    with replaced(disk):
        bench = Bench(tmp_path / "0", clock, flush)
        bench.send_messages(3)
        bench.store._save_checkpoint()
        bench.exhaust_tries()
        for _ in range(3):
            bench.sweep()
        bench.store.sync_state()  # as a checkpoint does whose flush came before the dead letters
        bench.store.sync_state()
        disk.after_power_loss(tmp_path / "1", random.Random(luck), luck)
        bench.abandon()
    disk.close()
    again = Bench(tmp_path / "1", clock, flush)
    clock.advance(60)
    for _ in range(2):
        again.sweep()
        again.store.flush()
    assert again.letters() == 3
    again.sweep()
    assert again.store.consumer_offsets.get("g", "t", 0) == 3
    assert again.store.in_flight.queues == {}
    again.abandon()


def test_slow_flush_writes_one_dead_letter_per_message(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FakeClock(1_700_000_000.0))
    bench.send_messages(3)
    bench.exhaust_tries()
    for _ in range(5):
        bench.sweep()
    assert bench.store.max_offset(dlq_topic("g"), 0, written=True) == 3
    assert bench.core.offsets.get("g", "t", 0) == 0
    bench.store.flush()
    bench.sweep()
    assert (bench.letters(), bench.core.offsets.get("g", "t", 0), bench.core.pop._dead_lettered) == (3, 3, {})
    bench.abandon()
