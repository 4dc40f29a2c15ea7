"""SIGKILL of brokers at each step of a staged write's commit, and of its driver: all rows are stored once, or none.

A reader polls all queues throughout, and never sees a part of a queue's rows.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from raymq.actors.errors import NotStored, OutcomeUnknown, RayMQError
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import MessageQueue, NameServerSpec
from raymq.client import Admin, Connection, Message, Producer
from raymq.client.bulk import staged_write
from raymq.client.bulk.staged_write import CommittedWrite, StagedWrite
from raymq.client.bulk.staged_writer import StagedWriter
from raymq.client.requests.fetch_request import fetch
from raymq.client.task_connection import shared_connection
from raymq.storage.records.record import decode, encode, encode_properties
from tests import fork_server, staged_rows
from tests.broker_process import BrokerProcess
from tests.polling import poll_until

pytestmark = pytest.mark.crash

STORE = {"commitlog_file_bytes": 1 << 22, "index_slots": 100, "index_entries": 10_000, "flush_interval_ms": 50}
QUEUES = [MessageQueue("t", broker, queue_id) for broker in ("broker-a", "broker-b") for queue_id in (0, 1)]
CHUNKS, ROWS = 3, 40


@dataclass
class Watcher:
    """Read every queue repeatedly, and expect `before` rows, or these and all rows of the write."""

    name_server: str
    before: int = 0
    wrong: list[str] = field(default_factory=list)
    looks: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        assert self.wrong == []
        assert self.looks > 10

    def _run(self) -> None:
        with Connection([self.name_server]) as mq:
            while not self._ended.is_set():
                for queue in QUEUES:
                    with contextlib.suppress(RayMQError):
                        self._look(mq, queue)

    def _look(self, mq: Connection, queue: MessageQueue) -> None:
        wanted = [FetchSpec("t", queue.queue_id, 0)]
        for part in mq.run(fetch(mq, queue.broker, "watcher", wanted, 10_000, 1 << 24, 0.0)):
            allowed = (self.before, self.before + CHUNKS * ROWS)
            if part.error is None and not (len(part.sizes) == part.max_offset in allowed):
                self.wrong.append(f"{queue}: {len(part.sizes)} of {part.max_offset}")
        self.looks += 1


@dataclass
class Cluster:
    directory: Path
    name_server: str
    brokers: dict[str, BrokerProcess]
    mq: Connection

    def restart(self, name: str, failpoint: str = "") -> None:
        self.brokers[name].kill()
        self.brokers[name].start(failpoint)
        self.wait_for(name)

    def wait_for(self, *names: str) -> None:
        poll_until(lambda: set(names) <= set(self.mq.run(self.mq.routes.cluster()).masters), 20)

    def open(self, coordinator: str) -> StagedWrite:
        write = StagedWrite.open(self.mq, "t", {coordinator})
        assert isinstance(write, StagedWrite)
        assert write.coordinator == coordinator
        return write

    def stage(self, write: StagedWrite, mark: str = "row") -> list[tuple[str, str, int]]:
        """Stage rows of two parts on all queues, and rows of an attempt that is not committed."""
        with StagedWriter([self.name_server]) as writer:
            for part in ("won", "lost"):
                for queue in QUEUES:
                    for number in range(CHUNKS):
                        rows = [f"{mark} {part} {queue.broker} {queue.queue_id} {number} {n}" for n in range(ROWS)]
                        records = [record(queue.queue_id, row.encode()) for row in rows]
                        sizes = np.array([len(each) for each in records], np.int32)
                        where = 100 * queue.queue_id + number
                        staged_rows.send_chunk(writer, write, part, where, queue, b"".join(records), sizes)
        return [("won", broker, 2 * CHUNKS * ROWS) for broker in self.brokers]

    def bodies(self, queue: MessageQueue) -> list[str]:
        wanted = [FetchSpec("t", queue.queue_id, 0)]
        parts = self.mq.run(fetch(self.mq, queue.broker, "check", wanted, 10_000, 1 << 24, 0.0))
        found = []
        for part in parts:
            at = 0
            for size in part.sizes.tolist():
                found.append(decode(memoryview(part.records), at).body.decode())
                at += size
        return found

    def check(self, *marks: str) -> None:
        """Check that every queue has exactly the rows of these writes."""
        for queue in QUEUES:
            expected = [
                f"{mark} won {queue.broker} {queue.queue_id} {number} {n}"
                for mark in marks
                for number in range(CHUNKS)
                for n in range(ROWS)
            ]
            assert sorted(self.bodies(queue)) == sorted(expected)

    def all_there(self) -> bool:
        return all(len(self.bodies(queue)) == CHUNKS * ROWS for queue in QUEUES)


def record(queue_id: int, body: bytes) -> bytes:
    properties = encode_properties({"UNIQ_KEY": body.decode().replace(" ", "-")})
    return encode("t", queue_id, body, properties, born_timestamp_ms=1, born_host=("127.0.0.1", 0))


@pytest.fixture
def cluster(loop: EventLoopThread, tmp_path: Path) -> Iterator[Cluster]:
    server = loop.run(NameServerService.start(NameServerSpec(0, str(tmp_path), "127.0.0.1", 0)))
    brokers = {name: BrokerProcess(name, tmp_path, server.address, store=STORE) for name in ("broker-a", "broker-b")}
    with Connection([server.address]) as mq:
        made = Cluster(tmp_path, server.address, brokers, mq)
        made.wait_for(*brokers)
        Admin(mq).create_topic("t", queues=2)
        yield made
    shared_connection((server.address,)).close()  # of the tasks
    for broker in brokers.values():
        broker.kill()
        broker.close_pipes()
    loop.run(server.stop())


#: Which broker dies, the coordinator of the write or one that only has rows, at which failpoint and at which pass.
STEPS = [
    ("home", "write.before_record:1"),
    ("home", "write.before_record:2"),
    ("home", "write.after_record:2"),
    ("home", "write.before_record:3"),
    ("home", "staged.between_chunks:6"),
    ("other", "staged.before_chunk"),
    ("other", "staged.before_commit"),
    ("other", "staged.after_commit"),
    ("other", "staged.before_done:2"),
    ("other", "staged.between_chunks:1"),
    ("other", "staged.before_close"),
    ("other", "staged.after_close"),
]


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize(("who", "step"), STEPS, ids=lambda value: str(value))
def test_broker_killed_in_commit_stores_all_rows_once(cluster: Cluster, who: str, step: str) -> None:
    victim = {"home": "broker-a", "other": "broker-b"}[who]
    cluster.restart(victim, step)
    with Watcher(cluster.name_server), ThreadPoolExecutor(1) as driver:

        def write() -> CommittedWrite:
            opened = cluster.open("broker-a")
            return opened.commit(cluster.stage(opened))

        def revive() -> None:
            poll_until(lambda: cluster.brokers[victim].is_dead, 30, f"{victim} dies at {step}")
            cluster.restart(victim)

        written = driver.submit(write)
        revive()
        assert written.result(90).rows == 4 * CHUNKS * ROWS
        poll_until(cluster.all_there, 30)
    cluster.check("row")
    cluster.restart(victim)
    cluster.check("row")
    with Connection([cluster.name_server]) as another:
        assert staged_write.finish(another, written.result().transaction) == written.result()


def test_write_commits_if_driver_dies_after_decision(cluster: Cluster) -> None:
    """The brokers get no request to commit: they ask the coordinator, and none of them decides alone."""
    program = f"""
