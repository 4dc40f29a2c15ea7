"""APPEND_ONE and its sibling over their three ways: alone in a bare frame, in a usual frame, and through `invoke`."""

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
from raymq.actors.broker.service import BrokerService
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
from raymq.storage.records.producer_sequence import ProducerSequence, stamp_first
from raymq.storage.records.record import OFFSET_QUEUE_ID
from raymq.storage.tables.topic_config import PERM_READ, TopicConfig
from tests.broker_clients import BareDoor, BrokerClient, InvokeBrokerClient, SocketBrokerClient
from tests.polling import poll_until
from tests.unit.actors.bench import HOST

pytestmark = pytest.mark.contract


T = TypeVar("T")
Start = Callable[..., tuple[BrokerClient, BrokerService]]


@pytest.fixture(params=[BareDoor, SocketBrokerClient, InvokeBrokerClient], ids=["bare", "socket", "invoke"])
def start(request: pytest.FixtureRequest, loop: EventLoopThread, tmp_path: Path) -> Iterator[Start]:
    """Starts a broker with topic t of two queues."""
    brokers: list[BrokerService] = []

    def started(*, auto_create_topics: bool = False, **store: object) -> tuple[BrokerClient, BrokerService]:
        sizes = {"commitlog_file_bytes": 1 << 24, "index_slots": 1_000, "index_entries": 10_000}
        spec = BrokerSpec(
            "broker-a", "test", str(tmp_path), "127.0.0.1", (), auto_create_topics=auto_create_topics,
            append_wait_ms=60_000,  # a door asks once: a machine that is busy elsewhere must not refuse it
            store={**sizes, **store},
        )  # fmt: skip
        brokers.append(loop.run(BrokerService.start(spec, "n")))
        door: BrokerClient = request.param(loop, brokers[0])
        assert door.ask(admin_commands.create_topic_command("t", 2, ordered=False)).code == ResponseCode.SUCCESS
        return door, brokers[0]

    yield started
    for broker in brokers:
        loop.run(broker.stop())


def one(topic: str = "t", body: bytes = b"x", queue_id: int = 0, **told: str | int) -> Command:
    record = Message(topic, body, **told).encode(1, HOST)  # type: ignore[arg-type]
    struct.pack_into(">i", record, OFFSET_QUEUE_ID, queue_id)
    return Command(RequestCode.APPEND_ONE, body=bytes(record), serialization=Serialization.MSGPACK)


def fetched(door: BrokerClient, queue_id: int = 0) -> int:
    """How many messages a queue has."""
    parts = fetch_commands.read_fetched(
        door.ask(fetch_commands.fetch_command("s", [FetchSpec("t", queue_id, 0)], 100, 1 << 23, 0.0))
    )
    return sum(len(part.sizes) for part in parts)


def error_of(answer: Command) -> RayMQError:
    assert answer.code != ResponseCode.SUCCESS
    return error_codec.error_from_response(answer)


