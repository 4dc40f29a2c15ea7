"""The register made of keepers: what a majority needs, and how keepers come and go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

import pytest

from raymq.actors.keeper.errors import RegisterConflict, RegisterUnavailable, RegisterUnknown
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import Accept, Ballot, KeeperCall, LeaseClaim, Promised, Registered
from raymq.actors.keeper.keeper_record import KeeperRecord
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.keeper.master_lease import LEASE_SECONDS
from raymq.actors.keeper.proposal import Answers, Proposal
from raymq.storage.errors import InvalidInput
from tests.unit.actors.keeper.keepers_at_hand import KeepersAtHand, group, mastered

CLAIM = LeaseClaim(1, "n1", 1)


def members(*numbers: int) -> dict[int, KeeperMember]:
    return {number: KeeperMember(f"k{number}", f"made-{number}") for number in numbers}


def take_in(keepers: KeepersAtHand, number: int, incarnation: str) -> KeeperMember:
    keepers.make(number, KeeperRecord("c", number, incarnation))
    return KeeperMember(f"k{number}", incarnation)


async def test_without_a_majority_nothing_is_changed_and_nothing_read() -> None:
    keepers = KeepersAtHand()
    register = keepers.register()
    await register.change("g", Registered(), group())
    keepers.cut = {1, 2}
    with pytest.raises(RegisterUnavailable):
        await register.read("g")
    with pytest.raises(RegisterUnavailable):
        await register.change("g", Registered(), group())
    keepers.cut = {3}
    assert (await register.read("g")).value == group()


async def test_keepers_that_are_behind_are_brought_up_when_a_lease_needs_them() -> None:
    keepers = KeepersAtHand()
    register = keepers.register()
    keepers.cut = {3}
    await register.change("g", Registered(), mastered())
    keepers.cut = {1}
    with pytest.raises(RegisterUnavailable):
        await register.renew("g", CLAIM)
    assert await register.renew("g", CLAIM) == LEASE_SECONDS


async def test_a_change_of_the_master_that_was_begun_and_left_does_not_end_its_lease_for_ever() -> None:
    keepers = KeepersAtHand()
    register = keepers.register()
    await register.change("g", Registered(), mastered())
    for number, call in Proposal(keepers.founded, "g", Ballot(9, 9), moves=True).prepare().items():
        assert isinstance(keepers.up[number].handle(call), Promised)
    with pytest.raises(RegisterUnavailable):
        await register.renew("g", CLAIM)
    assert await register.renew("g", CLAIM) == LEASE_SECONDS


async def test_conflict_is_reported_only_with_a_value_that_is_decided() -> None:
    """A client died when one keeper had accepted its value: a conflict with it, and a later read of the old value."""
    keepers = KeepersAtHand()
    register = keepers.register()
    now = await register.change("g", Registered(), mastered())
    unfinished = Proposal(keepers.founded, "g", Ballot(9, 9))
    for number, call in unfinished.prepare().items():
        assert isinstance(keepers.up[number].handle(call), Promised)
    lost = Registered(now.version + 1, "lost", mastered().with_set([1]))
    keepers.up[1].handle(unfinished.accept(lost)[1])
    keepers.cut = {3}
    with pytest.raises(RegisterConflict):
        await keepers.register().change("g", now, mastered().with_set([1, 2]))
    keepers.cut = {1}
    assert await keepers.register().read("g") == lost


async def test_keepers_come_and_go_one_at_a_time() -> None:
    keepers = KeepersAtHand()
    register, other = keepers.register(), keepers.register()
    now = await register.change("g", Registered(), mastered())
    settled = await register.add_keeper(4, take_in(keepers, 4, "made-4"))
    assert settled == KeeperSet(3, members(1, 2, 3, 4))
    assert keepers.up[4].record is not None
    assert keepers.up[4].record.slots["g"].entry == now, "the values lie with it before it counts"
    await register.add_keeper(5, take_in(keepers, 5, "made-5"))
    await register.remove_keeper(1)
    await register.remove_keeper(2)
    assert register.keepers.members == members(3, 4, 5)
    keepers.cut = {1, 2}
    # Who knows the first set only is told by the one that is in both.
    assert await other.read("g") == now
    assert other.keepers == register.keepers


async def test_who_knows_an_old_set_cannot_decide_by_it() -> None:
    keepers = KeepersAtHand()
    register, late = keepers.register(), keepers.register()
    now = await register.change("g", Registered(), mastered())
    for number in (4, 5):
        await register.add_keeper(number, take_in(keepers, number, f"made-{number}"))
    keepers.cut = {3, 4, 5}
    with pytest.raises((RegisterUnavailable, RegisterUnknown)):
        await late.change("g", now, mastered().with_set([1]))
    keepers.cut = {1, 2}
    assert await register.read("g") == now


async def test_trap_23_an_emptied_keeper_counts_again_when_the_others_took_it_in() -> None:
    keepers = KeepersAtHand()
    register = keepers.register()
    now = await register.change("g", Registered(), mastered())
    keepers.empty(3)
    keepers.cut = {1}
    with pytest.raises(RegisterUnavailable):
        await register.read("g")
    keepers.cut = set()
    await register.remove_keeper(3)
    await register.add_keeper(3, take_in(keepers, 3, "made-again"))
    keepers.cut = {1}
    assert await keepers.register(register.keepers).read("g") == now


async def test_who_knows_only_keepers_that_were_all_replaced_since_finds_those_of_now() -> None:
    """As a broker that is started with what was known when the cluster was: each host was lost once."""
    keepers = KeepersAtHand()
    register = keepers.register()
    now = await register.change("g", Registered(), mastered())
    for number in (1, 2, 3):
        keepers.empty(number)
        await register.remove_keeper(number)
        await register.add_keeper(number, take_in(keepers, number, f"again-{number}"))
    assert await keepers.register().read("g") == now
    assert await keepers.register().settle("g") == now
    late = keepers.register()
    with pytest.raises(RegisterUnavailable):
        await late.renew("g", CLAIM)
    assert await late.renew("g", CLAIM) == LEASE_SECONDS


async def test_a_change_of_the_set_that_somebody_left_is_finished_by_the_next() -> None:
    keepers = KeepersAtHand()
    register = keepers.register()
    await register.change("g", Registered(), mastered())
    joint = keepers.founded.with_member(4, take_in(keepers, 4, "made-4"))
    await register._change("", Registered(), joint)
    other = keepers.register()
    await other.remove_keeper(2)
    assert other.keepers.members == members(1, 3, 4)


async def test_a_change_that_a_keeper_has_accepted_is_unknown_also_where_the_set_changes_meanwhile() -> None:
    """It was told as not made, and whoever settled the register made it: a set that its master did not know of."""
    keepers = KeepersAtHand()
    other = keepers.register()
    before = await other.change("g", Registered(), mastered())
    member = take_in(keepers, 4, "made-4")

    class Door:
        """The first accept reaches keeper 1 before the set changes, and the others behind it; then nothing does."""

        has_accepted = False

        async def ask(
            self, known: KeeperSet, asked: Mapping[int, KeeperCall], is_enough: Callable[[Answers], bool]
        ) -> Answers:
            if self.has_accepted:
                return {}
            if not isinstance(next(iter(asked.values())).request, Accept):
                return await keepers.ask(known, asked, is_enough)
            self.has_accepted = True
            first = keepers.up[1].handle(asked[1])
            keepers.cut = {1}
            await other.add_keeper(4, member)
            return {1: first, **{number: keepers.up[number].handle(asked[number]) for number in (2, 3)}}

        async def pause(self, seconds: float) -> None:
            await keepers.pause(seconds)

    leadership = KeeperRegister(keepers.founded, Door(), keepers.random.randrange)
    assert isinstance(before.value, GroupState)
    with pytest.raises(RegisterUnknown):
        await leadership.change("g", before, before.value.with_set({1}))


async def test_the_set_has_its_bounds() -> None:
    keepers = KeepersAtHand(1)
    register = keepers.register()
    with pytest.raises(InvalidInput):
        await register.remove_keeper(1)
    with pytest.raises(InvalidInput):
        await register.remove_keeper(2)
    with pytest.raises(InvalidInput):
        await register.add_keeper(1, KeeperMember("k1", "another"))
    with pytest.raises(InvalidInput):
        KeeperSet(1, members(*range(1, 8))).with_member(8, KeeperMember("k8", "made-8"))
    with pytest.raises(InvalidInput):
        KeeperSet(1, members(1)).with_member(2, KeeperMember("k", "i")).with_member(3, KeeperMember("k", "i"))


def test_consecutive_sets_always_share_a_keeper_of_each_majority() -> None:
    chance = random.Random(1)
    for _ in range(300):
        before = KeeperSet(1, members(*range(1, chance.randrange(2, 8))))
        if chance.random() < 0.5 and len(before.members) < 7:
            joint = before.with_member(9, KeeperMember("k9", "made-9"))
        else:
            if len(before.members) == 1:
                continue
            joint = before.without_member(chance.choice(list(before.members)))
        after = joint.settled()
        assert joint.follows(before)
        assert after.follows(joint)
        assert not after.follows(before)
        all_members = list(joint.all_members)
        chance.shuffle(all_members)
        for first, second in ((before, joint), (joint, after), (before, after)):
            agreed = {each for each in all_members if chance.random() < 0.6}
            if first.has_majority(agreed):
                assert not second.has_majority(set(all_members) - agreed)


@pytest.mark.parametrize("seed", range(30))
async def test_no_two_masters_have_leases_at_one_time(seed: int) -> None:
    """Masters, elections, restarts of keepers and lost messages; a master counts as `MasterLease` does."""
    chance = random.Random(seed)
    keepers = KeepersAtHand(3, seed)
    held: dict[LeaseClaim, float] = {}

    async def act() -> None:
        register = keepers.register()
        for _ in range(25):
            keepers.loss = chance.choice([0.0, 0.0, 0.2, 0.5])
            if chance.random() < 0.1:
                keepers.start(chance.randrange(1, 4))
            keepers.clock.advance(chance.choice([0.0, 0.1, 0.5, 1.0]))
            try:
                now = await register.read("g")
                state = now.value or mastered()
                if chance.random() < 0.4:
                    number = chance.choice([1, 2])
                    state = state.start_election().elected(number, [1, 2]) if now.value else state  # type: ignore[union-attr]
                    await register.change("g", now, state)  # type: ignore[arg-type]
                else:
                    claim = LeaseClaim(state.master, f"n{state.master}", state.epoch)  # type: ignore[union-attr, arg-type]
                    began = keepers.clock()
                    held[claim] = max(began + await register.renew("g", claim), held.get(claim, 0.0))
                    others = [each for each, until in held.items() if each != claim and until > keepers.clock()]
                    assert others == [], "two masters hold leases"
            except (RegisterUnavailable, RegisterUnknown, RegisterConflict):
                pass
            except Exception as error:
                if type(error).__name__ != "RegisterHeld":
                    raise

    await asyncio.gather(act(), act(), act())
    assert held, "nobody ever had a lease: the test shows nothing"
