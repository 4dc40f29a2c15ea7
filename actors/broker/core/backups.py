"""The one backup that may be under way: a moment of the state, and a lease on the log. No sockets, injected clock."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import InvalidInput
from raymq.storage.errors import BackupFailed
from raymq.storage.log.retention import FORCED_RATIO, Disk
from raymq.storage.state.frozen_state import FrozenState
from raymq.storage.store import Store

#: A backup that says nothing for so long is gone.
LEASE_SECONDS: Final = 30.0


@dataclass(slots=True)
class BackupLease:
    """What is held for one backup.

    Attributes:
        log_from: the log from there on is needed.
        parts: what of the state is still to be read; the caller's thread.
    """

    id: str
    frozen: FrozenState
    log_begin: int
    log_from: int
    expires_at: float
    parts: Iterator[bytes]


class Backups:
    """Belongs to the broker's loop; `clock` is seconds that nobody sets."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._lease: BackupLease | None = None

    def begin(self) -> BackupLease:
        """Freeze the state of now, and hold the log.

        Raises:
            BackupFailed: another backup is under way. StoreBusy, StoreFailed: as `FrozenState`.
        """
        if self.held_from() is not None:
            raise BackupFailed(
                "another backup of this broker is under way",
                remedy=f"wait for it; one that was killed is forgotten after {LEASE_SECONDS:.0f} s at most",
            )
        frozen = FrozenState(self._store.directory, lambda: self._store.max_physical_offset)
        begin = self._store.min_physical_offset
        expires_at = self._clock() + LEASE_SECONDS
        self._lease = BackupLease(secrets.token_hex(16), frozen, begin, begin, expires_at, frozen.parts())
        return self._lease

    def renew(self, lease: str, log_from: int | None = None) -> BackupLease:
        """It goes on, and needs the log from there on.

        Raises:
            BackupFailed: it is not held any more. InvalidInput: the place lies before what is held.
        """
        held = self._held()
        if held is None or held.id != lease:
            raise BackupFailed("this broker holds nothing for that backup any more", remedy="begin another one")
        if log_from is not None and log_from < held.log_from:
            raise InvalidInput("log_from", f"from {held.log_from} on, which is all that is still held", log_from)
        held.log_from = held.log_from if log_from is None else log_from
        held.expires_at = self._clock() + LEASE_SECONDS
        return held

    def end(self, lease: str | None = None) -> None:
        """It is over; None: whichever it is. May be called again."""
        if self._lease is not None and lease in (None, self._lease.id):
            self._lease.frozen.close()
            self._lease = None

    def held_from(self) -> int | None:
        """The log from there on may not go; None: no backup is under way. To be called now and then."""
        held = self._held()
        return None if held is None else held.log_from

    def limit(self, end: int) -> int:
        """Up to where the log may go, if all before `end` is to: not what a backup reads.

        But where the disk is so full that the broker could soon take no messages, it is the backup that fails.
        """
        held = self.held_from()
        if held is None or Disk.of(self._store.directory).ratio >= FORCED_RATIO:
            return end
        return min(end, held)

    def _held(self) -> BackupLease | None:
        if self._lease is not None and self._clock() >= self._lease.expires_at:
            self.end()
        return self._lease
