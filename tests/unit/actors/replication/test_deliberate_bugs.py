"""Test that the model catches each deliberate bug, and accepts the same history without it."""

from __future__ import annotations

import pytest

from raymq.actors.errors import ProtocolError
from raymq.storage.errors import InvalidInput
from tests.unit.actors.replication.model.bugs import BUGS, SEEDS
from tests.unit.actors.replication.model.exploring import explore
from tests.unit.actors.replication.model.scenes import SCENES

#: The number of seeds tried from a bug's own seed on; the search ends at the first that reveals it.
MAX_SEEDS = 150
#: How a bug shows: a violated invariant, or a request that a state machine refuses.
CAUGHT = (AssertionError, InvalidInput, ProtocolError)


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize("name", sorted(BUGS.keys() - SCENES.keys()))
def test_model_catches_deliberate_bug(name: str) -> None:
    bug = BUGS[name]
    for seed in range(SEEDS.get(name, 0), SEEDS.get(name, 0) + MAX_SEEDS):
        try:
            explore(seed, {name}, faults=bug.faults, **bug.config)
        except CAUGHT:
            explore(seed, faults=bug.faults, **bug.config)
            return
    pytest.fail(f"{bug.what}: not caught")


@pytest.mark.parametrize("name", sorted(SCENES))
def test_scene_catches_deliberate_bug(name: str) -> None:
    SCENES[name](())
    with pytest.raises(CAUGHT):
        SCENES[name]({name})


def test_at_least_twelve_bugs_are_listed() -> None:
    assert len(BUGS) >= 12
    assert SCENES.keys() <= BUGS.keys()
