"""A broker is stopped while its disk is slow, or fails: every step of the stop is done."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from raymq.actors.broker.service import BrokerService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.protocol import BrokerSpec
from raymq.storage.errors import StoreFailed
from raymq.storage.files import json_file
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.store import Store
from tests.faulty_calls import FaultyCalls
from tests.polling import poll_until
from tests.store_records import SMALL

pytestmark = pytest.mark.contract

SIZES = {"commitlog_file_bytes": 1 << 20, "index_slots": 1_000, "index_entries": 10_000}


def started(loop: EventLoopThread, directory: Path) -> BrokerService:
    spec = BrokerSpec("broker-a", "test", str(directory), "127.0.0.1", (), auto_create_topics=True, store=SIZES)
    return loop.run(BrokerService.start(spec, "n"))


class SlowDisk(FileCalls):
    """The fsync of a file of that name waits for `go`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.waiting = threading.Event()
        self.go = threading.Event()

    def fsync(self, fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(self._name) and not self.waiting.is_set():
            self.waiting.set()
            assert self.go.wait(30)


def test_two_that_save_one_file_at_the_same_time_do_not_meet(tmp_path: Path) -> None:
    """Fault 13.17: the second one renamed the first one's temporary file away."""
    path = tmp_path / "producers.json"
    errors: list[BaseException] = []

    def save(content: dict[str, int]) -> None:
        try:
            json_file.save(path, content, dict)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test tells it
            errors.append(error)

    disk = SlowDisk("producers.json.tmp")
    with replaced(disk):
        periodic = threading.Thread(target=save, args=({"position": 1},))
        periodic.start()
        assert disk.waiting.wait(30)
        last = threading.Thread(target=save, args=({"position": 2},))
        last.start()
        last.join(0.2)  # it is done by now if it does not wait for the other one
        disk.go.set()
        periodic.join()
        last.join()
    assert errors == []
    assert json_file.load(path) == {"position": 2}
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == []


class SlowWriting(FileCalls):
    """Real calls, of which the writing of one file waits until `go`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.waiting = threading.Event()
        self.go = threading.Event()

    def write(self, fd: int, content: bytes | memoryview) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(self._name):
            self.waiting.set()
            assert self.go.wait(30)
        return super().write(fd, content)


def test_a_broker_stops_while_its_producers_are_being_saved(tmp_path: Path, loop: EventLoopThread) -> None:
    """Fault 13.17: a clean stop on a slow disk failed."""
    broker = started(loop, tmp_path)
    disk = SlowWriting("producers.journal")
    with replaced(disk):
        saving = loop.submit(broker._save_producers())
        assert disk.waiting.wait(30)
        stopping = loop.submit(broker.stop())
        poll_until(lambda: broker._producer_history._writing.locked() and broker._server.draining)
        disk.go.set()
        saving.result(30)
        stopping.result(30)
    with Store.open(tmp_path) as store:
        assert store.recovery.clean


def test_a_step_of_the_stop_that_fails_leaves_nothing_open(tmp_path: Path, loop: EventLoopThread) -> None:
    """Fault 13.17: StoreFailed of the producers' saving left timers and store open."""
    broker = started(loop, tmp_path)
    disk = FaultyCalls("write", 1, errno.EIO, lasting=True)
    with replaced(disk), pytest.raises(StoreFailed, match=r"producers\.journal"):
        loop.run(broker.stop())
    assert broker.store._closed
    with Store.open(tmp_path, SMALL) as store:  # nobody has it any more
        assert not store.recovery.clean
