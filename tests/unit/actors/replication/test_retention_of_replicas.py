"""A replica lets no log file go before it has what its master has stored anew out of it."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raymq.actors.broker.replica.following_duties import FollowingDuties
from raymq.actors.broker.replication.positions import StreamPosition
from raymq.actors.wire.commands.replication import replica_status_answer
from raymq.actors.wire.frame import Command
from tests.unit.actors.keeper.keepers_at_hand import mastered
from tests.unit.actors.replication.test_replica_commands import STATUS


class Stream:
    """What is here ends at `end`; where the log may begin by what the master has said."""

    def __init__(self, end: StreamPosition) -> None:
        self.end = end
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
    member = SimpleNamespace(state=mastered(), stream=stream, line=SimpleNamespace(is_following=True))
    await FollowingDuties(cast("Any", member), cast("Any", Master()), asyncio.Lock()).retain()
    assert stream.retained == told