import os, signal
from raymq.client import Connection
from raymq.client.bulk import staged_write
from raymq.client.bulk.staged_write import StagedWrite
async def die(*_): os.kill(os.getpid(), signal.SIGKILL)
StagedWrite._append = die
mq = Connection([{cluster.name_server!r}])
write = StagedWrite(mq, os.environ["WRITE"], "broker-a")
write.commit([(part, broker, int(rows)) for part, broker, rows in map(str.split, os.environ["PARTS"].split(","))])
"""
    write = cluster.open("broker-a")
    parts = ",".join(f"{part} {broker} {rows}" for part, broker, rows in cluster.stage(write))
    with Watcher(cluster.name_server):
        environment = {**os.environ, "WRITE": write.transaction, "PARTS": parts}
        died = fork_server.run(["-c", program], env=environment, timeout=60)
        assert died.returncode == -signal.SIGKILL
        poll_until(cluster.all_there, 40)
    cluster.check("row")
    assert staged_write.finish(cluster.mq, write.transaction) == CommittedWrite(write.transaction, 4 * CHUNKS * ROWS)


def test_offline_broker_commits_after_restart(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """`write()` raised Timeout with half of the rows stored, and a repetition stored them twice."""
    write = cluster.open("broker-a")
    parts = cluster.stage(write)
    cluster.brokers["broker-b"].kill()
    monkeypatch.setattr(staged_write, "RETRY_TIMEOUT_SECONDS", 1.0)
    with Watcher(cluster.name_server):
        with pytest.raises(OutcomeUnknown, match="do not repeat") as caught:
            write.commit(parts)
        assert caught.value.transaction == write.transaction
        with pytest.raises(OutcomeUnknown, match="broker-b"):
            staged_write.finish(cluster.mq, write.transaction)
        with pytest.raises(RayMQError, match="not committed"):
            staged_write.abort(cluster.mq, write.transaction)
        cluster.brokers["broker-b"].start()
        poll_until(cluster.all_there, 40)
    cluster.check("row")
    assert staged_write.finish(cluster.mq, write.transaction).rows == 4 * CHUNKS * ROWS


def test_broker_killed_in_append_commits_without_coordinator(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the coordinator behind its read barrier, with all later messages, for ever if that is lost."""
    cluster.restart("broker-b", "staged.between_chunks:2")
    monkeypatch.setattr(staged_write, "RETRY_TIMEOUT_SECONDS", 1.0)
    write = cluster.open("broker-a")
    parts = cluster.stage(write)
    with ThreadPoolExecutor(1) as driver:
        written = driver.submit(write.commit, parts)
        poll_until(lambda: cluster.brokers["broker-b"].is_dead, 30)
        cluster.brokers["broker-a"].kill()
        with pytest.raises(OutcomeUnknown):
            written.result(60)
    cluster.brokers["broker-b"].start()
    cluster.wait_for("broker-b")
    poll_until(lambda: [len(cluster.bodies(queue)) for queue in QUEUES[2:]] == [CHUNKS * ROWS] * 2, 30)


