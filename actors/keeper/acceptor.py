"""One keeper's decisions: what it promises, accepts and refuses. No file, no socket, no clock of its own.

What it answers it has saved before. Three rules make a register and its leases of that:

1. It accepts nothing below the ballot that it has promised (CASPaxos, a value per key).
2. While a master has an unexpired lease from it, it lets nobody take that master away; and from its promise to change a
   master until a value is accepted it gives no lease. Of a lease of a majority and a change by a majority one keeper is
   in both, so that no lease outlives its master's time in the register.
3. Leases are not written down. So a keeper that has started lets nobody take away, for one TTL, whom it has accepted as
   master: it may have given him a lease before.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from raymq.actors.keeper.keeper_record import KeeperFile, KeeperRecord, Slot
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.keeper.leases import LEASE_SECONDS, KeeperLeases, claim_of
from raymq.actors.keeper.message_json import MOST_KEYS
from raymq.actors.keeper.messages import (
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
from raymq.storage.errors import StoreError, StoreFull

_NEW: Final = Slot()


class KeeperState(enum.Enum):
    """How a keeper does. Only one that is RUNNING or QUIET has a voice."""

    RUNNING = "running"
    #: It has started less than one TTL ago, and lets nobody take a master away yet.
    QUIET = "quiet"
    #: It has no file: the others have to take it in.
    EMPTY = "empty"
    #: Its file is not what was written.
    DAMAGED = "damaged"
    #: Its file is older than what it has told others.
    OLDER_COPY = "older copy"
    #: Its disk has failed.
    FAILED = "failed"


class Acceptor:
    """One keeper. One thread; each call returns the answer to send, after what it says is on disk.

    Attributes:
        record: what it knows; None: it has no file, and no voice until the others have taken it in.
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
        """Begin with what the file holds.

        Args:
            clock: seconds that go on while the machine sleeps (`storage.clock.boottime`).
            just_founded: the whole set of keepers was made a moment ago, so that no lease can be out.
        """
        self.record = record
        self._file = file
        self._state = KeeperState.RUNNING
        self.leases = KeeperLeases(clock, lease_seconds)
        if not just_founded:
            self.leases.be_quiet()

    @property
    def state(self) -> KeeperState:
        """How it does."""
        if self.record is None:
            return KeeperState.EMPTY
        if self._state is KeeperState.RUNNING and self.leases.quiet_seconds > 0:
            return KeeperState.QUIET
        return self._state

    def handle(self, call: KeeperCall, seen_saves: int = 0) -> Answer:
        """The answer to a call.

        Args:
            seen_saves: the greatest `KeeperRecord.saves` that this keeper has told the asker. If it has fewer now, it
                was given an older copy of its file, and has forgotten promises: it answers nothing any more.
        """
        record = self.record
        if record is None or call.incarnation != record.incarnation:
            return KeeperRefused(Reason.NOT_A_VOTER, keepers=self._told_to_a_stranger(record, call))
        if seen_saves > record.saves:
            self._state = KeeperState.OLDER_COPY
        if self._state is not KeeperState.RUNNING:
            return KeeperRefused(Reason.FAILED)
        if call.set_number < record.keepers.number:
            return KeeperRefused(Reason.OLD_SET, keepers=record.keepers)
        return self._answer(record, call.request)

    def _told_to_a_stranger(self, record: KeeperRecord | None, call: KeeperCall) -> KeeperSet | None:
        """The set of now, for who means a keeper that was here before: all that he knows may have been replaced."""
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
        if len(record.slots) >= MOST_KEYS and request.key not in record.slots:
            return KeeperRefused(Reason.FAILED)
        # The claim that stands there is no reason to let a change through that is about to end it.
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
        """How long somebody other than `after` has, or may have, a lease from here."""
        may_have = 0.0 if claim_of(slot.entry.value) is None else self.leases.quiet_seconds
        return max(self.leases.held_against(key, after), may_have)

    def _save(self, record: KeeperRecord) -> bool:
        """Whether it is on disk. After a failure that leaves open what is there, nothing is answered any more."""
        try:
            self._file.save(record)
        except StoreFull:
            return False
        except StoreError:
            self._state = KeeperState.FAILED
            return False
        self.record = record
        return True
