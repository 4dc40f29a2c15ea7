"""Test where a group starts in queues without a committed offset."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from raymq.actors.errors import ConnectionLost
from raymq.actors.naming import retry_topic
from raymq.actors.protocol import MessageQueue
from raymq.client.push import start_offsets
from raymq.client.push.start_offsets import StartOffsets
from raymq.client.requests.offset_requests import ConsumeFrom

FIRST, LAST, TIMESTAMP = ConsumeFrom.FIRST, ConsumeFrom.LAST, ConsumeFrom.TIMESTAMP
MINIMUM, MIDDLE, END = 3, 5, 8

A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)
RETRIED = MessageQueue(retry_topic("g"), "a", 0)


class Brokers:
    """The offsets of a group; requests to `silent` brokers fail."""

    def __init__(self, **silent: bool) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.silent = {broker for broker, is_silent in silent.items() if is_silent}
        self.ends: dict[MessageQueue, int] = {}

    async def committed(self, queue: MessageQueue) -> tuple[int, int] | None:
        await self._answer(queue)
        return (self.offsets[queue], 0) if queue in self.offsets else None

    async def first(self, queue: MessageQueue, rule: ConsumeFrom, timestamp: float | None) -> tuple[int, int]:
        await self._answer(queue)
        assert (rule is TIMESTAMP) <= (timestamp is not None)
        return {FIRST: MINIMUM, TIMESTAMP: MIDDLE, LAST: self.ends.get(queue, END)}[rule], 0

    async def begin(self, queue: MessageQueue, place: tuple[int, int]) -> tuple[int, int]:
        await self._answer(queue)
        return self.offsets.setdefault(queue, place[0]), 0

    async def _answer(self, queue: MessageQueue) -> None:
        await asyncio.sleep(0)
        if queue.broker in self.silent:
            raise ConnectionLost(queue.broker, "it is closed")


def member(brokers: Brokers, rule: ConsumeFrom = LAST, *, clustering: bool = True) -> StartOffsets:
    return StartOffsets(brokers, rule, 1.0 if rule is TIMESTAMP else None, clustering=clustering)


async def find_offsets(starts: StartOffsets, queues: Iterable[MessageQueue]) -> list[int]:
    return [(await starts.find(queue))[0] for queue in queues]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_offsets, "_OTHERS_SECONDS", 0.0)


@pytest.mark.parametrize("clustering", [True, False])
@pytest.mark.parametrize(
    ("rule", "at_start", "later"), [(FIRST, MINIMUM, MINIMUM), (LAST, END, MINIMUM), (TIMESTAMP, MIDDLE, MIDDLE)]
)
def test_new_group_starts_by_its_rule_and_skips_no_later_queue(
    rule: ConsumeFrom, at_start: int, later: int, clustering: bool
) -> None:
    async def start() -> None:
        starts = member(Brokers(), rule, clustering=clustering)
        await starts.fix([A0, A1])
        assert await find_offsets(starts, [A0, A1]) == [at_start, at_start]
        assert await find_offsets(starts, [B0, RETRIED]) == [later, MINIMUM], "whatever failed is never skipped"

    asyncio.run(start())


def test_first_member_fixes_the_start_offsets_of_all_queues() -> None:
    async def start() -> None:
        brokers = Brokers()
        await member(brokers).fix([A0, A1])
        brokers.ends[A1] = END + 2  # messages arrived before the queue's member started
        second = member(brokers)
        await second.fix([A0, A1])
        assert await find_offsets(second, [A0, A1]) == [END, END]

    asyncio.run(start())


def test_members_that_start_together_agree_on_the_end() -> None:
    async def start() -> None:
        brokers = Brokers()
        members = [member(brokers) for _ in range(3)]
        await asyncio.gather(*(each.fix([A0, A1, B0]) for each in members))
        assert [await find_offsets(each, [A0, A1, B0]) for each in members] == [[END] * 3] * 3

    asyncio.run(start())


def test_queue_added_while_the_group_was_down_starts_at_minimum() -> None:
    async def start() -> None:
        brokers = Brokers()
        brokers.offsets[A0] = 6
        again = member(brokers)
        await again.fix([A0, A1, B0])
        assert await find_offsets(again, [A0, A1, B0]) == [6, MINIMUM, MINIMUM]

    asyncio.run(start())


def test_queue_of_an_unreachable_broker_starts_at_minimum() -> None:
    async def start() -> None:
        brokers = Brokers(b=True)
        starts = member(brokers)
        await starts.fix([A0, B0])
        brokers.silent.clear()
        assert await find_offsets(starts, [A0, B0]) == [END, MINIMUM]

    asyncio.run(start())


def test_topic_new_to_the_group_starts_at_its_end() -> None:
    async def start() -> None:
        brokers, other = Brokers(), MessageQueue("other", "a", 0)
        brokers.offsets[A0] = 6
        starts = member(brokers)
        await starts.fix([A0, other])
        assert await find_offsets(starts, [A0, other]) == [6, END]

    asyncio.run(start())


def test_broadcasting_member_starts_at_the_end_once() -> None:
    """Later lookups return the minimum, for example after the topic was deleted and created again."""

    async def start() -> None:
        starts = member(Brokers(), clustering=False)
        await starts.fix([A0])
        assert await find_offsets(starts, [A0, A0]) == [END, MINIMUM]

    asyncio.run(start())
