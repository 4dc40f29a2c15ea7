"""Test that large registrations, topic lists and heartbeats are handled in steps."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any, cast

import pytest

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.handlers import group_handlers
from raymq.actors.errors import InvalidInput
from raymq.actors.names import route_handlers
from raymq.actors.names.route_table import LEARNING_SECONDS, RouteTable
from raymq.actors.protocol import QueueData
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.registration_commands import register_command, topics_json
from raymq.actors.wire.commands.route_answers import MAX_ROUTE_QUEUES
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.group_headers import HeartBeat
from raymq.actors.wire.headers.route_headers import RegisterBroker
from raymq.actors.wire.server_connection import ServerConnection
from raymq.actors.wire.stepwise_handlers import OrderedHandlers
from raymq.storage.files.json_file import DataVersion
from tests.unit.actors.bench import Bench
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants


class Connection:
    """Stand in for a server connection."""

    is_gone = False

    def __init__(self) -> None:
        self.writable = asyncio.Event()
        self.writable.set()

    def add_close_callback(self, _: object) -> None:
        pass


CONNECTION = cast("ServerConnection", Connection())
BROKER = RegisterBroker("c", "broker-a", 0, "h:1")


def make_name_server() -> tuple[RouteTable, Any]:
    clock = FakeClock()
    table = RouteTable(clock)
    clock.advance(LEARNING_SECONDS)
    return table, route_handlers.handlers(table, lambda _: None)[RequestCode.REGISTER_BROKER]


def registration(**queues: Any) -> Command:
    topic = {"topicName": "t", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} | queues
    body = {"topicConfigSerializeWrapper": {"topicConfigTable": {"t": topic}}}
    return BROKER.command(json.dumps(body).encode())


async def done(answer: Command | Awaitable[Command]) -> tuple[int, Command]:
    """Wait for the answer; return how many turns others had, and the answer."""
    if not isawaitable(answer):
        return 0, cast("Command", answer)
    task, turns = asyncio.ensure_future(answer), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return turns, cast("Command", task.result())


async def test_large_registration_is_read_beside_the_loop() -> None:
    """Guard against a stop of 0.36 s of a name server by 20,000 topics."""
    table, register = make_name_server()
    topics = {f"t{n}": QueueData("broker-a", 4, 2) for n in range(20_000)}
    request = register_command(BROKER, DataVersion(1, 1), [topics_json(topics)])
    turns, answer = await done(register(CONNECTION, request))
    assert answer.fields["changed"] is False
    assert turns >= 2, "others had their turn"
    assert len(table.topics()) == 20_000
    assert table.route("t19999").queues == (QueueData("broker-a", 4, 2),)
    turns, _ = await done(register(CONNECTION, registration()))
    assert turns == 0, "what is short is done at once"
    check_invariants(table)


@pytest.mark.parametrize("code", [RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_TOPICS_BY_CLUSTER])
async def test_topics_are_listed_beside_the_loop(code: RequestCode) -> None:
    """Guard against a name server's stop of 1.5 s per list of 800,000 topics."""
    table, _ = make_name_server()
    listing = route_handlers.handlers(table, lambda _: None)[code]
    for count in (3, 20_000):
        topics = {f"t{n}": QueueData("broker-a", 4, 2) for n in range(count)}
        for broker in ("broker-a", "broker-b"):
            table.register("c", broker, 0, f"{broker}:1", topics)
        table.register("another", "broker-c", 0, "broker-c:1", {"t0": QueueData("broker-c", 4, 2)})
        turns, answer = await done(listing(CONNECTION, Command(code, {"cluster": "c"})))
        assert turns >= 2, "others had their turn"
        assert sorted(json.loads(answer.with_joined_body().body)["topicList"]) == sorted(topics)


@pytest.mark.parametrize("value", [2**31 - 1, MAX_ROUTE_QUEUES + 1, -1, 1.5, "4", True, None, []])
@pytest.mark.parametrize("field", ["readQueueNums", "writeQueueNums", "perm"])
def test_registration_with_invalid_queue_counts_is_refused(field: str, value: object) -> None:
    """Refuse counts such as 2^31-1, which were accepted and sent to all clients."""
    table, register = make_name_server()
    with pytest.raises(InvalidInput, match=f"{field}.*topic t"):
        register(CONNECTION, registration(**{field: value}))
    assert table.topics() == []


async def test_heartbeat_creates_groups_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against repeated stops of 20 to 60 ms by 9,000 new groups.

    Each group is persisted together with its retry topic.
    """
    notified: list[str] = []
    later: list[tuple[float, int]] = []

    async def announce() -> None:
        pass

    unused = cast("Any", None)
    fields = dict.fromkeys(BrokerContext.__dataclass_fields__, unused) | {
        "core": bench.core,
        "groups": ClientRegistry(bench.clock),
        "announce": announce,
        "notify_group": notified.append,
        "in_order": OrderedHandlers(),
    }
    heartbeat: Any = group_handlers.handlers(BrokerContext(**fields))[RequestCode.HEART_BEAT].handler
    consumers = [{"groupName": f"g{n}", "subscriptionDataSet": []} for n in range(600)]
    body = {"clientID": "me", "consumerDataSet": consumers}
    request = HeartBeat().command(json.dumps(body).encode())
    made: list[int] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def counted_later(delay: float, call: Any, *arguments: Any) -> Any:
        if delay > 1:
            later.append((delay, len(arguments[0])))
            return None
        return call_later(delay, call, *arguments)

    monkeypatch.setattr(loop, "call_later", counted_later)
    answer = asyncio.ensure_future(heartbeat(CONNECTION, request))
    while not answer.done():
        made.append(len(bench.store.group_configs))
        await asyncio.sleep(0)
    made.append(len(bench.store.group_configs))
    assert made[-1] == 600
    assert max(after - before for before, after in itertools.pairwise(made)) <= 10
    assert sum(count for _, count in later) == 2 * 600, "all are told twice that there are members"
    assert max(count for _, count in later) <= 50
    assert len({delay for delay, _ in later}) == len(later), "and not all at the same time"
