"""Test that a start that removes log files for space keeps those with waiting messages."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

import pytest

from raymq.actors.broker.core.broker_settings import broker_settings
from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.protocol import BrokerSpec
from raymq.client import Message
from raymq.storage.errors import StoreError, StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.topic_config import TopicConfig
from tests.full_disk import FullDisk
from tests.leading import start_leader
from tests.polling import poll_until
from tests.unit.actors.bench import encoded

pytestmark = pytest.mark.crash

FILE_BYTES = 1 << 16
#: Everything outside the newest file expires at once.
STORE = {
    "commitlog_file_bytes": FILE_BYTES,
    "consume_queue_file_entries": 1_000,
    "index_slots": 100,
    "index_entries": 1_000,
    "flush_interval_ms": 3_600_000,
    "disk_refuse_ratio": 1.0,
    "retention_hours": 1e-9,
    "delete_at_hour": "*",
    "delay_levels": "1s 1h",
}


def start_broker(loop: EventLoopThread, directory: Path) -> LeaderService:
    return loop.run(start_leader(BrokerSpec("b", "c", str(directory), "127.0.0.1", (), store=STORE), "n"))


class KilledBroker:
    """A broker that is killed; its log has some files before and after a waiting message."""

    def __init__(self, loop: EventLoopThread, directory: Path) -> None:
        self.loop = loop
        self.directory = directory
        self.broker = start_broker(loop, directory / "lived")
        self.run(lambda: self.broker.store.topic_configs.put(TopicConfig("t", 1, 1, 6)))

    def run(self, work: object) -> object:
        async def do() -> object:
            return work()  # type: ignore[operator]

        return self.loop.run(do())

    def append(self, body: bytes, **fields: object) -> None:
        records, sizes = encoded(Message("t", body, **fields))  # type: ignore[arg-type]
        self.run(lambda: self.broker.core.append("t", 0, memoryview(records), sizes, delayed=bool(fields)))

    def files(self, count: int) -> None:
        for _ in range(count):
            self.append(bytes(FILE_BYTES // 2 + 100))

    def killed(self) -> Path:
        """Copy the killed broker's directory without its disk reserve and unneeded blocks."""
        left = self.directory / "left"
        shutil.copytree(self.directory / "lived", left)
        with contextlib.suppress(StoreError):
            self.loop.run(self.broker.stop())
        StorePaths(left).disk_reserve.unlink()
        for path in left.rglob("commitlog/*"):  # free full blocks of zeros, as EmergencyCleaner does
            size = path.stat().st_size
            used = len(path.read_bytes().rstrip(b"\0"))
            with path.open("r+b") as file:
                file.truncate(-(-used // 4096) * 4096)
                file.truncate(size)
        return left


def first_waiting_position(broker: LeaderService) -> int | None:
    """Return the log position of the first waiting message."""
    found = broker.core.schedule.first_log_position()
    waiting, _ = broker.core.timers.log.waiting((0, -(1 << 63)), 1 << 62, 1_000)
    return min([*([] if found is None else [found]), *waiting["physical_offset"].tolist()], default=None)


@pytest.mark.parametrize("timers_saved", [True, False])
@pytest.mark.parametrize("kind", ["level", "timer"])
def test_log_file_of_waiting_message_is_kept(
    loop: EventLoopThread, tmp_path: Path, kind: str, timers_saved: bool
) -> None:
    life = KilledBroker(loop, tmp_path)
    life.files(5)
    life.append(b"waits", **({"delay_level": 2} if kind == "level" else {"deliver_at": time.time() + 3600}))
    life.files(5)
    if timers_saved:
        loop.run(life.broker._checkpoint_timers())
    life.run(life.broker.store._save_checkpoint)
    left = life.killed()
    with replaced(FullDisk(0)):
        broker = start_broker(loop, left)
        place = life.run(lambda: first_waiting_position(broker))
        minimum = broker.store.min_physical_offset
        with contextlib.suppress(StoreError):
            loop.run(broker.stop())
    assert isinstance(place, int)
    assert 0 < minimum <= place < minimum + FILE_BYTES


def test_retention_changed_at_runtime_applies_at_start(loop: EventLoopThread, tmp_path: Path) -> None:
    """The retention that was changed at runtime, kept in the directory, overrides the one of the cluster's start."""
    life = KilledBroker(loop, tmp_path)
    life.files(6)
    parameters = {"cluster": "c", "address": "127.0.0.1:1", "name_servers": (), "auto_create_topics": False}
    settings = broker_settings(life.broker.core, **parameters)  # type: ignore[arg-type]
    life.run(lambda: settings.update({"fileReservedTime": "1000"}))
    life.run(life.broker.store._save_checkpoint)
    left = life.killed()
    with replaced(FullDisk(0)), pytest.raises(StoreFull):
        start_broker(loop, left)
    broker = start_broker(loop, left)
    assert broker.store.min_physical_offset == 0
    assert broker.store.retention.hours == 1000
    loop.run(broker.stop())


@pytest.mark.parametrize("kind", ["level", "timer"])
def test_log_file_of_delivered_message_is_removed(loop: EventLoopThread, tmp_path: Path, kind: str) -> None:
    life = KilledBroker(loop, tmp_path)
    life.append(b"waited", **({"delay_level": 1} if kind == "level" else {"deliver_at": time.time() + 1}))
    life.files(5)

    def delivered() -> bool:
        life.run(life.broker.core.deliver_due)
        return life.run(lambda: life.broker.store.max_offset("t", 0)) == 6

    poll_until(delivered)
    life.files(5)
    loop.run(life.broker._checkpoint_timers())
    life.run(life.broker.store._save_checkpoint)
    loop.run(life.broker._checkpoint_timers())
    left = life.killed()
    with replaced(FullDisk(0)):
        broker = start_broker(loop, left)
        assert life.run(lambda: first_waiting_position(broker)) is None
        assert broker.store.min_physical_offset >= 8 * FILE_BYTES
        with contextlib.suppress(StoreError):
            loop.run(broker.stop())


def test_unreadable_timer_log_keeps_all_log_files(loop: EventLoopThread, tmp_path: Path) -> None:
    life = KilledBroker(loop, tmp_path)
    life.append(b"waits", deliver_at=time.time() + 3600)
    life.files(6)
    loop.run(life.broker._checkpoint_timers())
    life.run(life.broker.store._save_checkpoint)
    left = life.killed()
    (StorePaths(left).timers / "state.json").write_bytes(b"{")
    with replaced(FullDisk(0)), pytest.raises(StoreFull):
        start_broker(loop, left)
    broker = start_broker(loop, left)
    assert life.run(lambda: first_waiting_position(broker)) == 0
    loop.run(broker.stop())
