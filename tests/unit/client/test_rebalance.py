"""Sharing out: every queue has one owner, whatever the strategy; how even and how steady each is."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue
from raymq.client.rebalance import STRATEGIES, strategy_named

members = st.sets(st.text("abcdef0123456789", min_size=1, max_size=6), min_size=1, max_size=12)


def queues_of(count: int, brokers: int = 2) -> list[MessageQueue]:
    return [MessageQueue("t", f"broker-{broker}", number) for broker in range(brokers) for number in range(count)]


def owners(name: str, queues: list[MessageQueue], names: set[str]) -> dict[MessageQueue, str]:
    shares = {member: STRATEGIES[name](queues, list(names), member) for member in names}
    told = [(queue, member) for member, share in shares.items() for queue in share]
    assert len(told) == len(queues), "a queue has no owner, or two"
    return dict(told)


@pytest.mark.parametrize("name", STRATEGIES)
@given(names=members, count=st.integers(0, 40))
def test_every_queue_has_one_owner(name: str, names: set[str], count: int) -> None:
    owned = owners(name, queues_of(count), names)
    assert STRATEGIES[name](queues_of(count), list(names), "not a member") == []
    if name != "consistent-hash":
        shares = Counter(owned.values())
        sizes = [shares[member] for member in names]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_rolling_restart_of_ten_members(name: str) -> None:
    """Each member leaves and comes back under a new id: how many queues change hands, of 80 x 20 possible ones."""
    queues = queues_of(40)
    names = {f"member-{number}" for number in range(10)}
    owned = owners(name, queues, names)
    moved = needed = 0
    for number in range(10):
        for after in (names - {f"member-{number}"}, names - {f"member-{number}"} | {f"new-{number}"}):
            found = owners(name, queues, after)
            moved += sum(found[queue] != owned[queue] for queue in queues)
            gone = [queue for queue in queues if owned[queue] not in after]
            needed += len(gone) if len(after) < len(names) else sum(found[q] not in names for q in queues)
            owned, previous = found, names
            names = after if len(after) == len(previous) else names
    print(f"{name}: {moved} queues moved in a rolling restart of 10 members, {needed} had to")
    assert moved >= needed
    if name == "consistent-hash":
        assert moved == needed
    if name == "sticky":
        assert moved <= 2 * needed


def test_unknown_strategies_are_refused() -> None:
    with pytest.raises(InvalidInput, match="sticky"):
        strategy_named("random")
