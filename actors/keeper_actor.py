"""The keeper actor: a Ray actor around `KeeperService`."""

from __future__ import annotations

import dataclasses
import os

from raymq.actors.address_watch import resolve_own_address
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.hosted_service import HostedService
from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.keeper.serving.service import KeeperService
from raymq.actors.protocol import KeeperSpec
from raymq.actors.wire.commands.keeper_commands import KeeperStatus


class Keeper:
    """One of the keepers of a cluster.

    Ray restarts it with the same spec; it goes on with the record in its file.
    """

    def __init__(self, spec: KeeperSpec) -> None:
        self._spec = spec
        self._loop = EventLoopThread(f"keeper-{spec.number}")
        self._hosted = HostedService(f"keeper-{spec.number}", self._loop, lambda: self._start(spec))

    def __repr__(self) -> str:
        """Return the name in Ray's dashboard and before its lines in Ray's logs."""
        return f"Keeper({self._spec.number})"

    @staticmethod
    async def _start(spec: KeeperSpec) -> KeeperService:
        return await KeeperService.start(dataclasses.replace(spec, host=resolve_own_address(spec.host)))

    def address(self, seconds: float, patience: float) -> str:
        """Return the address "host:port", once the keeper listens; see `HostedService.wait`."""
        return self._hosted.wait(seconds, patience).address

    def status(self) -> KeeperStatus:
        """Return the keeper's status."""
        return self._hosted.get().keeper.status

    def keepers(self) -> KeeperSet:
        """Return the newest set that the keeper has accepted; number 0 if it has none."""
        record = self._hosted.get().keeper.record
        return KeeperSet() if record is None else record.keepers

    def found(self, record: KeeperRecord) -> None:
        """Begin as one of a new set of keepers, as `LocalKeeper.found` describes."""
        self._loop.run(self._hosted.get().keeper.found(record))

    def reset(self, record: KeeperRecord) -> None:
        """Begin as a keeper to be added, as `LocalKeeper.reset` describes."""
        self._loop.run(self._hosted.get().keeper.reset(record))

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def stop(self) -> None:
        """Close the socket; the caller kills the actor next."""
        self._hosted.stop()
