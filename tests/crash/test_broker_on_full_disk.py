"""Test that a broker starts on a nearly full disk, using its disk reserve, whichever file finds no space."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.hosted_service import HostedService
from raymq.actors.protocol import BrokerSpec
from raymq.client import Message
from raymq.storage.config import StoreConfig
from raymq.storage.emergency_cleaner import EmergencyCleaner
from raymq.storage.errors import StoreError, StoreFull
from raymq.storage.files import json_file
from raymq.storage.files.disk_reserve import DISK_RESERVE_BYTES
from raymq.storage.files.file_calls import replaced
from raymq.storage.log.retention import DiskUsage
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.topic_config import TopicConfig
from tests.full_disk import FullDisk, fill
from tests.leading import start_leader
from tests.polling import poll_until
from tests.unit.actors.bench import encoded

pytestmark = pytest.mark.crash

STORE = {
    "commitlog_file_bytes": 1 << 20,
    "consume_queue_file_entries": 1_000,
    "index_slots": 100,
    "index_entries": 1_000,
    "flush_interval_ms": 3_600_000,
    "disk_refuse_ratio": 1.0,
}
COUNT = 300
FREE_KIB = [*range(0, 120, 4), 49, 200, 400, 1_000, 4_000]


@pytest.fixture(scope="module")
def loop() -> Iterator[EventLoopThread]:
    made = EventLoopThread("broker")
    yield made
    made.stop()


def start_broker(loop: EventLoopThread, directory: Path) -> LeaderService:
    return loop.run(start_leader(BrokerSpec("b", "c", str(directory), "127.0.0.1", (), store=STORE), "n"))


def append_messages(loop: EventLoopThread, broker: LeaderService, *bodies: bytes, **fields: object) -> None:
    records, sizes = encoded(*(Message("t", body, keys=["k"], **fields) for body in bodies))  # type: ignore[arg-type]

    async def store() -> None:
        broker.core.append("t", 0, memoryview(records), sizes, delayed=bool(fields))

    loop.run(store())


def read_bodies(loop: EventLoopThread, broker: LeaderService) -> list[bytes]:
    async def read() -> list[bytes]:
        with broker.store.read("t", 0, 0, 10_000) as lease:
            return [record.body for record in lease.messages()]

    return loop.run(read())


def stop_broker(loop: EventLoopThread, broker: LeaderService) -> None:
    with contextlib.suppress(StoreError):  # without space for a proper stop the next start recovers
        loop.run(broker.stop())


@pytest.fixture(scope="module")
def killed_broker(loop: EventLoopThread, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a broker that was killed with messages, timers and delay levels pending."""
    directory = tmp_path_factory.mktemp("killed")
    broker = start_broker(loop, directory / "lived")

    async def create() -> None:
        broker.store.topic_configs.put(TopicConfig("t", 1, 1, 6))
        broker.store.consumer_offsets.commit("g", "t", 0, 7)

    loop.run(create())
    for number in range(COUNT):
        append_messages(loop, broker, b"%d" % number)
    append_messages(loop, broker, b"later", deliver_at=time.time() + 3600)
    append_messages(loop, broker, b"soon", delay_level=2)
    shutil.copytree(directory / "lived", directory / "left")  # while it runs: `abort` and journals exist
    stop_broker(loop, broker)
    return directory / "left"


def check_start_and_append(loop: EventLoopThread, directory: Path, make_room: Callable[[], None]) -> None:
    """Check that it starts, and that all is readable; with free space it stores messages and refills its reserve."""
    broker = start_broker(loop, directory)
    try:
        assert read_bodies(loop, broker)[:COUNT] == [b"%d" % number for number in range(COUNT)]
        make_room()

        def appended() -> bool:
            with contextlib.suppress(StoreFull):
                append_messages(loop, broker, b"again")
                return True
            return False

        poll_until(appended)
        loop.run(broker._delete_expired())
        assert StorePaths(directory).disk_reserve.stat().st_blocks * 512 >= DISK_RESERVE_BYTES
    finally:
        stop_broker(loop, broker)
    broker = start_broker(loop, directory)
    try:
        assert b"again" in read_bodies(loop, broker)  # a delayed message may follow it
        assert broker.store.consumer_offsets.get("g", "t", 0) == 7
    finally:
        stop_broker(loop, broker)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("kib", FREE_KIB)
