"""Test that a sync flush includes the topic of a message, which may be new."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.group_commit import make_flush
from raymq.client import Message
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from tests.crash.power_loss import Disk
from tests.store_records import SMALL
from tests.unit.actors.bench import encoded

CONFIG = replace(SMALL, flush="sync", flush_interval_ms=3_600_000)


@pytest.mark.parametrize("luck", [0.0, 1.0])
def test_flushed_message_has_topic_after_power_loss(tmp_path: Path, luck: float) -> None:
    """Guard against SEND_OK for a message whose topic a power loss removed.

    Another client had created the topic a moment before.
    """
    (tmp_path / "0").mkdir()
    disk = Disk(tmp_path / "0")
    with replaced(disk):
        store = Store.open(tmp_path / "0", CONFIG)
        core = BrokerCore("broker-a", store)
        core.topics.create("t", 1)  # its creator waits for the disk
        records, sizes = encoded(Message("t", b"sent by somebody else"))
        core.append("t", 0, memoryview(records), np.array(sizes))
        make_flush(store)()
        disk.after_power_loss(tmp_path / "1", random.Random(luck), luck)
        store._flusher.stop()
        core.timers.log.close()
        store._abandon()
    disk.close()
    with Store.open(tmp_path / "1", CONFIG) as store:
        assert store.max_offset("t", 0) == 1
        assert store.topic_configs.get("t") is not None


def test_async_flush_does_not_flush_topics(tmp_path: Path) -> None:
    with Store.open(tmp_path, replace(CONFIG, flush="async")) as store:
        assert make_flush(store) == store.flush
