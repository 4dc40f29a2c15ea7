"""Test that long requests end with their clients, and that equal requests share a pass.

An older request of a client never overwrites a newer one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.broker.handlers import admin_groups, admin_topics, group_handlers, lock_handlers, query_handlers
from raymq.actors.errors import InvalidInput, RayMQError, TopicNotFound
from raymq.actors.names import route_handlers
from raymq.actors.names.route_table import LEARNING_SECONDS, RouteTable
from raymq.actors.protocol import QueueData
from raymq.actors.wire import error_codec
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.registration_commands import register_command, topics_json
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.group_headers import HeartBeat, UnregisterClient
from raymq.actors.wire.headers.route_headers import RegisterBroker, UnregisterBroker
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import OrderedHandlers, coalescing_handler
from raymq.storage.cooperative_steps import Steps
from raymq.storage.files.json_file import DataVersion
from tests.unit.actors.bench import Bench
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants
from tests.wire_server import Peer, serving

ASK, CLAIM, RELEASE = 900_001, 900_002, 900_003


class Worker:
    """Serve in as many steps as the request says, and record them."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.begun = 0
        self.closed = 0
        self.answered = 0
        self.may_end = True

    def serve(self, _: ServerConnection, request: Command) -> Steps[Command]:
        self.begun += 1
        begun = self.begun
        try:
            for _step in range(int(request.fields["steps"])):
                yield None
                self.steps.append(str(request.fields.get("name", "")))
            while not self.may_end:
                yield None
            if request.fields.get("fails"):
                raise TopicNotFound("none")
            self.answered += 1
            return request.response(0, {"pass": begun})
        finally:
            self.closed += 1


def ask(steps: int, opaque: int, code: int = ASK, **fields: object) -> Command:
    return Command(code, {"steps": str(steps), **fields}, opaque=opaque)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def wait_until(predicate: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not predicate():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.005)


# -- queries -----------------------------------------------------------------------------------------------------------


async def test_query_ends_with_its_client() -> None:
    """Guard against finishing a query for a disconnected client."""
    worker = Worker()
    async with serving({ASK: coalescing_handler(worker.serve)}) as (server, address):
        peer = await Peer.connect(address)
        peer.say(ask(1_000_000, 1))
        await wait_until(lambda: len(worker.steps) > 10)
        peer.close()
        await wait_until(lambda: worker.closed == 1)
        done = len(worker.steps)
        await turns(100)
        assert len(worker.steps) == done
        assert worker.answered == 0
        await wait_until(lambda: not server.connections)


async def test_repeated_query_is_answered_by_two_passes() -> None:
    worker = Worker()
    async with serving({ASK: coalescing_handler(worker.serve)}) as (_, address):
        peers = [await Peer.connect(address) for _ in range(3)]
        for peer in peers:
            peer.say(*(ask(300, opaque) for opaque in range(1, 11)))
        data = [(number, await peer.hear()) for number, peer in enumerate(peers) for _ in range(10)]
        assert {(number, answer.opaque) for number, answer in data} == {(n, o) for n in range(3) for o in range(1, 11)}
        assert worker.begun == 2
        assert sorted(int(answer.fields["pass"]) for _, answer in data) == [1] + [2] * 29, (
            "none older than its question"
        )
        for peer in peers:
            peer.close()


async def test_different_query_has_its_own_pass() -> None:
    worker = Worker()
    async with serving({ASK: coalescing_handler(worker.serve)}) as (_, address):
        peer = await Peer.connect(address)
        peer.say(ask(50, 1, name="a"), ask(50, 2, name="b"), Command(ASK, {"steps": "50"}, b"body", opaque=3))
        answers = {(await peer.hear()).opaque for _ in range(3)}
        assert answers == {1, 2, 3}
        assert worker.begun == 3
        peer.close()


