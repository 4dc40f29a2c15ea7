"""Test that a replica keeps log files until it has what was stored again."""

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
from tests.unit.actors.keeper.in_memory_keepers import group_with_master
from tests.unit.actors.replication.test_replica_commands import STATUS


class Stream:
    """Hold a stream that ends at `end`, and record log begins of the master."""

    def __init__(self, end: StreamPosition, *, is_disk_low: bool = False) -> None:
        self.end = end
        self.is_disk_low = is_disk_low
        self.retained: list[int] = []

    def retain(self, master_begin: int) -> None:
        self.retained.append(master_begin)


class Master:
    """Answer status requests."""

    async def request(self, _address: str, command: Command, _seconds: float) -> Command:
        return replica_status_answer(command, dataclasses.replace(STATUS, begin=(2048, 3), confirmed=(4000, 88)))


@pytest.mark.parametrize(
    ("end", "told"), [((4000, 88), [2048]), ((4096, 90), [2048]), ((3999, 88), []), ((4000, 87), []), ((4000, 0), [])]
)
async def test_files_are_deleted_after_confirmed_data_arrived(end: tuple[int, int], told: list[int]) -> None:
    """Guard against losing messages that the master had stored again.

    The replica's stream waited for its disk, the files were deleted, and the master was lost with these messages.
    """
    stream = Stream(StreamPosition(*end))
    await retained(stream, number=2)
    assert stream.retained == told


@pytest.mark.parametrize(("number", "is_disk_low"), [(3, False), (3, True), (2, True)])
async def test_catching_up_replica_with_full_disk_deletes_files(number: int, *, is_disk_low: bool) -> None:
    """Guard against a full replica that never deletes files, because it receives nothing.

    Its disk was full of files that its master no longer had.
    """
    stream = Stream(StreamPosition(100, 8), is_disk_low=is_disk_low)
    await retained(stream, number=number)
    assert bool(stream.retained) is (number == 3 and is_disk_low)


async def retained(stream: Stream, number: int) -> None:
    """Run the retention task of replica `number`; replicas 1 (master) and 2 are in sync."""
    state = group_with_master(count=3).with_set([1, 2])
    member = SimpleNamespace(number=number, state=state, stream=stream, connection=SimpleNamespace(is_following=True))
    await FollowerTasks(cast("Any", member), cast("Any", Master()), asyncio.Lock()).retain()
