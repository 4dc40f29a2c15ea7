"""Test both interfaces of a broker: its socket, and `invoke`, which takes commands as calls."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from raymq.actors.broker.handlers import fetch_handlers
from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.errors import (
    ConnectionLost,
    InvalidInput,
    OffsetOutOfRange,
    OffsetReset,
    PermissionDenied,
    TopicNotFound,
)
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.filter.tag_expression import Subscription
from raymq.actors.protocol import PERM_READ, PERM_WRITE, BrokerSpec, SendStatus
from raymq.actors.wire import bare_frame as bare
from raymq.actors.wire import error_codec
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands import admin_commands, append_commands, fetch_commands, group_commands, offset_commands
from raymq.actors.wire.frame import FLAG_ONEWAY, MAX_FRAME_BYTES, Command, Serialization
from raymq.actors.wire.headers.pop_headers import ANY_QUEUE, PopMessage
from raymq.actors.wire.headers.pull_headers import HAS_SUBSCRIPTION, MAY_PARK, PullMessage
from raymq.actors.wire.in_memory_transport import PARK_SECONDS
from raymq.client import Message
from raymq.client.errors import RayMQError
from raymq.storage.records.record import decode
from raymq.storage.tables.topic_config import TopicConfig
from tests.broker_clients import BrokerClient, InvokeBrokerClient, SocketBrokerClient
from tests.leading import start_leader
from tests.polling import poll_until
from tests.unit.actors.bench import encoded
from tests.wire_server import Peer

FIRST = "CONSUME_FROM_FIRST_OFFSET"
pytestmark = pytest.mark.contract


@pytest.fixture
def broker(loop: EventLoopThread, tmp_path: Path) -> Iterator[LeaderService]:
    store = {"commitlog_file_bytes": 1 << 24, "index_slots": 1_000, "index_entries": 10_000}
    # A client asks once: a busy machine must not refuse it.
    spec = BrokerSpec("broker-a", "test", str(tmp_path), "127.0.0.1", (), append_wait_ms=60_000, store=store)
    made = loop.run(start_leader(spec, "n"))
    yield made
    loop.run(made.stop())


@pytest.fixture(params=[SocketBrokerClient, InvokeBrokerClient], ids=["socket", "invoke"])
def door(request: pytest.FixtureRequest, loop: EventLoopThread, broker: LeaderService) -> Iterator[BrokerClient]:
    made: BrokerClient = request.param(loop, broker)
    assert made.ask(admin_commands.create_topic_command("t", 2, ordered=False)).code == ResponseCode.SUCCESS
    yield made
    made.leave()


def fetch(at: int, wait: float = 0.0, session: str = "s") -> Command:
    return fetch_commands.fetch_command(session, [FetchSpec("t", 0, at)], 100, 1 << 23, wait)


def error_in(answer: Command) -> RayMQError:
    assert answer.code != ResponseCode.SUCCESS
    return error_codec.error_from_response(answer)


def test_fetch_returns_appended_messages(door: BrokerClient) -> None:
    records, sizes = encoded(*(Message("t", b"%d" % n * 100) for n in range(20)))
    status, placed = append_commands.read_append_answer(
        door.ask(append_commands.append_command("t", 0, records, sizes)), len(sizes)
    )
    assert status is SendStatus.SEND_OK
    assert placed.queue_offsets.tolist() == list(range(20))
    (part,) = fetch_commands.read_fetched(door.ask(fetch(5)))
    assert (part.next_offset, part.min_offset, part.max_offset, len(part.sizes)) == (20, 0, 20, 15)
    assert bytes(part.records).count(b"19" * 100) == 1


def test_bodies_of_1_mib_are_fetched(door: BrokerClient) -> None:
    records, sizes = encoded(*(Message("t", bytes([n]) * (1 << 20)) for n in range(4)))
    append_commands.read_append_answer(door.ask(append_commands.append_command("t", 0, records, sizes)), len(sizes))
    (part,) = fetch_commands.read_fetched(door.ask(fetch(0)))
    assert part.sizes.tolist() == sizes.tolist()
    assert bytes(part.records[-(1 << 20) :]).count(3) > 1_000_000


def test_append_wakes_parked_fetch(door: BrokerClient, broker: LeaderService) -> None:
    parked = door.begin(fetch(0, wait=20.0))
    poll_until(lambda: len(broker.polls) == 1)
    records, sizes = encoded(Message("t", b"x"))
    broker._loop.call_soon_threadsafe(lambda: broker.core.append("t", 0, memoryview(records), sizes))
    (part,) = fetch_commands.read_fetched(parked.result(5))
    assert part.next_offset == 1


def test_parked_fetch_ends_at_its_timeout(door: BrokerClient) -> None:
    began = time.monotonic()
    assert fetch_commands.read_fetched(door.ask(fetch(0, wait=0.2))) == []
    assert 0.15 < time.monotonic() - began < 5.0


def test_parked_fetch_ends_with_connection(door: BrokerClient, broker: LeaderService) -> None:
    parked = door.begin(fetch(0, wait=20.0))
    poll_until(lambda: len(broker.polls) == 1)
    door.leave()
    poll_until(lambda: len(broker.polls) == 0)
    with pytest.raises((EOFError, RayMQError)):
        parked.result(5)


def test_message_during_group_announcement_ends_first_pop(
    loop: EventLoopThread, broker: LeaderService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arrival wakes no poll, for the pop is not parked yet."""
    door, asked, told = SocketBrokerClient(loop, broker), threading.Event(), asyncio.Event()
    assert door.ask(admin_commands.create_topic_command("t", 2, ordered=False)).code == ResponseCode.SUCCESS

    async def announce() -> None:
        asked.set()
        await told.wait()

    def arrives() -> None:
        append_messages(broker)
        told.set()

    monkeypatch.setattr(broker._registration, "announce", announce)
    popped = door.begin(PopMessage("new", "t", -1, 8, 60_000, 60_000, 0, 0).command())
    assert asked.wait(10)
    loop.loop.call_soon_threadsafe(arrives)
    assert popped.result(20).code == ResponseCode.SUCCESS
    door.leave()


