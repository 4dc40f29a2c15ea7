"""Test APPEND_ONE and APPEND_ONE_SEQUENCED by a bare frame, a usual frame, and `invoke`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from raymq.actors.broker.core.appending import producer_state_journal
from raymq.actors.broker.core.delay.timer_message_store import TIMER_TOPIC
from raymq.actors.broker.handlers.append_handlers import MAX_DELAYED
from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.errors import (
    InvalidInput,
    PermissionDenied,
    QueueNotFound,
    SequenceGap,
    ServerBusy,
    TopicNotFound,
    WriteUnknown,
)
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.protocol import BrokerSpec, SendStatus
from raymq.actors.wire import error_codec
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands import admin_commands, fetch_commands
from raymq.actors.wire.commands.append_commands import append_command, read_append_answer
from raymq.actors.wire.commands.append_one_commands import read_append_position
from raymq.actors.wire.frame import Command, Serialization
from raymq.client import Message
from raymq.client.errors import RayMQError
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.records.producer_sequence import ProducerSequence, stamp_first
from raymq.storage.records.record import OFFSET_QUEUE_ID
from raymq.storage.tables.topic_config import PERM_READ, TopicConfig
from tests.broker_clients import BareFrameClient, BrokerClient, InvokeBrokerClient, SocketBrokerClient
from tests.leading import start_leader
from tests.polling import poll_until
from tests.unit.actors.bench import HOST

pytestmark = pytest.mark.contract


T = TypeVar("T")
Start = Callable[..., tuple[BrokerClient, LeaderService]]


@pytest.fixture(params=[BareFrameClient, SocketBrokerClient, InvokeBrokerClient], ids=["bare", "socket", "invoke"])
def start(request: pytest.FixtureRequest, loop: EventLoopThread, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a broker with topic t of two queues."""
    brokers: list[LeaderService] = []

    def started(*, auto_create_topics: bool = False, **store: object) -> tuple[BrokerClient, LeaderService]:
        sizes = {"commitlog_file_bytes": 1 << 24, "index_slots": 1_000, "index_entries": 10_000}
        spec = BrokerSpec(
            "broker-a", "test", str(tmp_path), "127.0.0.1", (), auto_create_topics=auto_create_topics,
            append_wait_ms=60_000,  # a client asks once: a busy machine must not refuse it
            store={**sizes, **store},
        )  # fmt: skip
        brokers.append(loop.run(start_leader(spec, "n")))
        door: BrokerClient = request.param(loop, brokers[0])
        assert door.ask(admin_commands.create_topic_command("t", 2, ordered=False)).code == ResponseCode.SUCCESS
        return door, brokers[0]

    yield started
    for broker in brokers:
        loop.run(broker.stop())


def append_one_command(topic: str = "t", body: bytes = b"x", queue_id: int = 0, **fields: str | int) -> Command:
    record = Message(topic, body, **fields).encode(1, HOST)  # type: ignore[arg-type]
    struct.pack_into(">i", record, OFFSET_QUEUE_ID, queue_id)
    return Command(RequestCode.APPEND_ONE, body=bytes(record), serialization=Serialization.MSGPACK)


def count_messages(door: BrokerClient, queue_id: int = 0) -> int:
    """Return the number of messages in a queue."""
    parts = fetch_commands.read_fetched(
        door.ask(fetch_commands.fetch_command("s", [FetchSpec("t", queue_id, 0)], 100, 1 << 23, 0.0))
    )
    return sum(len(part.sizes) for part in parts)


def error_of(answer: Command) -> RayMQError:
    assert answer.code != ResponseCode.SUCCESS
    return error_codec.error_from_response(answer)