async def test_concurrent_different_queries_are_limited() -> None:
    """Bound memory: 500 queries of 100,000 topics took 2.5 GB of a name server."""
    worker = Worker()
    worker.may_end = False
    async with serving({ASK: coalescing_handler(worker.serve, 3)}) as (server, address):
        first, second, third = [await Peer.connect(address) for _ in range(3)]
        first.say(*(ask(1, opaque, x=opaque) for opaque in range(1, 11)))
        second.say(*(ask(1, opaque, y=opaque) for opaque in range(1, 11)))
        await wait_until(lambda: worker.begun == 20)
        assert worker.begun - worker.closed == 3
        third.say(Command(ASK, {"steps": "none"}, opaque=1), *(ask(1, opaque, x=10) for opaque in (2, 3)))
        assert (await third.hear()).opaque == 1, "what is done with its first step waits for nobody"
        second.close()
        await wait_until(lambda: len(server.connections) == 2)
        worker.may_end = True
        assert {(await first.hear()).opaque for _ in range(10)} == set(range(1, 11))
        assert {(await third.hear()).opaque for _ in range(2)} == {2, 3}
        assert worker.answered <= 12, "one that nobody waits for any more is not begun"
        assert worker.begun - worker.closed == 0
        for peer in (first, third):
            peer.close()


async def test_query_waits_while_client_leaves_answers_unread() -> None:
    """Prevent a pile of unread answers, each up to a frame long."""
    worker = Worker()
    handler = coalescing_handler(worker.serve, 1)

    def send_query(connection: Connection, **fields: object) -> asyncio.Future[Command]:
        answer = handler(cast("ServerConnection", connection), ask(3, 1, **fields))
        return asyncio.ensure_future(cast("Awaitable[Command]", answer))

    silent = Connection(reads=False)
    first, rests = send_query(Connection(), name="a"), send_query(silent, name="b")
    await first
    await turns(50)
    assert "b" not in worker.steps
    assert not rests.done()
    assert (await send_query(Connection(), name="c")).code == 0, "he is in nobody's way"
    silent.writable.set()
    await asyncio.wait_for(rests, 1)
    assert worker.steps.count("b") == 3


async def test_remaining_client_is_answered_after_others_leave() -> None:
    worker = Worker()
    worker.may_end = False
    async with serving({ASK: coalescing_handler(worker.serve)}) as (server, address):
        first, second, third = [await Peer.connect(address) for _ in range(3)]
        for opaque, peer in enumerate((first, second, third), 1):
            peer.say(ask(1, opaque))
        await wait_until(lambda: sum(len(each.tasks) for each in server.connections) == 3)
        first.close()
        second.close()
        await wait_until(lambda: len(server.connections) == 1)
        worker.may_end = True
        answer = await third.hear()
        assert answer.opaque == 3
        assert worker.answered == 1, "a pass ends with the last one who waits for it"
        third.close()


async def test_query_after_a_cancelled_equal_one_is_answered() -> None:
    """Guard against a request that joins a run which is being cancelled."""
    worker = Worker()
    worker.may_end = False
    handler = coalescing_handler(worker.serve)

    def send_query(opaque: int) -> asyncio.Task[Command]:
        answer = cast("Awaitable[Command]", handler(cast("ServerConnection", Connection()), ask(1, opaque)))
        return asyncio.ensure_future(answer)  # type: ignore[arg-type]

    first, second = send_query(1), send_query(2)
    await turns(3)
    second.cancel()
    await asyncio.sleep(0)
    third = send_query(3)
    worker.may_end = True
    assert [(await each).opaque for each in (first, third)] == [1, 3]


async def test_error_of_shared_query_reaches_all_clients() -> None:
    worker = Worker()
    async with serving({ASK: coalescing_handler(worker.serve)}) as (_, address):
        peer = await Peer.connect(address)
        peer.say(*(ask(20, opaque, fails="1") for opaque in (1, 2, 3)))
        codes = {(await peer.hear()).code for _ in range(3)}
        assert codes == {ResponseCode.TOPIC_NOT_EXIST}
        peer.say(ask(20, 4))
        assert (await peer.hear()).code == 0
        peer.close()


