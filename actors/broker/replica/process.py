"""A broker of a group as it is now, whatever its role: what all that speak for it look at."""

from __future__ import annotations

import secrets
from concurrent.futures import Future
from typing import Any, Final

from raymq.actors.broker.replica.follower import FollowerLine
from raymq.actors.broker.replica.listening import Listening
from raymq.actors.broker.replica.office import Office
from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.stream import FollowedStream
from raymq.actors.broker.replication.claims import nonce_at
from raymq.actors.broker.replication.reconciling import StreamExtent
from raymq.actors.broker.service import BrokerService
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.messages import Registered
from raymq.actors.protocol import BrokerSpec
from raymq.storage.clock import boottime
from raymq.storage.files.directory_lock import ProcessLock

#: A replica that has not read the register for so long would not keep a lease.
_REACHES_SECONDS: Final = 1.0


class ReplicaProcess:
    """One process. Belongs to its event loop.

    Attributes:
        address, replication_address: where clients and where replicas connect, in every role.
        nonce: that of this process.
        lock: kept until the service has ended, or the process.
        memory: what the directory remembers of it.
        stream: open to be followed, while it is no master.
        office, service: while it is master, the latter once it serves.
        line: its connection to its master.
        registered: what the register said last; None: it has not made its claim.
        read_at: when it was read, by `boottime`.
        last_known: what is told of the stream while the store is closed.
        left_behind: calls that its last office had under way beside the loop when it ended.
        refused: why it must not serve any more; empty: it may.
        trouble: what is in its way now.
    """

    def __init__(
        self,
        spec: BrokerSpec,
        node_id: str,
        listening: Listening,
        memory: ReplicaFile,
        stream: FollowedStream,
        lock: ProcessLock,
    ) -> None:
        self.spec = spec
        self.cluster, self.name, self.number = spec.cluster, spec.name, spec.replica + 1
        self.node_id = node_id
        self.address = f"{spec.host}:{listening.port}"
        self.replication_address = f"{spec.host}:{listening.replication_port}"
        self.nonce = nonce_at(secrets.token_hex(16), lock.place)
        self.lock = lock
        self.memory = memory
        self.stream: FollowedStream | None = stream
        self.office: Office | None = None
        self.service: BrokerService | None = None
        self.line: FollowerLine | None = None
        self.registered: Registered | None = None
        self.read_at = -1e9
        self.last_known = stream.extent
        self.left_behind: frozenset[Future[Any]] = frozenset()
        self.refused = self.trouble = ""

    @property
    def is_claimed(self) -> bool:
        """Whether it is registered as its replica."""
        return self.registered is not None

    @property
    def state(self) -> GroupState | None:
        """The register's value, as far as it is known."""
        if self.office is not None:
            return self.office.state
        value = None if self.registered is None else self.registered.value
        return value if isinstance(value, GroupState) else None

    @property
    def extent(self) -> StreamExtent:
        """What is here of the stream."""
        if self.office is not None:
            return self.office.extent
        return self.last_known if self.stream is None else self.stream.extent

    @property
    def reaches_keepers(self) -> bool:
        """Whether it could keep a lease."""
        holds = self.office is not None and self.office.lease.holds
        return holds or boottime() - self.read_at < _REACHES_SECONDS

    @property
    def is_left(self) -> bool:
        """Whether nothing of its last office goes on: what it left behind writes files as if it had not ended."""
        return all(call.done() for call in self.left_behind)

    @property
    def is_healthy(self) -> bool:
        """Whether its disk takes writes, it has a state at all, and may take office."""
        if self.service is not None:
            return self.service.store.is_healthy
        stream = self.stream
        return stream is not None and stream.store.is_healthy and stream.states.is_whole and self.is_left
