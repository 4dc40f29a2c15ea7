"""What machines have on their disks says which machine an actor belongs to, whatever the machine is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.actors.errors import BrokerUnavailable
from raymq.cluster.host_files import local_actor_names, locate_actor
from raymq.cluster.replica_placement import LAYOUT_FILE, place_replicas


def test_a_root_tells_whose_files_it_has(tmp_path: Path) -> None:
    for folder in ("broker-a/raymq", "broker-b.1/raymq", "broker-c", "broker-x.y/raymq", "keeper-9"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("name-server-0.json", "name-server-0.kv.json", "keeper-2.record", "raymq-cluster.json", "broker-d"):
        (tmp_path / file).touch()
    assert local_actor_names(tmp_path) == {"broker-a", "broker-b.1", "name-server-0", "keeper-2"}
    assert local_actor_names(tmp_path / "nothing") == set()


@pytest.mark.parametrize(
    ("written", "seen", "machine"),
    [
        (None, {}, None),
        ("h1", {}, "h1"),
        ("h1", {"h1": {"broker-b"}, "h2": set()}, "h1"),
        ("h1", {"h2": {"broker-a"}, "h3": {"broker-b"}}, "h2"),
        (None, {"h2": {"broker-a"}}, "h2"),
        ("h1", {"h1": {"broker-a"}, "h2": {"broker-a"}}, "h1"),
    ],
)
def test_disks_count_more_than_what_was_written(
    written: str | None, seen: dict[str, set[str]], machine: str | None
) -> None:
    assert locate_actor("broker-a", written, seen) == machine


def test_of_two_copies_none_is_guessed() -> None:
    with pytest.raises(BrokerUnavailable, match="h2, h3"):
        locate_actor("broker-a", "h1", {"h2": {"broker-a"}, "h3": {"broker-a"}})


def test_machines_with_other_names_have_the_brokers_that_their_disks_hold(tmp_path: Path) -> None:
    place_replicas(tmp_path, 2, 2, ["h1", "h2"])
    seen = {"new-1": {"broker-b", "broker-a.1"}, "new-2": {"broker-a", "broker-b.1"}}
    expected = {"broker-a": "new-2", "broker-b": "new-1", "broker-a.1": "new-1", "broker-b.1": "new-2"}
    assert place_replicas(tmp_path, 2, 2, ["new-1", "new-2"], seen) == expected
    assert json.loads((tmp_path / LAYOUT_FILE).read_text())["brokers"] == expected


def test_a_machine_that_is_away_is_missed_also_where_the_layout_is_gone(tmp_path: Path) -> None:
    """An empty broker in its place would hide that there are messages elsewhere."""
    seen = {"h1": {"broker-a"}, "h2": set[str]()}
    with pytest.raises(BrokerUnavailable, match=r"broker-b.*no machine has"):
        place_replicas(tmp_path, 2, 1, ["h1", "h2"], seen)
    place_replicas(tmp_path, 1, 1, ["h1", "h2"], seen)
    assert place_replicas(tmp_path, 2, 1, ["h1", "h2"], seen) == {"broker-a": "h1", "broker-b": "h2"}


def test_groups_that_have_more_replicas_on_disks_are_not_started_with_fewer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2, as the groups"):
        place_replicas(tmp_path, 1, 1, ["h1", "h2"], {"h1": {"broker-a"}, "h2": {"broker-a.1"}})
