"""Who takes over from the masters of a machine that is taken down."""

from __future__ import annotations

import pytest

from raymq.actors.protocol import BrokerInfo
from raymq.cluster.leaving import successor


def replica(number: int, state: str = "running", in_sync: list[int] | None = None) -> BrokerInfo:
    role = "replica" if number else "master"
    return BrokerInfo("broker-a", number, role, state, 1, "h:1", 1, f"node-{number}", "d", 0.1, in_sync=in_sync)


@pytest.mark.parametrize(
    ("in_sync", "states", "chosen"),
    [
        ([0, 1, 2], ["running", "running"], 1),
        ([0, 2], ["running", "running"], 2),
        ([0, 1, 2], ["unreachable", "running"], 2),
        ([0], ["running", "running"], None),
        ([0, 1], ["unreachable", "running"], None),
        (None, ["running", "running"], None),
    ],
)
def test_the_first_that_runs_and_is_in_sync(in_sync: list[int] | None, states: list[str], chosen: int | None) -> None:
    others = [replica(number, state) for number, state in enumerate(states, 1)]
    assert successor(replica(0, in_sync=in_sync), others) == chosen