# -- changes -----------------------------------------------------------------------------------------------------------


async def test_changes_run_in_order_and_repeated_ones_once() -> None:
    worker, in_order = Worker(), OrderedHandlers()
    handlers = {CLAIM: in_order.claim(worker.serve), RELEASE: in_order.release(worker.serve)}
    async with serving(handlers) as (_, address):
        peer, other = await Peer.connect(address), await Peer.connect(address)
        peer.say(ask(30, 1, CLAIM, name="a"), *(ask(30, opaque, CLAIM, name="b") for opaque in range(2, 12)))
        peer.say(ask(1, 12, RELEASE, name="c"), ask(0, 13, RELEASE))
        other.say(ask(0, 1, CLAIM))
        assert (await other.hear()).opaque == 1, "others do not wait for it"
        assert [(await peer.hear()).opaque for _ in range(13)] == list(range(1, 14))
        assert worker.steps == ["a"] * 30 + ["b"] * 30 + ["c"]
        peer.close()
        other.close()


async def test_claim_ends_with_connection_and_release_completes() -> None:
    worker, in_order = Worker(), OrderedHandlers()
    handlers = {CLAIM: in_order.claim(worker.serve), RELEASE: in_order.release(worker.serve)}
    async with serving(handlers) as (server, address):
        peer = await Peer.connect(address)
        peer.say(ask(1_000_000, 1, CLAIM, name="a"), ask(10, 2, CLAIM, name="b"), ask(10, 3, RELEASE, name="c"))
        await wait_until(lambda: len(worker.steps) > 10)
        peer.close()
        await wait_until(lambda: worker.answered)
        await wait_until(lambda: not server.connections)
        assert set(worker.steps) == {"a", "c"}
        assert worker.steps[-10:] == ["c"] * 10
        peer = await Peer.connect(address)
        peer.say(ask(3, 1, CLAIM, name="d"))
        assert (await peer.hear()).opaque == 1
        assert not in_order._runs._newest
        peer.close()


async def test_failed_change_does_not_stop_next_one() -> None:
    worker, in_order = Worker(), OrderedHandlers()
    async with serving({CLAIM: in_order.claim(worker.serve)}) as (_, address):
        peer = await Peer.connect(address)
        peer.say(ask(5, 1, CLAIM, fails="1"), ask(5, 2, CLAIM))
        assert [(await peer.hear()).code for _ in range(2)] == [ResponseCode.TOPIC_NOT_EXIST, 0]
        peer.close()


# -- broker handlers ---------------------------------------------------------------------------------------------------


class Connection:
    """Stand in for a server connection."""

    peer = "127.0.0.1:1"
    is_gone = False

    def __init__(self, *, reads: bool = True) -> None:
        self.ends: list[Callable[[], None]] = []
        self.writable = asyncio.Event()
        if reads:
            self.writable.set()

    def add_close_callback(self, call: Callable[[], None]) -> None:
        self.ends.append(call)

    def end(self) -> None:
        self.is_gone = True
        for call in self.ends:
            call()


class Broker:
    """Serve a broker's handlers over a core."""

    def __init__(self, bench: Bench) -> None:
        async def nothing() -> None:
            pass

        self.core = bench.core
        self.groups = ClientRegistry(bench.clock)
        fields = dict.fromkeys(BrokerContext.__dataclass_fields__, cast("Any", None)) | {
            "core": bench.core,
            "groups": self.groups,
            "statistics": Statistics(),
            "announce": nothing,
            "notify_group": lambda _: None,
            "in_order": OrderedHandlers(),
        }
        context = BrokerContext(**fields)
        self._handlers: dict[int, Any] = {}
        for family in (group_handlers, lock_handlers, admin_groups, admin_topics, query_handlers):
            self._handlers |= {code: command.handler for code, command in family.handlers(context).items()}

    def ask(self, connection: Connection, request: Command) -> asyncio.Future[Command]:
        async def answer() -> Command:
            try:
                made = self._handlers[request.code](connection, request)
                return cast("Command", made if isinstance(made, Command) else await made)
            except RayMQError as error:
                return error_codec.error_response(request, error)

        return asyncio.ensure_future(answer())


