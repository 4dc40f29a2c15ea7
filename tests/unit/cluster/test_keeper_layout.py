"""Test the number of keepers, their saved layout, and their reported state."""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.wire.commands.keeper_commands import KeeperStatus
from raymq.client.admin.cluster_info import keepers_of
from raymq.cluster import keeper_bootstrap
from raymq.cluster.keeper_bootstrap import KeeperLayout, keeper_count
from raymq.storage.errors import StoreCorrupt
from raymq.storage.files import json_file


@pytest.mark.parametrize(("hosts", "count"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (50, 5)])
def test_keeper_count_depends_on_the_number_of_hosts(hosts: int, count: int) -> None:
    assert keeper_count(hosts) == count
    layout = KeeperLayout.initial([f"broker_h{each}" for each in range(hosts)])
    assert list(layout.resources) == list(range(1, count + 1))
    assert len(set(layout.resources.values())) == count, "each on a host of its own"
    assert len(set(layout.incarnations.values())) == count


def test_keeper_layout_is_read_as_written(tmp_path: Path) -> None:
    file = tmp_path / keeper_bootstrap.LAYOUT_FILE
    assert json_file.load_as(file, KeeperLayout.from_json) is None
    initial = KeeperLayout.initial(["a", "b", "c"])
    known = KeeperSet(4, {1: KeeperMember("h:1", "x")}, {1: KeeperMember("h:1", "x"), 2: KeeperMember("h:2", "y")})
    for layout in (initial, KeeperLayout(initial.resources, initial.incarnations, is_registered=True, known=known)):
        json_file.save(file, layout.to_json(), KeeperLayout.from_json)
        assert json_file.load_as(file, KeeperLayout.from_json) == layout


@pytest.mark.parametrize("text", ['{"resources": {}}', '{"resources": 5, "incarnations": {}, "known": 1}'])
def test_invalid_keeper_layout_raises_store_corrupt(tmp_path: Path, text: str) -> None:
    (tmp_path / keeper_bootstrap.LAYOUT_FILE).write_text(text)
    with pytest.raises(StoreCorrupt):
        json_file.load_as(tmp_path / keeper_bootstrap.LAYOUT_FILE, KeeperLayout.from_json)


def test_keepers_with_a_missing_machine_are_not_created(tmp_path: Path) -> None:
    file = tmp_path / keeper_bootstrap.LAYOUT_FILE
    json_file.save(file, KeeperLayout.initial(["a", "b", "c"]).to_json(), KeeperLayout.from_json)
    with pytest.raises(BrokerUnavailable, match="b"):
        keeper_bootstrap.make("x", tmp_path, [("a", "127.0.0.1"), ("c", "127.0.0.1"), ("d", "127.0.0.1")], None, {})


def status(
    number: int, incarnation: str, state: str = "running", *, newest: int = 1, members: str = "abc"
) -> KeeperStatus:
    return KeeperStatus(number, incarnation, state, 100 + number, newest, dict(enumerate(members, 1)))


ADDRESSES = {1: "h:1", 2: "h:2", 3: "h:3"}


def test_voters_are_the_voting_members_of_the_newest_set() -> None:
    statuses = {1: status(1, "a"), 2: status(2, "b", "quiet"), 3: None}
    found = keepers_of(ADDRESSES, statuses)
    assert [(each.id, each.pid, each.voter, each.state) for each in found] == [
        (1, 101, True, "running"),
        (2, 102, True, "quiet"),
        (3, None, True, "unreachable"),
    ]
    # Keeper 3 was removed and does not know it; keeper 2 was replaced, and the former one still answers.
    statuses = {1: status(1, "a", newest=7, members="ax"), 2: status(2, "b"), 3: status(3, "c")}
    assert [each.voter for each in keepers_of(ADDRESSES, statuses)] == [True, False, False]
    statuses = {1: status(1, "", "empty", newest=0), 2: status(2, "b", "older copy"), 3: status(3, "c", "failed")}
    assert [each.voter for each in keepers_of(ADDRESSES, statuses)] == [False, False, False]
    assert [each.voter for each in keepers_of(ADDRESSES, dict.fromkeys(ADDRESSES))] == [None, None, None]
