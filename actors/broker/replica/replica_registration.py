"""Register a replica with the name servers: its address and epoch, without topics."""

from __future__ import annotations

from collections.abc import Mapping

from raymq.actors.broker.name_server_registration import NameServerRegistration
from raymq.actors.protocol import BrokerSpec, QueueData
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.storage.files.json_file import DataVersion


class _NoTopics:
    version = DataVersion()

    def advertised_queues(self) -> Mapping[str, QueueData]:
        return {}

    def changed_since(self, version: DataVersion) -> Mapping[str, QueueData | None] | None:
        return {} if version == self.version else None


class ReplicaRegistration:
    """The registration of a broker while it follows a master.

    It is used on the loop of its pool.
    """

    def __init__(
        self, pool: ConnectionPool, spec: BrokerSpec, number: int, address: str, replication_address: str
    ) -> None:
        self._pool = pool
        self._spec = spec
        self._number = number
        self._address = address
        self._replication_address = replication_address
        self._epoch = 0
        self._registration: NameServerRegistration | None = None

    @property
    def troubles(self) -> dict[str, str]:
        """Return the problems as `NameServerRegistration.troubles` does."""
        if self._registration is None:
            return dict.fromkeys(self._spec.name_servers, "its role is not known yet")
        return self._registration.troubles

    def follows(self, epoch: int) -> None:
        """Register from now on as a replica that follows the master of this epoch."""
        if self._registration is None or epoch != self._epoch:
            self._epoch = epoch
            self._registration = NameServerRegistration(
                self._pool,
                self._spec.name_servers,
                self._spec.cluster,
                self._spec.name,
                self._address,
                _NoTopics(),
                broker_id=self._number,
                epoch=epoch,
                ha_address=self._replication_address,
            )

    def pause(self) -> None:
        """Stop registering: the broker is master now, and its service registers it."""
        self._registration = None

    async def announce(self) -> None:
        """Register as `NameServerRegistration.announce` does."""
        if self._registration is not None:
            await self._registration.announce()

    async def leave(self) -> None:
        """Unregister as `NameServerRegistration.leave` does."""
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.leave()
