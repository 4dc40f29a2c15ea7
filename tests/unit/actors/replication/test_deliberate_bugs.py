"""Each deliberate bug is caught by the model, and without it the very same history is fine."""

from __future__ import annotations

import pytest

from raymq.actors.errors import ProtocolError
from raymq.storage.errors import InvalidInput
from tests.unit.actors.replication.model.bugs import BUGS, SEEDS
from tests.unit.actors.replication.model.exploring import explore
from tests.unit.actors.replication.model.scenes import SCENES

#: A bug shows within so many seeds from its own on; the search ends at the first that shows it.
MAX_SEEDS = 150
#: How a bug shows: an invariant, or a machine that refuses what it is asked for.
CAUGHT = (AssertionError, InvalidInput, ProtocolError)


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize("name", sorted(BUGS.keys() - SCENES.keys()))
def test_a_deliberate_bug_is_caught(name: str) -> None:
    bug = BUGS[name]
    for seed in range(SEEDS.get(name, 0), SEEDS.get(name, 0) + MAX_SEEDS):
        try:
            explore(seed, {name}, faults=bug.faults, **bug.config)
        except CAUGHT:
            explore(seed, faults=bug.faults, **bug.config)
            return
    pytest.fail(f"{bug.what}: not caught")


@pytest.mark.parametrize("name", sorted(SCENES))
def test_a_deliberate_bug_is_caught_in_its_scene(name: str) -> None:
    SCENES[name](())
    with pytest.raises(CAUGHT):
        SCENES[name]({name})


def test_there_are_enough_of_them() -> None:
    assert len(BUGS) >= 12
    assert SCENES.keys() <= BUGS.keys()
