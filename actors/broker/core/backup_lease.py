"""Track the one backup in progress: a copy of the state and a log lease.

The module has no sockets and an injected clock.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import InvalidInput
from raymq.storage.backup.backup_state import BackupState
from raymq.storage.errors import BackupFailed
from raymq.storage.log.retention import FORCED_RATIO, DiskUsage
from raymq.storage.store import Store

#: A backup that is not renewed for this long has ended.
LEASE_SECONDS: Final = 30.0


@dataclass(slots=True)
class BackupLease:
    """The resources that the broker retains for one backup.

    Attributes:
        log_from: the physical offset from which on the backup still needs the log.
        parts: the parts of the state that are still to be read; used by the caller's thread.
    """

    id: str
    state: BackupState
    log_begin: int
    log_from: int
    expires_at: float
    parts: Iterator[bytes]


class BackupLeases:
    """The lease of a broker's backup, at most one at a time.

    Used on the broker's event loop. `clock` is in seconds and is never set back or forward.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._lease: BackupLease | None = None

    def begin(self) -> BackupLease:
        """Copy the current state, and retain the log for a new backup.

        Raises:
            BackupFailed: another backup is under way. StoreBusy, StoreFailed: as `BackupState`.
        """
        if self.retained_from() is not None:
            raise BackupFailed(
                "another backup of this broker is under way",
                remedy=f"wait until it ends; the lease of a killed backup ends after at most {LEASE_SECONDS:.0f} s",
            )
        store = self._store
        state = BackupState(store.directory, store.journal.copy(), store.max_physical_offset)
        begin = self._store.min_physical_offset
        expires_at = self._clock() + LEASE_SECONDS
        self._lease = BackupLease(secrets.token_hex(16), state, begin, begin, expires_at, state.parts())
        return self._lease

    def renew(self, lease: str, log_from: int | None = None) -> BackupLease:
        """Extend a backup's lease, and retain the log from `log_from` on.

        Raises:
            BackupFailed: the lease has expired or ended. InvalidInput: `log_from` lies before the log that is retained.
        """
        current = self._held()
        if current is None or current.id != lease:
            raise BackupFailed("this broker no longer retains the log for that backup", remedy="start a new backup")
        if log_from is not None and log_from < current.log_from:
            raise InvalidInput("log_from", f"at least {current.log_from}, where the retained log begins", log_from)
        current.log_from = current.log_from if log_from is None else log_from
        current.expires_at = self._clock() + LEASE_SECONDS
        return current

    def end(self, lease: str | None = None) -> None:
        """End the backup of that lease, or any backup if `lease` is None.

        It may be called again.
        """
        if self._lease is not None and lease in (None, self._lease.id):
            self._lease.state.close()
            self._lease = None

    def retained_from(self) -> int | None:
        """Return the offset from which the log must be kept; None without a backup.

        A call also ends a lease that has expired, so the broker has to call it regularly.
        """
        current = self._held()
        return None if current is None else current.log_from

    def limit(self, end: int) -> int:
        """Return the offset up to which the log may be deleted, at most `end`.

        Files that a backup still reads are kept. If the disk usage reaches `FORCED_RATIO`, the broker could soon refuse
        messages; then the result is `end`, and the backup fails instead.
        """
        retained = self.retained_from()
        if retained is None or DiskUsage.of(self._store.directory).ratio >= FORCED_RATIO:
            return end
        return min(end, retained)

    def _held(self) -> BackupLease | None:
        if self._lease is not None and self._clock() >= self._lease.expires_at:
            self.end()
        return self._lease
