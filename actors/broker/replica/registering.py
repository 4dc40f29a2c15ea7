"""A replica's registration with the name servers: it is there, it has no topics, and its group's epoch."""

from __future__ import annotations

from collections.abc import Mapping

from raymq.actors.broker.registration import Registration
from raymq.actors.protocol import BrokerSpec, QueueData
from raymq.actors.wire.connection import ConnectionPool
from raymq.storage.files.json_file import DataVersion


class _NoTopics:
    version = DataVersion()

    def announced(self) -> Mapping[str, QueueData]:
        return {}

    def changed_since(self, version: DataVersion) -> Mapping[str, QueueData | None] | None:
        return {} if version == self.version else None


class ReplicaRegistration:
    """While a broker follows. Used on the loop of its pool."""

    def __init__(
        self, pool: ConnectionPool, spec: BrokerSpec, number: int, address: str, replication_address: str
    ) -> None:
        self._pool = pool
        self._spec = spec
        self._number = number
        self._address = address
        self._replication_address = replication_address
        self._epoch = 0
        self._registration: Registration | None = None

    @property
    def troubles(self) -> dict[str, str]:
        """As `Registration.troubles`."""
        if self._registration is None:
            return dict.fromkeys(self._spec.name_servers, "its role is not known yet")
        return self._registration.troubles

    def follows(self, epoch: int) -> None:
        """It follows the master of this epoch from now on."""
        if self._registration is None or epoch != self._epoch:
            self._epoch = epoch
            self._registration = Registration(
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
        """It is master, which registers by itself."""
        self._registration = None

    async def announce(self) -> None:
        """As `Registration.announce`."""
        if self._registration is not None:
            await self._registration.announce()

    async def leave(self) -> None:
        """As `Registration.leave`."""
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.leave()