def pop(seconds: float) -> Command:
    return PopMessage("g", "t", ANY_QUEUE, 8, 60_000, int(seconds * 1000), 0, 0).command()


@pytest.mark.parametrize("perm", [PERM_READ | PERM_WRITE, PERM_WRITE])
def test_parked_pop_follows_topic_changes(door: BrokerClient, broker: LeaderService, perm: int) -> None:
    """The parked pop looked only into the queues that existed when it came, also without read permission."""
    door.ask(group_commands.create_group_command("g"))
    parked = door.begin(pop(PARK_SECONDS))
    poll_until(lambda: len(broker.polls) == 1)
    broker._loop.call_soon_threadsafe(broker.store.topic_configs.put, TopicConfig("t", 3, 3, perm))
    broker._loop.call_soon_threadsafe(partial(append_messages, broker, queue_id=2))
    if perm & PERM_READ:
        assert parked.result(5).fields["msgOffsetInfo"] == "0 2 0"
    else:
        assert isinstance(error_in(parked.result(5)), PermissionDenied)


def test_parked_pop_of_deleted_topic_leaves_no_offset(door: BrokerClient, broker: LeaderService) -> None:
    door.ask(group_commands.create_group_command("g"))
    parked = door.begin(pop(0.5))
    poll_until(lambda: len(broker.polls) == 1)
    broker._loop.call_soon_threadsafe(broker.core.topics.delete, "t")
    assert isinstance(error_in(parked.result(5)), TopicNotFound)
    assert broker.store.consumer_offsets.topics_of("g") == []


def append_messages(broker: LeaderService, count: int = 1, queue_id: int = 0, body: bytes = b"x") -> None:
    """Append messages one by one on the broker's loop, as from any sender."""
    for _ in range(count):
        records, sizes = encoded(Message("t", body), queue_id=queue_id)
        broker.core.append("t", queue_id, memoryview(records), sizes)


def continuous_fetch(session: str, most: int, wait: float = 20.0) -> Command:
    return fetch_commands.fetch_command(
        session, [FetchSpec("t", 0, 0), FetchSpec("t", 1, 0)], most, 1 << 23, wait, goes_on=True
    )


def test_continuous_fetch_stays_open_on_socket(door: BrokerClient, broker: LeaderService) -> None:
    begun = door.begin(continuous_fetch("s", 3))
    poll_until(lambda: len(broker.polls) == 1)
    broker._loop.call_soon_threadsafe(append_messages, broker, 2)
    answer = begun.result(5)
    assert [part.offsets.tolist() for part in fetch_commands.read_fetched(answer)] == [[0, 1]]
    stays = isinstance(door, SocketBrokerClient)
    assert (answer.is_early, len(broker.polls)) == (stays, int(stays))


