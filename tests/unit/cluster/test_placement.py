"""Where the replicas of broker groups are: on as many machines as there are, and where they were before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.cluster.bootstrap import shared_machine_warning, single_name_server_warning
from raymq.cluster.cluster_layout import ClusterLayout, save
from raymq.cluster.replica_placement import LAYOUT_FILE, name_server_ports, place_replicas


def test_each_replica_of_a_group_is_on_a_machine_of_its_own_and_the_first_ones_are_spread(tmp_path: Path) -> None:
    placed = place_replicas(tmp_path, 3, 2, ["h1", "h2", "h3"])
    assert placed == {
        "broker-a": "h1",
        "broker-b": "h2",
        "broker-c": "h3",
        "broker-a.1": "h2",
        "broker-b.1": "h3",
        "broker-c.1": "h1",
    }


def test_groups_of_one_copy_are_placed_as_ever(tmp_path: Path) -> None:
    assert place_replicas(tmp_path, 3, 1, ["h1", "h2"]) == {"broker-a": "h1", "broker-b": "h2", "broker-c": "h1"}
    assert json.loads((tmp_path / LAYOUT_FILE).read_text())["brokers"].keys() == {"broker-a", "broker-b", "broker-c"}


def test_a_replica_stays_where_its_directory_is(tmp_path: Path) -> None:
    before = place_replicas(tmp_path, 1, 2, ["h1", "h2"])
    assert place_replicas(tmp_path, 1, 2, ["h0", "h1", "h2"]) == before
    assert place_replicas(tmp_path, 2, 3, ["h0", "h1", "h2"]).items() >= before.items()
    with pytest.raises(BrokerUnavailable, match=r"broker-a\.1.*h2"):
        place_replicas(tmp_path, 2, 3, ["h0", "h1"])


def test_further_copies_are_on_other_machines_wherever_the_first_ones_are(tmp_path: Path) -> None:
    """Who starts the cluster comes first among the machines: a start on another one put the second copy beside the
    first, and the loss of that machine would have taken both.
    """
    assert place_replicas(tmp_path, 1, 1, ["h1", "h0"]) == {"broker-a": "h1"}
    assert place_replicas(tmp_path, 1, 2, ["h0", "h1"]) == {"broker-a": "h1", "broker-a.1": "h0"}
    by_hand = ClusterLayout().with_added({"broker-b": "h2", "broker-b.1": "h0"})
    (tmp_path / "other").mkdir()
    save(tmp_path / "other", by_hand, ClusterLayout())
    placed = place_replicas(tmp_path / "other", 2, 3, ["h0", "h1", "h2"])
    assert placed["broker-b.2"] == "h1"
    assert placed["broker-a.2"] == "h2"


def test_a_group_that_had_more_replicas_is_not_started_with_fewer(tmp_path: Path) -> None:
    """One of them alone may lack what was acknowledged."""
    place_replicas(tmp_path, 2, 3, ["h1"])
    with pytest.raises(InvalidInput, match="3, as the groups") as refused:
        place_replicas(tmp_path, 2, 1, ["h1"])
    assert refused.value.field == "replicas"
    place_replicas(tmp_path, 2, 3, ["another name of the one machine"])


def test_a_group_of_one_copy_may_get_more(tmp_path: Path) -> None:
    place_replicas(tmp_path, 1, 1, ["h1"])
    assert place_replicas(tmp_path, 1, 2, ["h1", "h2"]) == {"broker-a": "h1", "broker-a.1": "h2"}


@pytest.mark.parametrize(("replicas", "machines"), [(1, 1), (2, 2), (2, 5)])
def test_replicas_on_machines_of_their_own_need_no_warning(replicas: int, machines: int) -> None:
    assert shared_machine_warning(replicas, machines) is None


def test_replicas_that_share_machines_are_told_of() -> None:
    assert "share 1 machine:" in str(shared_machine_warning(2, 1))
    assert "share 2 machines:" in str(shared_machine_warning(3, 2))


def test_each_machine_has_a_name_server_at_the_port_that_was_asked_for() -> None:
    assert name_server_ports(["h1", "h2", "h3"], 9876) == [9876] * 3
    assert name_server_ports(["h1", "h2", "h1", "h3"], 9876) == [9876, 9876, 0, 9876]
    assert name_server_ports(["h1", "h2"], 0) == [0, 0]


def test_replicas_on_several_machines_with_one_name_server_are_told_of() -> None:
    assert "one name server" in str(single_name_server_warning(2, 1, 2))
    assert [single_name_server_warning(*each) for each in ((1, 1, 3), (2, 1, 1), (2, 2, 3))] == [None] * 3