def test_appends_return_increasing_positions(start: Start) -> None:
    door, broker = start()
    ends = []
    for n in range(6):
        status, offset, physical_offset = read_append_position(
            door.ask(append_one_command(body=b"%d" % n, queue_id=n % 2)).body
        )
        assert (status, offset) == (SendStatus.SEND_OK, n // 2)
        assert broker.core.view(physical_offset).body == b"%d" % n
        ends.append(physical_offset)
    assert ends == sorted(set(ends))
    assert (count_messages(door), count_messages(door, 1)) == (3, 3)
    counter = broker.statistics.put_of("t")
    assert counter is not None
    assert (counter.messages, counter.calls) == (6, 6)
    assert broker.core.admission.appends_under_way == 0


async def call_on_loop(call: Callable[[], T]) -> T:
    """Run the call on the broker's loop: an answer may precede the update of queue and index."""
    return call()


def test_query_finds_tags_and_keys(start: Start, loop: EventLoopThread) -> None:
    door, broker = start()
    for n in range(2):
        assert door.ask(append_one_command(tags="red", keys=f"k{n}")).code == ResponseCode.SUCCESS
    (found,) = loop.run(call_on_loop(lambda: run_steps(broker.core.search("t", "k1", 0, 1 << 60, 9))))
    assert (found.tags, found.queue_offset) == ("red", 1)


def test_append_wakes_waiting_fetch(start: Start) -> None:
    door, broker = start()
    door.ask(append_one_command())
    parked = SocketBrokerClient(door._loop, broker).begin(
        fetch_commands.fetch_command("s", [FetchSpec("t", 0, 1)], 9, 1 << 23, 20.0)
    )  # type: ignore[attr-defined]
    poll_until(lambda: len(broker.polls) == 1)
    door.ask(append_one_command())
    (part,) = fetch_commands.read_fetched(parked.result(5))
    assert part.next_offset == 2


def test_refused_append_stores_nothing(start: Start) -> None:
    door, broker = start()
    door.ask(append_one_command())
    end = broker.store.max_physical_offset
    sound = bytes(append_one_command().body)
    cases: list[tuple[Command, type[RayMQError]]] = [
        (append_one_command("unknown"), TopicNotFound),
        (append_one_command(queue_id=2), QueueNotFound),
        (append_one_command(queue_id=-1), InvalidInput),
        (Command(RequestCode.APPEND_ONE, body=sound[:-1], serialization=Serialization.MSGPACK), InvalidInput),
        (Command(RequestCode.APPEND_ONE, body=sound + sound, serialization=Serialization.MSGPACK), InvalidInput),
        (Command(RequestCode.APPEND_ONE, body=b"", serialization=Serialization.MSGPACK), InvalidInput),
    ]
    for command, error in cases:
        assert type(error_of(door.ask(command))) is error
    timer = sound.replace(b"\x01t\x00", bytes([len(TIMER_TOPIC)]) + TIMER_TOPIC.encode() + b"\x00")
    timer = struct.pack(">i", len(timer)) + timer[4:]
    assert isinstance(
        error_of(door.ask(Command(RequestCode.APPEND_ONE, body=timer, serialization=Serialization.MSGPACK))),
        InvalidInput,
    )
    assert broker.store.max_physical_offset == end
    assert sum(broker.statistics.refusals.values()) == len(cases) + 1
    assert broker.core.admission.appends_under_way == 0
    assert read_append_position(door.ask(append_one_command()).body)[1] == 1


def test_changed_topic_config_applies_to_next_append(start: Start) -> None:
    door, broker = start()
    for change, queue_id, error in (
        (TopicConfig("t", 1, 1), 1, QueueNotFound),
        (TopicConfig("t", 1, 1, perm=PERM_READ), 0, PermissionDenied),
    ):
        for _ in range(2):
            assert door.ask(append_one_command(queue_id=queue_id)).code == ResponseCode.SUCCESS
        broker._loop.call_soon_threadsafe(broker.store.topic_configs.put, change)
        poll_until(lambda: broker.core.topic("t") == change)  # noqa: B023 - called at once
        assert type(error_of(door.ask(append_one_command(queue_id=queue_id)))) is error


def test_overloaded_broker_raises_server_busy(start: Start) -> None:
    door, broker = start()
    door.ask(append_one_command())
    admission = broker.core.admission
    admission.appends_under_way = admission.limits.appends_under_way
    assert isinstance(error_of(door.ask(append_one_command())), ServerBusy)
    admission.appends_under_way = 0
    assert read_append_position(door.ask(append_one_command()).body)[1] == 1


def test_append_creates_topic_with_auto_create(start: Start) -> None:
    door, broker = start(auto_create_topics=True)
    assert read_append_position(door.ask(append_one_command("new")).body)[:2] == (SendStatus.SEND_OK, 0)
    assert "new" in broker.core.topics


def test_sync_flush_acknowledges_flushed_message(start: Start) -> None:
    door, broker = start(flush="sync")
    for _ in range(3):
        status, _, physical_offset = read_append_position(door.ask(append_one_command()).body)
        assert status is SendStatus.SEND_OK
        assert broker.store.flushed_offset > physical_offset


def sequenced_command(first: int, epoch: int = 0, body: bytes = b"x", count: int = 1, **fields: int) -> Command:
    command = append_one_command(body=body, **fields)
    record = bytearray(command.body)
    stamp_first(record, ProducerSequence("p" * 16, epoch, first, count))
    return Command(RequestCode.APPEND_ONE_SEQUENCED, body=bytes(record), serialization=Serialization.MSGPACK)


def as_batch(command: Command, *, delayed: bool = False) -> Command:
    """Return the same record as a batch, as retries send it."""
    sizes = np.array([len(command.body)], np.int32)
    return append_command("t", 0, command.body, sizes, delayed=delayed, sequenced=True)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_repeated_sequence_number_returns_first_position(start: Start, flush: str) -> None:
    door, broker = start(flush=flush)
    places = [read_append_position(door.ask(sequenced_command(n, body=b"%d" % n)).body) for n in range(4)]
    assert [offset for _, offset, _ in places] == list(range(4))
    end = broker.store.max_physical_offset
    assert [read_append_position(door.ask(sequenced_command(n, body=b"%d" % n)).body) for n in range(4)] == places
    for n, (status, offset, physical_offset) in enumerate(places):
        batch_status, placed = read_append_answer(door.ask(as_batch(sequenced_command(n, body=b"%d" % n))), 1)
        assert (batch_status, placed.queue_offsets[0], placed.physical_offsets[0]) == (status, offset, physical_offset)
    assert broker.store.max_physical_offset == end
    read_append_answer(door.ask(as_batch(sequenced_command(4))), 1)
    assert read_append_position(door.ask(sequenced_command(4)).body)[1] == 4
    assert count_messages(door) == 5
    assert broker.core.admission.appends_under_way == 0


def test_sequence_gap_is_refused_and_new_epoch_begins_at_0(start: Start) -> None:
    door, _ = start()
    for n in range(2):
        door.ask(sequenced_command(n, epoch=1))
    for wrong in (sequenced_command(3, epoch=1), sequenced_command(0, epoch=0), sequenced_command(1, epoch=2)):
        assert isinstance(error_of(door.ask(wrong)), SequenceGap)
    assert read_append_position(door.ask(sequenced_command(0, epoch=2)).body)[1] == 2
    assert isinstance(error_of(door.ask(sequenced_command(2, epoch=1))), SequenceGap)
    for wrong in (
        sequenced_command(1, epoch=2, count=2),
        Command(RequestCode.APPEND_ONE_SEQUENCED, body=append_one_command().body, serialization=Serialization.MSGPACK),
    ):
        assert isinstance(error_of(door.ask(wrong)), InvalidInput)
    assert read_append_position(door.ask(sequenced_command(1, epoch=2)).body)[1] == 3
    assert count_messages(door) == 4


def test_sequence_number_does_not_change_between_delayed_and_not(start: Start) -> None:
    door, broker = start()
    assert door.ask(sequenced_command(0)).code == ResponseCode.SUCCESS
    assert door.ask(as_batch(sequenced_command(1, delay_level=1), delayed=True)).code == ResponseCode.SUCCESS
    end = broker.store.max_physical_offset
    for other in (
        as_batch(sequenced_command(0, delay_level=1), delayed=True),
        as_batch(sequenced_command(1)),
        sequenced_command(1),
    ):
        assert isinstance(error_of(door.ask(other)), SequenceGap)
    assert broker.store.max_physical_offset == end
    assert read_append_answer(door.ask(as_batch(sequenced_command(1, delay_level=1), delayed=True)), 1)[1].topic != "t"


def test_repeated_overdue_message_returns_first_position(start: Start) -> None:
    """It is declared as delayed and was stored at once: a repeated send must match it."""
    door, broker = start()
    late = as_batch(sequenced_command(0, deliver_at=1), delayed=True)
    first = read_append_answer(door.ask(late), 1)[1]
    assert first.topic == "t"
    end = broker.store.max_physical_offset
    again = read_append_answer(door.ask(late), 1)[1]
    assert (again.topic, again.queue_offsets.tolist()) == ("t", first.queue_offsets.tolist())
    assert broker.store.max_physical_offset == end


def test_delayed_records_of_one_request_are_limited(start: Start) -> None:
    """Each record is rebuilt: 160,000 of one frame would block the loop for seconds."""
    door, broker = start()
    record = bytes(append_one_command(delay_level=1).body)

    def many(count: int) -> Command:
        return append_command("t", 0, record * count, np.full(count, len(record), np.int32), delayed=True)

    end = broker.store.max_physical_offset
    refused = error_of(door.ask(many(MAX_DELAYED + 1)))
    assert isinstance(refused, InvalidInput)
    assert refused.field == "sizes"
    zeros = append_command("t", 0, record, np.zeros(MAX_DELAYED, np.int32), delayed=True)
    assert isinstance(error_of(door.ask(zeros)), InvalidInput)
    assert broker.store.max_physical_offset == end
    assert len(read_append_answer(door.ask(many(MAX_DELAYED)), MAX_DELAYED)[1].queue_offsets) == MAX_DELAYED


def test_failure_after_write_raises_write_unknown(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """On each path the message must not be reported as not stored."""
    door, broker = start()
    door.ask(append_one_command())

    def breaks(*_: object) -> None:
        raise KeyError("t")

    monkeypatch.setattr(type(broker.polls), "offer", breaks)  # before the fast path's answer
    monkeypatch.setattr(broker.core, "on_arrival", breaks)  # before the other paths' answers
    assert isinstance(error_of(door.ask(append_one_command())), WriteUnknown)
    monkeypatch.undo()
    assert sum(broker.statistics.refusals.values()) == 1
    assert broker.core.admission.appends_under_way == 0
    assert read_append_position(door.ask(append_one_command()).body)[1] == 2


def test_sequence_is_recognised_after_journal_replay(start: Start) -> None:
    door, broker = start()
    first = read_append_position(door.ask(sequenced_command(0)).body)
    door.ask(sequenced_command(1))
    broker._loop.call_soon_threadsafe(broker.core.producers._lanes.clear)
    assert isinstance(error_of(door.ask(sequenced_command(2))), SequenceGap)
    producer_state_journal.replay(broker.core.producers, broker.store, 0)
    assert read_append_position(door.ask(sequenced_command(0)).body) == first
    assert read_append_position(door.ask(sequenced_command(2)).body)[1] == 2


def test_sequence_without_answer_is_remembered(start: Start) -> None:
    door, broker = start()
    door.ask(sequenced_command(0))
    single = broker.store.check_one(sequenced_command(1).body)
    broker.core.append_one(single, sequenced=True)
    assert read_append_position(door.ask(sequenced_command(1)).body)[1] == 1
    assert count_messages(door) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_waiting_poll_is_woken_after_undelivered_message(
    start: Start, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    door, broker = start()
    door.ask(sequenced_command(0))
    taken: list[object] = []
    woken: list[int] = []

    def take_next(*place: object) -> bool:
        taken.append(place)
        return True

    deadline = broker.polls.clock() + 60
    broker.polls.park([("t", 0)], deadline, lambda: woken.append(1), standing=True, take_next=take_next)
    if fails:

        def half_done(_: object) -> None:
            broker.store.dispatch()
            raise OSError("its sender cannot be answered")

        with monkeypatch.context() as patch:
            patch.setattr(broker.core, "dispatch_one", half_done)
            door.ask(sequenced_command(1))
    else:
        door.ask(sequenced_command(0))
    door.ask(as_batch(sequenced_command(0, epoch=1)))
    assert len(taken) == (1 if isinstance(door, BareFrameClient) else 0)  # a usual frame offers no direct delivery
    assert woken