@pytest.mark.long
def test_commit_waits_while_coordinator_is_down(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    write = cluster.open("broker-a")
    parts = cluster.stage(write)
    cluster.brokers["broker-a"].kill()
    monkeypatch.setattr(staged_write, "retry_while_unavailable", lambda attempt: attempt())
    with pytest.raises(OutcomeUnknown, match="broker-a does not answer"):
        write.commit(parts)
    monkeypatch.undo()
    began = time.monotonic()
    poll_until(lambda: time.monotonic() - began > 8, 20)  # broker-b has asked by then
    cluster.brokers["broker-a"].start()
    cluster.wait_for("broker-a")
    assert write.commit(parts).rows == 4 * CHUNKS * ROWS
    cluster.check("row")


@pytest.mark.long
def test_messages_sent_during_commit_are_stored_once(cluster: Cluster) -> None:
    """They wait behind the read barrier and appear with the commit, also if the broker dies within it."""
    write = cluster.open("broker-a")
    parts = cluster.stage(write)
    cluster.restart("broker-b", "staged.between_chunks:4")

    sent: list[tuple[MessageQueue, str]] = []
    unsure: set[str] = set()
    with ThreadPoolExecutor(1) as driver, Producer(cluster.mq, "p", timeout=5.0, retries=0) as producer:
        written = driver.submit(write.commit, parts)
        while len(sent) < 300:
            queue, body = QUEUES[len(sent) % 4], f"sent {len(sent)}"
            if cluster.brokers["broker-b"].is_dead:
                cluster.brokers["broker-b"].start()
                cluster.wait_for("broker-b")
            try:
                producer.send(Message("t", body.encode()), queue=queue)
            except NotStored:
                continue
            except OutcomeUnknown:
                unsure.add(body)
            sent.append((queue, body))
        assert written.result(60).rows == 4 * CHUNKS * ROWS
    assert len(unsure) <= 2
    for queue in QUEUES:
        found = [body for body in cluster.bodies(queue) if body not in unsure]
        of_producer = [body for body in found if body.startswith("sent")]
        assert of_producer == [body for where, body in sent if where == queue and body not in unsure]
        assert len(found) == len(set(found)) == CHUNKS * ROWS + len(of_producer)
