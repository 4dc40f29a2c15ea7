"""The register made of keepers: compare-and-set on a majority of them.

The transport to the keepers is passed in.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from raymq.actors.keeper.errors import RegisterConflict, RegisterHeld, RegisterUnavailable, RegisterUnknown
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import (
    KEEPERS,
    AcceptedBallot,
    Ballot,
    KeeperCall,
    KeeperRefused,
    Keys,
    LeaseClaim,
    LeaseGiven,
    ListKeys,
    Promised,
    Reason,
    Registered,
    Release,
    Released,
    Renew,
    Standing,
)
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.keeper.master_lease import LEASE_SECONDS, claim_of
from raymq.actors.keeper.proposal import (
    Answers,
    Proposal,
    answers_of_kind,
    calls_to_all,
    decided_value,
    has_lease,
    longest_wait,
    main_refusal,
    majority_reached,
)

#: The most attempts of a change that other proposers preempt, or that meets a newer set of keepers.
_ATTEMPTS: Final = 6
#: The most reads without a promise, before the reader decides the value again and so preempts other proposers.
_LOOKS: Final = 3
#: The pause between two attempts: this, times the number of attempts so far, times a random factor of up to 1.
_PAUSE_SECONDS: Final = 0.1


class QuorumTransport(Protocol):
    """The transport to the keepers, over sockets or actors."""

    async def ask(
        self, keepers: KeeperSet, calls: Mapping[int, KeeperCall], is_enough: Callable[[Answers], bool]
    ) -> Answers:
        """Send calls to keepers at the same time; return the answers once they are enough.

        It returns at the latest after a time-out of its own, which is shorter than a lease. The result lacks keepers
        that have not answered. It never fails.
        """

    async def pause(self, seconds: float) -> None:
        """Sleep for so many seconds."""


class KeeperRegister:
    """`Register` on keepers, and changes of the set of keepers.

    Its methods are coroutines of one event loop.
    """

    def __init__(
        self, keepers: KeeperSet, door: QuorumTransport, random: Callable[[int], int] = secrets.randbelow
    ) -> None:
        """Create the register with the set that is known here.

        `keepers` may be old: a keeper that knows a newer set reports it. `random` returns a number below its argument.
        """
        self.keepers = keepers
        self._door = door
        self._random = random
        self._proposer = 1 + random((1 << 62) - 1)
        self._round = 0
        #: The groups whose last renewal was not granted by a majority.
        self._ungranted: set[str] = set()

    async def read(self, group: str) -> Registered:
        """Return a group's value, as `Register.read` describes."""
        return await self._read(group)

    async def settle(self, group: str) -> Registered:
        """Decide a group's value again, as `Register.settle` describes."""
        return await self._decide_again(group)

    async def change(self, group: str, before: Registered, after: GroupState) -> Registered:
        """Replace a group's value, as `Register.change` describes."""
        after.encode()
        return await self._change(group, before, after)

    async def groups(self) -> Sequence[str]:
        """Return the names of all groups, as `Register.groups` describes."""
        return [key for key in await self._keys() if key != KEEPERS]

    async def renew(self, group: str, claim: LeaseClaim) -> float:
        """Give or extend a master's lease, as `Register.renew` describes."""
        if group in self._ungranted:
            # A master may reach the keepers without receiving answers: it must not block an election for ever.
            await self._read(group)
        self._ungranted.add(group)
        keepers = self.keepers
        answers = await self._door.ask(
            keepers, calls_to_all(keepers, Renew(group, claim)), majority_reached(keepers, LeaseGiven)
        )
        if has_lease(keepers, answers):
            self._ungranted.discard(group)
            return min(each.seconds for each in answers_of_kind(answers, LeaseGiven).values())
        reasons = {each.reason for each in answers_of_kind(answers, KeeperRefused).values()}
        if self._is_outdated(answers):
            await self._learn_keepers(answers)
        elif reasons & {Reason.NOT_MASTER, Reason.ELECTING}:
            # Keepers are behind, or a proposer crashed during a change of the master: decide the value again at all.
            standing = await self._decide_again(group)
            if claim_of(standing.value) != claim:
                raise RegisterConflict(f"{group}: {claim.replica} is not the master of epoch {claim.epoch}")
        elif Reason.HELD in reasons:
            raise RegisterHeld(f"{group}: another lease has not ended", longest_wait(answers))
        raise RegisterUnavailable(f"{group}: no majority of the keepers gives the lease now")

    async def release(self, group: str, claim: LeaseClaim) -> None:
        """End a master's lease, as `Register.release` describes."""
        keepers = self.keepers
        await self._door.ask(keepers, calls_to_all(keepers, Release(group, claim)), _all(keepers))

    async def add_keeper(self, number: int, member: KeeperMember) -> KeeperSet:
        """Add a keeper, and return the set with it.

        A change that was begun and not completed is completed first.

        Raises:
            InvalidInput: the number is in use, or there are too many keepers.
            RegisterConflict, RegisterHeld, RegisterUnavailable, RegisterUnknown: as `Register.change`.
        """
        await self.finish_change()
        return await self._change_keepers(self.keepers.with_member(number, member))

    async def remove_keeper(self, number: int) -> KeeperSet:
        """Remove a keeper, which may be lost, and return the set without it.

        Raise the errors of `add_keeper`.
        """
        await self.finish_change()
        return await self._change_keepers(self.keepers.without_member(number))

    async def finish_change(self) -> KeeperSet:
        """Complete a change of the set that was begun, and return the set.

        Raise the errors of `add_keeper`.
        """
        entry = await self._read(KEEPERS)
        if isinstance(entry.value, KeeperSet):
            self.keepers = entry.value
        if self.keepers.before is not None:
            # Every value has to be stored at both majorities before one of them is enough.
            for key in await self._keys():
                await self._decide_again(key)
            entry = await self._read(KEEPERS)
            # The next change may exclude a majority of the former set that has given a lease: wait until it has ended.
            await self._door.pause(LEASE_SECONDS)
            self._take_keepers(await self._change(KEEPERS, entry, self.keepers.settled()))
        return self.keepers

    async def _change_keepers(self, after: KeeperSet) -> KeeperSet:
        before = await self._read(KEEPERS)
        # Both majorities are needed from the first request on.
        self._take_keepers(await self._change(KEEPERS, before, after, keepers=_keepers_for_change(self.keepers, after)))
        return await self.finish_change()

    async def _read(self, key: str) -> Registered:
        for attempt in range(1, _LOOKS + 1):
            keepers = self.keepers
            calls = Proposal(keepers, key, Ballot(0, 0)).inquire()
            answers = await self._door.ask(keepers, calls, _agreed(keepers))
            if (entry := decided_value(keepers, answers)) is not None:
                return entry
            if self._is_outdated(answers):
                await self._learn_keepers(answers)
            elif not keepers.has_majority(answers_of_kind(answers, Standing)):
                # Deciding again would fail as well, and preempt proposers that receive their answers.
                raise RegisterUnavailable(f"{key}: no majority of the keepers answers")
            elif attempt < _LOOKS:
                # Most likely a change is in progress, and deciding again would preempt it.
                await self._door.pause(_PAUSE_SECONDS * self._random(1000) / 1000)
        return await self._decide_again(key)

    async def _decide_again(self, key: str) -> Registered:
        """Decide the current value again under a new ballot.

        All keepers that can be reached have it then. Raise RegisterUnavailable if that fails.
        """
        try:
            return await self._decide(key, None, None, moves=False)
        except (RegisterUnknown, RegisterHeld, RegisterConflict) as error:
            raise RegisterUnavailable(f"{key}: the current value could not be read: {error}") from error

    async def _change(
        self, key: str, before: Registered, after: GroupState | KeeperSet, *, keepers: KeeperSet | None = None
    ) -> Registered:
        entry = Registered(before.version + 1, f"{self._random(1 << 62):x}", after)
        moves = isinstance(after, KeeperSet) or claim_of(before.value) != claim_of(after)
        return await self._decide(key, before, entry, moves=moves, keepers=keepers)

    async def _decide(
        self,
        key: str,
        before: Registered | None,
        after: Registered | None,
        *,
        moves: bool,
        keepers: KeeperSet | None = None,
    ) -> Registered:
        """Decide `after` in the place of `before`; without both, the current value."""
        accepts_out = False
        for attempt in range(1, _ATTEMPTS + 1):
            used = keepers or self.keepers
            proposal = Proposal(used, key, self._ballot(), moves=moves)
            answers = await self._door.ask(used, proposal.prepare(), majority_reached(used, Promised))
            standing = proposal.promised(answers)
            if standing is not None:
                # Another value than `before` is decided before it is a conflict: a minority alone may have accepted it,
                # and a later read could still return `before`.
                entry = standing
                if after is not None and before is not None and standing.change == before.change:
                    entry = after
                is_ours = after is None or entry.change == after.change
                answers = await self._door.ask(used, proposal.accept(entry), majority_reached(used, AcceptedBallot))
                if proposal.is_chosen(answers):
                    if is_ours:
                        return entry
                    if accepts_out:
                        raise RegisterUnknown(f"{key}: changed by another process, perhaps after this change")
                    raise RegisterConflict(
                        f"{key}: the register has version {entry.version}, not the one to be changed"
                    )
                accepts_out = accepts_out or is_ours
            await self._after_failure(key, answers, attempt, accepts_out=accepts_out)
        if accepts_out:
            raise RegisterUnknown(f"{key}: other processes keep deciding at the same time")
        raise RegisterUnavailable(f"{key}: other processes keep deciding at the same time")

    async def _after_failure(self, key: str, answers: Answers, attempt: int, *, accepts_out: bool) -> None:
        """Return if another attempt may help, else raise the error of the call."""
        if self._is_outdated(answers):
            try:
                await self._learn_keepers(answers)
            except RegisterUnavailable as error:
                if accepts_out:
                    raise RegisterUnknown(f"{key}: some keepers may have accepted the change: {error}") from error
                raise
            return
        refusal = main_refusal(answers)
        if refusal is None or refusal.reason is Reason.HELD:
            if accepts_out:
                raise RegisterUnknown(f"{key}: some keepers may have accepted the change")
            if refusal is not None:
                raise RegisterHeld(f"{key}: the master's lease has not ended", longest_wait(answers))
            raise RegisterUnavailable(f"{key}: no majority of the keepers answers")
        self._round = max(self._round, refusal.ballot.round)
        await self._door.pause(_PAUSE_SECONDS * attempt * self._random(1000) / 1000)

    def _is_outdated(self, answers: Answers) -> bool:
        """Return True if a keeper's refusal names a newer set than the one known here.

        The refusal may also come from another incarnation than the call was for.
        """
        refusals = answers_of_kind(answers, KeeperRefused).values()
        return any(each.keepers is not None and each.keepers.number > self.keepers.number for each in refusals)

    async def _learn_keepers(self, answers: Answers) -> None:
        """Adopt the newest set that was named.

        The set is kept only after it is known to be decided.
        """
        named = [each.keepers for each in answers_of_kind(answers, KeeperRefused).values() if each.keepers is not None]
        newest = max(named, key=lambda each: each.number, default=self.keepers)
        if newest.number > self.keepers.number:
            self.keepers = newest
            self._take_keepers(await self._decide_again(KEEPERS))

    def _take_keepers(self, entry: Registered) -> None:
        if isinstance(entry.value, KeeperSet) and entry.value.number >= self.keepers.number:
            self.keepers = entry.value

    async def _keys(self) -> list[str]:
        keepers = self.keepers
        answers = await self._door.ask(keepers, calls_to_all(keepers, ListKeys()), majority_reached(keepers, Keys))
        listed = answers_of_kind(answers, Keys)
        if not keepers.has_majority(listed):
            raise RegisterUnavailable("no majority of the keepers answers")
        return sorted({key for each in listed.values() for key in each.keys})

    def _ballot(self) -> Ballot:
        self._round += 1
        return Ballot(self._round, self._proposer)


def _all(keepers: KeeperSet) -> Callable[[Answers], bool]:
    return lambda answers: len(answers_of_kind(answers, Released)) == len(keepers.all_members)


def _agreed(keepers: KeeperSet) -> Callable[[Answers], bool]:
    return lambda answers: (
        decided_value(keepers, answers) is not None
        or len(answers) == len(keepers.all_members)
        or not keepers.may_have_majority(answers.keys() - answers_of_kind(answers, Standing).keys())
    )


def _keepers_for_change(known: KeeperSet, after: KeeperSet) -> KeeperSet:
    """Return the set for the first step of a change: both majorities, known number.

    The keepers still know the number of `known`, and refuse any other one.
    """
    return KeeperSet(known.number, after.members, after.before)
