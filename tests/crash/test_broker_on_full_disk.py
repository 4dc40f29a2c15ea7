"""A broker whose disk is nearly full starts, whichever of its files finds no room: by what it keeps for that."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raymq.actors.broker.service import BrokerService
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


def start(loop: EventLoopThread, directory: Path) -> BrokerService:
    return loop.run(BrokerService.start(BrokerSpec("b", "c", str(directory), "127.0.0.1", (), store=STORE), "n"))


def append(loop: EventLoopThread, broker: BrokerService, *bodies: bytes, **fields: object) -> None:
    records, sizes = encoded(*(Message("t", body, keys=["k"], **fields) for body in bodies))  # type: ignore[arg-type]

    async def store() -> None:
        broker.core.append("t", 0, memoryview(records), sizes, delayed=bool(fields))

    loop.run(store())


def bodies(loop: EventLoopThread, broker: BrokerService) -> list[bytes]:
    async def read() -> list[bytes]:
        with broker.store.read("t", 0, 0, 10_000) as lease:
            return [record.body for record in lease.messages()]

    return loop.run(read())


def stop(loop: EventLoopThread, broker: BrokerService) -> None:
    with contextlib.suppress(StoreError):  # where there is no room to stop properly the next start recovers
        loop.run(broker.stop())


@pytest.fixture(scope="module")
def killed(loop: EventLoopThread, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is left of a broker that was killed with messages, timers and delay levels under way."""
    directory = tmp_path_factory.mktemp("killed")
    broker = start(loop, directory / "lived")

    async def create() -> None:
        broker.store.topic_configs.put(TopicConfig("t", 1, 1, 6))
        broker.store.consumer_offsets.commit("g", "t", 0, 7)

    loop.run(create())
    for number in range(COUNT):
        append(loop, broker, b"%d" % number)
    append(loop, broker, b"later", deliver_at=time.time() + 3600)
    append(loop, broker, b"soon", delay_level=2)
    shutil.copytree(directory / "lived", directory / "left")  # while it lives: `abort` and journals are there
    stop(loop, broker)
    return directory / "left"


def starts_and_goes_on(loop: EventLoopThread, directory: Path, make_room: Callable[[], None]) -> None:
    """It starts, all is read; when there is room it takes messages, and the ballast is there again."""
    broker = start(loop, directory)
    try:
        assert bodies(loop, broker)[:COUNT] == [b"%d" % number for number in range(COUNT)]
        make_room()

        def appended() -> bool:
            with contextlib.suppress(StoreFull):
                append(loop, broker, b"again")
                return True
            return False

        poll_until(appended)
        loop.run(broker._delete_expired())
        assert StorePaths(directory).disk_reserve.stat().st_blocks * 512 >= DISK_RESERVE_BYTES
    finally:
        stop(loop, broker)
    broker = start(loop, directory)
    try:
        assert b"again" in bodies(loop, broker)  # a delayed message may have come behind it
        assert broker.store.consumer_offsets.get("g", "t", 0) == 7
    finally:
        stop(loop, broker)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("kib", FREE_KIB)
def test_a_broker_starts_whatever_is_left_of_the_disk(
    loop: EventLoopThread, killed: Path, tmp_path: Path, kib: int
) -> None:
    """Fault 13.25: with room for the store's opening and none for what comes behind it the ballast was not used."""
    directory = tmp_path / "store"
    shutil.copytree(killed, directory)
    disk = FullDisk(kib << 10)

    def make_room() -> None:
        disk.free_bytes += 64 << 20

    with replaced(disk):
        starts_and_goes_on(loop, directory, make_room)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("kib", [0, 4, 20, 49, 200])
def test_a_broker_without_a_ballast_starts_with_the_room_that_nobody_needs(
    loop: EventLoopThread, killed: Path, tmp_path: Path, kib: int
) -> None:
    """Fault 13.25: the start before has used the ballast, and the disk is still full."""
    directory = tmp_path / "store"
    shutil.copytree(killed, directory)
    StorePaths(directory).disk_reserve.unlink()
    disk = FullDisk(kib << 10)

    def make_room() -> None:
        disk.free_bytes += 64 << 20

    with replaced(disk):
        starts_and_goes_on(loop, directory, make_room)


@pytest.mark.parametrize("kib", [0, 4, 12, 20, 32, 49, 100])
def test_a_broker_that_finds_no_room_comes_up_by_itself_when_there_is_some(
    killed: Path, tmp_path: Path, kib: int
) -> None:
    """In the same process, at its address, without anybody who starts it anew; until then it says what is missing."""
    directory = tmp_path / "store"
    shutil.copytree(killed, directory)
    StorePaths(directory).disk_reserve.unlink()
    maker = EmergencyCleaner(directory, StoreConfig(**STORE), lambda: 0)  # type: ignore[arg-type]
    while maker.step():
        pass
    port = json_file.load(directory / "raymq" / "broker.json")["port"]
    disk = FullDisk(kib << 10)
    own = EventLoopThread("full")
    spec = BrokerSpec("b", "c", str(directory), "127.0.0.1", (), store=STORE)
    with replaced(disk):
        hosted = HostedService("b", own, lambda: BrokerService.start(spec, "n"))
        try:
            if kib < 12:
                with pytest.raises(StoreFull) as caught:
                    hosted.wait(60, 0.5)
                assert str(directory) in str(caught.value)
                assert "bytes are free" in str(caught.value)
            disk.free_bytes += 64 << 20
            broker = hosted.wait(60, 60)
            assert broker.address == f"127.0.0.1:{port}"
            assert bodies(own, broker)[:COUNT] == [b"%d" % number for number in range(COUNT)]
            assert broker.store.consumer_offsets.get("g", "t", 0) == 7
            append(own, broker, b"again")
            assert StorePaths(directory).disk_reserve.exists()
        finally:
            hosted.stop()


@pytest.mark.parametrize("has_ballast", [True, False])
@pytest.mark.parametrize("kib", [0, 4, 24, 49, 100, 400])
def test_a_broker_starts_on_a_file_system_with_so_little_room(
    loop: EventLoopThread, killed: Path, small_disk: Path, kib: int, has_ballast: bool
) -> None:
    directory = small_disk / "store"
    shutil.copytree(killed, directory)
    if not has_ballast:
        StorePaths(directory).disk_reserve.unlink()
    filler = fill(small_disk)
    os.truncate(filler, filler.stat().st_size - (kib << 10) // 4096 * 4096)
    assert DiskUsage.of(small_disk).free == (kib << 10) // 4096 * 4096
    starts_and_goes_on(loop, directory, filler.unlink)
