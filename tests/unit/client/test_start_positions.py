"""Where a group begins in queues in which it has no offset, whatever its members find in which order."""

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
    """A group's offsets; queues of `silent` brokers cannot be asked for."""

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


async def found(starts: StartOffsets, queues: Iterable[MessageQueue]) -> list[int]:
    return [(await starts.find(queue))[0] for queue in queues]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_offsets, "_OTHERS_SECONDS", 0.0)


@pytest.mark.parametrize("clustering", [True, False])
@pytest.mark.parametrize(
    ("rule", "at_start", "later"), [(FIRST, MINIMUM, MINIMUM), (LAST, END, MINIMUM), (TIMESTAMP, MIDDLE, MIDDLE)]
)
def test_a_new_group_begins_by_its_rule_and_in_queues_that_come_later_where_nothing_is_skipped(
    rule: ConsumeFrom, at_start: int, later: int, clustering: bool
) -> None:
    async def start() -> None:
        starts = member(Brokers(), rule, clustering=clustering)
        await starts.fix([A0, A1])
        assert await found(starts, [A0, A1]) == [at_start, at_start]
        assert await found(starts, [B0, RETRIED]) == [later, MINIMUM], "whatever failed is never skipped"

    asyncio.run(start())


def test_the_first_member_fixes_the_start_of_all_queues_and_the_others_find_it() -> None:
    async def start() -> None:
        brokers = Brokers()
        await member(brokers).fix([A0, A1])
        brokers.ends[A1] = END + 2  # it was sent to before the member came whose share the queue is
        second = member(brokers)
        await second.fix([A0, A1])
        assert await found(second, [A0, A1]) == [END, END]

    asyncio.run(start())


def test_members_that_start_at_the_same_time_agree_and_none_reads_what_was_there_before() -> None:
    async def start() -> None:
        brokers = Brokers()
        members = [member(brokers) for _ in range(3)]
        await asyncio.gather(*(each.fix([A0, A1, B0]) for each in members))
        assert [await found(each, [A0, A1, B0]) for each in members] == [[END] * 3] * 3

    asyncio.run(start())


def test_a_queue_that_was_added_while_no_member_ran_begins_at_its_minimum() -> None:
    async def start() -> None:
        brokers = Brokers()
        brokers.offsets[A0] = 6
        again = member(brokers)
        await again.fix([A0, A1, B0])
        assert await found(again, [A0, A1, B0]) == [6, MINIMUM, MINIMUM]

    asyncio.run(start())


def test_a_broker_that_cannot_be_asked_when_the_group_starts_is_one_that_comes_later() -> None:
    async def start() -> None:
        brokers = Brokers(b=True)
        starts = member(brokers)
        await starts.fix([A0, B0])
        brokers.silent.clear()
        assert await found(starts, [A0, B0]) == [END, MINIMUM]

    asyncio.run(start())


def test_a_topic_that_the_group_did_not_consume_before_begins_at_its_end() -> None:
    async def start() -> None:
        brokers, other = Brokers(), MessageQueue("other", "a", 0)
        brokers.offsets[A0] = 6
        starts = member(brokers)
        await starts.fix([A0, other])
        assert await found(starts, [A0, other]) == [6, END]

    asyncio.run(start())


def test_a_member_for_itself_begins_at_the_end_once() -> None:
    """A topic that was deleted and made anew, for example, is read from where it begins."""

    async def start() -> None:
        starts = member(Brokers(), clustering=False)
        await starts.fix([A0])
        assert await found(starts, [A0, A0]) == [END, MINIMUM]

    asyncio.run(start())
