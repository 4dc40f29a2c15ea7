"""Test that a replica keeps its delay levels until a copy is complete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.client import Message
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.store import Store
from tests.unit.actors.bench import CONFIG, Bench

OLD, NEW, OTHER = (replace(CONFIG, delay_levels=table) for table in ("1m 2m", "5m 6m", "3h 4h"))


def dues_ms(store: Store) -> list[int]:
    queue = store._parts.dispatcher.queues[SCHEDULE_TOPIC, 0]
    found: list[int] = queue.entries(queue.min_offset, queue.max_offset - queue.min_offset)["tags_code"].tolist()
    return found


def kill(stream: ReplicaStream) -> None:
    stream.store._flusher.stop()
    stream.store._abandon()


@pytest.fixture
def killed_broker(tmp_path: Path) -> tuple[list[int], int]:
    """Return the delivery times in a killed broker's directory, and its last message's position."""
    broker = Bench(tmp_path, OLD)
    broker.core.topics.create("t", 1)
    for config in (NEW, NEW):
        broker.append(Message("t", b"waits", delay_level=1), delayed=True)
        broker.config = config
        broker.core.timers.log.close()
        broker.crash()
    last = broker.store.max_physical_offset
    broker.append(Message("t", b"waits", delay_level=1), delayed=True)
    dues = dues_ms(broker.store)
    broker.core.timers.log.close()
    broker.store._flusher.stop()
    broker.store._abandon()
    assert dues[1] - dues[0] == 240_000
    return dues, last


def open_stream(directory: Path) -> ReplicaStream:
    return ReplicaStream.open(directory, OTHER, ReplicaFile(directory))


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_interrupted_snapshot_keeps_delivery_times(
    tmp_path: Path, killed_broker: tuple[list[int], int], cut: bool
) -> None:
    dues, last = killed_broker
    for _ in range(2):  # the second snapshot is interrupted like the first
        stream = open_stream(tmp_path)
        position = StreamPosition(last if cut else stream.end.offset, 7)
        stream.begin_snapshot(position, keeps_log=True)
        assert dues_ms(stream.store) == (dues[:2] if cut else dues)
        kill(stream)
    stream = open_stream(tmp_path)
    assert dues_ms(stream.store) == (dues[:2] if cut else dues)
    kill(stream)