def test_newer_fetch_ends_continuous_fetch_of_session(door: BrokerClient, broker: LeaderService) -> None:
    older = door.begin(continuous_fetch("s", 3))
    poll_until(lambda: len(broker.polls) == 1)
    door.begin(continuous_fetch("s", 3, wait=0.3))
    assert fetch_commands.read_fetched(older.result(5)) == []
    assert len(broker.polls) == 1


@pytest.mark.parametrize("serialization", [Serialization.JSON, Serialization.ROCKETMQ])
def test_numeric_header_fields_are_read_as_text(door: BrokerClient, serialization: Serialization) -> None:
    command = offset_commands.update_offset_command("g", "t", 0, 0)
    command.serialization = serialization
    assert door.ask(command).code == ResponseCode.SUCCESS
    question = offset_commands.query_offset_command("g", "t", 0)
    question.serialization = serialization
    answer = door.ask(question)
    assert (answer.fields["offset"], answer.serialization) == ("0", serialization)


def test_failing_parked_pull_gets_error_and_others_answers(
    door: BrokerClient, loop: EventLoopThread, broker: LeaderService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parked requests are woken in turns; one of them may fail, also for lack of memory."""
    for each in ("g", "h"):
        door.ask(group_commands.create_group_command(each))
    flags = HAS_SUBSCRIPTION | MAY_PARK
    doors = [type(door)(loop, broker), type(door)(loop, broker)]  # type: ignore[call-arg]
    pulls = [PullMessage(each, "t", 0, 0, 32, flags, 0, 20_000, "*").command() for each in ("g", "h")]
    waiting = [each.begin(pull) for each, pull in zip(doors, pulls, strict=True)]
    poll_until(lambda: len(broker.polls) == 2)
    count = broker.statistics.get

    def failing(group: str, topic: str, messages: int, size: int) -> None:
        if group == "g":
            raise MemoryError
        count(group_commands, topic, messages, size)

    monkeypatch.setattr(broker.statistics, "get", failing)
    records, sizes = encoded(Message("t", b"0"))
    door.ask(append_commands.append_command("t", 0, records, sizes, delayed=False))
    codes = [each.result(10).code for each in waiting]
    assert codes == [ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS]
    for each in doors:
        each.leave()


def test_commit_with_unknown_epoch_raises_offset_reset(door: BrokerClient, broker: LeaderService) -> None:
    """The broker has no messages of an epoch that it does not know."""
    records, sizes = encoded(Message("t", b"0"))
    door.ask(append_commands.append_command("t", 0, records, sizes, delayed=False))
    epoch = broker.core.store.epoch
    assert door.ask(offset_commands.update_offset_command("g", "t", 0, 0, epoch=epoch)).code == ResponseCode.SUCCESS
    refused = error_codec.error_from_response(
        door.ask(offset_commands.update_offset_command("g", "t", 0, 1, since=0, epoch=epoch + 1))
    )
    assert isinstance(refused, OffsetReset)
    assert broker.core.offsets.get("g", "t", 0) == 0
    assert (
        door.ask(offset_commands.update_offset_command("g", "t", 0, 1, since=0, epoch=epoch)).code
        == ResponseCode.SUCCESS
    )
    assert broker.core.offsets.get("g", "t", 0) == 1


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "none"}), TopicNotFound),
        (admin_commands.create_topic_command("a/b", 1, ordered=False), InvalidInput),
        (Command(RequestCode.APPEND_RECORDS, {"topic": "t"}, serialization=Serialization.MSGPACK), InvalidInput),
    ],
)
def test_error_types_are_equal(door: BrokerClient, command: Command, error: type[RayMQError]) -> None:
    assert type(error_in(door.ask(command))) is error


def test_queue_error_has_offset_fields(door: BrokerClient) -> None:
    (part,) = fetch_commands.read_fetched(door.ask(fetch(7)))
    assert isinstance(part.error, OffsetOutOfRange)
    assert (part.error.offset, part.error.min_offset, part.error.max_offset) == (7, 0, 0)


def test_unknown_request_code_is_not_supported(door: BrokerClient) -> None:
    answer = door.ask(Command(999_999))
    assert (answer.code, answer.remark) == (3, " request type 999999 not supported")


def test_one_way_append_is_stored(door: BrokerClient) -> None:
    records, sizes = encoded(Message("t", b"x"))
    command = append_commands.append_command("t", 0, records, sizes)
    command.flag |= FLAG_ONEWAY
    door.ask(command)
    (part,) = fetch_commands.read_fetched(door.ask(fetch(0)))
    assert part.next_offset == 1


def test_requests_run_in_order(door: BrokerClient) -> None:
    begun = []
    for n in range(50):
        records, sizes = encoded(Message("t", b"%d" % n))
        begun.append(door.begin(append_commands.append_command("t", 0, records, sizes)))
    offsets = [append_commands.read_append_answer(each.result(10), 1)[1].queue_offsets.tolist() for each in begun]
    assert offsets == [[n] for n in range(50)]


def test_membership_ends_with_connection(door: BrokerClient, broker: LeaderService) -> None:
    heartbeat = group_commands.heartbeat_command(group_commands.Member("me", "g", {"t": Subscription("t")}))
    assert door.ask(heartbeat).code == ResponseCode.SUCCESS
    assert group_commands.read_members(door.ask(group_commands.members_command("g"))) == ["me"]
    door.leave()
    poll_until(lambda: not broker.groups.connections("g"))


def test_status_names_broker_address(door: BrokerClient, broker: LeaderService) -> None:
    assert admin_commands.read_status(door.ask(admin_commands.status_command())).address == broker.address


def test_json_answer_body_is_readable(door: BrokerClient) -> None:
    answer = door.ask(Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "t"}))
    assert len(json.loads(bytes(answer.body))["offsetTable"]) == 2


# -- the socket only ------------------------------------------------------------------------------------------------


def test_continuous_fetch_answers_until_limit(loop: EventLoopThread, broker: LeaderService) -> None:
    async def read_answer(peer: Peer) -> tuple[bool, list[tuple[int, list[int]]]]:
        answer = await peer.hear()
        assert answer.opaque == 7
        return answer.is_early, [(part.index, part.offsets.tolist()) for part in fetch_commands.read_fetched(answer)]

    async def converse() -> None:
        peer = await Peer.connect(broker.address)
        request = continuous_fetch("s", 6)
        request.opaque = 7
        broker.core.topics.create("t", 2)
        append_messages(broker)
        peer.say(request)
        assert await read_answer(peer) == (True, [(0, [0])]), "what is there, at once"
        append_messages(broker, 2)
        assert await read_answer(peer) == (True, [(0, [1, 2])]), "what comes in one turn of the loop, together"
        append_messages(broker, queue_id=1)
        assert await read_answer(peer) == (True, [(1, [0])])
        append_messages(broker, 3)
        assert await read_answer(peer) == (False, [(0, [3, 4])]), "six in all"
        assert len(broker.polls) == 0
        peer.close()

    loop.run(converse())


@pytest.mark.parametrize("apart", [True, False])
def test_single_message_is_answered_by_bare_frame(
    loop: EventLoopThread, broker: LeaderService, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    monkeypatch.setattr(fetch_handlers, "_APART_SECONDS", 0.0 if apart else 1e9)

    def answer_parts(answer: Command) -> list[tuple[int, int, list[int], bytes]]:
        parts = fetch_commands.read_fetched(answer)
        return [(part.index, part.next_offset, part.offsets.tolist(), decode(part.records).body) for part in parts]

    def single_append(number: int, queue_id: int) -> bytes:
        record, _ = encoded(Message("t", b"%d" % number), queue_id=queue_id)
        return bare.request(RequestCode.APPEND_ONE, number, len(record)) + record

    async def converse() -> None:
        broker.core.topics.create("t", 2)
        broker.core.ensure_group("g")
        append_messages(broker)  # the queues are known to be open
        append_messages(broker, queue_id=1)
        consumer, producer = await Peer.connect(broker.address), await Peer.connect(broker.address)
        request = fetch_commands.fetch_command(
            "s", [FetchSpec("t", 0, 1), FetchSpec("t", 1, 1)], 3, 1 << 23, 20.0, "g", goes_on=True
        )
        request.opaque = 7
        consumer.say(request)
        while not len(broker.polls):  # noqa: ASYNC110
            await asyncio.sleep(0)
        frames = []
        for number, queue_id in enumerate((0, 1), 1):
            producer.writer.write(single_append(number, queue_id))
            answer = await consumer.hear()
            frames.append((answer.is_early, answer.opaque, not answer.fields))
            assert answer_parts(answer) == [(queue_id, 2, [1], b"%d" % number)]
            assert (await producer.hear()).opaque == number
        assert frames == [(True, 7, True), (True, 7, apart)], "what comes soon after another waits for the turn"
        counted = broker.statistics.get_of("g", "t")
        assert counted is not None
        assert counted.messages == 2
        producer.writer.write(single_append(3, 0) + single_append(4, 0))
        answers = [await consumer.hear()]
        while answers[-1].is_early:
            answers.append(await consumer.hear())
        offsets = [part.offsets.tolist() for answer in answers for part in fetch_commands.read_fetched(answer)]
        assert offsets == [[2]], "three were asked for"
        assert len(broker.polls) == 0
        consumer.close()
        producer.close()

    loop.run(converse())


def test_offset_reset_ends_continuous_fetch(loop: EventLoopThread, broker: LeaderService) -> None:
    async def converse() -> None:
        peer = await Peer.connect(broker.address)
        broker.core.topics.create("t", 2)
        broker.core.ensure_group("g")
        append_messages(broker)
        peer.say(fetch_commands.fetch_command("s", [FetchSpec("t", 0, 0)], 6, 1 << 23, 20.0, "g", goes_on=True))
        assert (await peer.hear()).is_early
        broker.core.reset_offset("g", "t", 0, 0)
        answer = await peer.hear()
        (part,) = fetch_commands.read_fetched(answer)
        assert (answer.is_early, type(part.error)) == (False, OffsetReset)
        peer.close()

    loop.run(converse())


def test_slow_reader_limits_unsent_bytes(loop: EventLoopThread, broker: LeaderService) -> None:
    async def converse() -> None:
        peer = await Peer.connect(broker.address)
        broker.core.topics.create("t", 2)
        for number in range(30):
            peer.say(fetch_commands.fetch_command(f"s{number}", [FetchSpec("t", 0, 0)], 6, 1 << 23, 20.0, goes_on=True))
        peer.say(admin_commands.status_command())
        await peer.hear()
        for _ in range(5):
            append_messages(broker, body=bytes(1 << 20))
            await asyncio.sleep(0)
        (connection,) = broker._server.connections
        assert connection._writer is not None
        assert connection._writer.unsent_bytes < 60 << 20, "of 150 MiB"
        offsets = []
        while len(offsets) < 150:
            for part in fetch_commands.read_fetched(await peer.hear()):
                offsets += part.offsets.tolist()
        assert sorted(offsets) == sorted(list(range(5)) * 30)
        peer.close()

    loop.run(converse(), 60.0)


# -- invoke only ---------------------------------------------------------------------------------------------------


def test_invoke_limits_parking_time(loop: EventLoopThread, broker: LeaderService) -> None:
    door = InvokeBrokerClient(loop, broker)
    door.ask(admin_commands.create_topic_command("t", 1, ordered=False))
    began = time.monotonic()
    assert fetch_commands.read_fetched(door.ask(fetch(0, wait=20.0))) == []
    assert time.monotonic() - began < PARK_SECONDS + 1.0


def test_invoke_refuses_oversized_frame(loop: EventLoopThread, broker: LeaderService) -> None:
    door = InvokeBrokerClient(loop, broker)
    with pytest.raises(RayMQError, match="above the limit"):
        door.ask(Command(RequestCode.STATUS, body=bytes(MAX_FRAME_BYTES)))
    assert door.ask(admin_commands.status_command()).code == ResponseCode.SUCCESS


def test_invoke_session_counts_as_connection(loop: EventLoopThread, broker: LeaderService) -> None:
    broker._server.limits = dataclasses.replace(broker._server.limits, connections=1)
    loop.run(broker.invoke("first", admin_commands.status_command()))
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="limit of connections"):
            loop.run(broker.invoke("second", admin_commands.status_command()))
    first = broker._door._sessions["first"].connection
    loop.loop.call_soon_threadsafe(first.close)
    poll_until(lambda: not broker._server.connections)
    assert not broker._door._sessions
    assert loop.run(broker.invoke("second", admin_commands.status_command())).code == ResponseCode.SUCCESS


def test_invoke_sessions_have_separate_connections(loop: EventLoopThread, broker: LeaderService) -> None:
    first = loop.run(broker.invoke("first", admin_commands.status_command()))
    second = loop.run(broker.invoke("second", admin_commands.status_command()))
    assert first.opaque == second.opaque == 1
    assert len(broker._server.connections) == 2
