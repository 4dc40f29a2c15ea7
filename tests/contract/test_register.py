"""Test the contract of `actors/keeper/register.py` on each implementation.

An implementation adds a harness. The one of etcd needs Debian's `etcd-server`, or another `etcd` of 3.4 or later in
PATH, and is skipped without it. The history check at the end records the answers of concurrent clients while requests,
answers and servers get lost, and checks that one order of events explains them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from msgspec.structs import replace

from raymq.actors.keeper.errors import (
    RegisterConflict,
    RegisterHeld,
    RegisterUnavailable,
    RegisterUnknown,
)
from raymq.actors.keeper.etcd import etcd_gateway
from raymq.actors.keeper.etcd.etcd_register import EtcdRegister
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import AcceptedBallot, Ballot, KeeperRefused, LeaseClaim, Registered
from raymq.actors.keeper.master_lease import LEASE_SECONDS
from raymq.actors.keeper.proposal import Proposal
from raymq.actors.keeper.register import Register
from raymq.storage.errors import InvalidInput
from tests.etcd_servers import EtcdServers, etcd_servers
from tests.unit.actors.keeper.in_memory_keepers import InMemoryKeepers, group, group_with_master, replica

pytestmark = pytest.mark.contract


class Harness(Protocol):
    """One implementation with its servers."""

    def register(self) -> Register:
        """Return another client of the same register."""

    async def pass_seconds(self, seconds: float) -> None:
        """Let time pass, for leases too."""

    def disturb(self, chance: random.Random) -> None:
        """Begin or end a fault: lost messages, some servers down or restarted; never all of them for good."""

    def heal(self) -> None:
        """End all faults."""

    def end(self) -> None:
        """Close the clients."""


class KeeperHarness:
    """Three keepers in this process."""

    def __init__(self, seed: int = 0) -> None:
        self.keepers = InMemoryKeepers(3, seed)

    def register(self) -> Register:
        return self.keepers.register()

    async def pass_seconds(self, seconds: float) -> None:
        self.keepers.clock.advance(seconds)

    def disturb(self, chance: random.Random) -> None:
        which = chance.randrange(4)
        if which == 0:
            self.keepers.loss = chance.choice([0.0, 0.1, 0.3])
        elif which == 1:
            self.keepers.cut = {chance.randrange(1, 4)}
        elif which == 2:
            self.keepers.cut = set()
        else:
            self.keepers.start(chance.randrange(1, 4))

    def heal(self) -> None:
        self.keepers.loss = 0.0
        self.keepers.cut = set()

    def end(self) -> None:
        pass


class EtcdHarness:
    """Three etcd servers, shared by all tests; each harness has keys of its own."""

    def __init__(self, servers: EtcdServers) -> None:
        self.servers = servers
        self.prefix = f"/test/{uuid.uuid4().hex}"
        self._registers: list[EtcdRegister] = []

    def register(self) -> Register:
        self._registers.append(EtcdRegister(self.servers.endpoints, self.prefix))
        return self._registers[-1]

    async def pass_seconds(self, seconds: float) -> None:
        # etcd checks twice a second for expired leases, and decides by majority that one has expired.
        await asyncio.sleep(seconds + 1.5)

    def disturb(self, chance: random.Random) -> None:
        which, number = chance.randrange(4), chance.randrange(3)
        self.servers.go_on()
        if which == 0:
            self.servers.pause(number)
        elif which == 1:
            self.servers.kill(number)

    def heal(self) -> None:
        self.servers.go_on()
        self.servers.await_health()

    def end(self) -> None:
        for register in self._registers:
            register.close()


IMPLEMENTATIONS = ("etcd", "keepers")
CLAIM = LeaseClaim(1, "n1", 1)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServers]:
    with etcd_servers(tmp_path_factory.mktemp("etcd")) as servers:
        yield servers


@pytest.fixture
def make_harness(request: pytest.FixtureRequest) -> Iterator[Callable[[str, int], Harness]]:
    """Return a function that makes harnesses, by implementation and seed."""
    harnesses: list[Harness] = []

    def make(implementation: str, seed: int = 0) -> Harness:
        with_etcd = implementation == "etcd"
        harnesses.append(EtcdHarness(request.getfixturevalue("etcd")) if with_etcd else KeeperHarness(seed))
        return harnesses[-1]

    yield make
    for each in harnesses:
        each.end()


@pytest.fixture(params=IMPLEMENTATIONS)
def harness(request: pytest.FixtureRequest, make_harness: Callable[[str, int], Harness]) -> Harness:
    return make_harness(request.param, 0)


def test_unwritten_group_has_version_0(harness: Harness) -> None:
    async def scene() -> None:
        register = harness.register()
        assert await register.read("g") == Registered()
        assert list(await register.groups()) == []

    asyncio.run(scene())


def test_change_is_visible_to_other_clients(harness: Harness) -> None:
    async def scene() -> None:
        register = harness.register()
        first = await register.change("g", await register.read("g"), group())
        assert (first.version, first.value) == (1, group())
        second = await register.change("g", first, group().start_election())
        assert second.version == 2
        assert await harness.register().read("g") == second
        await register.change("h", Registered(), group())
        assert sorted(await register.groups()) == ["g", "h"]

    asyncio.run(scene())


def test_change_from_stale_read_raises_conflict(harness: Harness) -> None:
    async def scene() -> None:
        register = harness.register()
        first = await register.change("g", Registered(), group())
        second = await register.change("g", first, group().start_election())
        for stale in (Registered(), first, dataclasses.replace(second, change="another")):
            with pytest.raises(RegisterConflict):
                await harness.register().change("g", stale, group_with_master())
        assert await register.read("g") == second

    asyncio.run(scene())


def test_at_most_one_concurrent_change_succeeds(harness: Harness) -> None:
    async def scene() -> None:
        first = await harness.register().change("g", Registered(), group())
        ends = await asyncio.gather(
            *(harness.register().change("g", first, group(2 + each)) for each in range(4)), return_exceptions=True
        )
        won = [each for each in ends if isinstance(each, Registered)]
        assert len(won) <= 1
        lost = [each for each in ends if not isinstance(each, Registered)]
        assert all(isinstance(each, RegisterConflict | RegisterUnavailable | RegisterUnknown) for each in lost)
        now = await harness.register().read("g")
        assert now in (won or [now])
        assert now.version <= 2

    asyncio.run(scene())


def test_settle_prevents_late_changes_on_keepers() -> None:
    """For keepers: one of them has accepted a change that no other keeper has received."""

    async def scene() -> None:
        harness = KeeperHarness()
        keepers = harness.keepers
        register = harness.register()
        now = await register.change("g", Registered(), group())
        late = Proposal(keepers.founded, "g", Ballot(5, 5))
        prepared = {number: keepers.up[number].handle(call) for number, call in late.prepare().items()}
        assert late.promised(prepared) == now
        accept = late.accept(Registered(2, "late", group().start_election()))
        assert isinstance(keepers.up[1].handle(accept[1]), AcceptedBallot)
        keepers.cut = {1}
        assert await register.settle("g") == now
        keepers.cut = set()
        assert await register.settle("g") == now, "the one that has accepted it is outvoted for good"
        for number in (2, 3):
            assert isinstance(keepers.up[number].handle(accept[number]), KeeperRefused)

    asyncio.run(scene())


def test_settle_changes_no_visible_state(harness: Harness) -> None:
    async def scene() -> None:
        register = harness.register()
        assert await register.settle("g") == Registered()
        assert await register.read("g") == Registered()
        assert list(await register.groups()) == []
        now = await register.change("g", await register.settle("g"), group())
        assert await register.settle("g") == now == await register.read("g")
        assert (await register.change("g", now, group().start_election())).version == now.version + 1

    asyncio.run(scene())


@pytest.mark.parametrize("is_there", [False, True])
def test_settle_prevents_late_changes_on_etcd(etcd: EtcdServers, is_there: bool) -> None:
    """A pending transaction compares the state that it has read."""

    async def scene() -> None:
        register = harness.register()
        assert isinstance(register, EtcdRegister)
        now = await register.change("g", Registered(), group()) if is_there else Registered()
        key = f"{harness.prefix}/states/g"
        _, (standing,) = await register._etcd.transact([], [etcd_gateway.get(key)], [])
        late = [etcd_gateway.is_unchanged(key, 0 if standing is None else standing.mod_revision)]
        assert await register.settle("g") == now
        is_made, _ = await register._etcd.transact(late, [etcd_gateway.put(key, b"late")], [])
        assert not is_made
        assert await register.read("g") == now

    harness = EtcdHarness(etcd)
    asyncio.run(scene())
    harness.end()


def test_invalid_group_state_raises_invalid_input(harness: Harness) -> None:
    async def scene() -> None:
        with pytest.raises(InvalidInput):
            await harness.register().change("g", Registered(), replace(group(), master=7))

    asyncio.run(scene())


async def register_with_master(harness: Harness) -> tuple[Register, Registered]:
    register = harness.register()
    return register, await register.change("g", Registered(), group_with_master())


def test_only_registered_master_renews_lease(harness: Harness) -> None:
    async def scene() -> None:
        register, _ = await register_with_master(harness)
        assert await register.renew("g", CLAIM) == LEASE_SECONDS
        for claim in (
            LeaseClaim(2, "n2", 1),
            dataclasses.replace(CLAIM, epoch=2),
            dataclasses.replace(CLAIM, nonce="before"),
        ):
            with pytest.raises(RegisterConflict):
                await register.renew("g", claim)
        with pytest.raises(RegisterConflict):
            await register.renew("unknown", CLAIM)

    asyncio.run(scene())


def test_master_is_not_replaced_before_its_lease_ends(harness: Harness) -> None:
    async def scene() -> None:
        register, now = await register_with_master(harness)
        assert isinstance(now.value, GroupState)
        await register.renew("g", CLAIM)
        restarted = now.value.with_replica(1, replica(1, "again"))
        for after in (now.value.start_election(), now.value.start_election().elected(2, [2]), restarted):
            with pytest.raises(RegisterHeld) as held:
                await harness.register().change("g", now, after)
            assert 0 < held.value.wait_seconds <= LEASE_SECONDS
        now = await register.change("g", now, now.value.with_set([1]))
        assert isinstance(now.value, GroupState)
        await register.renew("g", CLAIM)
        await harness.pass_seconds(LEASE_SECONDS + 0.1)
        now = await harness.register().change("g", now, now.value.start_election())
        with pytest.raises(RegisterConflict):
            await register.renew("g", CLAIM)

    asyncio.run(scene())


def test_election_starts_at_once_after_lease_release(harness: Harness) -> None:
    async def scene() -> None:
        register, now = await register_with_master(harness)
        assert isinstance(now.value, GroupState)
        await register.renew("g", CLAIM)
        await register.release("g", CLAIM)
        await harness.register().change("g", now, now.value.start_election())

    asyncio.run(scene())


def test_release_ends_only_the_named_lease(harness: Harness) -> None:
    async def scene() -> None:
        register, now = await register_with_master(harness)
        assert isinstance(now.value, GroupState)
        await register.renew("g", CLAIM)
        other = harness.register()
        await other.release("g", dataclasses.replace(CLAIM, nonce="before"))
        with pytest.raises(RegisterHeld):
            await other.change("g", now, now.value.start_election())
        await other.release("g", CLAIM)
        restarted = now.value.with_replica(1, replica(1, "again"))
        now = await other.change("g", now, restarted)
        await other.renew("g", dataclasses.replace(CLAIM, nonce=replica(1, "again").nonce))
        await register.release("g", CLAIM)
        with pytest.raises(RegisterHeld):
            await other.change("g", now, restarted.start_election())

    asyncio.run(scene())


@dataclasses.dataclass
class Event:
    """A completed call: when it began and ended, and the version that it read or made."""

    began: int
    ended: int
    entry: Registered
    changed: bool


class History:
    """The answers of clients, ordered by a common event counter."""

    def __init__(self) -> None:
        self.count = 0
        self.events: list[Event] = []

    def tick(self) -> int:
        self.count += 1
        return self.count

    def check(self) -> None:
        """Check that each version has one value, and that no answer is older than a call that ended before.

        Versions are the order itself, so linearizability requires nothing else.
        """
        known: dict[int, Registered] = {}
        for event in self.events:
            assert known.setdefault(event.entry.version, event.entry) == event.entry
        made_by = [event.entry.version for event in self.events if event.changed]
        assert len(set(made_by)) == len(made_by), "a version was made twice"
        for event in self.events:
            before = [each for each in self.events if each.ended < event.began]
            floor = max((each.entry.version for each in before), default=0)
            assert event.entry.version >= floor + event.changed


#: The faults of etcd take real time.
COUNTS = [("keepers", 25), ("etcd", 2)]


@pytest.mark.parametrize(("implementation", "count"), COUNTS)
def test_histories_are_linearizable_under_faults(
    make_harness: Callable[[str, int], Harness], implementation: str, count: int
) -> None:
    changes = sum(
        asyncio.run(run_clients_and_check(make_harness(implementation, seed), seed, calls=12)) for seed in range(count)
    )
    assert changes > 2 * count, "faults let hardly anything through: the test shows nothing"


@pytest.mark.soak
@pytest.mark.parametrize(("implementation", "count"), [("keepers", 1_000), ("etcd", 25)])
def test_many_histories_are_linearizable_under_faults(
    make_harness: Callable[[str, int], Harness], implementation: str, count: int
) -> None:
    for seed in range(count):
        asyncio.run(run_clients_and_check(make_harness(implementation, seed), seed, calls=30))


async def run_clients_and_check(harness: Harness, seed: int, *, calls: int) -> int:
    """Return how many changes clients made; AssertionError if no order explains the answers."""
    chance = random.Random(seed)
    history = History()
    await harness.register().change("g", Registered(), group())

    async def client() -> None:
        register = harness.register()
        known = Registered()
        for _ in range(calls):
            if chance.random() < 0.15:
                harness.disturb(chance)
            began = history.tick()
            changes = known.version > 0 and chance.random() < 0.6
            try:
                if changes:
                    assert isinstance(known.value, GroupState)
                    known = await register.change("g", known, known.value.with_set([1 + chance.randrange(2)]))
                else:
                    known = await register.read("g")
            except RegisterUnknown:
                known = Registered()
            except (RegisterConflict, RegisterUnavailable, RegisterHeld):
                known = Registered()
            else:
                history.events.append(Event(began, history.tick(), known, changes))

    await asyncio.gather(*(client() for _ in range(3)))
    harness.heal()
    await harness.pass_seconds(LEASE_SECONDS)
    began = history.tick()
    last = await harness.register().read("g")
    history.events.append(Event(began, history.tick(), last, changed=False))
    history.check()
    return sum(event.changed for event in history.events)


def test_history_check_detects_unordered_history() -> None:
    history = History()
    one, two = Registered(1, "a", group()), Registered(2, "b", group())
    history.events = [Event(1, 2, two, changed=True), Event(3, 4, one, changed=False)]
    with pytest.raises(AssertionError):
        history.check()
    history.events = [Event(1, 4, two, changed=True), Event(2, 3, Registered(2, "c", group()), changed=True)]
    with pytest.raises(AssertionError):
        history.check()
