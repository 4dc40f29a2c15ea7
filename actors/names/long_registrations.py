"""Long registrations are read one after another, and none that nobody waits for any more.

Read side by side, many of them would all end late, and together: behind the patience of every broker. Each broker would
send all of its topics again, and the name server would read what was given up beside what came instead of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from raymq.actors.errors import InvalidInput, ServerBusy
from raymq.actors.names.table import MOST_OF_A_CONNECTION
from raymq.actors.wire.frame import Command
from raymq.actors.wire.stepwise import stepwise
from raymq.storage.steps import Steps

#: A broker's name, its replica's id and its address: two may say at the same time that they are the master.
Replica = tuple[str, int, str]


@dataclass(slots=True, eq=False)
class _Long:
    replica: Replica
    connection: object
    steps: Steps[Command]
    answer: asyncio.Future[Command]

    def end(self, reason: str) -> None:
        """Nothing of it is done any more; who waits for the answer is told why."""
        self.steps.close()  # whoever goes through the steps is at their end now
        if not self.answer.done():
            self.answer.set_exception(ServerBusy(reason))


class LongRegistrations:
    """Those that wait, in the order in which they came, and the one that is read. Used on one loop."""

    def __init__(self) -> None:
        self._waiting: dict[Replica, _Long] = {}
        self._begun: _Long | None = None
        self._reading: asyncio.Task[None] | None = None

    def add(self, replica: Replica, connection: object, steps: Steps[Command]) -> asyncio.Future[Command]:
        """Read it when it has its turn; its answer.

        One of the same replica that waits gives its place to this one; one that is read already ends.

        Raises:
            InvalidInput: as many as there may be of this connection wait.
        """
        of_connection = sum(each.connection is connection for each in self._waiting.values())
        if of_connection >= MOST_OF_A_CONNECTION and replica not in self._waiting:
            limit = f"at most {MOST_OF_A_CONNECTION} brokers of one connection"
            raise InvalidInput("brokerName", limit, replica[0], remedy="register others over connections of their own")
        loop = asyncio.get_running_loop()
        self._end(replica, "a newer registration of this broker came", keep_place=True)
        long = self._waiting[replica] = _Long(replica, connection, steps, loop.create_future())
        if self._reading is None:
            self._reading = loop.create_task(self._read())
        return long.answer

    def drop(self, replica: Replica) -> None:
        """The broker has said something newer."""
        self._end(replica, "the broker said something newer", keep_place=False)

    def connection_closed(self, connection: object) -> None:
        """What came on it is wanted no more."""
        for long in [*self._waiting.values(), *([self._begun] if self._begun is not None else [])]:
            if long.connection is connection:
                self._end(long.replica, "the connection ended", keep_place=False)

    def _end(self, replica: Replica, reason: str, *, keep_place: bool) -> None:
        if self._begun is not None and self._begun.replica == replica:
            self._begun.end(reason)
        waiting = self._waiting.get(replica)
        if waiting is not None:
            waiting.end(reason)
            if not keep_place:
                del self._waiting[replica]

    async def _read(self) -> None:
        try:
            while self._waiting:
                long = self._begun = self._waiting.pop(next(iter(self._waiting)))
                await self._read_one(long)
        finally:
            self._begun = self._reading = None

    async def _read_one(self, long: _Long) -> None:
        try:
            answer = await stepwise(long.steps)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            if not long.answer.done():
                long.answer.set_exception(error)
        else:
            if not long.answer.done():
                long.answer.set_result(answer)
