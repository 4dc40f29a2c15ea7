"""The register made of keepers: compare-and-set on a majority of them. How they are reached is handed in."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from raymq.actors.keeper.errors import RegisterConflict, RegisterHeld, RegisterUnavailable, RegisterUnknown
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.keeper.leases import LEASE_SECONDS, claim_of
from raymq.actors.keeper.messages import (
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
from raymq.actors.keeper.proposal import (
    Answers,
    Proposal,
    calls,
    enough,
    has_lease,
    longest_wait,
    read_at_once,
    refusal,
    those,
)

#: So often a change is attempted that others keep preempting, or that meets a newer set of keepers.
_ATTEMPTS: Final = 6
#: So often a reader looks before it decides anew what stands, which comes in the way of others.
_LOOKS: Final = 3
#: Between two attempts, times the number of attempts so far, times something random of up to 1.
_PAUSE_SECONDS: Final = 0.1


class KeeperDoor(Protocol):
    """How keepers are reached: the only thing here that knows sockets or actors."""

    async def ask(
        self, keepers: KeeperSet, asked: Mapping[int, KeeperCall], is_enough: Callable[[Answers], bool]
    ) -> Answers:
        """Ask these keepers at the same time; what has been answered once that is enough, or at the latest after a
        time-out of its own, shorter than a lease. Who cannot be reached is not in it. Never fails.
        """

    async def pause(self, seconds: float) -> None:
        """Return after so many seconds."""


class KeeperRegister:
    """`Register` on keepers, and the changes of the set of keepers. Coroutines of one event loop."""

    def __init__(self, keepers: KeeperSet, door: KeeperDoor, random: Callable[[int], int] = secrets.randbelow) -> None:
        """`keepers`: as known here; a keeper that knows a newer set says so. `random`: a number below the argument."""
        self.keepers = keepers
        self._door = door
        self._random = random
        self._proposer = 1 + random((1 << 62) - 1)
        self._round = 0
        #: Groups whose last renewal a majority has not granted.
        self._unheard: set[str] = set()

    async def read(self, group: str) -> Registered:
        """As `Register.read`."""
        return await self._read(group)

    async def settle(self, group: str) -> Registered:
        """As `Register.settle`."""
        return await self._decide_anew(group)

    async def change(self, group: str, before: Registered, after: GroupState) -> Registered:
        """As `Register.change`."""
        after.encode()
        return await self._change(group, before, after)

    async def groups(self) -> Sequence[str]:
        """As `Register.groups`."""
        return [key for key in await self._keys() if key != KEEPERS]

    async def renew(self, group: str, claim: LeaseClaim) -> float:
        """As `Register.renew`."""
        if group in self._unheard:
            # Keepers may hear who does not hear them: it must not hold up an election for ever.
            await self._read(group)
        self._unheard.add(group)
        keepers = self.keepers
        answers = await self._door.ask(keepers, calls(keepers, Renew(group, claim)), enough(keepers, LeaseGiven))
        if has_lease(keepers, answers):
            self._unheard.discard(group)
            return min(each.seconds for each in those(answers, LeaseGiven).values())
        reasons = {each.reason for each in those(answers, KeeperRefused).values()}
        if self._is_outdated(answers):
            await self._learn_keepers(answers)
        elif reasons & {Reason.NOT_MASTER, Reason.ELECTING}:
            # Some are behind, or somebody began to change the master and died: what stands is decided anew by all.
            standing = await self._decide_anew(group)
            if claim_of(standing.value) != claim:
                raise RegisterConflict(f"{group}: {claim.replica} is not the master of epoch {claim.epoch}")
        elif Reason.HELD in reasons:
            raise RegisterHeld(f"{group}: another lease has not ended", longest_wait(answers))
        raise RegisterUnavailable(f"{group}: no majority of the keepers gives the lease now")

    async def release(self, group: str, claim: LeaseClaim) -> None:
        """As `Register.release`."""
        keepers = self.keepers
        await self._door.ask(keepers, calls(keepers, Release(group, claim)), _all(keepers))

    async def add_keeper(self, number: int, member: KeeperMember) -> KeeperSet:
        """Take a keeper in; the set with it.

        A change that somebody has begun and not finished is finished first.

        Raises:
            InvalidInput: there is such a keeper, or there are too many.
            RegisterConflict, RegisterHeld, RegisterUnavailable, RegisterUnknown: as `Register.change`.
        """
        await self.finish_change()
        return await self._change_keepers(self.keepers.adding(number, member))

    async def remove_keeper(self, number: int) -> KeeperSet:
        """Let a keeper go, one that is lost, too; the set without it. Raises as `add_keeper`."""
        await self.finish_change()
        return await self._change_keepers(self.keepers.removing(number))

    async def finish_change(self) -> KeeperSet:
        """Finish a change of the set that somebody has begun; the set. Raises as `add_keeper`."""
        entry = await self._read(KEEPERS)
        if isinstance(entry.value, KeeperSet):
            self.keepers = entry.value
        if self.keepers.before is not None:
            # Every value has to lie with both majorities before one of them counts alone.
            for key in await self._keys():
                await self._decide_anew(key)
            entry = await self._read(KEEPERS)
            # The next change may leave out a majority that has given a lease under the former set: it is over by then.
            await self._door.pause(LEASE_SECONDS)
            self._take_keepers(await self._change(KEEPERS, entry, self.keepers.settled()))
        return self.keepers

    async def _change_keepers(self, after: KeeperSet) -> KeeperSet:
        before = await self._read(KEEPERS)
        # Under both majorities from the first request on.
        self._take_keepers(await self._change(KEEPERS, before, after, keepers=_asked_as(self.keepers, after)))
        return await self.finish_change()

    async def _read(self, key: str) -> Registered:
        for attempt in range(1, _LOOKS + 1):
            keepers = self.keepers
            asked = Proposal(keepers, key, Ballot(0, 0)).inquire()
            answers = await self._door.ask(keepers, asked, _agreed(keepers))
            if (entry := read_at_once(keepers, answers)) is not None:
                return entry
            if self._is_outdated(answers):
                await self._learn_keepers(answers)
            elif not keepers.has_majority(those(answers, Standing)):
                # To decide anew would fail as well, and get in the way of those whose answers do arrive.
                raise RegisterUnavailable(f"{key}: no majority of the keepers answers")
            elif attempt < _LOOKS:
                # A change is under way, most likely: deciding anew would only come in its way.
                await self._door.pause(_PAUSE_SECONDS * self._random(1000) / 1000)
        return await self._decide_anew(key)

    async def _decide_anew(self, key: str) -> Registered:
        """What stands, decided again under a new ballot, so that all who can be reached have it."""
        try:
            return await self._decide(key, None, None, moves=False)
        except (RegisterUnknown, RegisterHeld, RegisterConflict) as error:
            raise RegisterUnavailable(f"{key}: what stands could not be read: {error}") from error

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
        wanted: Registered | None,
        *,
        moves: bool,
        keepers: KeeperSet | None = None,
    ) -> Registered:
        """Decide `wanted` in the place of `before`, or without these what stands."""
        accepts_out = False
        for attempt in range(1, _ATTEMPTS + 1):
            used = keepers or self.keepers
            proposal = Proposal(used, key, self._ballot(), moves=moves)
            answers = await self._door.ask(used, proposal.prepare(), enough(used, Promised))
            standing = proposal.promised(answers)
            if standing is not None:
                # Another value than `before` is decided before it is a conflict: a minority alone may have accepted it,
                # and a later read could still return `before`.
                entry = standing
                if wanted is not None and before is not None and standing.change == before.change:
                    entry = wanted
                is_ours = wanted is None or entry.change == wanted.change
                answers = await self._door.ask(used, proposal.accept(entry), enough(used, AcceptedBallot))
                if proposal.is_chosen(answers):
                    if is_ours:
                        return entry
                    if accepts_out:
                        raise RegisterUnknown(f"{key}: changed by others, perhaps after this change")
                    raise RegisterConflict(f"{key}: version {entry.version} stands, not the one to be changed")
                accepts_out = accepts_out or is_ours
            await self._after_failure(key, answers, attempt, accepts_out=accepts_out)
        if accepts_out:
            raise RegisterUnknown(f"{key}: others keep deciding at the same time")
        raise RegisterUnavailable(f"{key}: others keep deciding at the same time")

    async def _after_failure(self, key: str, answers: Answers, attempt: int, *, accepts_out: bool) -> None:
        """Return if another attempt may help."""
        if self._is_outdated(answers):
            try:
                await self._learn_keepers(answers)
            except RegisterUnavailable as error:
                if accepts_out:
                    raise RegisterUnknown(f"{key}: a part of the keepers may have accepted it: {error}") from error
                raise
            return
        told = refusal(answers)
        if told is None or told.reason is Reason.HELD:
            if accepts_out:
                raise RegisterUnknown(f"{key}: a part of the keepers may have accepted it")
            if told is not None:
                raise RegisterHeld(f"{key}: the master's lease has not ended", longest_wait(answers))
            raise RegisterUnavailable(f"{key}: no majority of the keepers answers")
        self._round = max(self._round, told.ballot.round)
        await self._door.pause(_PAUSE_SECONDS * attempt * self._random(1000) / 1000)

    def _is_outdated(self, answers: Answers) -> bool:
        """Whether a keeper names a newer set, be it one of another incarnation than was asked for."""
        told = those(answers, KeeperRefused).values()
        return any(each.keepers is not None and each.keepers.number > self.keepers.number for each in told)

    async def _learn_keepers(self, answers: Answers) -> None:
        """Take the newest set that was named. It is used for good only once it is known to be decided."""
        named = [each.keepers for each in those(answers, KeeperRefused).values() if each.keepers is not None]
        newest = max(named, key=lambda each: each.number, default=self.keepers)
        if newest.number > self.keepers.number:
            self.keepers = newest
            self._take_keepers(await self._decide_anew(KEEPERS))

    def _take_keepers(self, entry: Registered) -> None:
        if isinstance(entry.value, KeeperSet) and entry.value.number >= self.keepers.number:
            self.keepers = entry.value

    async def _keys(self) -> list[str]:
        keepers = self.keepers
        answers = await self._door.ask(keepers, calls(keepers, ListKeys()), enough(keepers, Keys))
        listed = those(answers, Keys)
        if not keepers.has_majority(listed):
            raise RegisterUnavailable("no majority of the keepers answers")
        return sorted({key for each in listed.values() for key in each.keys})

    def _ballot(self) -> Ballot:
        self._round += 1
        return Ballot(self._round, self._proposer)


def _all(keepers: KeeperSet) -> Callable[[Answers], bool]:
    return lambda answers: len(those(answers, Released)) == len(keepers.everyone)


def _agreed(keepers: KeeperSet) -> Callable[[Answers], bool]:
    return lambda answers: (
        read_at_once(keepers, answers) is not None
        or len(answers) == len(keepers.everyone)
        or not keepers.may_have_majority(answers.keys() - those(answers, Standing).keys())
    )


def _asked_as(known: KeeperSet, after: KeeperSet) -> KeeperSet:
    """The set to ask for the first step of a change: both majorities, under the number that keepers know."""
    return KeeperSet(known.number, after.members, after.before)
