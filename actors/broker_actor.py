"""The broker actor: a thin shell around `BrokerService`. Ray's methods carry control; messages travel on its socket."""

from __future__ import annotations

import os

import ray

from raymq.actors.actor_startup import Hosted, allow_many_files, leave_out_pandas
from raymq.actors.broker.service import BrokerService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.garbage import keep_collections_short
from raymq.actors.protocol import BrokerInfo, BrokerSpec, DueReport
from raymq.actors.wire.frame import Command

#: The threads of `invoke`, apart from those of control.
INVOKE_LANES = "invoke"


class Broker:
    """Owns one store directory and one listening socket. Ray restarts it on the same machine with the same spec."""

    def __init__(self, spec: BrokerSpec) -> None:
        node_id = ray.get_runtime_context().get_node_id()
        allow_many_files()
        leave_out_pandas()
        self._loop = EventLoopThread(spec.name)
        self._hosted = Hosted(spec.name, self._loop, lambda: self._start(spec, node_id))

    @staticmethod
    async def _start(spec: BrokerSpec, node_id: str) -> BrokerService:
        service = await BrokerService.start(spec, node_id)
        keep_collections_short()
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

    @ray.method(concurrency_group=INVOKE_LANES)
    def invoke(self, session: str, request: Command) -> Command:
        """Carry out a command of a client whose way to the socket is barred; see `InvokeDoor`."""
        return self._loop.run(self._hosted.get().invoke(session, request))

    def stop(self) -> None:
        """Flush, close the store (its abort file goes), free the port; the actor is killed next."""
        self._hosted.stop()

    async def _status(self, service: BrokerService) -> BrokerInfo:
        return service.status()
