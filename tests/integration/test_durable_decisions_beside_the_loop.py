"""What is decided about staged writes and homes is synced on other threads: a slow disk holds up nobody else."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from raymq.actors.protocol import MessageQueue
from raymq.client import Admin, Connection
from raymq.client.bulk.coordinator_lookup import ensure_coordinator
from raymq.client.bulk.staged_write import StagedWrite
from raymq.client.bulk.staged_writer import StagedWriter
from raymq.client.errors import WriteIncomplete
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.records.record import encode
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

FOLDERS = ("staged", "writes", "series", "homes", "raymq/members")


class Watched(FileCalls):
    """Real calls; who waits for which file or folder to be on disk is noted."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, threading.Thread]] = []

    def fsync(self, fd: int) -> None:
        self._note(fd)
        super().fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self._note(fd)
        super().fdatasync(fd)

    def _note(self, fd: int) -> None:
        self.seen.append((os.readlink(f"/proc/self/fd/{fd}"), threading.current_thread()))

    def of(self, folder: str) -> set[threading.Thread]:
        return {thread for path, thread in self.seen if f"/{folder}" in path}


def staged(services: Services, mq: Connection, number: int) -> StagedWrite:
    opened = StagedWrite.open(mq, "t", ("broker-a", "broker-b"), series="query/t/", number=number)
    assert isinstance(opened, StagedWrite)
    record = encode("t", 0, b"row", b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))
    with StagedWriter([services.name_server.address]) as writer:
        queue = MessageQueue("t", "broker-b", 0)
        writer.stage(opened.transaction, "p", 0, queue, record, np.array([len(record)], np.int32), home=opened.home)
    return opened


def test_no_decision_waits_for_the_disk_on_the_event_loop(services: Services, mq: Connection, admin: Admin) -> None:
    loops: list[threading.Thread] = []

    async def thread() -> None:
        loops.append(threading.current_thread())

    services.loop.run(thread())
    calls = Watched()
    with replaced(calls):
        assert staged(services, mq, 0).commit([("p", "broker-b", 1)]).rows == 1
        staged(services, mq, 1).abort(["broker-b"])
        assert mq.run(ensure_coordinator(mq, "stream", "k")) in services.brokers
        services.start_broker("broker-c")
        poll_until(lambda: services.brokers["broker-c"].core.homes.members == ["broker-a", "broker-b", "broker-c"])
    for folder in FOLDERS:
        threads = calls.of(folder)
        assert threads, f"nothing of {folder} was synced"
        assert threads.isdisjoint(loops), folder


def test_the_notes_of_lost_rows_do_not_wait_for_the_disk_on_the_event_loop(
    services: Services, mq: Connection, admin: Admin
) -> None:
    loops: list[threading.Thread] = []

    async def thread() -> None:
        loops.append(threading.current_thread())

    services.loop.run(thread())
    calls = Watched()
    write = staged(services, mq, 0)
    [chunk] = (services.directory / "broker-b" / "raymq" / "staged" / write.transaction).glob("*.chunk")
    chunk.write_bytes(bytes(50))
    with replaced(calls), pytest.raises(WriteIncomplete):
        write.commit([("p", "broker-b", 1)])
    threads = calls.of("staged")
    assert threads
    assert threads.isdisjoint(loops)