@pytest.fixture
def broker(bench: Bench) -> Broker:
    return Broker(bench)


def heartbeat(groups: int, subscribed: str = "t", client_id: str = "me") -> Command:
    data = {"subVersion": 1, "subString": "*", "topic": subscribed}
    consumers = [{"groupName": f"g{n}", "subscriptionDataSet": [data]} for n in range(groups)]
    return HeartBeat().command(json.dumps({"clientID": client_id, "consumerDataSet": consumers}).encode())


def locks(code: int, queues: int) -> Command:
    data = [{"topic": "wide", "brokerName": "broker-a", "queueId": n} for n in range(queues)]
    return Command(code, body=json.dumps({"consumerGroup": "g0", "clientId": "me", "mqSet": data}).encode())


async def test_unregister_during_heartbeat_removes_member(broker: Broker) -> None:
    """Guard against a heartbeat that adds a client again after it left."""
    for n in range(900):
        broker.core.make_group(f"g{n}")
    connection = Connection()
    pending = broker.ask(connection, heartbeat(900))
    await turns(2)
    left = broker.ask(connection, UnregisterClient("me", None, "g899").command())
    assert not pending.done()
    assert (await pending).code == (await left).code == ResponseCode.SUCCESS
    assert "g898" in broker.groups.consumer_groups()
    assert "g899" not in broker.groups.consumer_groups()
    check_invariants(broker.groups)


async def test_heartbeat_ends_with_its_connection_between_groups(broker: Broker) -> None:
    connection = Connection()
    pending = broker.ask(connection, heartbeat(600))
    await wait_until(lambda: len(broker.groups.consumer_groups()) >= 100)
    connection.end()
    await asyncio.wait([pending])
    assert pending.cancelled(), "there is nobody to answer"
    made = len(broker.groups.consumer_groups())
    await turns(200)
    assert len(broker.groups.consumer_groups()) == made < 600
    check_invariants(broker.groups)


async def test_older_heartbeat_does_not_overwrite_newer_one(broker: Broker) -> None:
    for n in range(900):
        broker.core.make_group(f"g{n}")
    old = broker.ask(Connection(), heartbeat(900, "old"))
    await wait_until(lambda: len(broker.groups.consumer_groups()) >= 199)
    new = broker.ask(Connection(), heartbeat(900, "new"))
    assert (await new).code == ResponseCode.SUCCESS
    assert (await old).code != ResponseCode.SUCCESS
    await turns(200)
    wanted = {topic for each in broker.groups.consumer_groups().values() for topic in each.subscriptions}
    assert wanted == {"new"}


