"""Test the placement of replicas: on different machines, and where they were before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.cluster.bootstrap import shared_machine_warning, single_name_server_warning
from raymq.cluster.cluster_layout import ClusterLayout, save
from raymq.cluster.replica_placement import LAYOUT_FILE, name_server_ports, place_replicas


def test_replicas_of_a_group_are_on_different_machines(tmp_path: Path) -> None:
    placed = place_replicas(tmp_path, 3, 2, ["h1", "h2", "h3"])
    assert placed == {
        "broker-a": "h1",
        "broker-b": "h2",
        "broker-c": "h3",
        "broker-a.1": "h2",
        "broker-b.1": "h3",
        "broker-c.1": "h1",
    }


def test_unreplicated_groups_are_spread_over_machines(tmp_path: Path) -> None:
    assert place_replicas(tmp_path, 3, 1, ["h1", "h2"]) == {"broker-a": "h1", "broker-b": "h2", "broker-c": "h1"}
    assert json.loads((tmp_path / LAYOUT_FILE).read_text())["brokers"].keys() == {"broker-a", "broker-b", "broker-c"}


def test_replica_stays_on_the_machine_of_its_directory(tmp_path: Path) -> None:
    before = place_replicas(tmp_path, 1, 2, ["h1", "h2"])
    assert place_replicas(tmp_path, 1, 2, ["h0", "h1", "h2"]) == before
    assert place_replicas(tmp_path, 2, 3, ["h0", "h1", "h2"]).items() >= before.items()
    with pytest.raises(BrokerUnavailable, match=r"broker-a\.1.*h2"):
        place_replicas(tmp_path, 2, 3, ["h0", "h1"])


def test_further_replicas_go_to_other_machines(tmp_path: Path) -> None:
    """Cover a regression: a start on another machine put the second copy beside the first.

    The starting machine is first in the list; its loss would have taken both copies.
    """
    assert place_replicas(tmp_path, 1, 1, ["h1", "h0"]) == {"broker-a": "h1"}
    assert place_replicas(tmp_path, 1, 2, ["h0", "h1"]) == {"broker-a": "h1", "broker-a.1": "h0"}
    by_hand = ClusterLayout().with_added({"broker-b": "h2", "broker-b.1": "h0"})
    (tmp_path / "other").mkdir()
    save(tmp_path / "other", by_hand, ClusterLayout())
    placed = place_replicas(tmp_path / "other", 2, 3, ["h0", "h1", "h2"])
    assert placed["broker-b.2"] == "h1"
    assert placed["broker-a.2"] == "h2"


def test_group_is_not_started_with_fewer_replicas_than_before(tmp_path: Path) -> None:
    """A single replica may lack acknowledged messages."""
    place_replicas(tmp_path, 2, 3, ["h1"])
    with pytest.raises(InvalidInput, match="3, as the groups") as refused:
        place_replicas(tmp_path, 2, 1, ["h1"])
    assert refused.value.field == "replicas"
    place_replicas(tmp_path, 2, 3, ["another name of the one machine"])


def test_unreplicated_group_can_get_more_replicas(tmp_path: Path) -> None:
    place_replicas(tmp_path, 1, 1, ["h1"])
    assert place_replicas(tmp_path, 1, 2, ["h1", "h2"]) == {"broker-a": "h1", "broker-a.1": "h2"}


@pytest.mark.parametrize(("replicas", "machines"), [(1, 1), (2, 2), (2, 5)])
def test_replicas_on_different_machines_give_no_warning(replicas: int, machines: int) -> None:
    assert shared_machine_warning(replicas, machines) is None


def test_replicas_that_share_a_machine_give_a_warning() -> None:
    assert "share 1 machine:" in str(shared_machine_warning(2, 1))
    assert "share 2 machines:" in str(shared_machine_warning(3, 2))


def test_each_machine_has_one_name_server_at_the_given_port() -> None:
    assert name_server_ports(["h1", "h2", "h3"], 9876) == [9876] * 3
    assert name_server_ports(["h1", "h2", "h1", "h3"], 9876) == [9876, 9876, 0, 9876]
    assert name_server_ports(["h1", "h2"], 0) == [0, 0]


def test_single_name_server_for_many_machines_gives_a_warning() -> None:
    assert "one name server" in str(single_name_server_warning(2, 1, 2))
    assert [single_name_server_warning(*each) for each in ((1, 1, 3), (2, 1, 1), (2, 2, 3))] == [None] * 3
