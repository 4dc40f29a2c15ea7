"""Test that requests with many items run in steps, and the limits of their items.

Fault 13.21: a batch of 180,000 one-byte messages held the loop for 1.8 s, a fetch of 65,000 queues for 0.9 s.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.appending import batch_body
from raymq.actors.broker.core.appending.batch_body import AT_ONCE
from raymq.actors.broker.core.groups.client_registry import ClientRegistry, ConsumerData, FetchPosition
from raymq.actors.broker.core.groups.consume_stats import ConsumeStats
from raymq.actors.broker.core.groups.rebalance_lock_manager import RebalanceLockManager
from raymq.actors.broker.core.pop.pop_request import PopRequest, PopResult
from raymq.actors.broker.core.reading.long_poll import LongPollingService
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.broker.handlers import pop_handlers
from raymq.actors.errors import InvalidInput, MessageIllegal, ProtocolError, TopicNotFound
from raymq.actors.filter.sql_filter import MAX_CHARACTERS, compile_sql, compile_sql_steps
from raymq.actors.protocol import SESSION_GRACE_SECONDS, MessageQueue
from raymq.actors.request_limits import MAX_BATCH, MAX_FETCHED, check_count
from raymq.actors.wire import frame
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import FLAG_RESPONSE, Command, Serialization
from raymq.actors.wire.headers.pop_headers import PopMessage
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import steps_handler, stepwise
from raymq.client import Message
from raymq.client.push.queue_fetcher import QueueBatches
from raymq.storage.cooperative_steps import Steps, map_steps, run_steps
from tests.unit.actors.bench import Bench
from tests.unit.actors.clock import FakeClock
from tests.unit.actors.foreign_intake import Intake, draft, member
from tests.validation import check_invariants

NO_CONNECTION = cast("ServerConnection", None)


@pytest.fixture
def intake(tmp_path: Path) -> Iterator[Intake]:
    made = Intake(tmp_path, max_message_bytes=1 << 20)
    yield made
    made.store.close()


def count_turns(steps: Steps[Any]) -> tuple[int, Any]:
    """Run the steps; return how many turns others had, and the result."""
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return turns, end.value
        turns += 1


# -- the mechanism -----------------------------------------------------------------------------------------------------


def test_map_steps_splits_items_by_step_size() -> None:
    assert count_turns(map_steps(str, range(100), 100)) == (0, [str(n) for n in range(100)])
    assert count_turns(map_steps(str, range(101), 100))[0] == 1
    assert count_turns(map_steps(str, [], 100)) == (0, [])


async def test_single_step_request_is_answered_at_once() -> None:
    def serve(_: ServerConnection, request: Command) -> Steps[Command]:
        done = yield from map_steps(str, range(request.opaque), 10)
        return request.response(0, {"done": len(done)})

    handler = steps_handler(serve)
    assert isinstance(handler(NO_CONNECTION, Command(1, opaque=10)), Command)
    later = handler(NO_CONNECTION, Command(1, opaque=11))
    assert not isinstance(later, Command)
    assert later is not None
    answer = await later
    assert answer is not None
    assert answer.fields == {"done": 11}


async def test_steps_may_return_future_answer() -> None:
    def serve(_: ServerConnection, request: Command) -> Steps[Command | asyncio.Future[Command]]:
        yield None
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        future.set_result(request.response(0))
        return future

    later = steps_handler(serve)(NO_CONNECTION, Command(1, opaque=7))
    assert not isinstance(later, Command)
    assert later is not None
    answer = await later
    assert answer is not None
    assert answer.opaque == 7


async def test_all_stepwise_work_shares_one_step_per_turn() -> None:
    """Run one step per turn of the loop, however many requests are under way."""
    steps = 0

    def work() -> Generator[None, None, None]:
        nonlocal steps
        for _ in range(20):
            steps += 1
            yield None

    works = [asyncio.ensure_future(stepwise(work())) for _ in range(10)]
    most = 0
    while not all(each.done() for each in works):
        before = steps
        await asyncio.sleep(0)
        most = max(most, steps - before)
    assert steps == 200
    assert most == 1


# -- batches of RocketMQ's clients -------------------------------------------------------------------------------------


def batch(count: int) -> bytes:
    return member(b"x", b"") * count


def test_batch_is_encoded_in_steps_and_stored_at_once(intake: Intake) -> None:
    count = 3 * AT_ONCE + 1
    turns, store = count_turns(intake.core.send_processor.accept_batch_steps(draft(body=batch(count))))
    assert turns == 3 * 3 + 1, "it is taken apart, completed and encoded, and stored in a step of its own"
    assert intake.records() == []
    accepted = store()
    assert accepted.messages == count
    assert len(accepted.message_id.split(",")) == count
    assert intake.store.max_offset("t", 0) == count


def test_small_batch_is_one_step(intake: Intake) -> None:
    turns, store = count_turns(intake.core.send_processor.accept_batch_steps(draft(body=batch(AT_ONCE))))
    assert turns == 0
    assert store().messages == AT_ONCE


def test_batch_above_limit_error_names_limit_and_remedy(intake: Intake) -> None:
    before = intake.state()
    with pytest.raises(MessageIllegal, match=r"at most 15,000 messages.*smaller batches"):
        intake.accept_batch(batch(MAX_BATCH + 1))
    assert intake.state() == before
    assert len(run_steps(batch_body.split_steps(batch(MAX_BATCH)))) == MAX_BATCH


def test_topic_deleted_during_batch_raises_topic_not_found(intake: Intake) -> None:
    _, store = count_turns(intake.core.send_processor.accept_batch_steps(draft(body=batch(AT_ONCE + 1))))
    intake.core.topics.delete("t")
    with pytest.raises(TopicNotFound):
        store()


@pytest.mark.parametrize("serialization", [Serialization.JSON, Serialization.ROCKETMQ])
def test_client_reads_answer_to_largest_batch(serialization: Serialization) -> None:
    """Guard against a header of 20,000 message ids that our own client refused."""
    ids = ",".join(["0A09080700002A9F0000000000000000"] * MAX_BATCH)
    answer = Command(0, {"msgId": ids, "transactionId": "x" * 32_767}, flag=FLAG_RESPONSE, serialization=serialization)
    assert frame.decode(frame.encode(answer)[frame.LENGTH.size :]).fields["msgId"] == ids


def test_request_json_header_length_is_limited() -> None:
    request = frame.encode(Command(10, {"x": "y" * frame.MAX_JSON_REQUEST_BYTES}))[frame.LENGTH.size :]
    with pytest.raises(ProtocolError, match="JSON header"):
        frame.decode(request, max_json_bytes=frame.MAX_JSON_REQUEST_BYTES)


# -- lists of queues ---------------------------------------------------------------------------------------------------


def test_list_above_limit_error_names_limit_and_remedy() -> None:
    check_count("queues", "queues", MAX_FETCHED, MAX_FETCHED)
    with pytest.raises(InvalidInput, match=r"at most 1,000 queues in one request; got 1001.*several requests"):
        check_count("queues", "queues", MAX_FETCHED + 1, MAX_FETCHED)


def test_error_does_not_print_long_list() -> None:
    error = InvalidInput("offsets", "a list of numbers", ["x"] * 1_000_000)
    assert "list of 1000000" in str(error)
    assert "['x']" in str(InvalidInput("offsets", "a list of numbers", ["x"]))


def test_consumer_splits_queues_over_requests() -> None:
    queues = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in range(7)]
    shares = QueueBatches(most=3)
    found = [shares.of(queue) for queue in queues]
    assert [str(share) for share in found[:7]] == [*["a"] * 3, *["a, part 2"] * 3, "a, part 3"]
    assert [share.number for share in found[7:]] == [0, 0, 0, 1, 1, 1, 2]
    assert [shares.of(queue) for queue in queues] == found, "a queue stays where it is"
    shares.keep_only(queues[1:])
    assert shares.of(MessageQueue("t", "a", 99)) == found[0], "a place that is free is taken"
    assert shares.of(queues[0]).number == 2


def test_unlock_does_not_scan_all_locks(bench: Bench) -> None:
    """Guard against a scan of all locks of the group for each unlocked queue."""
    locks = RebalanceLockManager(FakeClock(0.0))
    locks.lock("g", "c", [("t", n) for n in range(10)])
    looked: list[object] = []

    class Watched(dict[Any, Any]):
        def items(self) -> Any:
            looked.append("all")
            return super().items()

    locks._groups["g"] = Watched(locks._groups["g"])
    locks.unlock("g", "c", [("t", 3), ("t", 99)])
    locks.unlock("g", "other", [("t", 4)])
    assert not looked
    assert locks.holder("g", "t", 3) is None
    assert locks.holder("g", "t", 4) == "c"
    check_invariants(locks)
    locks.unlock("g", "c", [("t", n) for n in range(10)])
    check_invariants(locks)


class Watched(dict[Any, Any]):
    """Record in `looked` each full iteration of the table."""

    looked: list[str]

    def items(self) -> Any:
        self.looked.append("all")
        return super().items()


def test_forgetting_clients_scans_locks_once() -> None:
    """Guard against a scan per client: 1,000 ids and 192,000 locks took 50 s."""
    locks = RebalanceLockManager(FakeClock(0.0))
    for client in range(20):
        locks.lock("g", f"c{client}", [("t", client)])
    table = locks._groups["g"] = Watched(locks._groups["g"])
    table.looked = []
    locks.forget({f"c{client}" for client in range(1, 1_000)})
    assert table.looked == ["all"]
    assert [locks.holder("g", "t", queue_id) for queue_id in (0, 1, 19)] == ["c0", None, None]
    locks.forget(set())
    check_invariants(locks)


def test_expiring_members_scans_queue_owners_once() -> None:
    clock = FakeClock(0.0)
    groups = ClientRegistry(clock)
    for number in range(20):
        connection = "stays" if number == 0 else "goes"
        groups.register_client(f"c{number}", connection)
        groups.register_consumer(f"c{number}", ConsumerData("g", {}))
        groups.record_fetch("g", f"c{number}", {("t", number): FetchPosition(0)})
    known = groups.consumer_group("g")
    table = Watched(known.owners)
    table.looked = []
    known.owners = table
    groups.connection_closed("goes")
    clock.advance(SESSION_GRACE_SECONDS)
    assert groups.expire().groups == {"g"}
    assert table.looked == ["all"]
    assert groups.members("g") == ["c0"]
    assert {queue: owner.client_id for queue, owner in groups.owners("g").items()} == {("t", 0): "c0"}
    check_invariants(groups)


async def test_batch_ack_of_unknown_entries_yields_turns(bench: Bench) -> None:
    """Guard against 170 ms without a turn by 21,000 entries in one request."""
    bench.core.topics.create("t", 1)
    context = cast("BrokerContext", SimpleNamespace(core=bench.core))
    entry = {"c": "g", "t": "t", "q": 0, "pt": 1, "so": 0, "b": base64.b64encode(bytes(8)).decode()}
    request = Command(RequestCode.BATCH_ACK_MESSAGE, body=json.dumps({"acks": [entry] * 1_000}).encode())
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(others())
    answer = pop_handlers.handlers(context)[RequestCode.BATCH_ACK_MESSAGE].handler(NO_CONNECTION, request)
    assert not isinstance(answer, Command)
    assert answer is not None
    assert (await answer) is not None
    counting.cancel()
    assert turns >= 10


async def test_woken_pops_run_one_per_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against a turn of 1.2 s by 1,000 pops of 1,024 queues."""
    bench.core.topics.create("t", 3)
    polls = LongPollingService(asyncio.get_running_loop().time)
    bench.core.on_arrival = polls.arrived

    async def nothing() -> None:
        pass

    statistics = Statistics()
    groups = SimpleNamespace(check_not_superseded=lambda *_: None)
    pop_context = SimpleNamespace(core=bench.core, polls=polls, announce=nothing, statistics=statistics, groups=groups)
    handle = pop_handlers.handlers(cast("BrokerContext", pop_context))[RequestCode.POP_MESSAGE].handler
    connection = cast("ServerConnection", SimpleNamespace(park_seconds=60.0, is_gone=False))
    wanted_pop = PopMessage("g", "t", -1, 1, 30_000, 30_000, 0, 0)
    bench.core.ensure_group("g")
    parked = [
        asyncio.ensure_future(cast("Awaitable[Command]", handle(connection, wanted_pop.command()))) for _ in range(40)
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(polls) == len(parked)
    looks = 0
    receive = bench.core.pop.receive

    def counted(wanted_pop: PopRequest) -> PopResult:
        nonlocal looks
        looks += 1
        return receive(wanted_pop)

    monkeypatch.setattr(bench.core.pop, "receive", counted)
    bench.append(Message("t", b"x"))
    most = 0
    while looks < len(parked):
        before = looks
        await asyncio.sleep(0)
        most = max(most, looks - before)
    assert most == 1
    polls.close()
    answers = await asyncio.gather(*parked)
    assert [answer.code for answer in answers].count(ResponseCode.SUCCESS) == 1


# -- large tables ------------------------------------------------------------------------------------------------------


def test_progress_of_many_queues_is_read_in_steps(bench: Bench) -> None:
    bench.core.topics.create("wide", 250)
    bench.core.make_group("g")
    consumption = ConsumeStats(bench.core, ClientRegistry(FakeClock(0.0)), Statistics())
    turns, found = count_turns(consumption.progress_steps("g", "wide"))
    assert (turns, len(found)) == (4, 250)
    assert run_steps(consumption.progress_steps("g", "wide")) == found


# -- expressions -------------------------------------------------------------------------------------------------------


def test_new_sql_expression_is_compiled_in_steps() -> None:
    expression = f"n in ({','.join(['1'] * 4_000)})"
    assert len(expression) <= MAX_CHARACTERS
    turns, compiled = count_turns(compile_sql_steps(expression))
    assert turns == 2 * 4_000 // 200
    assert count_turns(compile_sql_steps(expression)) == (0, compiled), "and is known then"
    with pytest.raises(InvalidInput, match="at its end"):
        count_turns(compile_sql_steps(expression[:-1]))


def test_in_list_of_numbers_is_one_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against a comparison per number: 4,000 numbers took 100 ms for each batch."""
    from raymq.actors.filter import sql_filter
    from tests.unit.actors.test_sql_filter import records_of

    looks = 0
    is_in = sql_filter.pc.is_in

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal looks
        looks += 1
        return is_in(*arguments, **options)

    monkeypatch.setattr(sql_filter.pc, "is_in", counted)
    records = records_of([{"n": "7"}, {"n": "7.0"}, {"n": "1e20"}, {"n": "x"}, {}])
    found = compile_sql(f"n in ({','.join(map(str, range(1_000)))}, 100000000000000000000)").mask(*records)
    assert found.tolist() == [True, True, True, False, False]
    assert looks <= 4
