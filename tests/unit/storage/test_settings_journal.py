"""Test that a settings change costs only itself, and is not lost on the way to the disk."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from raymq.storage.errors import StoreError, StoreFailed, StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.tables.group_config import GroupConfig, GroupConfigs
from raymq.storage.tables.topic_config import TopicConfig, TopicConfigs
from tests.faulty_calls import FaultyCalls, UnsyncedCalls
from tests.state_journals import open_table, open_tables


def open_topics(tmp_path: Path, count: int) -> TopicConfigs:
    topics = open_table(tmp_path, TopicConfigs())
    topics.put(*(TopicConfig(f"t{number}", 4, 4) for number in range(count)))
    return topics


def killed(tmp_path: Path) -> TopicConfigs:
    """Return what a start after a kill finds."""
    return open_table(tmp_path, TopicConfigs(), writable=False)


def bytes_in(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in (tmp_path / "raymq" / "state").iterdir())


def test_change_cost_does_not_grow_with_the_table(tmp_path: Path) -> None:
    # Each change of a topic used to write the whole table twice, on the broker's event loop.
    topics = open_topics(tmp_path, 2_000)
    before = bytes_in(tmp_path)
    with replaced(calls := FaultyCalls()):
        topics.put_soon(TopicConfig("new", 4, 4))
        assert topics.delete_soon("t7")
        assert calls.counts["rename"] == calls.counts["fsync"] == calls.counts["fdatasync"] == 0
        assert calls.counts["write"] == 2
        topics.sync()
        assert calls.counts["fdatasync"] == 1
        topics.sync()
        assert calls.counts["fdatasync"] == 1, "nothing was changed since"
    assert bytes_in(tmp_path) - before < 1_000
    assert killed(tmp_path).all() == topics.all()


@pytest.mark.parametrize("seed", range(20))
def test_table_survives_a_kill_at_any_point(tmp_path: Path, seed: int) -> None:
    # A snapshot may be written at any time, or never.
    rng = random.Random(seed)
    with replaced(UnsyncedCalls()):
        journal = open_tables(tmp_path, topics := TopicConfigs())
        for _ in range(60):
            name = f"t{rng.randrange(6)}"
            match rng.randrange(6):
                case 0 | 1:
                    topics.put_soon(TopicConfig(name, rng.randrange(1, 9), 1))
                case 2:
                    topics.delete_soon(name)
                case 3:
                    topics.replace_in_background("later", rng.randrange(9))
                case 4 if rng.random() < 0.5:
                    journal.compact()
                case 5 if rng.random() < 0.2:
                    journal.close(compact=rng.random() < 0.5)
                    journal = open_tables(tmp_path, again := TopicConfigs())
                    assert (again.all(), again.version) == (topics.all(), topics.version)
                    topics = again
            found = killed(tmp_path)
            assert (found.to_json(), found.version) == (topics.to_json(), topics.version)
            ids = {name: each.topic_id for name, each in topics.all().items()}
            assert {name: each.topic_id for name, each in found.all().items()} == ids
        journal.close(compact=True)
        assert killed(tmp_path).all() == topics.all()


def test_change_refused_by_a_full_disk_is_not_made(tmp_path: Path) -> None:
    topics = open_topics(tmp_path, 3)
    before = topics.all(), topics.version
    for refused in (
        lambda: topics.put(TopicConfig("new", 1, 1)),
        lambda: topics.delete("t0"),
        lambda: topics.replace_in_background("later", 1),
    ):
        for kind in ("write", "short_write"):
            with replaced(FaultyCalls(kind, 1, errno.ENOSPC)), pytest.raises(StoreFull):
                refused()
            assert (topics.all(), topics.version) == before
            assert killed(tmp_path).to_json() == topics.to_json()
    topics.put(TopicConfig("new", 1, 1))
    assert killed(tmp_path).get("new") is not None


def test_failed_sync_is_reported_to_the_store(tmp_path: Path) -> None:
    failures: list[StoreError] = []
    topics = TopicConfigs()
    StateJournal(tmp_path / "state", [topics], writable=True, on_failure=failures.append)
    with replaced(FaultyCalls("fdatasync", 1, errno.EIO)), pytest.raises(StoreFailed):
        topics.put(TopicConfig("new", 1, 1))
    assert len(failures) == 1
    with pytest.raises(StoreFailed):
        topics.put_soon(TopicConfig("another", 1, 1))
    assert topics.get("another") is None


def test_changes_since_any_version_are_known(tmp_path: Path) -> None:
    topics = open_topics(tmp_path, 5)
    known = {}
    for number in range(10):
        known[topics.version] = topics.all()
        topics.delete_soon(f"t{number % 3}") or topics.put_soon(TopicConfig(f"t{number}", number + 1, 1))
    for version, then in known.items():
        changed = topics.changed_since(version)
        assert changed is not None
        now = topics.all()
        assert {name for name in then.keys() | now.keys() if then.get(name) != now.get(name)} <= set(changed)
    assert topics.changed_since(topics.version) == []


def test_changes_before_a_start_are_not_known(tmp_path: Path) -> None:
    before = open_topics(tmp_path, 5).version
    topics = open_table(tmp_path, TopicConfigs())
    topics.end_loading()
    assert topics.version == before
    assert topics.changed_since(before) == []
    topics.put_soon(TopicConfig("t1", 1, 1))
    assert topics.changed_since(before) == ["t1"]
    assert topics.changed_since(type(before)(before.counter - 1)) is None


def test_forbidden_permissions_survive_a_kill(tmp_path: Path) -> None:
    journal = open_tables(tmp_path, groups := GroupConfigs())
    groups.forbid("g", "t", 1)
    assert open_table(tmp_path, GroupConfigs(), writable=False).forbidden == {"g": {"t": 1}}
    journal.compact()
    assert open_table(tmp_path, GroupConfigs(), writable=False).forbidden == {"g": {"t": 1}}
    groups.forbid("g", "t", 0)
    assert open_table(tmp_path, GroupConfigs(), writable=False).forbidden == {}


def test_settings_of_equal_content_keep_their_names(tmp_path: Path) -> None:
    groups = open_table(tmp_path, GroupConfigs())
    wanted = [GroupConfig.from_json(name, {"groupName": "other"}) for name in ("a", "b")]
    groups.put(*wanted)
    assert groups.all() == {"a": wanted[0], "b": wanted[1]}
    assert open_table(tmp_path, GroupConfigs(), writable=False).all() == groups.all()
