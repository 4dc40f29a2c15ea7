"""The broker actor: a thin shell around `BrokerService`. Ray's methods carry control; messages travel on its socket."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from typing import TYPE_CHECKING

import ray

from raymq.actors.actor_startup import Hosted, allow_many_files, leave_out_pandas
from raymq.actors.address_watch import AddressWatch, names_by_address, on_loopback, own_address
from raymq.actors.broker.service import BrokerService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.garbage import keep_collections_short
from raymq.actors.naming import replica_name
from raymq.actors.protocol import BrokerInfo, BrokerSpec, DueReport
from raymq.actors.spare_process import SpareProcess
from raymq.actors.wire.frame import Command

if TYPE_CHECKING:
    from raymq.actors.broker.replica.service import ReplicaService

#: The threads of `invoke`, apart from those of control.
INVOKE_GROUP = "invoke"

#: How long Ray may take to end a process that asked for it.
_END_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Broker:
    """Owns one store directory and one listening socket. Ray restarts it on the same machine with the same spec."""

    def __init__(self, spec: BrokerSpec) -> None:
        node_id = ray.get_runtime_context().get_node_id()
        allow_many_files()
        leave_out_pandas()
        self._name = replica_name(spec.name, spec.replica)
        known = names_by_address(spec.name_servers, spec.keepers)
        if not on_loopback(known):
            AddressWatch(spec.cluster, lambda: known)
        self._loop = EventLoopThread(self._name)
        self._spare = SpareProcess(self._name, node_id)
        self._hosted = Hosted(self._name, self._loop, lambda: self._start(spec, node_id))

    async def _start(self, spec: BrokerSpec, node_id: str) -> BrokerService | ReplicaService:
        spec = dataclasses.replace(spec, host=own_address(spec.host))
        if spec.replicas > 1:
            from raymq.actors.broker.replica.service import ReplicaService  # most brokers have no replicas

            service: BrokerService | ReplicaService = await ReplicaService.start(spec, node_id)
        else:
            service = await BrokerService.start(spec, node_id)
        keep_collections_short()
        self._spare.begin()
        return service

    def address(self, seconds: float, patience: float) -> str:
        """Where it listens, "host:port", once it does; see `Hosted.wait`."""
        return self._hosted.wait(seconds, patience).address

    def troubles(self) -> dict[str, str]:
        """See `BrokerService.troubles`."""
        return self._hosted.get().troubles

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    def status(self) -> BrokerInfo:
        """Who it is and how it does."""
        return self._loop.run(self._status(self._hosted.get()))

    def deliver_due(self, scheduler_pid: int) -> DueReport:
        """Put what is due into its real queues; called by the scheduler."""
        return self._loop.run(self._hosted.get().deliver_due(scheduler_pid))

    @ray.method(concurrency_group=INVOKE_GROUP)
    def invoke(self, session: str, request: Command) -> Command:
        """Carry out a command of a client whose way to the socket is barred; see `InvokeDoor`."""
        return self._loop.run(self._hosted.get().invoke(session, request))

    def stop(self) -> None:
        """Flush, close the store (its abort file goes), free the port; the actor is killed next."""
        self._spare.stop()
        self._hosted.stop()

    def is_stopped(self) -> bool:
        """Whether it was stopped, as by `raymq cluster leave`, and its process is there yet."""
        return self._hosted.is_stopped

    def restart(self) -> None:
        """Stop as `stop` does, and end the process, after which Ray starts another one: nobody else has to be there.

        It never returns: who has called it sees another process before long. Ray is asked to end it, because of a
        process that ends by itself it tells every driver's terminal.
        """
        try:
            self._hosted.stop()
        except Exception:  # noqa: BLE001 - what was not written is recovered by the next process
            _log.exception("%s did not stop properly", self._name)
        with contextlib.suppress(Exception):
            ray.kill(ray.get_runtime_context().current_actor, no_restart=False)
            time.sleep(_END_SECONDS)
        os._exit(1)

    async def _status(self, service: BrokerService | ReplicaService) -> BrokerInfo:
        return service.status()
