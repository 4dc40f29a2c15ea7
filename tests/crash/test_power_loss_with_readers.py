"""Lose power while consumers read, and check what they have seen and what is stored afterwards."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from raymq.actors.event_loop import EventLoopThread
from raymq.actors.names.service import NameServerService
from raymq.actors.protocol import BrokerSpec, NameServerSpec, SendStatus
from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from raymq.client.errors import GroupNotFound, OffsetOutOfRange, OutcomeUnknown, SendError
from raymq.storage import checkpointer as checkpointing_module
from raymq.storage import store_parts as opening
from raymq.storage.config import StoreConfig
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from tests.broker_crash import disconnect_broker
from tests.crash.power_loss import Disk
from tests.faulty_calls import UnsyncedBelow, UnsyncedCalls
from tests.leading import start_leader
from tests.polling import poll_until
from tests.store_records import append, make_record

pytestmark = pytest.mark.crash

STORE = {
    "commitlog_file_bytes": 1 << 18,
    "consume_queue_file_entries": 1000,
    "index_slots": 100,
    "index_entries": 2_000,
    "flush_interval_ms": 3_600_000,
    "delay_levels": "1s 1s",
}
QUEUE = MessageQueue("t", "broker-a", 0)


@dataclass
class Machine:
    """A broker on a disk that loses unsynced data, and a name server on another machine."""

    place: Path
    flush: str
    boots: list[int]
    loop: EventLoopThread = field(default_factory=lambda: EventLoopThread("services"))
    lives: int = 0

    def start(self, fail_at: int = 0) -> None:
        self.directory = self.place / f"life{self.lives}"
        self.directory.mkdir(exist_ok=True)
        self.disk = Disk(self.directory, fail_at)
        self.disk.remember_all()
        self._calls = replaced(self.disk)
        self._calls.__enter__()
        if not self.lives:
            names = NameServerSpec(0, str(self.place), "127.0.0.1", 0)
            self.name_server = self.loop.run(NameServerService.start(names))
        names_at = (self.name_server.address,)
        store = {**STORE, "flush": self.flush}
        spec = BrokerSpec("broker-a", "test", str(self.directory), "127.0.0.1", names_at, store=store)
        self.broker = self.loop.run(start_leader(spec, "node"))

    def lose_power(self, random_: random.Random, luck: float) -> Path:
        """Lose power; return the directory as the next boot finds it."""
        broker = self.broker
        self.loop.run(disconnect_broker(broker))
        self.disk.before_sync = None
        self.lives += 1
        left = self.place / f"life{self.lives}"
        self.disk.after_power_loss(left, random_, luck)
        broker.store._flusher.stop()
        broker.store._abandon()
        self._calls.__exit__(None, None, None)
        self.disk.close()
        self.boots[0] += 1
        return left

    def close(self) -> None:
        self.loop.run(self.broker.stop())
        self._calls.__exit__(None, None, None)
        self.disk.close()
        self.loop.run(self.name_server.stop())
        self.loop.stop()


@pytest.fixture(params=["sync", "async"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def machine(tmp_path: Path, flush: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    boots = [0]
    for module in (opening, checkpointing_module):
        monkeypatch.setattr(module, "boot_id", lambda: f"boot {boots[0]}")
    made = Machine(tmp_path, flush, boots)
    made.start()
    yield made
    made.close()


@pytest.fixture
def mq(machine: Machine) -> Iterator[Connection]:
    with Connection([machine.name_server.address]) as connection:
        Admin(connection).create_topic("t", queues=1)
        yield connection


class Reader:
    """A listener that records its messages with their offsets."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.got: list[tuple[int, bytes]] = []

    def __call__(self, messages: list[ReceivedMessage]) -> ConsumeResult:
        with self._mutex:
            self.got += [(message.queue_offset, message.body) for message in messages]
        return ConsumeResult.SUCCESS

    @property
    def reach(self) -> int:
        """Return the offset after the highest one that was received."""
        with self._mutex:
            return max((offset for offset, _ in self.got), default=-1) + 1

    def bodies(self) -> set[bytes]:
        with self._mutex:
            return {body for _, body in self.got}


def send(producer: Producer, names: list[bytes]) -> None:
    for name in names:
        assert producer.send(Message("t", name)).status is SendStatus.SEND_OK


def committed_offset(mq: Connection) -> int | None:
    try:
        progress = Admin(mq).group_progress("g").get(QUEUE)
    except GroupNotFound:  # the group was lost, too, and its member has not registered it again yet
        return None
    return None if progress is None else progress.committed_offset


def store_new_messages(left: Path, count: int) -> None:
    """Store new messages before the readers are back."""
    with replaced(UnsyncedCalls()), Store.open(left, StoreConfig(**STORE)) as store:  # type: ignore[arg-type]
        append(store, *(make_record(b"new %d" % number, topic="t") for number in range(count)))


