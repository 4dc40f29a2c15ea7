"""A replica lets no log file go before it has what its master has stored anew out of it."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raymq.actors.broker.replica.follower_tasks import FollowerTasks
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.wire.commands.replication_commands import replica_status_answer
from raymq.actors.wire.frame import Command
from tests.unit.actors.keeper.keepers_at_hand import mastered
from tests.unit.actors.replication.test_replica_commands import STATUS


class Stream:
    """What is here ends at `end`; where the log may begin by what the master has said."""

    def __init__(self, end: StreamPosition, *, is_disk_low: bool = False) -> None:
        self.end = end
        self.is_disk_low = is_disk_low
        self.retained: list[int] = []

    def retain(self, master_begin: int) -> None:
        self.retained.append(master_begin)


class Master:
    """Answers how it does."""

    async def request(self, _address: str, command: Command, _seconds: float) -> Command:
        return replica_status_answer(command, dataclasses.replace(STATUS, begin=(2048, 3), confirmed=(4000, 88)))


@pytest.mark.parametrize(
    ("end", "told"), [((4000, 88), [2048]), ((4096, 90), [2048]), ((3999, 88), []), ((4000, 87), []), ((4000, 0), [])]
)
async def test_files_go_when_all_is_here_that_is_confirmed(end: tuple[int, int], told: list[int]) -> None:
    """Its stream waited for its disk, the files went, the master was lost, and with it what had been stored anew."""
    stream = Stream(StreamPosition(*end))
    await retained(stream, number=2)
    assert stream.retained == told


@pytest.mark.parametrize(("number", "is_disk_low"), [(3, False), (3, True), (2, True)])
async def test_one_that_catches_up_makes_room_for_what_it_lacks(number: int, *, is_disk_low: bool) -> None:
    """It was full of files that its master had no more, took nothing, and so never came to let them go."""
    stream = Stream(StreamPosition(100, 8), is_disk_low=is_disk_low)
    await retained(stream, number=number)
    assert bool(stream.retained) is (number == 3 and is_disk_low)


async def retained(stream: Stream, number: int) -> None:
    """The duty of the replica of that number; 1, which is the master, and 2 are in sync."""
    state = mastered(count=3).with_set([1, 2])
    member = SimpleNamespace(number=number, state=state, stream=stream, connection=SimpleNamespace(is_following=True))
    await FollowerTasks(cast("Any", member), cast("Any", Master()), asyncio.Lock()).retain()
