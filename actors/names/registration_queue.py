"""Decode long registrations one after another, and drop those that are obsolete.

If many were decoded in turns, all of them would end late and at the same time, after the time-out of every broker. Each
broker would then send all of its topics again, and the name server would decode the abandoned registrations beside the
new ones.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from raymq.actors.errors import InvalidInput, ServerBusy
from raymq.actors.names.route_table import MAX_PER_CONNECTION
from raymq.actors.wire.frame import Command
from raymq.actors.wire.stepwise_handlers import stepwise
from raymq.storage.cooperative_steps import Steps

#: A broker's name, its replica's id and its address: two addresses may register as the master at the same time.
Replica = tuple[str, int, str]


@dataclass(slots=True, eq=False)
class _QueuedRegistration:
    replica: Replica
    connection: object
    steps: Steps[Command]
    answer: asyncio.Future[Command]

    def end(self, reason: str) -> None:
        """Stop decoding, and fail the answer with `reason`."""
        self.steps.close()  # the loop over the steps ends now
        if not self.answer.done():
            self.answer.set_exception(ServerBusy(reason))


class RegistrationQueue:
    """The registrations that wait, in their order of arrival, and the one in progress.

    Used on one event loop.
    """

    def __init__(self) -> None:
        self._waiting: dict[Replica, _QueuedRegistration] = {}
        self._begun: _QueuedRegistration | None = None
        self._reading: asyncio.Task[None] | None = None

    def add(self, replica: Replica, connection: object, steps: Steps[Command]) -> asyncio.Future[Command]:
        """Queue a registration, and return its future answer.

        It takes the place of one from the same replica that waits, and ends one that is being decoded.

        Raises:
            InvalidInput: too many registrations of this connection wait.
        """
        of_connection = sum(each.connection is connection for each in self._waiting.values())
        if of_connection >= MAX_PER_CONNECTION and replica not in self._waiting:
            limit = f"at most {MAX_PER_CONNECTION} brokers of one connection"
            raise InvalidInput("brokerName", limit, replica[0], remedy="register more brokers over another connection")
        loop = asyncio.get_running_loop()
        self._end(replica, "a newer registration of this broker arrived", keep_place=True)
        long = self._waiting[replica] = _QueuedRegistration(replica, connection, steps, loop.create_future())
        if self._reading is None:
            self._reading = loop.create_task(self._read())
        return long.answer

    def drop(self, replica: Replica) -> None:
        """Drop the replica's registrations, because the broker has sent a newer request."""
        self._end(replica, "the broker sent a newer request", keep_place=False)

    def connection_closed(self, connection: object) -> None:
        """Drop the registrations that came on a connection."""
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

    async def _read_one(self, long: _QueuedRegistration) -> None:
        try:
            answer = await stepwise(long.steps)
        except Exception as error:  # noqa: BLE001 - the answer carries any error
            if not long.answer.done():
                long.answer.set_exception(error)
        else:
            if not long.answer.done():
                long.answer.set_result(answer)
