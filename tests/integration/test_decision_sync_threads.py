"""Test that decisions about staged writes and coordinators are synced on other threads than the event loop."""

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
from tests import staged_rows
from tests.integration.conftest import Services
from tests.polling import poll_until
from tests.staged_rows import cut_header

pytestmark = pytest.mark.integration

FOLDERS = ("broker-b/commitlog/", "broker-a/raymq/state/journal-", "broker-b/raymq/state/journal-")


class RecordingFileCalls(FileCalls):
    """Real file calls that record which thread syncs which file or folder."""

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


def stage_write(services: Services, mq: Connection, number: int) -> StagedWrite:
    opened = StagedWrite.open(mq, "t", ("broker-a", "broker-b"), series="query/t/", number=number)
    assert isinstance(opened, StagedWrite)
    record = encode("t", 0, b"row", b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5))
    with StagedWriter([services.name_server.address]) as writer:
        queue = MessageQueue("t", "broker-b", 0)
        staged_rows.send_chunk(writer, opened, "p", 0, queue, record, np.array([len(record)], np.int32))
    return opened


def test_decisions_are_synced_off_the_event_loop(services: Services, mq: Connection, admin: Admin) -> None:
    loops: list[threading.Thread] = []

    async def thread() -> None:
        loops.append(threading.current_thread())

    services.loop.run(thread())
    calls = RecordingFileCalls()
    with replaced(calls):
        assert stage_write(services, mq, 0).commit([("p", "broker-b", 1)]).rows == 1
        stage_write(services, mq, 1).abort(["broker-b"])
        assert mq.run(ensure_coordinator(mq, "stream", "k")) in services.brokers
        services.start_broker("broker-c")
        poll_until(
            lambda: services.brokers["broker-c"].core.coordinators.members == ["broker-a", "broker-b", "broker-c"]
        )
    for folder in FOLDERS:
        threads = calls.of(folder)
        assert threads, f"nothing of {folder} was synced"
        assert threads.isdisjoint(loops), folder


def test_notes_of_lost_rows_are_synced_off_the_event_loop(services: Services, mq: Connection, admin: Admin) -> None:
    loops: list[threading.Thread] = []

    async def thread() -> None:
        loops.append(threading.current_thread())

    services.loop.run(thread())
    calls = RecordingFileCalls()
    write = stage_write(services, mq, 0)
    cut_header(services.brokers["broker-b"].store, write.transaction, "p", 0)
    with replaced(calls), pytest.raises(WriteIncomplete):
        write.commit([("p", "broker-b", 1)])
    threads = calls.of("broker-b/raymq/state/journal-")
    assert threads
    assert threads.isdisjoint(loops)
