"""Test the linearizability checker: it rejects exactly the histories that no order explains."""

from __future__ import annotations

import math
import random

import pytest

from tests.linearizable import Changed, Conflicted, LeaseInterval, Operation, Read, is_linearizable, overlapping_leases

GOOD: dict[str, list[Operation]] = {
    "nothing": [],
    "one after another": [Changed(0, 1, "", "a"), Read(2, 3, "a"), Changed(4, 5, "a", "b"), Read(6, 7, "b")],
    "a read beside a change sees either": [Changed(0, 9, "", "a"), Read(1, 2, ""), Read(3, 4, "a")],
    "what is not known was done": [Changed(0, math.inf, "", "a"), Read(5, 6, "a")],
    "what is not known is done later": [Changed(0, math.inf, "", "a"), Read(5, 6, ""), Read(7, 8, "a")],
    "what is not known is never done": [Changed(0, math.inf, "", "a"), Changed(5, 6, "", "b"), Read(7, 8, "b")],
    "a conflict with what came between": [Changed(0, 5, "", "a"), Conflicted(1, 6, ""), Read(7, 8, "a")],
    "the order of two that overlap is free": [Changed(0, 9, "a", "b"), Changed(1, 8, "", "a"), Read(10, 11, "b")],
}
BAD: dict[str, list[Operation]] = {
    "lost": [Changed(0, 1, "", "a"), Read(2, 3, "")],
    "read backwards": [Changed(0, 9, "", "a"), Read(1, 2, "a"), Read(3, 4, "")],
    "two from one value": [Changed(0, 9, "", "a"), Changed(0, 9, "", "b")],
    "read what nobody wrote": [Changed(0, 1, "", "a"), Read(2, 3, "x")],
    "a conflict with nothing": [Changed(0, 1, "", "a"), Conflicted(2, 3, "a"), Read(4, 5, "a")],
    "what is not known was done twice": [
        Changed(0, math.inf, "", "a"),
        Changed(1, 2, "a", "b"),
        Read(3, 4, "a"),
    ],
    "before it began": [Read(0, 1, "a"), Changed(2, math.inf, "", "a")],
}


@pytest.mark.parametrize("name", GOOD)
def test_linearizable_histories_are_accepted(name: str) -> None:
    assert is_linearizable(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_non_linearizable_histories_are_rejected(name: str) -> None:
    assert not is_linearizable(BAD[name])


def test_wrong_read_in_a_long_history_is_found() -> None:
    chance = random.Random(1)
    state, history = "", list[Operation]()
    for count in range(400):
        at = count + chance.random()
        wide = chance.random() * 4
        match chance.randrange(4):
            case 0:
                history.append(Changed(at - wide, at + wide, state, f"v{count}"))
                state = f"v{count}"
            case 1:
                history.append(Changed(at - wide, math.inf, "never", f"x{count}"))
            case 2:
                history.append(Conflicted(at - wide, at + wide, "never"))
            case _:
                history.append(Read(at - wide, at + wide, state))
    assert is_linearizable(history)
    first = next(each for each in history if isinstance(each, Changed) and each.before != "never")
    assert not is_linearizable([*history, Read(500.0, 501.0, first.value)])


def test_overlapping_leases_are_found() -> None:
    assert (
        overlapping_leases(
            [LeaseInterval("a", 0, 2), LeaseInterval("a", 1, 3), LeaseInterval("b", 3, 5), LeaseInterval("c", 4.5, 4.2)]
        )
        == []
    )
    (pair,) = overlapping_leases([LeaseInterval("a", 0, 2), LeaseInterval("a", 1, 3), LeaseInterval("b", 2.9, 5)])
    assert {each.holder for each in pair} == {"a", "b"}
