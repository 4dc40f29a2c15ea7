"""Decide what one keeper promises, accepts and refuses.

The module has no file, no socket and no clock of its own. A keeper saves each promise and each accepted value before it
answers. Three rules make the register and its leases safe:

1. A keeper accepts nothing below the ballot that it has promised (CASPaxos, one value per key).
2. While a master has an unexpired lease from a keeper, the keeper accepts no change that replaces this master. After a
   keeper has promised a change of the master, it gives no lease for this key until a value is accepted. A majority that
   gives a lease and a majority that decides a change share at least one keeper, so no lease outlasts its master's entry
   in the register.
3. Leases are not persisted. A keeper that has just started may have given a lease before, so for one TTL it accepts no
   change of a master that it has accepted.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from raymq.actors.keeper.keeper_messages import (
    MAX_KEYS,
    Accept,
    AcceptedBallot,
    Answer,
    Inquire,
    KeeperCall,
    KeeperRefused,
    Keys,
    LeaseClaim,
    LeaseGiven,
    ListKeys,
    Prepare,
    Promised,
    Reason,
    Release,
    Released,
    Renew,
    Request,
    Standing,
)
from raymq.actors.keeper.keeper_record import KeeperFile, KeeperRecord, Slot
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.keeper.master_lease import LEASE_SECONDS, KeeperLeases, claim_of
from raymq.storage.errors import StoreError, StoreFull

_NEW: Final = Slot()


class KeeperState(enum.Enum):
    """The state of a keeper. Only a RUNNING or QUIET keeper votes."""

    RUNNING = "running"
    #: It started less than one TTL ago, and does not let any change replace a master yet.
    QUIET = "quiet"
    #: It has no file: the other keepers have to add it to the set.
    EMPTY = "empty"
    #: Its file is corrupt.
    DAMAGED = "damaged"
    #: Its file is older than a state that it has reported to clients.
    OLDER_COPY = "older copy"
    #: Its disk has failed.
    FAILED = "failed"


class Acceptor:
    """One keeper's decisions and the state that it persists.

    Used by one thread. A call returns its answer only after the promise or the value in it is on disk.

    Attributes:
        record: the persisted state of the keeper; None without a file, until the other keepers add this one to the set.
    """

    def __init__(
        self,
        record: KeeperRecord | None,
        file: KeeperFile,
        clock: Callable[[], float],
        *,
        just_founded: bool = False,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """Start with the record that the file holds.

        Args:
            clock: returns seconds, and goes on while the machine sleeps (`storage.clock.boottime`).
            just_founded: whether the whole set of keepers was just created, so that no lease can have been given.
        """
        self.record = record
        self._file = file
        self._state = KeeperState.RUNNING
        self.leases = KeeperLeases(clock, lease_seconds)
        if not just_founded:
            self.leases.start_quiet_period()

    @property
    def state(self) -> KeeperState:
        """Return the state of the keeper."""
        if self.record is None:
            return KeeperState.EMPTY
        if self._state is KeeperState.RUNNING and self.leases.quiet_seconds > 0:
            return KeeperState.QUIET
        return self._state

    def handle(self, call: KeeperCall, seen_saves: int = 0) -> Answer:
        """Return the answer to a call.

        Args:
            seen_saves: the greatest `KeeperRecord.saves` that this keeper has reported to the client. If the keeper's
                own count is lower, its file was replaced by an older copy and promises are lost, so the keeper refuses
                all calls from now on.
        """
        record = self.record
        if record is None or call.incarnation != record.incarnation:
            return KeeperRefused(Reason.NOT_A_VOTER, keepers=self._refuse_stranger(record, call))
        if seen_saves > record.saves:
            self._state = KeeperState.OLDER_COPY
        if self._state is not KeeperState.RUNNING:
            return KeeperRefused(Reason.FAILED)
        if call.set_number < record.keepers.number:
            return KeeperRefused(Reason.OLD_SET, keepers=record.keepers)
        return self._answer(record, call.request)

    def _refuse_stranger(self, record: KeeperRecord | None, call: KeeperCall) -> KeeperSet | None:
        """Return the current set for a client of a former incarnation with an older set.

        Every keeper that this client knows may have been replaced since. Return None if this keeper has no vote, or if
        the client's set is not older.
        """
        if record is None or self._state is not KeeperState.RUNNING or call.set_number >= record.keepers.number:
            return None
        return record.keepers

    def _answer(self, record: KeeperRecord, request: Request) -> Answer:
        if isinstance(request, ListKeys):
            return Keys(tuple(key for key, slot in record.slots.items() if slot.entry.version))
        slot = record.slots.get(request.key, _NEW)
        if isinstance(request, Inquire):
            return Standing(slot.promised, slot.accepted, slot.entry)
        if isinstance(request, Prepare):
            return self._prepare(record, slot, request)
        if isinstance(request, Accept):
            return self._accept(record, slot, request)
        if isinstance(request, Renew):
            return self._renew(slot, request)
        return self._release(request)

    def _prepare(self, record: KeeperRecord, slot: Slot, request: Prepare) -> Answer:
        if request.ballot <= slot.promised:
            return KeeperRefused(Reason.PREEMPTED, ballot=slot.promised)
        if len(record.slots) >= MAX_KEYS and request.key not in record.slots:
            return KeeperRefused(Reason.FAILED)
        # No claim is exempt here: the change may end the claim that is registered now.
        if request.moves and (wait := self._held_seconds(request.key, slot, None)) > 0:
            return KeeperRefused(Reason.HELD, ballot=slot.promised, wait_seconds=wait)
        promised = replace(slot, promised=request.ballot, moves=slot.moves or request.moves)
        if not self._save(record.with_slot(request.key, promised)):
            return KeeperRefused(Reason.FAILED)
        return Promised(request.ballot, slot.accepted, slot.entry)

    def _accept(self, record: KeeperRecord, slot: Slot, request: Accept) -> Answer:
        if request.ballot < slot.promised:
            return KeeperRefused(Reason.PREEMPTED, ballot=slot.promised)
        after = claim_of(request.entry.value)
        if claim_of(slot.entry.value) != after and (wait := self._held_seconds(request.key, slot, after)) > 0:
            return KeeperRefused(Reason.HELD, ballot=slot.promised, wait_seconds=wait)
        accepted = Slot(request.ballot, moves=False, accepted=request.ballot, entry=request.entry)
        if not self._save(record.with_slot(request.key, accepted)):
            return KeeperRefused(Reason.FAILED)
        return AcceptedBallot(request.ballot)

    def _renew(self, slot: Slot, request: Renew) -> Answer:
        if claim_of(slot.entry.value) != request.claim:
            return KeeperRefused(Reason.NOT_MASTER)
        if slot.moves:
            return KeeperRefused(Reason.ELECTING, ballot=slot.promised)
        if (wait := self.leases.held_against(request.key, request.claim)) > 0:
            return KeeperRefused(Reason.HELD, wait_seconds=wait)
        return LeaseGiven(self.leases.give(request.key, request.claim))

    def _release(self, request: Release) -> Answer:
        self.leases.end(request.key, request.claim)
        return Released()

    def _held_seconds(self, key: str, slot: Slot, after: LeaseClaim | None) -> float:
        """Return how long a replica other than `after` may have a lease from this keeper.

        The result is in seconds. It includes leases that were given, and those that a keeper which has just started may
        have given before its restart.
        """
        may_have = 0.0 if claim_of(slot.entry.value) is None else self.leases.quiet_seconds
        return max(self.leases.held_against(key, after), may_have)

    def _save(self, record: KeeperRecord) -> bool:
        """Save the record, and return True if it is on disk.

        After a failure that may have left either record on disk, the keeper refuses all calls (KeeperState.FAILED).
        """
        try:
            self._file.save(record)
        except StoreFull:
            return False
        except StoreError:
            self._state = KeeperState.FAILED
            return False
        self.record = record
        return True
