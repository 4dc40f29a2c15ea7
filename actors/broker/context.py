"""Define what a broker's handlers work on.

This is its core, its tables, and the functions that only the surrounding service has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from raymq.actors.broker.acks import Acks
from raymq.actors.broker.core.appending.admission import AppendAdmission, AppendScope
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.groups.pending_requesters import PendingRequesters
from raymq.actors.broker.core.reading.long_poll import LongPollingService
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.broker.staged_commits import StagedCommits
from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import BrokerInfo, SendStatus, TopicRoute
from raymq.actors.server_settings import ServerSettings
from raymq.actors.wire.frame import Command
from raymq.actors.wire.stepwise_handlers import OrderedHandlers
from raymq.actors.wire.sync_callback_future import SyncCallbackFuture


@dataclass(slots=True)
class BrokerContext:
    """What every family's `handlers` gets; used only on the broker's event loop."""

    core: BrokerCore
    groups: ClientRegistry
    polls: LongPollingService
    statistics: Statistics
    #: Every append passes its admission control.
    append_admission: AppendAdmission
    settings: ServerSettings
    #: Decides when appends are answered.
    acks: Acks
    #: Waits until all changes of topics and groups so far survive a crash of the machine.
    settings_durable: Callable[[], Awaitable[object]]
    #: Registers with every name server now, so that a new topic is in the routes before its creator is answered.
    announce: Callable[[], Awaitable[None]]
    #: Returns a topic's route, also of other brokers' queues; raises TopicNotFound or BrokerUnavailable.
    route: Callable[[str], Awaitable[TopicRoute]]
    #: Notifies a group's members that its membership changed.
    notify_group: Callable[[str], None]
    status: Callable[[], BrokerInfo]
    #: Appends the committed rows of staged writes.
    commits: StagedCommits
    requesters: PendingRequesters = field(default_factory=PendingRequesters)
    #: Runs the requests that change a client's memberships and locks in their order.
    in_order: OrderedHandlers = field(default_factory=OrderedHandlers)

    def append(self, size: int, store: Callable[[], Callable[[SendStatus], Command]]) -> Command | Awaitable[Command]:
        """Append `size` bytes with admission control, and return the answer.

        `store` stores them and returns the function that makes the answer; see `when_durable`.

        Raises:
            ServerBusy, WriteUnknown: as `AppendScope`. Else whatever `store` raises: nothing was stored.
        """
        known = self.core.store.topic_configs.version
        with AppendScope(self.append_admission, size) as under_way:
            answer = self.when_durable(store(), new_topic=self.core.store.topic_configs.version is not known)
            if isinstance(answer, Command):
                return answer
            leave = under_way.extend()
            answer.add_done_callback(lambda _: leave())
        # Shielded, so that the append stays counted if the connection is lost meanwhile.
        return answer if isinstance(answer, SyncCallbackFuture) else asyncio.shield(answer)

    def when_durable(
        self, make: Callable[[SendStatus], Command], *, new_topic: bool = False
    ) -> Command | asyncio.Future[Command]:
        """Return `make`'s result once all appends are durable and a `new_topic` is announced.

        The result is returned at once if no wait is needed.
        """
        return asyncio.ensure_future(self._announced(make)) if new_topic else self.acks.answer(make)

    async def _announced(self, make: Callable[[SendStatus], Command]) -> Command:
        waiting = self.acks.durable()
        status = SendStatus.SEND_OK if waiting is None else await waiting
        await self.settings_durable()
        await self.announce()
        return make(status)


def text_field(request: Command, name: str) -> str:
    """Return a required field of a request. Raise InvalidInput with its name if missing."""
    value = request.fields.get(name)
    if value is None:
        raise InvalidInput(name, "a required field of the request", None)
    return str(value)


def int_field(request: Command, name: str, default: int | None = None) -> int:
    """Return a whole number from a request's fields, or `default` if the field is absent."""
    value = request.fields.get(name)
    if value is None and default is not None:
        return default
    try:
        number = int(text_field(request, name))
    except ValueError:
        raise InvalidInput(name, "a whole number", value) from None
    if not -(1 << 63) <= number < 1 << 63:
        raise InvalidInput(name, "a whole number of 64 bits", value)
    return number
