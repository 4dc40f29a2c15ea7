"""The keeper actor: a thin shell around `KeeperService`."""

from __future__ import annotations

import dataclasses
import os

from raymq.actors.actor_startup import Hosted
from raymq.actors.address_watch import own_address
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.keeper.serving.service import KeeperService
from raymq.actors.protocol import KeeperSpec
from raymq.actors.wire.commands.keeper import KeeperStatus


class Keeper:
    """One of the keepers of a cluster. Ray restarts it with the same spec; it goes on with what its file says."""

    def __init__(self, spec: KeeperSpec) -> None:
        self._spec = spec
        self._loop = EventLoopThread(f"keeper-{spec.number}")
        self._hosted = Hosted(f"keeper-{spec.number}", self._loop, lambda: self._start(spec))

    @staticmethod
    async def _start(spec: KeeperSpec) -> KeeperService:
        return await KeeperService.start(dataclasses.replace(spec, host=own_address(spec.host)))

    def address(self, seconds: float, patience: float) -> str:
        """Where it listens, "host:port", once it does; see `Hosted.wait`."""
        return self._hosted.wait(seconds, patience).address

    def status(self) -> KeeperStatus:
        """How it does."""
        return self._hosted.get().keeper.status

    def keepers(self) -> KeeperSet:
        """The newest set of keepers that it knows; of number 0 if it knows none."""
        record = self._hosted.get().keeper.record
        return KeeperSet() if record is None else record.keepers

    def found(self, record: KeeperRecord) -> None:
        """As `ServedKeeper.found`."""
        self._loop.run(self._hosted.get().keeper.found(record))

    def begin_anew(self, record: KeeperRecord) -> None:
        """As `ServedKeeper.begin_anew`."""
        self._loop.run(self._hosted.get().keeper.begin_anew(record))

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    def stop(self) -> None:
        """Close the socket; the actor is killed next."""
        self._hosted.stop()
