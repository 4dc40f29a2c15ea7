"""Test that the files on its disks decide which actors belong to a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.actors.errors import BrokerUnavailable
from raymq.cluster.host_files import local_actor_names, locate_actor
from raymq.cluster.replica_placement import LAYOUT_FILE, place_replicas


def test_local_actor_names_are_read_from_the_root(tmp_path: Path) -> None:
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
def test_files_on_disk_override_the_saved_layout(
    written: str | None, seen: dict[str, set[str]], machine: str | None
) -> None:
    assert locate_actor("broker-a", written, seen) == machine


def test_two_copies_of_an_actor_raise_an_error() -> None:
    with pytest.raises(BrokerUnavailable, match="h2, h3"):
        locate_actor("broker-a", "h1", {"h2": {"broker-a"}, "h3": {"broker-a"}})


def test_brokers_follow_their_files_to_renamed_machines(tmp_path: Path) -> None:
    place_replicas(tmp_path, 2, 2, ["h1", "h2"])
    seen = {"new-1": {"broker-b", "broker-a.1"}, "new-2": {"broker-a", "broker-b.1"}}
    expected = {"broker-a": "new-2", "broker-b": "new-1", "broker-a.1": "new-1", "broker-b.1": "new-2"}
    assert place_replicas(tmp_path, 2, 2, ["new-1", "new-2"], seen) == expected
    assert json.loads((tmp_path / LAYOUT_FILE).read_text())["brokers"] == expected


def test_missing_machine_is_noticed_without_a_layout(tmp_path: Path) -> None:
    """An empty broker in its place would hide the messages on the missing machine."""
    seen = {"h1": {"broker-a"}, "h2": set[str]()}
    with pytest.raises(BrokerUnavailable, match=r"broker-b.*no machine has"):
        place_replicas(tmp_path, 2, 1, ["h1", "h2"], seen)
    place_replicas(tmp_path, 1, 1, ["h1", "h2"], seen)
    assert place_replicas(tmp_path, 2, 1, ["h1", "h2"], seen) == {"broker-a": "h1", "broker-b": "h2"}


def test_group_is_not_started_with_fewer_replicas_than_on_disk(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2, as the groups"):
        place_replicas(tmp_path, 1, 1, ["h1", "h2"], {"h1": {"broker-a"}, "h2": {"broker-a.1"}})
