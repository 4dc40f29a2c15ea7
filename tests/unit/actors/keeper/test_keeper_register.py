"""Test the register of keepers: majorities, leases, and changes of the keeper set."""

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
from tests.unit.actors.keeper.in_memory_keepers import InMemoryKeepers, group, group_with_master

CLAIM = LeaseClaim(1, "n1", 1)


def members(*numbers: int) -> dict[int, KeeperMember]:
    return {number: KeeperMember(f"k{number}", f"made-{number}") for number in numbers}


def start_empty_keeper(keepers: InMemoryKeepers, number: int, incarnation: str) -> KeeperMember:
    keepers.make(number, KeeperRecord("c", number, incarnation))
    return KeeperMember(f"k{number}", incarnation)


async def test_register_is_unavailable_without_majority() -> None:
    keepers = InMemoryKeepers()
    register = keepers.register()
    await register.change("g", Registered(), group())
    keepers.cut = {1, 2}
    with pytest.raises(RegisterUnavailable):
        await register.read("g")
    with pytest.raises(RegisterUnavailable):
        await register.change("g", Registered(), group())
    keepers.cut = {3}
    assert (await register.read("g")).value == group()


async def test_lease_renewal_brings_lagging_keepers_up_to_date() -> None:
    keepers = InMemoryKeepers()
    register = keepers.register()
    keepers.cut = {3}
    await register.change("g", Registered(), group_with_master())
    keepers.cut = {1}
    with pytest.raises(RegisterUnavailable):
        await register.renew("g", CLAIM)
    assert await register.renew("g", CLAIM) == LEASE_SECONDS


async def test_abandoned_master_change_blocks_only_one_renewal() -> None:
    keepers = InMemoryKeepers()
    register = keepers.register()
    await register.change("g", Registered(), group_with_master())
    for number, call in Proposal(keepers.founded, "g", Ballot(9, 9), moves=True).prepare().items():
        assert isinstance(keepers.up[number].handle(call), Promised)
    with pytest.raises(RegisterUnavailable):
        await register.renew("g", CLAIM)
    assert await register.renew("g", CLAIM) == LEASE_SECONDS


async def test_conflict_is_reported_only_with_decided_value() -> None:
    """Guard against reporting a conflict with a value that only one keeper accepted.

    The client that proposed the value died, and a later read returned the old value.
    """
    keepers = InMemoryKeepers()
    register = keepers.register()
    now = await register.change("g", Registered(), group_with_master())
    unfinished = Proposal(keepers.founded, "g", Ballot(9, 9))
    for number, call in unfinished.prepare().items():
        assert isinstance(keepers.up[number].handle(call), Promised)
    lost = Registered(now.version + 1, "lost", group_with_master().with_set([1]))
    keepers.up[1].handle(unfinished.accept(lost)[1])
    keepers.cut = {3}
    with pytest.raises(RegisterConflict):
        await keepers.register().change("g", now, group_with_master().with_set([1, 2]))
    keepers.cut = {1}
    assert await keepers.register().read("g") == lost


async def test_keeper_set_changes_by_one_keeper_at_a_time() -> None:
    keepers = InMemoryKeepers()
    register, other = keepers.register(), keepers.register()
    now = await register.change("g", Registered(), group_with_master())
    settled = await register.add_keeper(4, start_empty_keeper(keepers, 4, "made-4"))
    assert settled == KeeperSet(3, members(1, 2, 3, 4))
    assert keepers.up[4].record is not None
    assert keepers.up[4].record.slots["g"].entry == now, "the values lie with it before it counts"
    await register.add_keeper(5, start_empty_keeper(keepers, 5, "made-5"))
    await register.remove_keeper(1)
    await register.remove_keeper(2)
    assert register.keepers.members == members(3, 4, 5)
    keepers.cut = {1, 2}
    # A client that knows only the first set learns the new one from keeper 3, which is in both.
    assert await other.read("g") == now
    assert other.keepers == register.keepers


async def test_client_with_old_keeper_set_cannot_decide() -> None:
    keepers = InMemoryKeepers()
    register, late = keepers.register(), keepers.register()
    now = await register.change("g", Registered(), group_with_master())
    for number in (4, 5):
        await register.add_keeper(number, start_empty_keeper(keepers, number, f"made-{number}"))
    keepers.cut = {3, 4, 5}
    with pytest.raises((RegisterUnavailable, RegisterUnknown)):
        await late.change("g", now, group_with_master().with_set([1]))
    keepers.cut = {1, 2}
    assert await register.read("g") == now


async def test_emptied_keeper_votes_after_readmission() -> None:
    keepers = InMemoryKeepers()
    register = keepers.register()
    now = await register.change("g", Registered(), group_with_master())
    keepers.empty(3)
    keepers.cut = {1}
    with pytest.raises(RegisterUnavailable):
        await register.read("g")
    keepers.cut = set()
    await register.remove_keeper(3)
    await register.add_keeper(3, start_empty_keeper(keepers, 3, "made-again"))
    keepers.cut = {1}
    assert await keepers.register(register.keepers).read("g") == now


async def test_client_finds_keepers_after_all_were_replaced() -> None:
    """Cover a broker with an outdated keeper list, after each host was lost once."""
    keepers = InMemoryKeepers()
    register = keepers.register()
    now = await register.change("g", Registered(), group_with_master())
    for number in (1, 2, 3):
        keepers.empty(number)
        await register.remove_keeper(number)
        await register.add_keeper(number, start_empty_keeper(keepers, number, f"again-{number}"))
    assert await keepers.register().read("g") == now
    assert await keepers.register().settle("g") == now
    late = keepers.register()
    with pytest.raises(RegisterUnavailable):
        await late.renew("g", CLAIM)
    assert await late.renew("g", CLAIM) == LEASE_SECONDS


async def test_next_change_finishes_abandoned_keeper_set_change() -> None:
    keepers = InMemoryKeepers()
    register = keepers.register()
    await register.change("g", Registered(), group_with_master())
    joint = keepers.founded.with_member(4, start_empty_keeper(keepers, 4, "made-4"))
    await register._change("", Registered(), joint)
    other = keepers.register()
    await other.remove_keeper(2)
    assert other.keepers.members == members(1, 3, 4)


async def test_accepted_change_is_unknown_after_keeper_set_change() -> None:
    """Guard against reporting an accepted change as not made.

    A later settle of the register made the change, and its master did not know of that in-sync set.
    """
    keepers = InMemoryKeepers()
    other = keepers.register()
    before = await other.change("g", Registered(), group_with_master())
    member = start_empty_keeper(keepers, 4, "made-4")

    class RacingTransport:
        """Deliver the first accept to keeper 1 early, to the others after the change.

        All later requests are lost.
        """

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

    master_register = KeeperRegister(keepers.founded, RacingTransport(), keepers.random.randrange)
    assert isinstance(before.value, GroupState)
    with pytest.raises(RegisterUnknown):
        await master_register.change("g", before, before.value.with_set({1}))


async def test_invalid_keeper_sets_raise_invalid_input() -> None:
    keepers = InMemoryKeepers(1)
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


def test_majorities_of_consecutive_keeper_sets_overlap() -> None:
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
async def test_two_masters_never_hold_leases_at_once(seed: int) -> None:
    """Mix elections, keeper restarts and lost messages; a master counts its lease as `MasterLease` does."""
    chance = random.Random(seed)
    keepers = InMemoryKeepers(3, seed)
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
                state = now.value or group_with_master()
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
