"""What a master's service is given by the broker of a group that it is a part of."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.replica.gate import gated
from raymq.actors.broker.replica.listening import Listening
from raymq.actors.broker.replica.office import Office
from raymq.actors.broker.replica.replicated_context import ReplicatedContext
from raymq.actors.wire.server_connection import Handler
from raymq.storage.failpoints import failpoint


@dataclass(frozen=True, slots=True)
class MasterPlace:
    """The place of a `BrokerService` in its group.

    Attributes:
        office: decides what may be acknowledged.
        listening: the process's sockets, where clients are refused until now.
        handlers: of what is answered in every role.
        replication_address: where replicas connect.
    """

    office: Office
    listening: Listening
    handlers: Mapping[int, Handler]
    replication_address: str

    def sockets(self) -> list[socket.socket]:
        """Bound ones for the service, which closes them."""
        return self.listening.for_clients()

    async def take_over(self) -> None:
        """The store is open, and the service is about to listen: nobody is refused any more.

        StoreFollows: the office has ended meanwhile.
        """
        failpoint("office.before_serving")
        self.office.check_in_office()
        await self.listening.stop_refusing()
        self.office.check_in_office()

    @property
    def context(self) -> Callable[..., BrokerContext]:
        """What makes the context of the service's commands."""
        return partial(ReplicatedContext, office=self.office)

    def guarded(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """All handlers of the service, behind the office."""
        return {**gated(handlers, self.office), **self.handlers}