@pytest.mark.parametrize("flush", ["sync"], indirect=True)
@pytest.mark.parametrize("seed", range(2))
def test_readers_see_only_messages_that_survive_power_loss(machine: Machine, mq: Connection, seed: int) -> None:
    """With sync flush, whatever a reader has seen is on disk, in every way of reading and at every sync."""
    random_ = random.Random(seed)
    pushed, polled, admin = Reader(), Reader(), Admin(mq)
    looked: list[int] = []
    reported = 0

    looking = threading.Lock()

    def look() -> None:
        if not looking.acquire(blocking=False):  # another file is being checked; the log has one sync at a time
            return
        try:
            look_now()
        finally:
            looking.release()

    def look_now() -> None:
        seen = max(pushed.reach, polled.reach, reported)
        place = machine.place / f"look{len(looked)}"
        machine.disk.after_power_loss(place, random_, random_.choice((0.0, 0.0, 0.5)))
        # The broker's own threads sync meanwhile, on the machine's disk.
        with (
            replaced(UnsyncedBelow(place, machine.disk)),
            Store.open(place, StoreConfig(**STORE)) as store,  # type: ignore[arg-type]
        ):
            reached = store.max_offset("t", 0) if "t" in store.topics() else 0
        looked.append(reached - seen)

    puller = PullConsumer(mq, "pull")
    puller.seek(QUEUE, 0)
    ended = threading.Event()

    def poll() -> None:
        nonlocal reported
        while not ended.is_set():
            polled(puller.poll(QUEUE, timeout=0.05))
            reported = max(reported, admin.topic_stats("t")[QUEUE].max_offset)

    thread = threading.Thread(target=poll)
    with PushConsumer(mq, "push", {"t": "*"}, pushed):
        thread.start()
        machine.disk.before_sync = look
        with Producer(mq, "p", timeout=60.0) as producer:
            send(producer, [b"%d" % number for number in range(12)])
            for number in range(12, 40, 7):
                producer.send_batch([Message("t", b"%d" % (number + i)) for i in range(7)])
        machine.disk.before_sync = None
        poll_until(lambda: pushed.reach == polled.reach == reported == 40, 30)
        ended.set()
        thread.join()
    assert len(looked) > 4  # syncs of other files replace some checks of the log's
    assert min(looked) >= 0


@pytest.mark.parametrize("luck", [0.0, 0.5])
def test_consumers_get_all_messages_stored_after_power_loss(
    machine: Machine, mq: Connection, flush: str, luck: float
) -> None:
    """Guard against fault 13.13: a group is at 20, the log has less after the restart, and new messages follow."""
    random_ = random.Random(7)
    shared, broadcast = Reader(), Reader()
    models = {shared: MessageModel.CLUSTERING, broadcast: MessageModel.BROADCASTING}
    consumers = [
        PushConsumer(mq, "g" if reader is shared else "all", {"t": "*"}, reader, model=model)
        for reader, model in models.items()
    ]
    puller = PullConsumer(mq, "pull")
    puller.seek(QUEUE, 0)
    with Producer(mq, "p", timeout=20.0) as producer:
        for consumer in consumers:
            consumer.start()
        send(producer, [b"%d" % number for number in range(8)])
        machine.broker.store.flush()
        send(producer, [b"%d" % number for number in range(8, 20)])
        poll_until(lambda: shared.reach == broadcast.reach == 20, 20)
        while puller.position(QUEUE) < 20:
            puller.poll(QUEUE)
        poll_until(lambda: committed_offset(mq) == 20, 20)
        left = machine.lose_power(random_, luck)
        store_new_messages(left, 30)
        machine.start()
        kept = machine.broker.core.bounds("t", 0)[1] - 30
        # With luck the page with the newest messages was synced in time.
        assert kept == 20 if flush == "sync" else 8 <= kept <= (20 if luck else 19)
        send(producer, [b"later %d" % number for number in range(3)])
        new = {b"new %d" % number for number in range(30)} | {b"later %d" % number for number in range(3)}
        for reader in (shared, broadcast):
            poll_until(lambda reader=reader: new <= reader.bodies(), 30)  # type: ignore[misc]
        poll_until(lambda: committed_offset(mq) == kept + 33, 20)
        if kept < 20:
            with pytest.raises(OffsetOutOfRange) as caught:
                puller.poll(QUEUE)
            assert (caught.value.offset, caught.value.max_offset) == (20, kept)
            puller.seek(QUEUE, caught.value.max_offset)
        polled: set[bytes] = set()
        while puller.position(QUEUE) < kept + 33:
            polled |= {message.body for message in puller.poll(QUEUE)}
        assert polled == new
        for consumer in consumers:
            consumer.shutdown()


@pytest.mark.parametrize("flush", ["sync"], indirect=True)
@pytest.mark.parametrize("luck", [0.0, 1.0])
def test_outcome_of_failed_flush_holds_after_restart(machine: Machine, mq: Connection, luck: float) -> None:
    """Guard against fault 13.14: the outcome is unknown, and the message is visible only if the next start has it."""
    reader = Reader()
    with PushConsumer(mq, "g", {"t": "*"}, reader), Producer(mq, "p", timeout=5.0) as producer:
        send(producer, [b"0", b"1"])
        poll_until(lambda: reader.reach == 2, 20)
        # Fail the log's sync, not an earlier one of another file.
        machine.disk.fails_below = machine.broker.store.directory / "commitlog"
        machine.disk._fail_at = machine.disk.syncs + 1
        with pytest.raises(OutcomeUnknown):
            producer.send(Message("t", b"doubtful"))
        assert machine.disk.failed
        with pytest.raises(SendError) as refused:
            producer.send(Message("t", b"refused"))
        assert not isinstance(refused.value, OutcomeUnknown)
        assert Admin(mq).topic_stats("t")[QUEUE].max_offset == reader.reach == 2
        machine.lose_power(random.Random(1), luck)
        machine.start()
        bodies = [b"0", b"1", b"doubtful"][: machine.broker.core.bounds("t", 0)[1]]
        assert len(bodies) == 2 + (luck == 1.0)
        send(producer, [b"after"])
        poll_until(lambda: b"after" in reader.bodies(), 20)
        assert reader.bodies() == {*bodies, b"after"}
