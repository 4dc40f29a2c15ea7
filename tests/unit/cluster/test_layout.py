"""What is written down of brokers: which a start brings back after others were added and taken away by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.actors.errors import InvalidInput, StoreCorrupt
from raymq.cluster import cluster_layout as noted
from raymq.cluster.cluster_layout import LAYOUT_FILE, ClusterLayout
from raymq.cluster.replica_placement import least_loaded_machine, place_replicas

HOSTS = ["h1", "h2", "h3"]


def test_a_start_brings_back_what_was_added_and_not_what_was_taken_away(tmp_path: Path) -> None:
    place_replicas(tmp_path, 2, 2, HOSTS)
    before = noted.load(tmp_path)
    noted.save(tmp_path, before.with_added({"broker-a.2": "h3"}).without("broker-a"), before)
    again = place_replicas(tmp_path, 2, 2, HOSTS)
    assert again == {"broker-b": "h2", "broker-a.1": "h2", "broker-b.1": "h3", "broker-a.2": "h3"}
    assert place_replicas(tmp_path, 2, 2, HOSTS) == again
    with pytest.raises(InvalidInput, match="2, as the groups"):
        place_replicas(tmp_path, 2, 1, HOSTS)


def test_a_group_that_was_taken_away_does_not_come_back_with_replicas_that_it_never_had(tmp_path: Path) -> None:
    """It came with an empty store, as its second replica, when the others were given one."""
    place_replicas(tmp_path, 2, 1, HOSTS)
    before = noted.load(tmp_path)
    noted.save(tmp_path, before.without(*before.replicas_of("broker-b")), before)
    assert place_replicas(tmp_path, 2, 1, HOSTS) == {"broker-a": "h1"}
    assert place_replicas(tmp_path, 3, 2, HOSTS).keys() == {"broker-a", "broker-c", "broker-a.1", "broker-c.1"}


def test_more_copies_are_made_of_groups_that_were_added_by_hand_as_well(tmp_path: Path) -> None:
    """They stayed the only copies of what they had, in a cluster that was started with two of each group."""
    place_replicas(tmp_path, 1, 1, HOSTS)
    before = noted.load(tmp_path)
    noted.save(tmp_path, before.with_added({"broker-b": "h2", "broker-c": "h3"}).without("broker-c"), before)
    two = {"broker-a": "h1", "broker-a.1": "h2", "broker-b": "h2", "broker-b.1": "h3"}
    assert place_replicas(tmp_path, 1, 2, HOSTS) == two
    assert place_replicas(tmp_path, 1, 2, HOSTS) == two
    before = noted.load(tmp_path)
    noted.save(tmp_path, before.without("broker-b.1"), before)
    assert place_replicas(tmp_path, 1, 2, HOSTS).keys() == two.keys() - {"broker-b.1"}


def test_what_was_taken_away_may_come_again() -> None:
    layout = ClusterLayout().with_added({"broker-a.2": "h"}).without("broker-a.2").with_added({"broker-a.2": "i"})
    assert layout.names(1, 1) == ["broker-a", "broker-a.2"]
    assert (layout.machines["broker-a.2"], layout.removed) == ("i", frozenset())


def test_a_group_is_named_after_all_that_ever_were() -> None:
    assert ClusterLayout().next_group(2) == "broker-c"
    assert ClusterLayout({"broker-d": "h"}).next_group(2) == "broker-e"
    assert ClusterLayout().with_added({"broker-z": "h"}).without("broker-z").next_group(2) == "broker-aa"


def test_what_is_written_down_is_read_again(tmp_path: Path) -> None:
    layout = ClusterLayout({"broker-a": "h"}, 2).with_added({"broker-b": "i"}).without("broker-c")
    layout = layout.with_change("broker-a", {"verb": "add", "new": "broker-a.2"})
    noted.save(tmp_path, layout, ClusterLayout())
    assert noted.load(tmp_path) == layout
    assert layout.with_change("broker-a", None).pending_changes == {}
    (tmp_path / LAYOUT_FILE).write_text(json.dumps({"brokers": {"broker-a": "h"}}))
    assert noted.load(tmp_path) == ClusterLayout({"broker-a": "h"}), "an earlier version"
    for file in tmp_path.iterdir():
        file.write_text(json.dumps({"added": ["../broker-a"]}))
    with pytest.raises(StoreCorrupt):
        noted.load(tmp_path)


def test_directories_of_what_was_taken_away_are_not_in_the_way(tmp_path: Path) -> None:
    place_replicas(tmp_path, 1, 2, HOSTS)
    before = noted.load(tmp_path)
    noted.save(tmp_path, before.with_added({"broker-a.2": "h3"}).without("broker-a"), before)
    seen = {"h1": {"broker-a", "broker-a.4"}, "h2": {"broker-a.1"}, "h3": {"broker-a.2"}}
    assert place_replicas(tmp_path, 1, 2, HOSTS, seen) == {"broker-a.1": "h2", "broker-a.2": "h3"}


def test_one_more_replica_comes_where_there_is_most_room() -> None:
    layout = ClusterLayout({"broker-a": "h1", "broker-b": "h2", "broker-c": "h2"})
    assert least_loaded_machine(layout, "broker-a", HOSTS) == "h3"
    assert least_loaded_machine(layout, "broker-a", ["h1", "h2"]) == "h2"


@pytest.mark.parametrize("field", ["brokers", "added", "removed"])
def test_names_that_no_broker_has_are_told_and_not_counted_up_to(tmp_path: Path, field: str) -> None:
    """`broker add` was looking for the name behind them for ever."""
    name = "broker-" + "z" * 30
    (tmp_path / LAYOUT_FILE).write_text(json.dumps({field: {name: "h1"} if field == "brokers" else [name]}))
    with pytest.raises(StoreCorrupt, match="not the names of brokers"):
        noted.load(tmp_path)
