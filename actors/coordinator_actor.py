"""The coordinator actor: a thin shell around `CoordinatorService`. It may run anywhere.

Groups that come and go are found by the names of their brokers' actors.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, Final

from raymq.actors import handles
from raymq.actors.actor_startup import Hosted
from raymq.actors.address_watch import AddressWatch, names_by_address, on_loopback
from raymq.actors.coordinator.service import CoordinatorService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.keeper.group_state import ReplicationPolicy
from raymq.actors.naming import COORDINATOR_NAME
from raymq.actors.protocol import CoordinatorSpec

#: How often it is looked which groups there are.
_LOOK_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


class Coordinator:
    """Only clusters whose groups have several replicas have one."""

    def __init__(self, spec: CoordinatorSpec) -> None:
        known = names_by_address((), spec.keepers)
        if not on_loopback(known):
            AddressWatch(spec.cluster, lambda: known)
        self._spec = spec
        self._loop = EventLoopThread(COORDINATOR_NAME)
        self._hosted = Hosted(COORDINATOR_NAME, self._loop, lambda: CoordinatorService.start(spec))
        self._stopped = threading.Event()
        threading.Thread(target=self._look, name="coordinator-groups", daemon=True).start()

    def status(self, seconds: float, patience: float) -> dict[str, Any]:
        """See `CoordinatorService.status`, once it runs; see `Hosted.wait`."""
        return self._hosted.wait(seconds, patience).status()

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    def stop(self) -> None:
        """Look after groups no more; the actor is killed next."""
        self._stopped.set()
        self._hosted.stop()

    def _look(self) -> None:
        policy = ReplicationPolicy(self._spec.replication, self._spec.min_in_sync)
        while not self._stopped.wait(_LOOK_SECONDS):
            try:
                groups = {name.partition(".")[0] for name in handles.broker_names(self._spec.cluster)}
                if groups:  # else Ray has just lost sight of them
                    self._loop.run(self._watch_only(self._hosted.get(), groups, policy))
            except Exception as error:  # noqa: BLE001 - those that are known are looked after all the same
                _log.debug("which groups there are is not known now: %s", error)

    async def _watch_only(self, service: CoordinatorService, groups: set[str], policy: ReplicationPolicy) -> None:
        service.watch_only(groups, policy)
