"""Test that with flush=sync no reader sees an unflushed message, and that a failed flush is an unknown outcome."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from raymq.actors.broker import group_commit
from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.errors import InvalidInput, MessageNotFound, OffsetOutOfRange, RayMQError, StoreFailed, WriteUnknown
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.protocol import BrokerSpec, SendStatus
from raymq.actors.wire import error_codec
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands import (
    admin_commands,
    append_commands,
    fetch_commands,
    group_commands,
    offset_commands,
    query_commands,
)
from raymq.actors.wire.commands.send_back_commands import send_back_command
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.group_headers import QueryConsumerOffset
from raymq.actors.wire.headers.pop_headers import PopMessage
from raymq.actors.wire.headers.pull_headers import HAS_SUBSCRIPTION, MAY_PARK, PullMessage
from raymq.actors.wire.headers.send_headers import SendMessageV2
from raymq.client import Message
from raymq.storage.files.file_calls import replaced
from tests.broker_clients import BrokerClient, InvokeBrokerClient, SocketBrokerClient
from tests.hanging_disk import HangingDisk
from tests.leading import start_leader
from tests.polling import poll_until
from tests.unit.actors.bench import encoded

pytestmark = pytest.mark.contract


@dataclass
class Bench:
    """A broker with sync flush on a disk that can hang, with clients for it."""

    loop: EventLoopThread
    disk: HangingDisk
    broker: LeaderService
    kind: Callable[[EventLoopThread, LeaderService], BrokerClient]

    def ask(self, command: Command) -> Command:
        return self.begin(command).result(10)

    def begin(self, command: Command) -> Future[Command]:
        """Send over a connection of its own: the answer may take long."""
        return self.kind(self.loop, self.broker).begin(command)

    def begin_as_foreigner(self, command: Command) -> Future[Command]:
        """Send over a socket: a RocketMQ client has an address."""
        return SocketBrokerClient(self.loop, self.broker).begin(command)

    def send(self, body: bytes, **fields: object) -> Future[Command]:
        records, sizes = encoded(Message("t", body, keys=["k"], **fields))  # type: ignore[arg-type]
        return self.begin(append_commands.append_command("t", 0, records, sizes, delayed=bool(fields)))

    def hang_with(self, body: bytes) -> tuple[Future[Command], int]:
        """Send while flushes hang; return the answer and the record's position once it is in the log."""
        place = self.broker.store.max_physical_offset
        self.disk.hang()
        sent = self.send(body)
        poll_until(lambda: self.broker.store.max_physical_offset > place and self.disk.hanging > 0)
        return sent, place


def start_broker(loop: EventLoopThread, directory: Path, flush: str = "sync") -> LeaderService:
    store = {
        "commitlog_file_bytes": 1 << 20,
        "index_slots": 1_000,
        "index_entries": 10_000,
        "flush": flush,
        "delay_levels": "1s 1s",
        "flush_interval_ms": 3_600_000,
    }
    # A client asks once: a busy machine must not refuse it.
    spec = BrokerSpec("broker-a", "test", str(directory), "127.0.0.1", (), append_wait_ms=60_000, store=store)
    return loop.run(start_leader(spec, "n"))