def test_broker_starts_with_any_free_disk_space(
    loop: EventLoopThread, killed_broker: Path, tmp_path: Path, kib: int
) -> None:
    """Guard against fault 13.25: space for the store but not for later files failed, with the reserve unused."""
    directory = tmp_path / "store"
    shutil.copytree(killed_broker, directory)
    disk = FullDisk(kib << 10)

    def make_room() -> None:
        disk.free_bytes += 64 << 20

    with replaced(disk):
        check_start_and_append(loop, directory, make_room)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("kib", [0, 4, 20, 49, 200])
def test_broker_starts_without_disk_reserve(
    loop: EventLoopThread, killed_broker: Path, tmp_path: Path, kib: int
) -> None:
    """Guard against fault 13.25 where the previous start used the reserve, and the disk is still full."""
    directory = tmp_path / "store"
    shutil.copytree(killed_broker, directory)
    StorePaths(directory).disk_reserve.unlink()
    disk = FullDisk(kib << 10)

    def make_room() -> None:
        disk.free_bytes += 64 << 20

    with replaced(disk):
        check_start_and_append(loop, directory, make_room)


@pytest.mark.parametrize("kib", [0, 4, 12, 20, 32, 49, 100])
def test_broker_retries_start_until_disk_space_is_free(killed_broker: Path, tmp_path: Path, kib: int) -> None:
    """Wait for space in the same process, at the same address; until then the error names what is missing."""
    directory = tmp_path / "store"
    shutil.copytree(killed_broker, directory)
    StorePaths(directory).disk_reserve.unlink()
    maker = EmergencyCleaner(directory, StoreConfig(**STORE), lambda: 0)  # type: ignore[arg-type]
    while maker.step():
        pass
    port = json_file.load(directory / "raymq" / "broker.json")["port"]
    disk = FullDisk(kib << 10)
    own = EventLoopThread("full")
    spec = BrokerSpec("b", "c", str(directory), "127.0.0.1", (), store=STORE)
    with replaced(disk):
        hosted = HostedService("b", own, lambda: start_leader(spec, "n"))
        try:
            if kib < 12:
                with pytest.raises(StoreFull) as caught:
                    hosted.wait(60, 0.5)
                assert str(directory) in str(caught.value)
                assert "bytes are free" in str(caught.value)
            disk.free_bytes += 64 << 20
            broker = hosted.wait(60, 60)
            assert broker.address == f"127.0.0.1:{port}"
            assert read_bodies(own, broker)[:COUNT] == [b"%d" % number for number in range(COUNT)]
            assert broker.store.consumer_offsets.get("g", "t", 0) == 7
            append_messages(own, broker, b"again")
            assert StorePaths(directory).disk_reserve.exists()
        finally:
            hosted.stop()


@pytest.mark.parametrize("has_ballast", [True, False])
@pytest.mark.parametrize("kib", [0, 4, 24, 49, 100, 400])
def test_broker_starts_on_nearly_full_file_system(
    loop: EventLoopThread, killed_broker: Path, small_disk: Path, kib: int, has_ballast: bool
) -> None:
    directory = small_disk / "store"
    shutil.copytree(killed_broker, directory)
    if not has_ballast:
        StorePaths(directory).disk_reserve.unlink()
    filler = fill(small_disk)
    os.truncate(filler, filler.stat().st_size - (kib << 10) // 4096 * 4096)
    assert DiskUsage.of(small_disk).free == (kib << 10) // 4096 * 4096
    check_start_and_append(loop, directory, filler.unlink)
