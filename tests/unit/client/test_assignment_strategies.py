"""Test the queue allocation strategies: one owner per queue, even shares, and few moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue
from raymq.client.members.assignment_strategies import STRATEGIES, get_strategy

members = st.sets(st.text("abcdef0123456789", min_size=1, max_size=6), min_size=1, max_size=12)
Owners = Mapping[MessageQueue, str]


def queues_of(count: int, brokers: int = 2) -> list[MessageQueue]:
    return [MessageQueue("t", f"broker-{broker}", number) for broker in range(brokers) for number in range(count)]


def owners(name: str, queues: list[MessageQueue], names: set[str], before: Owners | None = None) -> Owners:
    shares = {member: STRATEGIES[name](queues, list(names), member, before or {}) for member in names}
    pairs = [(queue, member) for member, share in shares.items() for queue in share]
    assert len(pairs) == len(queues), "a queue has no owner, or two"
    return dict(pairs)


def fewest_moves(before: Owners, names: set[str]) -> int:
    """Return how many unowned or surplus queues must move for even shares."""
    held = Counter(owner for owner in before.values() if owner in names)
    share, more = divmod(len(before), len(names))
    kept = [min(held[name], share + 1) for name in names]
    above = sorted((count - share for count in kept if count > share), reverse=True)
    return len(before) - sum(kept) + len(above[more:])


@pytest.mark.parametrize("name", STRATEGIES)
@given(names=members, gone=members, count=st.integers(0, 40))
def test_every_queue_has_one_owner(name: str, names: set[str], gone: set[str], count: int) -> None:
    before = owners(name, queues_of(count), gone)
    owned = owners(name, queues_of(count), names, before)
    assert STRATEGIES[name](queues_of(count), list(names), "not a member", before) == []
    if name != "consistent-hash":
        shares = Counter(owned.values())
        sizes = [shares[member] for member in names]
        assert max(sizes) - min(sizes) <= 1


@given(names=members, others=members, count=st.integers(0, 40), rng=st.randoms())
def test_sticky_strategy_makes_the_fewest_moves(names: set[str], others: set[str], count: int, rng: Random) -> None:
    queues = queues_of(count)
    before = {queue: rng.choice(sorted(others)) for queue in queues}
    after = owners("sticky", queues, names, before)
    assert sum(after[queue] != before[queue] for queue in queues) == fewest_moves(before, names)
    assert owners("sticky", queues, names, after) == after


@given(names=members, others=members, count=st.integers(0, 40), rng=st.randoms())
def test_sticky_result_is_the_same_in_a_half_done_change(
    names: set[str], others: set[str], count: int, rng: Random
) -> None:
    queues = queues_of(count)
    before = owners("sticky", queues, others)
    after = owners("sticky", queues, names, before)
    halfway = {queue: rng.choice([before[queue], after[queue]]) for queue in queues}
    assert owners("sticky", queues, names, halfway) == after


@pytest.mark.parametrize("name", STRATEGIES)
def test_rolling_restart_moves_no_queue_needlessly(name: str) -> None:
    """Each member leaves and returns under a new id, and the moved queues are counted.

    A queue must move when its owner leaves, and when it belongs to the share of the new member.
    """
    queues = queues_of(40)
    names = {f"member-{number}" for number in range(10)}
    owned = owners(name, queues, names)
    moved = needed = 0
    for number in range(10):
        for change in ({f"member-{number}"}, {f"new-{number}"}):
            names = names ^ change
            found = owners(name, queues, names, owned)
            moved += sum(found[queue] != owned[queue] for queue in queues)
            needed += sum(owned[queue] not in names or found[queue] in change for queue in queues)
            owned = found
    print(f"{name}: {moved} queues moved in a rolling restart of 10 members, {needed} had to")
    if name == "average":
        assert moved > 2 * needed
    else:
        assert moved == needed


def test_unknown_strategy_is_refused() -> None:
    with pytest.raises(InvalidInput, match="sticky"):
        get_strategy("random")
