"""Hold the state of one broker of a group, whatever its role.

Status answers and periodic tasks read it.
"""

from __future__ import annotations

import secrets
from typing import Final

from raymq.actors.broker.replica.broker_sockets import BrokerSockets
from raymq.actors.broker.replica.leadership import Leadership
from raymq.actors.broker.replica.replica_connection import ReplicaConnection
from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.actors.broker.replication.reconciliation import StreamExtent
from raymq.actors.broker.replication.replica_claims import make_nonce
from raymq.actors.broker.service import BrokerService
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import Registered
from raymq.actors.protocol import BrokerSpec
from raymq.storage.clock import boottime
from raymq.storage.files.directory_lock import ProcessLock

#: A replica that has not read the register for this long could not keep a lease.
_REACHES_SECONDS: Final = 1.0


class ReplicaProcess:
    """One broker process of a group; belongs to its event loop.

    Attributes:
        address, replication_address: where clients and where replicas connect, in every role.
        nonce: that of this process.
        lock: kept until the service or the process has ended.
        metadata: the persistent metadata of the directory.
        stream: open for following, while the broker is not master.
        leadership, service: set while it is master, the service only once it serves.
        connection: its connection to its master.
        registered: the register's last value; None: the claim is not made yet.
        read_at: when the register was read, by `boottime`.
        last_extent: the extent to report while the store is closed.
        refused: why it must not serve any more; empty: it may.
        trouble: the current problem.
    """

    def __init__(
        self,
        spec: BrokerSpec,
        node_id: str,
        sockets: BrokerSockets,
        metadata: ReplicaFile,
        stream: ReplicaStream,
        lock: ProcessLock,
    ) -> None:
        self.spec = spec
        self.cluster, self.name, self.number = spec.cluster, spec.name, spec.replica + 1
        self.node_id = node_id
        self.address = f"{spec.host}:{sockets.port}"
        self.replication_address = f"{spec.host}:{sockets.replication_port}"
        self.nonce = make_nonce(secrets.token_hex(16), lock.place)
        self.lock = lock
        self.metadata = metadata
        self.stream: ReplicaStream | None = stream
        self.leadership: Leadership | None = None
        self.service: BrokerService | None = None
        self.connection: ReplicaConnection | None = None
        self.registered: Registered | None = None
        self.read_at = -1e9
        self.last_extent = stream.extent
        self.refused = self.trouble = ""

    @property
    def is_claimed(self) -> bool:
        """Return True if this process is registered as its replica."""
        return self.registered is not None

    @property
    def state(self) -> GroupState | None:
        """Return the register's value, as far as it is known."""
        if self.leadership is not None:
            return self.leadership.state
        value = None if self.registered is None else self.registered.value
        return value if isinstance(value, GroupState) else None

    @property
    def extent(self) -> StreamExtent:
        """Return which part of the stream this broker has."""
        if self.leadership is not None:
            return self.leadership.extent
        return self.last_extent if self.stream is None else self.stream.extent

    @property
    def reaches_keepers(self) -> bool:
        """Return True if this process could keep a lease."""
        holds = self.leadership is not None and self.leadership.lease.holds
        return holds or boottime() - self.read_at < _REACHES_SECONDS

    @property
    def is_healthy(self) -> bool:
        """Return True if the disk takes writes and the broker may become master."""
        if self.service is not None:
            return self.service.store.is_healthy
        stream = self.stream
        return stream is not None and stream.store.is_healthy
