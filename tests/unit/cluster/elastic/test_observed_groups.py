"""Test how broker reports become groups: available replicas, the master, and missing replicas."""

from __future__ import annotations

import pytest

from raymq.actors.protocol import BrokerInfo
from raymq.cluster.elastic.observed_groups import observe_groups


def info(
    name: str,
    replica: int = 0,
    *,
    role: str = "master",
    state: str = "running",
    epoch: int = 1,
    in_sync: list[int] | None = None,
    lag: int | None = 0,
) -> BrokerInfo:
    return BrokerInfo(
        name, replica, role, state, epoch, "h:1", 100 + replica, "", "", 0.1, in_sync=in_sync, lag_bytes=lag
    )


def test_unreplicated_broker_is_healthy_when_it_answers() -> None:
    assert observe_groups(["broker-a"], [info("broker-a", lag=None)])["broker-a"].trouble == ""
    assert observe_groups(["broker-a"], [])["broker-a"].trouble == "broker-a does not answer"
    gone = info("broker-a", state="unreachable")
    assert observe_groups(["broker-a"], [gone])["broker-a"].trouble == "broker-a does not answer"


@pytest.mark.parametrize(
    ("told", "trouble"),
    [
        ([info("broker-a", in_sync=[0, 1]), info("broker-a", 1, role="replica", in_sync=[0, 1])], ""),
        ([info("broker-a", in_sync=[0, 1])], "broker-a.1 does not answer"),
        (
            [info("broker-a", in_sync=[0]), info("broker-a", 1, role="replica", in_sync=[0, 1], lag=5 << 20)],
            "broker-a.1 is not in sync: 5 MiB behind",
        ),
        (
            [info("broker-a", in_sync=[0, 1]), info("broker-a", 1, role="replica", in_sync=[0, 1], lag=None)],
            "broker-a.1 is not in sync",
        ),
        (
            [info("broker-a", role="replica", in_sync=[0, 1]), info("broker-a", 1, role="replica", in_sync=[0, 1])],
            "broker-a has no master",
        ),
        (
            [info("broker-a", in_sync=[0, 1]), info("broker-a", 1, state="refused", role="replica", in_sync=[0, 1])],
            "broker-a.1 does not answer",
        ),
    ],
)
def test_trouble_of_a_replicated_group_is_described(told: list[BrokerInfo], trouble: str) -> None:
    assert observe_groups(["broker-a", "broker-a.1"], told)["broker-a"].trouble == trouble


def test_master_with_the_larger_epoch_wins() -> None:
    infos = [info("broker-a", in_sync=[0, 1]), info("broker-a", 1, epoch=2, in_sync=[1])]
    group = observe_groups(["broker-a", "broker-a.1"], infos)["broker-a"]
    assert group.master is not None
    assert (group.master.name, group.in_sync) == ("broker-a.1", frozenset({1}))


def test_replicas_are_assigned_to_their_groups() -> None:
    groups = observe_groups(["broker-a", "broker-aa", "broker-aa.1"], [info("broker-a", lag=None)])
    assert {name: sorted(each.replicas) for name, each in groups.items()} == {"broker-a": [0], "broker-aa": [0, 1]}
