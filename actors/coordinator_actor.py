"""The coordinator actor: a Ray actor around `CoordinatorService`, on any machine.

New and removed broker groups are found by the names of their brokers' actors.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, Final

from raymq.actors import actor_calls
from raymq.actors.address_watch import AddressWatch, is_loopback_only, names_by_address
from raymq.actors.coordinator.service import CoordinatorService
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.hosted_service import HostedService
from raymq.actors.keeper.group_state import ReplicationPolicy
from raymq.actors.naming import COORDINATOR_NAME
from raymq.actors.protocol import CoordinatorSpec

#: Seconds between two checks of which groups exist.
_LOOK_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


class Coordinator:
    """The coordinator of a cluster whose groups have several replicas."""

    def __init__(self, spec: CoordinatorSpec) -> None:
        known = names_by_address((), spec.keepers)
        if not is_loopback_only(known):
            AddressWatch(spec.cluster, lambda: known)
        self._spec = spec
        self._loop = EventLoopThread(COORDINATOR_NAME)
        self._hosted = HostedService(COORDINATOR_NAME, self._loop, lambda: CoordinatorService.start(spec))
        self._stopped = threading.Event()
        threading.Thread(target=self._look, name="coordinator-groups", daemon=True).start()

    def __repr__(self) -> str:
        """Return the name in Ray's dashboard and before its lines in Ray's logs."""
        return f"Coordinator({self._spec.cluster})"

    def status(self, seconds: float, patience: float) -> dict[str, Any]:
        """Return `CoordinatorService.status`, once the service runs; see `HostedService.wait`."""
        return self._hosted.wait(seconds, patience).status()

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def stop(self) -> None:
        """Stop watching the groups; the caller kills the actor next."""
        self._stopped.set()
        self._hosted.stop()

    def _look(self) -> None:
        policy = ReplicationPolicy(self._spec.replication, self._spec.min_in_sync)
        while not self._stopped.wait(_LOOK_SECONDS):
            try:
                groups = {name.partition(".")[0] for name in actor_calls.broker_names(self._spec.cluster)}
                if groups:  # an empty list means that Ray cannot list them now
                    self._loop.run(self._watch_only(self._hosted.get(), groups, policy))
            except Exception as error:  # noqa: BLE001 - the known groups are still watched
                _log.debug("could not list the groups: %s", error)

    async def _watch_only(self, service: CoordinatorService, groups: set[str], policy: ReplicationPolicy) -> None:
        service.set_groups(groups, policy)
