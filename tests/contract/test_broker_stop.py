"""Test that a broker's stop completes every step while its disk is slow or fails."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.protocol import BrokerSpec
from raymq.storage.errors import StoreFailed
from raymq.storage.files import json_file
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.store import Store
from tests.faulty_calls import FaultyCalls
from tests.leading import start_leader
from tests.polling import poll_until
from tests.store_records import SMALL

pytestmark = pytest.mark.contract

SIZES = {"commitlog_file_bytes": 1 << 20, "index_slots": 1_000, "index_entries": 10_000}


def start_broker(loop: EventLoopThread, directory: Path) -> LeaderService:
    spec = BrokerSpec("broker-a", "test", str(directory), "127.0.0.1", (), auto_create_topics=True, store=SIZES)
    return loop.run(start_leader(spec, "n"))


class SlowSync(FileCalls):
    """The fsync of a file of that name waits for `go`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.waiting = threading.Event()
        self.go = threading.Event()

    def fsync(self, fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(self._name) and not self.waiting.is_set():
            self.waiting.set()
            assert self.go.wait(30)


def test_concurrent_saves_of_one_file_are_serialized(tmp_path: Path) -> None:
    """Guard against fault 13.17: the second save renamed the first one's temporary file away."""
    path = tmp_path / "producers.json"
    errors: list[BaseException] = []

    def save(content: dict[str, int]) -> None:
        try:
            json_file.save(path, content, dict)
        except BaseException as error:  # noqa: BLE001 - the test reports any error
            errors.append(error)

    disk = SlowSync("producers.json.tmp")
    with replaced(disk):
        periodic = threading.Thread(target=save, args=({"position": 1},))
        periodic.start()
        assert disk.waiting.wait(30)
        last = threading.Thread(target=save, args=({"position": 2},))
        last.start()
        last.join(0.2)  # without the lock it would be done by now
        disk.go.set()
        periodic.join()
        last.join()
    assert errors == []
    assert json_file.load(path) == {"position": 2}
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == []


def test_broker_stops_while_producers_are_saved(
    tmp_path: Path, loop: EventLoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard against fault 13.17: a clean stop on a slow disk failed."""
    broker = start_broker(loop, tmp_path)
    states, waiting, go = broker.store.tables.producer_states, threading.Event(), threading.Event()
    advance = states.advance

    def advance_slowly(position: int) -> None:
        waiting.set()
        assert go.wait(30)
        advance(position)

    monkeypatch.setattr(states, "advance", advance_slowly)
    saving = loop.submit(broker._save_producers())
    assert waiting.wait(30)
    stopping = loop.submit(broker.stop())
    poll_until(lambda: broker._server.draining)
    go.set()
    saving.result(30)
    stopping.result(30)
    with Store.open(tmp_path) as store:
        assert store.recovery.clean


def test_failed_stop_step_leaves_store_closed(tmp_path: Path, loop: EventLoopThread) -> None:
    """Guard against fault 13.17: StoreFailed while saving producers left timers and store open."""
    broker = start_broker(loop, tmp_path)
    disk = FaultyCalls("write", 1, errno.EIO, lasting=True)
    with replaced(disk), pytest.raises(StoreFailed, match=r"raymq/state/journal"):
        loop.run(broker.stop())
    assert broker.store._closed
    with Store.open(tmp_path, SMALL) as store:  # the store's lock is released
        assert not store.recovery.clean
