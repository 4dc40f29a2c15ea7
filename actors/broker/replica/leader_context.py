"""Define what the service of a master gets from the broker process around it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from raymq.actors.broker.context import BrokerContext
from raymq.actors.broker.handlers.broker_command import Commands
from raymq.actors.broker.replica.broker_sockets import BrokerSockets
from raymq.actors.broker.replica.leader_guard import guarded_handlers
from raymq.actors.broker.replica.leadership import Leadership
from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.actors.broker.replica.replicated_context import ReplicatedContext
from raymq.actors.wire.server_connection import Handler
from raymq.storage.failpoints import failpoint
from raymq.storage.store import Store


@dataclass(frozen=True, slots=True)
class LeaderContext:
    """The place of a `BrokerService` in its group.

    Attributes:
        leadership: decides what may be acknowledged.
        listening: the process's sockets, on which clients are refused until the service takes over.
        handlers: of the requests that are answered in every role.
        replication_address: where replicas connect.
        stream: that of the elected replica.
        memory_lost: its machine or those of all replicas may have lost what was not synced.
    """

    leadership: Leadership
    listening: BrokerSockets
    handlers: Mapping[int, Handler]
    replication_address: str
    stream: ReplicaStream
    memory_lost: bool

    def lead(self) -> Store:
        """Make the replica's store the master's, and return it. Any thread.

        Raise StoreFull or StoreFailed if that is not possible now.
        """
        failpoint("leader.before_tables")
        store = self.stream.lead(memory_lost=self.memory_lost)
        self.leadership.hold(store)
        return store

    def sockets(self) -> list[socket.socket]:
        """Return bound sockets for the service, which closes them."""
        return self.listening.dup_client_sockets()

    async def take_over(self) -> None:
        """Stop refusing clients: the store is open, and the service is about to listen.

        Raise StoreFollows if the leadership has ended meanwhile.
        """
        failpoint("leader.before_serving")
        self.leadership.check_not_ended()
        await self.listening.stop_refusing()
        self.leadership.check_not_ended()

    @property
    def context(self) -> Callable[..., BrokerContext]:
        """Return the function that creates the context of the service's commands."""
        return partial(ReplicatedContext, leadership=self.leadership)

    def guarded_handlers(self, commands: Commands) -> dict[int, Handler]:
        """Return the handlers of all commands of the service, guarded by the leadership."""
        return {**guarded_handlers(commands, self.leadership), **self.handlers}