@pytest.fixture(params=[SocketBrokerClient, InvokeBrokerClient], ids=["socket", "invoke"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(group_commit, "_SYNC_FLUSH_SECONDS", 30.0)
    loop, disk = EventLoopThread("door"), HangingDisk()
    with replaced(disk):
        made = Bench(loop, disk, start_broker(loop, tmp_path / "s"), request.param)
        made.ask(admin_commands.create_topic_command("t", 1, ordered=False))
        made.ask(group_commands.create_group_command("g"))
        assert made.send(b"0").result(10).code == ResponseCode.SUCCESS
        yield made
        disk.release()
        loop.run(made.broker.stop())
    loop.stop()


def fetch(at: int, wait: float = 0.0, *, goes_on: bool = False) -> Command:
    session = f"s{time.monotonic_ns()}"
    return fetch_commands.fetch_command(session, [FetchSpec("t", 0, at)], 100, 1 << 20, wait, goes_on=goes_on)


def pull(at: int, wait_ms: int = 0) -> Command:
    flags = HAS_SUBSCRIPTION | (MAY_PARK if wait_ms else 0)
    return PullMessage("g", "t", 0, at, 32, flags, 0, wait_ms, "*").command()


def pop(wait_ms: int = 0) -> Command:
    return PopMessage("g", "t", 0, 32, 60_000, wait_ms, int(time.time() * 1000), 0).command()


def error_in(answer: Command) -> RayMQError:
    assert answer.code != ResponseCode.SUCCESS
    return error_codec.error_from_response(answer)


def offset_in(answer: Command) -> int:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int(answer.fields["offset"])


def test_no_request_shows_unflushed_message(bench: Bench) -> None:
    sent, place = bench.hang_with(b"1")
    assert not sent.done()
    (part,) = fetch_commands.read_fetched(bench.ask(fetch(0)))
    assert (part.next_offset, part.max_offset, len(part.sizes)) == (1, 1, 1)
    assert fetch_commands.read_fetched(bench.ask(fetch(1))) == []
    (part,) = fetch_commands.read_fetched(bench.ask(fetch(2)))
    assert isinstance(part.error, OffsetOutOfRange)
    found = bench.ask(pull(0))
    assert (found.code, found.fields["nextBeginOffset"], found.fields["maxOffset"]) == (0, "1", "1")
    assert bench.ask(pull(1)).code == ResponseCode.PULL_NOT_FOUND
    assert bench.ask(pop()).fields["restNum"] == "0"
    assert offset_in(bench.ask(query_commands.offset_bound_command("t", 0, newest=True))) == 1
    assert offset_in(bench.ask(query_commands.offset_by_time_command("t", 0, int(time.time() * 1000) + 60_000))) == 1
    stats = admin_commands.read_topic_stats(bench.ask(admin_commands.topic_stats_command("t")))
    assert [end for _, end, _ in stats.values()] == [1]
    bench.ask(offset_commands.update_offset_command("g", "t", 0, 1))
    progress = admin_commands.read_progress(bench.ask(admin_commands.consume_stats_command("g")))
    assert {each.max_offset for queue, each in progress.items() if queue.topic == "t"} == {1}
    assert isinstance(error_in(bench.ask(offset_commands.update_offset_command("g", "t", 0, 2))), InvalidInput)
    assert offset_in(bench.ask(QueryConsumerOffset("g", "t", 0).command())) == 1
    assert (
        len(query_commands.read_records(bench.ask(query_commands.query_command("t", "k", 0, 1 << 60, 9, unique=False))))
        == 1
    )
    assert isinstance(error_in(bench.ask(query_commands.view_message_command(place))), MessageNotFound)
    listed = Command(RequestCode.QUERY_CONSUME_QUEUE, {"topic": "t", "queueId": 0, "index": 0, "count": 9})
    entries = json.loads(bytes(bench.ask(listed).body))
    assert (entries["maxQueueIndex"], len(entries["queueData"])) == (1, 1)
    bench.disk.release()
    status, placed = append_commands.read_append_answer(sent.result(10), 1)
    assert (status, placed.queue_offsets.tolist()) == (SendStatus.SEND_OK, [1])
    (part,) = fetch_commands.read_fetched(bench.ask(fetch(1)))
    assert (part.next_offset, part.max_offset) == (2, 2)
    assert bench.ask(query_commands.view_message_command(place)).code == ResponseCode.SUCCESS


def test_waiting_reads_are_woken_after_flush(bench: Bench) -> None:
    bench.ask(pop())  # the stored message is popped
    waiting = [bench.begin(each) for each in (fetch(1, 20.0), pull(1, 20_000), pop(20_000))]
    waiting.append(bench.begin(fetch(1, 20.0, goes_on=True)))
    poll_until(lambda: len(bench.broker.polls) == 4)
    sent, _ = bench.hang_with(b"1")
    fetched = bench.ask(fetch(0))  # the loop ran at least once since the append
    assert fetch_commands.read_fetched(fetched)[0].max_offset == 1
    assert not any(each.done() for each in [*waiting, sent])
    assert len(bench.broker.polls) == 4
    bench.disk.release()
    answers = [each.result(10) for each in waiting]
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 4
    assert [
        part.offsets.tolist() for each in (answers[0], answers[3]) for part in fetch_commands.read_fetched(each)
    ] == [
        [1],
        [1],
    ]
    assert answers[1].fields["nextBeginOffset"] == "2"
    assert answers[2].fields["msgOffsetInfo"].endswith(" 1")


def test_single_message_reaches_parked_fetch_after_flush(bench: Bench) -> None:
    """APPEND_ONE passes a message to a parked fetch while it stores it, where that is safe."""
    parked = bench.begin(fetch(1, 20.0, goes_on=True))
    poll_until(lambda: len(bench.broker.polls) == 1)
    record, _ = encoded(Message("t", b"1"))
    bench.disk.hang()
    sent = bench.begin(Command(RequestCode.APPEND_ONE, body=record))
    poll_until(lambda: bench.disk.hanging > 0)
    assert not parked.done()
    assert not sent.done()
    bench.disk.release()
    assert fetch_commands.read_fetched(parked.result(10))[0].offsets.tolist() == [1]
    assert sent.result(10).code == ResponseCode.SUCCESS


def test_slow_flush_returns_timeout_and_message_appears_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.broker.acks._commits, "_timeout_seconds", 0.05)
    parked = bench.begin(fetch(1, 20.0))
    poll_until(lambda: len(bench.broker.polls) == 1)
    sent, _ = bench.hang_with(b"1")
    assert append_commands.read_append_answer(sent.result(10), 1)[0] is SendStatus.FLUSH_DISK_TIMEOUT
    header = SendMessageV2("p", "t", "TBW102", 4, 0, 0, int(time.time() * 1000), 0, "KEYS\x01k\x02")
    foreign = header.command()
    foreign.body = b"2"
    assert bench.begin_as_foreigner(foreign).result(10).code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert not parked.done()
    bench.disk.release()
    assert fetch_commands.read_fetched(parked.result(10))[0].next_offset >= 2


def test_delayed_copy_is_flushed_without_sender(bench: Bench) -> None:
    """No sender of the delayed copy waits for the disk, and the background flush does not run here."""
    assert bench.send(b"later", delay_level=1).result(10).code == ResponseCode.SUCCESS
    poll_until(lambda: [part.next_offset for part in fetch_commands.read_fetched(bench.ask(fetch(1, 1.0)))] == [2], 20)


def test_failed_flush_raises_write_unknown_and_hides_message(bench: Bench) -> None:
    """Guard against fault 13.14."""
    parked = bench.begin(fetch(1, 20.0))
    poll_until(lambda: len(bench.broker.polls) == 1)
    sent, place = bench.hang_with(b"1")
    behind = bench.send(b"2")  # its flush would be the next one
    poll_until(lambda: bench.broker.store.max_offset("t", 0, written=True) == 3)
    bench.disk.broken = True
    bench.disk.release()
    for each in (sent, behind):
        answer = each.result(10)
        assert isinstance(error_in(answer), WriteUnknown)
        assert answer.code == ResponseCode.SYSTEM_ERROR
    refused = bench.send(b"3").result(10)
    assert type(error_in(refused)) is StoreFailed
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    bench.disk.broken = False
    (part,) = fetch_commands.read_fetched(bench.ask(fetch(0)))
    assert (part.next_offset, part.max_offset) == (1, 1)
    assert isinstance(error_in(bench.ask(query_commands.view_message_command(place))), MessageNotFound)
    assert not parked.done()
    assert bench.broker.store.max_offset("t", 0, written=True) == 3


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "batch"])
def test_failure_within_append_raises_write_unknown(bench: Bench, monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("broke off")

    monkeypatch.setattr(bench.broker.store._dispatcher, "dispatch_one", breaks)
    record, sizes = encoded(Message("t", b"1"))
    command = (
        Command(RequestCode.APPEND_ONE, body=record) if alone else append_commands.append_command("t", 0, record, sizes)
    )
    assert isinstance(error_in(bench.begin(command).result(10)), WriteUnknown)
    monkeypatch.undo()
    assert type(error_in(bench.send(b"2").result(10))) is StoreFailed


def test_failure_after_append_raises_write_unknown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise KeyError("t")

    monkeypatch.setattr(type(bench.broker.core.admission), "appended", breaks)
    assert isinstance(error_in(bench.send(b"1").result(10)), WriteUnknown)
    monkeypatch.undo()
    assert bench.send(b"2").result(10).code == ResponseCode.SUCCESS


def test_failure_before_append_raises_store_failed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise StoreFailed("no such luck")

    monkeypatch.setattr(bench.broker.store._dispatcher, "reserve", breaks)
    assert type(error_in(bench.send(b"1").result(10))) is StoreFailed


def test_send_back_without_flush_raises_write_unknown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its consumer would commit the original, and the copy may be lost."""
    monkeypatch.setattr(bench.broker.acks._commits, "_timeout_seconds", 0.05)
    (part,) = fetch_commands.read_fetched(bench.ask(fetch(0)))
    (place,) = bench.broker.store.entries("t", 0, 0, 1)[0].tolist()
    assert len(part.sizes) == 1
    bench.disk.hang()
    answer = bench.begin(send_back_command("g", "t", place, "", 1, None)).result(10)
    assert isinstance(error_in(answer), WriteUnknown)
