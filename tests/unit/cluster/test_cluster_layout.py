"""Test the saved cluster layout: which brokers a start restores after some were added or removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.actors.errors import InvalidInput, StoreCorrupt
from raymq.cluster import cluster_layout as layouts
from raymq.cluster.cluster_layout import LAYOUT_FILE, ClusterLayout
from raymq.cluster.replica_placement import least_loaded_machine, place_replicas

HOSTS = ["h1", "h2", "h3"]


def test_start_restores_added_replicas_but_not_removed_ones(tmp_path: Path) -> None:
    place_replicas(tmp_path, 2, 2, HOSTS)
    before = layouts.load(tmp_path)
    layouts.save(tmp_path, before.with_added({"broker-a.2": "h3"}).without("broker-a"), before)
    again = place_replicas(tmp_path, 2, 2, HOSTS)
    assert again == {"broker-b": "h2", "broker-a.1": "h2", "broker-b.1": "h3", "broker-a.2": "h3"}
    assert place_replicas(tmp_path, 2, 2, HOSTS) == again
    with pytest.raises(InvalidInput, match="2, as the groups"):
        place_replicas(tmp_path, 2, 1, HOSTS)


def test_removed_group_does_not_return_with_more_replicas(tmp_path: Path) -> None:
    """Cover a regression: the removed group returned with an empty second replica."""
    place_replicas(tmp_path, 2, 1, HOSTS)
    before = layouts.load(tmp_path)
    layouts.save(tmp_path, before.without(*before.replicas_of("broker-b")), before)
    assert place_replicas(tmp_path, 2, 1, HOSTS) == {"broker-a": "h1"}
    assert place_replicas(tmp_path, 3, 2, HOSTS).keys() == {"broker-a", "broker-c", "broker-a.1", "broker-c.1"}


def test_higher_replica_count_includes_added_groups(tmp_path: Path) -> None:
    """Cover a regression: an added group kept one copy after a start with two."""
    place_replicas(tmp_path, 1, 1, HOSTS)
    before = layouts.load(tmp_path)
    layouts.save(tmp_path, before.with_added({"broker-b": "h2", "broker-c": "h3"}).without("broker-c"), before)
    two = {"broker-a": "h1", "broker-a.1": "h2", "broker-b": "h2", "broker-b.1": "h3"}
    assert place_replicas(tmp_path, 1, 2, HOSTS) == two
    assert place_replicas(tmp_path, 1, 2, HOSTS) == two
    before = layouts.load(tmp_path)
    layouts.save(tmp_path, before.without("broker-b.1"), before)
    assert place_replicas(tmp_path, 1, 2, HOSTS).keys() == two.keys() - {"broker-b.1"}


def test_removed_replica_can_be_added_again() -> None:
    layout = ClusterLayout().with_added({"broker-a.2": "h"}).without("broker-a.2").with_added({"broker-a.2": "i"})
    assert layout.names(1, 1) == ["broker-a", "broker-a.2"]
    assert (layout.machines["broker-a.2"], layout.removed) == ("i", frozenset())


def test_next_group_name_follows_all_used_names() -> None:
    assert ClusterLayout().next_group(2) == "broker-c"
    assert ClusterLayout({"broker-d": "h"}).next_group(2) == "broker-e"
    assert ClusterLayout().with_added({"broker-z": "h"}).without("broker-z").next_group(2) == "broker-aa"


def test_layout_is_read_as_saved(tmp_path: Path) -> None:
    layout = ClusterLayout({"broker-a": "h"}, 2).with_added({"broker-b": "i"}).without("broker-c")
    layout = layout.with_change("broker-a", {"verb": "add", "new": "broker-a.2"})
    layouts.save(tmp_path, layout, ClusterLayout())
    assert layouts.load(tmp_path) == layout
    assert layout.with_change("broker-a", None).pending_changes == {}
    (tmp_path / LAYOUT_FILE).write_text(json.dumps({"brokers": {"broker-a": "h"}}))
    assert layouts.load(tmp_path) == ClusterLayout({"broker-a": "h"}), "an earlier version"
    for file in tmp_path.iterdir():
        file.write_text(json.dumps({"added": ["../broker-a"]}))
    with pytest.raises(StoreCorrupt):
        layouts.load(tmp_path)


def test_directories_of_removed_replicas_are_ignored(tmp_path: Path) -> None:
    place_replicas(tmp_path, 1, 2, HOSTS)
    before = layouts.load(tmp_path)
    layouts.save(tmp_path, before.with_added({"broker-a.2": "h3"}).without("broker-a"), before)
    seen = {"h1": {"broker-a", "broker-a.4"}, "h2": {"broker-a.1"}, "h3": {"broker-a.2"}}
    assert place_replicas(tmp_path, 1, 2, HOSTS, seen) == {"broker-a.1": "h2", "broker-a.2": "h3"}


def test_new_replica_goes_to_the_least_loaded_machine() -> None:
    layout = ClusterLayout({"broker-a": "h1", "broker-b": "h2", "broker-c": "h2"})
    assert least_loaded_machine(layout, "broker-a", HOSTS) == "h3"
    assert least_loaded_machine(layout, "broker-a", ["h1", "h2"]) == "h2"


@pytest.mark.parametrize("field", ["brokers", "added", "removed"])
def test_invalid_broker_name_in_the_layout_is_refused(tmp_path: Path, field: str) -> None:
    """Cover a regression: `broker add` looked forever for the next name."""
    name = "broker-" + "z" * 30
    (tmp_path / LAYOUT_FILE).write_text(json.dumps({field: {name: "h1"} if field == "brokers" else [name]}))
    with pytest.raises(StoreCorrupt, match="not the names of brokers"):
        layouts.load(tmp_path)