async def test_repeated_heartbeats_of_many_clients_do_not_add_up(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard against the cost of nine obsolete heartbeats out of ten."""
    for n in range(900):
        broker.core.make_group(f"g{n}")
    consumed = 0
    consume = ClientRegistry.register_consumer

    def counted(*arguments: Any, **options: Any) -> bool:
        nonlocal consumed
        consumed += 1
        return consume(*arguments, **options)

    monkeypatch.setattr(ClientRegistry, "register_consumer", counted)
    connections = [Connection() for _ in range(5)]
    for _ in range(10):
        for number, connection in enumerate(connections):
            broker.ask(connection, heartbeat(900, client_id=f"c{number}"))
        await turns(3)
    last = [broker.ask(each, heartbeat(900, client_id=f"c{number}")) for number, each in enumerate(connections)]
    assert {(await each).code for each in last} == {ResponseCode.SUCCESS}
    assert consumed == 5 * 2 * 900, "one that is under way and one that waits, for each client"


async def test_unlock_after_lock_request_frees_queues(broker: Broker) -> None:
    """Guard against locks that stay for a minute when an unlock overtakes their request."""
    broker.core.topics.create("wide", 1_000)
    connection = Connection()
    locked = broker.ask(connection, locks(RequestCode.LOCK_BATCH_MQ, 1_000))
    freed = broker.ask(connection, locks(RequestCode.UNLOCK_BATCH_MQ, 1_000))
    assert len(json.loads((await locked).body)["lockOKMQSet"]) == 1_000
    await freed
    assert not broker.core.locks.has_locks("g0")


async def test_unlock_during_blocked_lock_request_frees_queues(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against a lock that is granted after its client has unlocked."""
    rests: list[float] = []
    rested = asyncio.Event()

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        await rested.wait()

    monkeypatch.setattr(lock_handlers.asyncio, "sleep", sleep)
    broker.core.topics.create("wide", 10)
    broker.core.locks.block_grants(2.0)
    connection = Connection()
    locked = broker.ask(connection, locks(RequestCode.LOCK_BATCH_MQ, 10))
    loop = asyncio.get_running_loop()
    await _wait_on_loop(loop, lambda: bool(rests))
    freed = broker.ask(connection, locks(RequestCode.UNLOCK_BATCH_MQ, 10))
    await freed
    assert not locked.done()
    rested.set()
    await locked
    assert not broker.core.locks.has_locks("g0")


async def _wait_on_loop(loop: asyncio.AbstractEventLoop, predicate: Callable[[], bool]) -> None:
    """Wait like `wait_until`, where `asyncio.sleep` is replaced."""
    while not predicate():
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


async def test_concurrent_list_queries_share_two_passes(broker: Broker) -> None:
    for n in range(1_000):
        broker.core.topics.create(f"many{n}", 1)
    all_of = broker.core.topics.all
    made = 0

    def counted() -> Any:
        nonlocal made
        made += 1
        return all_of()

    broker.core.topics.all = counted  # type: ignore[method-assign]
    answers = [broker.ask(Connection(), Command(RequestCode.GET_ALL_TOPIC_CONFIG, opaque=n)) for n in range(50)]
    data = [await answer for answer in answers]
    assert [each.opaque for each in data] == list(range(50))
    assert {each.body for each in data} == {data[0].body}
    assert made == 2


# -- name server handlers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topics", [300, 450])
async def test_unregister_during_registration_removes_broker(topics: int) -> None:
    """Cover a registration in steps that is too short to wait for others."""
    clock = FakeClock()
    table = RouteTable(clock)
    clock.advance(LEARNING_SECONDS)
    handlers = route_handlers.handlers(table, lambda _: None)
    data = {f"{n}": QueueData("b", 4, 4) for n in range(topics)}
    connection = cast("ServerConnection", Connection())
    register = register_command(RegisterBroker("c", "b", 0, "h:1"), DataVersion(1, 1), [topics_json(data)])
    answer = handlers[RequestCode.REGISTER_BROKER](connection, register)
    waiting = None if isinstance(answer, Command) or answer is None else asyncio.ensure_future(answer)
    handlers[RequestCode.UNREGISTER_BROKER](connection, UnregisterBroker("c", "b", 0, "h:1").command())
    if waiting is not None:
        await asyncio.wait([waiting])
        with pytest.raises(RayMQError):
            waiting.result()
    assert not table.view().brokers
    check_invariants(table)


async def test_unreadable_heartbeat_is_refused_at_once(broker: Broker) -> None:
    refused = await broker.ask(Connection(), HeartBeat().command(b"{}"))
    assert refused.code == error_codec.error_response(refused, InvalidInput("x", "y", "z")).code