def test_places_follow_each_other(start: Start) -> None:
    door, broker = start()
    ends = []
    for n in range(6):
        status, offset, physical_offset = read_append_position(door.ask(one(body=b"%d" % n, queue_id=n % 2)).body)
        assert (status, offset) == (SendStatus.SEND_OK, n // 2)
        assert broker.core.view(physical_offset).body == b"%d" % n
        ends.append(physical_offset)
    assert ends == sorted(set(ends))
    assert (fetched(door), fetched(door, 1)) == (3, 3)
    counter = broker.statistics.put_of("t")
    assert counter is not None
    assert (counter.messages, counter.calls) == (6, 6)
    assert broker.core.admission.appends_under_way == 0


async def on_loop(call: Callable[[], T]) -> T:
    """A broker's core belongs to its loop: an answer may be out before queue and index know what it speaks of."""
    return call()


def test_tags_and_keys_are_found(start: Start, loop: EventLoopThread) -> None:
    door, broker = start()
    for n in range(2):
        assert door.ask(one(tags="red", keys=f"k{n}")).code == ResponseCode.SUCCESS
    (found,) = loop.run(on_loop(lambda: broker.core.query("t", "k1", 0, 1 << 60, 9)))
    assert (found.tags, found.queue_offset) == ("red", 1)


def test_who_waits_is_woken(start: Start) -> None:
    door, broker = start()
    door.ask(one())
    parked = SocketBrokerClient(door._loop, broker).begin(
        fetch_commands.fetch_command("s", [FetchSpec("t", 0, 1)], 9, 1 << 23, 20.0)
    )  # type: ignore[attr-defined]
    poll_until(lambda: len(broker.polls) == 1)
    door.ask(one())
    (part,) = fetch_commands.read_fetched(parked.result(5))
    assert part.next_offset == 2


def test_refusals_leave_nothing_behind(start: Start) -> None:
    door, broker = start()
    door.ask(one())
    end = broker.store.max_physical_offset
    sound = bytes(one().body)
    cases: list[tuple[Command, type[RayMQError]]] = [
        (one("unknown"), TopicNotFound),
        (one(queue_id=2), QueueNotFound),
        (one(queue_id=-1), InvalidInput),
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
    assert read_append_position(door.ask(one()).body)[1] == 1


def test_a_topic_that_changes_is_looked_at_anew(start: Start) -> None:
    door, broker = start()
    for change, queue_id, error in (
        (TopicConfig("t", 1, 1), 1, QueueNotFound),
        (TopicConfig("t", 1, 1, perm=PERM_READ), 0, PermissionDenied),
    ):
        for _ in range(2):
            assert door.ask(one(queue_id=queue_id)).code == ResponseCode.SUCCESS
        broker._loop.call_soon_threadsafe(broker.store.topic_configs.put, change)
        poll_until(lambda: broker.core.topic("t") == change)  # noqa: B023 - called at once
        assert type(error_of(door.ask(one(queue_id=queue_id)))) is error


def test_a_broker_that_has_too_much_to_do_says_so(start: Start) -> None:
    door, broker = start()
    door.ask(one())
    admission = broker.core.admission
    admission.appends_under_way = admission.limits.appends_under_way
    assert isinstance(error_of(door.ask(one())), ServerBusy)
    admission.appends_under_way = 0
    assert read_append_position(door.ask(one()).body)[1] == 1


def test_a_topic_is_made_where_that_is_allowed(start: Start) -> None:
    door, broker = start(auto_create_topics=True)
    assert read_append_position(door.ask(one("new")).body)[:2] == (SendStatus.SEND_OK, 0)
    assert "new" in broker.core.topics


def test_with_sync_flush_it_is_on_disk(start: Start) -> None:
    door, broker = start(flush="sync")
    for _ in range(3):
        status, _, physical_offset = read_append_position(door.ask(one()).body)
        assert status is SendStatus.SEND_OK
        assert broker.store.flushed_offset > physical_offset


def numbered(first: int, epoch: int = 0, body: bytes = b"x", count: int = 1, **told: int) -> Command:
    command = one(body=body, **told)
    record = bytearray(command.body)
    stamp_first(record, ProducerSequence("p" * 16, epoch, first, count))
    return Command(RequestCode.APPEND_ONE_SEQUENCED, body=bytes(record), serialization=Serialization.MSGPACK)


def as_a_batch(command: Command, *, delayed: bool = False) -> Command:
    """The same record as the loop's tries have it."""
    sizes = np.array([len(command.body)], np.int32)
    return append_command("t", 0, command.body, sizes, delayed=delayed, sequenced=True)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_repeated_number_gets_the_first_ones_place(start: Start, flush: str) -> None:
    door, broker = start(flush=flush)
    places = [read_append_position(door.ask(numbered(n, body=b"%d" % n)).body) for n in range(4)]
    assert [offset for _, offset, _ in places] == list(range(4))
    end = broker.store.max_physical_offset
    assert [read_append_position(door.ask(numbered(n, body=b"%d" % n)).body) for n in range(4)] == places
    for n, (status, offset, physical_offset) in enumerate(places):
        told, placed = read_append_answer(door.ask(as_a_batch(numbered(n, body=b"%d" % n))), 1)
        assert (told, placed.queue_offsets[0], placed.physical_offsets[0]) == (status, offset, physical_offset)
    assert broker.store.max_physical_offset == end
    read_append_answer(door.ask(as_a_batch(numbered(4))), 1)
    assert read_append_position(door.ask(numbered(4)).body)[1] == 4
    assert fetched(door) == 5
    assert broker.core.admission.appends_under_way == 0


def test_gaps_are_refused_and_a_new_epoch_begins_at_0(start: Start) -> None:
    door, _ = start()
    for n in range(2):
        door.ask(numbered(n, epoch=1))
    for wrong in (numbered(3, epoch=1), numbered(0, epoch=0), numbered(1, epoch=2)):
        assert isinstance(error_of(door.ask(wrong)), SequenceGap)
    assert read_append_position(door.ask(numbered(0, epoch=2)).body)[1] == 2
    assert isinstance(error_of(door.ask(numbered(2, epoch=1))), SequenceGap)
    for wrong in (
        numbered(1, epoch=2, count=2),
        Command(RequestCode.APPEND_ONE_SEQUENCED, body=one().body, serialization=Serialization.MSGPACK),
    ):
        assert isinstance(error_of(door.ask(wrong)), InvalidInput)
    assert read_append_position(door.ask(numbered(1, epoch=2)).body)[1] == 3
    assert fetched(door) == 4


def test_a_number_is_of_a_delayed_message_or_of_one_that_is_not(start: Start) -> None:
    door, broker = start()
    assert door.ask(numbered(0)).code == ResponseCode.SUCCESS
    assert door.ask(as_a_batch(numbered(1, delay_level=1), delayed=True)).code == ResponseCode.SUCCESS
    end = broker.store.max_physical_offset
    for other in (
        as_a_batch(numbered(0, delay_level=1), delayed=True),
        as_a_batch(numbered(1)),
        numbered(1),
    ):
        assert isinstance(error_of(door.ask(other)), SequenceGap)
    assert broker.store.max_physical_offset == end
    assert read_append_answer(door.ask(as_a_batch(numbered(1, delay_level=1), delayed=True)), 1)[1].topic != "t"


def test_a_repeated_message_whose_time_had_passed_gets_the_first_ones_place(start: Start) -> None:
    """It is told as delayed and was stored at once: as its producer repeats it, it is the same."""
    door, broker = start()
    late = as_a_batch(numbered(0, deliver_at=1), delayed=True)
    first = read_append_answer(door.ask(late), 1)[1]
    assert first.topic == "t"
    end = broker.store.max_physical_offset
    again = read_append_answer(door.ask(late), 1)[1]
    assert (again.topic, again.queue_offsets.tolist()) == ("t", first.queue_offsets.tolist())
    assert broker.store.max_physical_offset == end


def test_so_many_records_of_one_request_may_wait(start: Start) -> None:
    """Each is made anew: 160,000 of one frame would take seconds of the loop."""
    door, broker = start()
    record = bytes(one(delay_level=1).body)

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


def test_what_fails_when_bytes_were_written_is_an_unknown_outcome(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On each way: nobody may say that it is not stored."""
    door, broker = start()
    door.ask(one())

    def breaks(*_: object) -> None:
        raise KeyError("t")

    monkeypatch.setattr(type(broker.polls), "offer", breaks)  # before the quick way's answer
    monkeypatch.setattr(broker.core, "on_arrival", breaks)  # before the others'
    assert isinstance(error_of(door.ask(one())), WriteUnknown)
    monkeypatch.undo()
    assert sum(broker.statistics.refusals.values()) == 1
    assert broker.core.admission.appends_under_way == 0
    assert read_append_position(door.ask(one()).body)[1] == 2


def test_after_a_restart_what_is_here_is_known(start: Start) -> None:
    door, broker = start()
    first = read_append_position(door.ask(numbered(0)).body)
    door.ask(numbered(1))
    broker._loop.call_soon_threadsafe(broker.core.producers._lanes.clear)
    assert isinstance(error_of(door.ask(numbered(2))), SequenceGap)
    producer_state_journal.replay(broker.core.producers, broker.store, 0)
    assert read_append_position(door.ask(numbered(0)).body) == first
    assert read_append_position(door.ask(numbered(2)).body)[1] == 2


def test_an_answer_that_cannot_be_given_is_remembered(start: Start) -> None:
    door, broker = start()
    door.ask(numbered(0))
    single = broker.store.check_one(numbered(1).body)

    def lost(*_: int) -> None:
        raise ValueError("nobody is there")

    with pytest.raises(ValueError, match="nobody"):
        broker.core.append_one_sequenced(single, lost)
    assert read_append_position(door.ask(numbered(1)).body)[1] == 1
    assert fetched(door) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_who_took_what_did_not_arrive_is_woken_for_the_next_message(
    start: Start, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    door, broker = start()
    door.ask(numbered(0))
    taken: list[object] = []
    woken: list[int] = []

    def take_next(*place: object) -> bool:
        taken.append(place)
        return True

    deadline = broker.polls.clock() + 60
    broker.polls.park([("t", 0)], deadline, lambda: woken.append(1), standing=True, take_next=take_next)
    if fails:
        append_one = broker.store.append_one

        def half_done(*arguments: object) -> None:
            append_one(*arguments)  # type: ignore[arg-type]
            raise OSError("its sender cannot be answered")

        with monkeypatch.context() as patch:
            patch.setattr(broker.store, "append_one", half_done)
            door.ask(numbered(1))
    else:
        door.ask(numbered(0))
    door.ask(as_a_batch(numbered(0, epoch=1)))
    assert len(taken) == (1 if isinstance(door, BareDoor) else 0)  # by its usual frame nothing is offered
    assert woken
