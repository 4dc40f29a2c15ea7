"""What a broker's commands work on: its core, its tables, and what only the service around them can do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from raymq.actors.broker.core.appending.append_under_way import AppendDoor, AppendUnderWay
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.askers import Askers
from raymq.actors.broker.core.groups.clients import GroupTable
from raymq.actors.broker.core.reading.long_poll import LongPolls
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.broker.staged_commits import StagedCommits
from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import BrokerInfo, SendStatus, TopicRoute
from raymq.actors.server_settings import Settings
from raymq.actors.wire.frame import Command
from raymq.actors.wire.prompt_future import PromptFuture
from raymq.actors.wire.stepwise import InOrder

_T = TypeVar("_T")


class Copies(Protocol):
    """Other copies of the log, by which alone it is decided when an append is answered."""

    def written(self, queue_offset: int, physical_offset: int) -> None:
        """A message is in the log, and nothing is made of it yet."""

    def answer(self, make: Callable[[SendStatus], _T]) -> PromptFuture[_T]:
        """What `make` makes of the status of what was just appended, once that is known."""


@dataclass(slots=True)
class BrokerContext:
    """Passed to every family's `handlers`. All of it belongs to the broker's event loop."""

    core: BrokerCore
    groups: GroupTable
    polls: LongPolls
    statistics: Statistics
    #: Every append goes through it.
    door: AppendDoor
    settings: Settings
    #: What to wait for until all that was appended so far is as safe as the configuration promises; None: it is.
    durable: Callable[[], Awaitable[SendStatus]] | None
    #: What to wait for until all changes of topics and groups so far survive the death of the machine.
    settings_durable: Callable[[], Awaitable[object]]
    #: Registers with every name server now, so that a new topic is in the routes before its creator is answered.
    announce: Callable[[], Awaitable[None]]
    #: A topic's route, also of other brokers' queues; TopicNotFound, BrokerUnavailable.
    route: Callable[[str], Awaitable[TopicRoute]]
    #: Tells a group's members that its membership changed.
    notify_group: Callable[[str], None]
    status: Callable[[], BrokerInfo]
    #: Appends what of staged writes is committed.
    commits: StagedCommits
    askers: Askers = field(default_factory=Askers)
    #: What clients change of their membership and their locks.
    in_order: InOrder = field(default_factory=InOrder)

    def copies(self) -> Copies | None:
        """Those that have to have what is appended; None: there are none, or others have a say in the answer."""
        return None

    def append(self, size: int, store: Callable[[], Callable[[SendStatus], Command]]) -> Command | Awaitable[Command]:
        """Take on an append of so many bytes: `store` stores it and returns what makes the answer, see `when_settled`.

        Raises:
            ServerBusy, WriteUnknown: as `AppendUnderWay`. Else whatever `store` raises: nothing was stored.
        """
        known = self.core.store.topic_configs.version
        with AppendUnderWay(self.door, size) as under_way:
            settled = self.when_settled(store(), new_topic=self.core.store.topic_configs.version is not known)
            if isinstance(settled, Command):
                return settled
            # A task of its own: it goes on, and the append stays under way, if the connection is lost meanwhile.
            task = asyncio.ensure_future(settled)
            leave = under_way.stay()
            task.add_done_callback(lambda _: leave())
        return asyncio.shield(task)

    def when_settled(
        self, answer: Callable[[SendStatus], Command], *, new_topic: bool = False
    ) -> Command | Awaitable[Command]:
        """`answer` once all that was appended is safe and a `new_topic` is in the routes: at once where it can be."""
        if self.durable is None and not new_topic:
            return answer(SendStatus.SEND_OK)
        return self._settle(None if self.durable is None else self.durable(), answer, new_topic)

    async def _settle(
        self, waiting: Awaitable[SendStatus] | None, answer: Callable[[SendStatus], Command], new_topic: bool
    ) -> Command:
        status = SendStatus.SEND_OK if waiting is None else await waiting
        if new_topic:
            await self.settings_durable()
            await self.announce()
        return answer(status)


def text(request: Command, name: str) -> str:
    """A required field of a request; InvalidInput names it where it is missing."""
    value = request.fields.get(name)
    if value is None:
        raise InvalidInput(name, "a required field of the request", None)
    return str(value)


def integer(request: Command, name: str, default: int | None = None) -> int:
    """A whole number from a request's fields; `default` where the field is absent."""
    value = request.fields.get(name)
    if value is None and default is not None:
        return default
    try:
        number = int(text(request, name))
    except ValueError:
        raise InvalidInput(name, "a whole number", value) from None
    if not -(1 << 63) <= number < 1 << 63:
        raise InvalidInput(name, "a whole number of 64 bits", value)
    return number
