"""Test that a settings change costs only itself, and is not lost on the way into the file."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from raymq.storage.errors import StoreError, StoreFailed, StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables.group_config import GroupConfigs
from raymq.storage.tables.topic_config import TopicConfig, TopicConfigs
from tests.faulty_calls import FaultyCalls


def open_topics(tmp_path: Path, count: int) -> TopicConfigs:
    topics = TopicConfigs(tmp_path / "topics.json", writable=True)
    topics.put(*(TopicConfig(f"t{number}", 4, 4) for number in range(count)))
    topics.save()
    return topics


def test_change_cost_does_not_grow_with_the_table(tmp_path: Path) -> None:
    # Each change of a topic used to write the whole table twice, on the broker's event loop.
    topics = open_topics(tmp_path, 2_000)
    journal = tmp_path / "topics.json.journal"
    with replaced(calls := FaultyCalls()):
        topics.put_soon(TopicConfig("new", 4, 4))
        assert topics.delete_soon("t7")
        assert calls.counts["rename"] == calls.counts["fsync"] == calls.counts["fdatasync"] == 0
        assert calls.counts["write"] == 2
        topics.sync()
        assert calls.counts["fdatasync"] == 1
        topics.sync()
        assert calls.counts["fdatasync"] == 1, "nothing was changed since"
    assert journal.stat().st_size < 1_000
    assert TopicConfigs(tmp_path / "topics.json", writable=False).all() == topics.all()


@pytest.mark.parametrize("seed", range(20))
def test_table_survives_a_kill_at_any_point(tmp_path: Path, seed: int) -> None:
    # The write of the file may be called late, in any order, or never.
    rng = random.Random(seed)
    path = tmp_path / "topics.json"
    topics = TopicConfigs(path, writable=True)
    late: list[Callable[[], None]] = []
    for _ in range(60):
        name = f"t{rng.randrange(6)}"
        match rng.randrange(6):
            case 0 | 1:
                topics.put_soon(TopicConfig(name, rng.randrange(1, 9), 1))
            case 2:
                topics.delete_soon(name)
            case 3:
                write = topics.pending()
                if write is not None:
                    late.append(write)
            case 4 if late:
                late.pop(rng.randrange(len(late)))()
            case 5 if rng.random() < 0.2:
                topics.close()
                late.clear()
                again = TopicConfigs(path, writable=True)
                assert (again.all(), again.version) == (topics.all(), topics.version)
                topics = again
        killed = TopicConfigs(path, writable=False)
        assert (killed.all(), killed.version) == (topics.all(), topics.version)
    topics.save()
    assert topics.pending() is None or topics.save() is None
    assert topics.pending() is None
    assert TopicConfigs(path, writable=False).all() == topics.all()
    topics.close()


def test_change_refused_by_a_full_disk_is_not_made(tmp_path: Path) -> None:
    topics = open_topics(tmp_path, 3)
    before = topics.all(), topics.version
    with replaced(FaultyCalls("write", 1, errno.ENOSPC)), pytest.raises(StoreFull):
        topics.put(TopicConfig("new", 1, 1))
    assert (topics.all(), topics.version) == before
    topics.put(TopicConfig("new", 1, 1))
    assert TopicConfigs(tmp_path / "topics.json", writable=False).get("new") is not None


def test_failed_sync_is_reported_to_the_store(tmp_path: Path) -> None:
    failures: list[StoreError] = []
    topics = TopicConfigs(tmp_path / "topics.json", writable=True, on_failure=failures.append)
    with replaced(FaultyCalls("fdatasync", 1, errno.EIO)), pytest.raises(StoreFailed):
        topics.put(TopicConfig("new", 1, 1))
    assert len(failures) == 1


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


def test_forbidden_permissions_are_journaled(tmp_path: Path) -> None:
    groups = GroupConfigs(tmp_path / "groups.json", writable=True)
    groups.forbid("g", "t", 1)
    assert GroupConfigs(tmp_path / "groups.json", writable=False).forbidden == {"g": {"t": 1}}
    groups.save()
    groups.forbid("g", "t", 0)
    assert GroupConfigs(tmp_path / "groups.json", writable=False).forbidden == {}
