"""Test that acks on disk survive a power loss despite later writes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.pop.pop_request import PopRequest
from raymq.client import Message
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig
from tests.crash.power_loss import Disk
from tests.store_records import SMALL
from tests.unit.actors.bench import encoded
from tests.unit.actors.clock import FakeClock

CONFIG = replace(SMALL, flush_interval_ms=3_600_000)


@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
def test_ack_during_a_state_sync_survives_power_loss(tmp_path: Path, luck: float) -> None:
    """Guard against redelivery when the in-flight state on disk is newer than the offset.

    That looked like an offset that had been moved back, and all messages came again.
    """
    clock = FakeClock(1_700_000_000.0)
    (tmp_path / "0").mkdir()
    disk = Disk(tmp_path / "0")

    def open_broker(directory: Path) -> tuple[Store, BrokerCore]:
        store = Store.open(directory, CONFIG, now_ms=lambda: int(clock.now * 1000))
        return store, BrokerCore("broker-a", store, clock=clock)

    def pop_messages(core: BrokerCore, most: int) -> tuple[int, list[int]]:
        found = core.pop.receive(PopRequest("g", "t", range(1), most, 1 << 20, 60_000, 16))
        return found.pop_time_ms, [offset for queue in found.queues for offset in queue.taken.offsets]

    with replaced(disk):
        store, core = open_broker(tmp_path / "0")
        core.topics.create("t", 1)
        store.group_configs.put(GroupConfig("g"))
        records, sizes = encoded(*(Message("t", b"%d" % number) for number in range(10)))
        core.append("t", 0, memoryview(records), sizes)
        pop_time_ms, _ = pop_messages(core, 8)
        core.pop.acknowledge("g", "t", 0, pop_time_ms, [1, 2, 3])
        store._save_checkpoint()
        core.pop.acknowledge("g", "t", 0, pop_time_ms, [4])

        syncs = 0

        def acknowledge_at_first_sync() -> None:
            nonlocal syncs
            syncs += 1
            if syncs == 1:
                core.pop.acknowledge("g", "t", 0, pop_time_ms, [0])

        disk.before_sync = acknowledge_at_first_sync
        store.sync_state()
        disk.before_sync = None
        assert syncs >= 1
        core.pop.acknowledge("g", "t", 0, pop_time_ms, [5])
        disk.after_power_loss(tmp_path / "1", random.Random(1), luck)
        store._flusher.stop()
        core.timers.log.close()
        store._abandon()
    disk.close()
    store, core = open_broker(tmp_path / "1")
    again = pop_messages(core, 32)[1]
    assert not {1, 2, 3, 4}.intersection(again), "they were acknowledged, and on disk"
    clock.advance(61)
    again += pop_messages(core, 32)[1]
    assert {6, 7, 8, 9} <= set(again) <= {5, 6, 7, 8, 9}
    assert luck > 0 or 5 in again
    core.timers.log.close()
    store.close()
