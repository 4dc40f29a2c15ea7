"""The broker actor: a Ray actor around `BrokerService`.

Control calls are Ray methods. Messages travel through the broker's socket.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time

import ray

from raymq.actors.address_watch import AddressWatch, is_loopback_only, names_by_address, resolve_own_address
from raymq.actors.broker.service import BrokerService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.gc_tuning import tune_gc
from raymq.actors.hosted_service import HostedService, block_pandas_import, raise_file_limit
from raymq.actors.naming import replica_name
from raymq.actors.protocol import BrokerInfo, BrokerSpec, DueReport
from raymq.actors.ray_exporter import RayExporter
from raymq.actors.spare_process import SpareProcess
from raymq.actors.wire.frame import Command

#: The concurrency group of `invoke`, with threads separate from those of control calls.
INVOKE_GROUP = "invoke"

#: The most seconds that Ray may take to end this process on request.
_END_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Broker:
    """The owner of one store directory and one listening socket.

    Ray restarts it on the same machine with the same spec.
    """

    def __init__(self, spec: BrokerSpec) -> None:
        node_id = ray.get_runtime_context().get_node_id()
        raise_file_limit()
        block_pandas_import()
        self._name = replica_name(spec.name, spec.replica)
        known = names_by_address(spec.name_servers, spec.keepers)
        if not is_loopback_only(known):
            AddressWatch(spec.cluster, lambda: known)
        self._loop = EventLoopThread(self._name)
        self._spare = SpareProcess(self._name, node_id)
        self._hosted = HostedService(self._name, self._loop, lambda: self._start(spec, node_id))

    async def _start(self, spec: BrokerSpec, node_id: str) -> BrokerService:
        spec = dataclasses.replace(spec, host=resolve_own_address(spec.host))
        exporter = RayExporter() if spec.metrics in {"ray", "both"} else None
        service = await BrokerService.start(spec, node_id, exporter)
        tune_gc()
        self._spare.begin()
        return service

    def __repr__(self) -> str:
        """Return the name in Ray's dashboard and before its lines in Ray's logs."""
        return f"Broker({self._name})"

    def address(self, seconds: float, patience: float) -> str:
        """Return the address "host:port", once the broker listens; see `HostedService.wait`."""
        return self._hosted.wait(seconds, patience).address

    def troubles(self) -> dict[str, str]:
        """Return the troubles of the service; see `BrokerService.troubles`."""
        return self._hosted.get().troubles

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def status(self) -> BrokerInfo:
        """Return the broker's identity and state."""
        return self._loop.run(self._status(self._hosted.get()))

    def deliver_due(self, scheduler_pid: int) -> DueReport:
        """Deliver due messages to their queues; called by the scheduler."""
        return self._loop.run(self._hosted.get().deliver_due(scheduler_pid))

    @ray.method(concurrency_group=INVOKE_GROUP)
    def invoke(self, session: str, request: Command) -> Command:
        """Carry out a command of a client that cannot reach the socket; see `InMemoryTransport`."""
        return self._loop.run(self._hosted.get().invoke(session, request))

    def stop(self) -> None:
        """Flush and close the store, which deletes its abort file, and free the port.

        The caller kills the actor next.
        """
        self._spare.stop()
        self._hosted.stop()

    def is_stopped(self) -> bool:
        """Return True if the service was stopped but its process still runs.

        `raymq cluster leave` stops it, for example.
        """
        return self._hosted.is_stopped

    def restart(self) -> None:
        """Stop as `stop` does, and end the process, so that Ray restarts the actor.

        No other program has to stay for it. The call never returns; its caller sees a new process before long. Ray is
        asked to kill the actor, because Ray reports a process that exits by itself on the terminal of every driver.
        """
        try:
            self._hosted.stop()
        except Exception:  # noqa: BLE001 - the next process recovers what was not written
            _log.exception("%s did not stop properly", self._name)
        with contextlib.suppress(Exception):
            ray.kill(ray.get_runtime_context().current_actor, no_restart=False)
            time.sleep(_END_SECONDS)
        os._exit(1)

    async def _status(self, service: BrokerService) -> BrokerInfo:
        return service.status()
