"""Test the sends of one queue: they keep their order, and waiting sends share a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from raymq.actors.errors import InvalidInput, NotStored
from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.send_plan import SendParameters
from raymq.client import Message
from raymq.client.produce.message_batch import MakeOutcomes
from raymq.client.produce.ordered_queue_sender import Encoded, OrderedQueueSender

QUEUE = MessageQueue("t", "broker-a", 0)


@dataclass
class Broker:
    """A broker that stores when `go_on` is set; `sent` has the bodies of each request."""

    sent: list[list[bytes]] = field(default_factory=list)
    terms: list[SendParameters] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    refuses: bytes = b""

    async def store(self, messages: Sequence[Message], encoded: Encoded, terms: SendParameters) -> MakeOutcomes:
        numbers, records, sizes = encoded
        bodies = [message.body for message in messages]
        assert bytes(records) == b"".join(bodies)
        assert sizes.tolist() == list(map(len, bodies))
        assert list(numbers) == [body.decode() for body in bodies]
        terms.check_time()
        self.sent.append(bodies)
        self.terms.append(terms)
        await self.go_on.wait()
        if self.refuses in bodies:
            raise InvalidInput("body", "another one", self.refuses)
        return lambda: bodies  # type: ignore[return-value]


async def send(sender: OrderedQueueSender, bodies: str, timeout: float = 60.0, retries: int = 2) -> Sequence[object]:
    messages = [Message("t", body.encode()) for body in bodies.split()]
    encoded = (
        [message.body.decode() for message in messages],
        bytearray().join(message.body for message in messages),
        np.array([len(message.body) for message in messages], np.int32),
    )
    terms = SendParameters(timeout, retries, QUEUE)
    return (await sender.send(QUEUE, messages, encoded, terms, time.monotonic() + timeout))()


def run(most_bytes: int, work: Callable[[OrderedQueueSender, Broker], Awaitable[None]]) -> Broker:
    async def work_and_check() -> Broker:
        broker = Broker()
        sender = OrderedQueueSender(broker.store, most_bytes)
        await work(sender, broker)
        assert len(sender) == len(sender._turns) == 0
        return broker

    return asyncio.run(work_and_check())


async def begin_sends(sender: OrderedQueueSender, *sends: tuple[object, ...]) -> list[asyncio.Task[Sequence[object]]]:
    tasks = [asyncio.create_task(send(sender, *each)) for each in sends]  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    return tasks


def test_waiting_sends_share_a_request_with_own_outcomes() -> None:
    async def work(sender: OrderedQueueSender, broker: Broker) -> None:
        tasks = await begin_sends(sender, ("1",), ("2 3",), ("4",), ("5 6 7",))
        broker.go_on.set()
        assert await asyncio.gather(*tasks) == [[b"1"], [b"2", b"3"], [b"4"], [b"5", b"6", b"7"]]

    assert run(1_000, work).sent == [[b"1"], [b"2", b"3", b"4", b"5", b"6", b"7"]]


def test_shared_requests_keep_the_byte_limit_and_the_order() -> None:
    async def work(sender: OrderedQueueSender, broker: Broker) -> None:
        tasks = await begin_sends(sender, ("1",), ("22 22",), ("333",), ("4",), ("55555555",), ("6",))
        broker.go_on.set()
        await asyncio.gather(*tasks)

    assert run(7, work).sent == [[b"1"], [b"22", b"22", b"333"], [b"4"], [b"55555555"], [b"6"]]


def test_only_sends_with_equal_options_share_a_request() -> None:
    async def work(sender: OrderedQueueSender, broker: Broker) -> None:
        tasks = await begin_sends(sender, ("1",), ("2",), ("3", 60.0, 0), ("4", 60.0, 0), ("5", 600.0, 0))
        broker.go_on.set()
        await asyncio.gather(*tasks)

    assert run(1_000, work).sent == [[b"1"], [b"2"], [b"3", b"4"], [b"5"]]


def test_send_near_its_deadline_gets_its_own_request() -> None:
    """Cover a regression: such a send shortened the timeout of all shared sends."""

    async def late(sender: OrderedQueueSender) -> Sequence[object]:
        encoded = ["2"], bytearray(b"2"), np.array([1], np.int32)
        terms = SendParameters(60.0, 2, QUEUE)
        return (await sender.send(QUEUE, [Message("t", b"2")], encoded, terms, time.monotonic() + 1.0))()

    async def work(sender: OrderedQueueSender, broker: Broker) -> None:
        tasks = await begin_sends(sender, ("0",), ("1",))
        tasks.append(asyncio.create_task(late(sender)))
        tasks += await begin_sends(sender, ("3",))
        broker.go_on.set()
        await asyncio.gather(*tasks)

    broker = run(1_000, work)
    assert broker.sent == [[b"0"], [b"1"], [b"2"], [b"3"]]
    assert [terms.timeout > 50.0 for terms in broker.terms] == [True, True, False, True]


def test_refused_shared_request_is_repeated_per_send() -> None:
    async def work(sender: OrderedQueueSender, broker: Broker) -> None:
        broker.refuses = b"3"
        tasks = await begin_sends(sender, ("1",), ("2",), ("3",), ("4",))
        broker.go_on.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in outcomes] == [list, list, InvalidInput, list]

    assert run(1_000, work).sent == [[b"1"], [b"2", b"3", b"4"], [b"2"], [b"3"], [b"4"]]


def test_expired_send_is_dropped_and_delays_no_other() -> None:
    async def work(sender: OrderedQueueSender, broker: Broker) -> None:
        tasks = await begin_sends(sender, ("1",), ("2", 0.05), ("3",))
        with pytest.raises(NotStored):
            await tasks[1]
        broker.go_on.set()
        await asyncio.gather(tasks[0], tasks[2])

    assert run(1_000, work).sent == [[b"1"], [b"3"]]


def test_waiting_reduces_the_timeout_of_a_send() -> None:
    async def work(sender: OrderedQueueSender, broker: Broker) -> None:
        tasks = await begin_sends(sender, ("1", 10.0), ("2", 10.0), ("3", 10.0))
        await asyncio.sleep(0.3)
        broker.go_on.set()
        await asyncio.gather(*tasks)

    first, second = run(1_000, work).terms
    assert first.timeout == 10.0
    assert second.timeout < 9.8


def test_unexpected_error_reaches_all_shared_sends() -> None:
    async def work(sender: OrderedQueueSender, broker: Broker) -> None:
        async def fail(*_: object) -> MakeOutcomes:
            await broker.go_on.wait()
            raise MemoryError

        sender._store = fail
        tasks = await begin_sends(sender, ("1",), ("2",), ("3",))
        broker.go_on.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in outcomes] == [MemoryError] * 3

    run(1_000, work)


def test_cancelled_send_does_not_affect_shared_ones() -> None:
    async def work(sender: OrderedQueueSender, broker: Broker) -> None:
        first = await begin_sends(sender, ("1",))
        others = await begin_sends(sender, ("2",), ("3",), ("4",))
        broker.go_on.set()
        await first[0]
        broker.go_on.clear()
        await asyncio.sleep(0.01)
        others[1].cancel()
        await asyncio.sleep(0.01)
        broker.go_on.set()
        assert await asyncio.wait_for(asyncio.gather(others[0], others[2]), 10) == [[b"2"], [b"4"]]

    assert run(1_000, work).sent == [[b"1"], [b"2", b"3", b"4"]]
