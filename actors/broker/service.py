"""Run a broker without Ray, in every role.

The actor in `broker_actor` wraps it. A broker whose group has one copy leads from its start. In a group of several
copies, `ReplicaManager` begins and ends the leadership as the register says. Either way a `LeaderService` serves the
clients.

A broker's address is chosen once and kept in its directory, in `raymq/broker.json`, so that message ids and running
clients stay valid over restarts; the epoch beside it rises with every start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import pyarrow as pa

from raymq.actors.broker.acks import LocalAcks
from raymq.actors.broker.broker_metrics import broker_state
from raymq.actors.broker.leader_service import LeaderService
from raymq.actors.broker.opened_broker import OpenedBroker
from raymq.actors.broker.replica.replica_manager import ReplicaManager
from raymq.actors.errors import InvalidInput, StoreFollows
from raymq.actors.filter import sql_filter
from raymq.actors.metrics.metric_family import MetricFamily, MetricsSnapshot
from raymq.actors.metrics.metrics_publisher import Exporter, MetricsPublisher
from raymq.actors.metrics.prometheus_endpoint import Readiness
from raymq.actors.naming import check_name, replica_name
from raymq.actors.ports import bind_broker
from raymq.actors.protocol import BrokerInfo, BrokerSpec, DueReport
from raymq.actors.wire.frame import Command
from raymq.actors.wire.stepwise_handlers import stepwise
from raymq.storage.directory_format import check_format
from raymq.storage.tables.broker_identity import read_port_epoch

_log = logging.getLogger(__name__)


def warm_up() -> None:
    """Load and prepare what would otherwise block a serving broker; later calls do nothing."""
    # pyarrow's first conversion imports pandas if it is installed: half a second.
    pa.array([0]).to_numpy()
    sql_filter.warm_up()


class BrokerService:
    """One running broker. It is created by `start`, used and stopped on its event loop."""

    def __init__(self, role: LeaderService | ReplicaManager, spec: BrokerSpec) -> None:
        self._role = role
        self._spec = spec
        self._metrics: MetricsPublisher | None = None
        self.address = role.address

    @classmethod
    async def start(cls, spec: BrokerSpec, node_id: str, exporter: Exporter | None = None) -> Self:
        """Open the directory, listen, and register with the name servers.

        A broker with replicas takes its place in the group, and its role, as soon as it can. Metrics go to the
        `exporter`, and to a port if the spec says so; a port that cannot be opened is logged.

        Raises:
            FormatTooNew: a newer RayMQ has written in the directory; nothing is changed there.
            StoreLocked: another process owns the directory.
            OSError: a port is taken.
            StoreCorrupt, StoreFailed, InvalidInput: the directory or the settings cannot be used.
            StoreFull: the disk has no space for what a start writes, and nothing that may be removed (`making_room`).
                Nothing is lost, and another call may succeed.
        """
        check_name("broker", spec.name, 127)
        await asyncio.to_thread(check_format, Path(spec.directory))
        started: list[Self] = []
        metrics = MetricsPublisher(
            lambda: _metrics(spec, started),
            lambda: started[0].health if started else Readiness(False, "it starts"),
            exporter,
        )
        if spec.metrics in {"prometheus", "both"}:
            spec = replace(spec, metrics_address=await _opened(metrics, spec))
        try:
            service = cls(await cls._started(spec, node_id), spec)
        except BaseException:
            await metrics.stop()
            raise
        service._metrics = metrics
        started.append(service)
        metrics.start()
        return service

    @staticmethod
    async def _started(spec: BrokerSpec, node_id: str) -> LeaderService | ReplicaManager:
        if spec.replicas > 1:
            replica = await ReplicaManager.start(spec, node_id)
            await asyncio.to_thread(warm_up)  # after the end of a killed predecessor's lease, before any election
            return replica
        warm_up()
        port, epoch = read_port_epoch(Path(spec.directory) / "raymq" / "broker.json")
        sockets = bind_broker(spec.host, port)
        try:
            opened = OpenedBroker.open(spec, int(sockets[0].getsockname()[1]), epoch + 1)
        except BaseException:
            for each in sockets:
                each.close()
            raise
        return await LeaderService.start(spec, node_id, opened, LocalAcks(opened.store), sockets)

    async def stop(self) -> None:
        """Stop cleanly: leave the routes, close the sockets, flush and close the store.

        The replicas of a leader get the running appends; then its lease ends, and others may be elected.

        Raises:
            the first error of any step; the next start recovers as after a kill.
        """
        if self._metrics is not None:
            await self._metrics.stop()
        await self._role.stop()

    @property
    def health(self) -> Readiness:
        """Return whether the broker serves clients, or follows its master."""
        troubles = self._role.troubles
        return Readiness(not troubles, "; ".join(f"{place}: {reason}" for place, reason in troubles.items()))

    async def metric_families(self) -> list[MetricFamily]:
        """Return the broker's figures; those of a replica are its role and its disk."""
        leader = self._role if isinstance(self._role, LeaderService) else self._role.leader
        if leader is None:
            return list(broker_state(self.status()))
        return await stepwise(leader.metrics.collect_steps())

    @property
    def leader(self) -> LeaderService:
        """Return what serves the clients. Raise StoreFollows if this broker does not lead."""
        leader = self._role if isinstance(self._role, LeaderService) else self._role.leader
        if leader is None:
            raise StoreFollows("this broker is not the master now")
        return leader

    def status(self) -> BrokerInfo:
        """Return the broker's identity and state."""
        return self._role.status()

    @property
    def troubles(self) -> dict[str, str]:
        """Return why this broker is not in its group or in routes, by place.

        The result is empty if there is no such problem.
        """
        return self._role.troubles

    async def deliver_due(self, scheduler_pid: int) -> DueReport:
        """Deliver what is due, and record the calling scheduler's pid for `status`.

        A replica has nothing due.
        """
        return await self._role.deliver_due(scheduler_pid)

    async def invoke(self, session: str, request: Command) -> Command:
        """Carry out a command that did not come over a socket; see `InMemoryTransport`."""
        return await self._role.invoke(session, request)


async def _metrics(spec: BrokerSpec, started: Sequence[BrokerService]) -> MetricsSnapshot:
    """Return the metrics of the broker, once it is started."""
    labels = {"cluster": spec.cluster, "node_type": "broker", "node_id": replica_name(spec.name, spec.replica)}
    return MetricsSnapshot(labels, await started[0].metric_families() if started else [])


async def _opened(metrics: MetricsPublisher, spec: BrokerSpec) -> str:
    """Open the port of the metrics; return its address, "" if that is impossible."""
    try:
        await metrics.listen(spec.metrics_host, spec.metrics_port)
    except (InvalidInput, OSError) as error:
        _log.error("%s serves no metrics at %s:%d: %s", spec.name, spec.metrics_host, spec.metrics_port, error)
    return metrics.address
