"""Test automatically created topics: creations and deletions survive kills and power loss."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest

from raymq.storage.errors import StoreError, StoreFailed
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables.topic_config import TopicConfig, TopicConfigs
from tests.crash.power_loss import Disk
from tests.faulty_calls import FaultyCalls
from tests.state_journals import open_table, open_tables


def topic(name: str, queues: int = 1) -> TopicConfig:
    return TopicConfig(name, queues, queues)


def open_topics(directory: Path) -> TopicConfigs:
    return open_table(directory, TopicConfigs())


def test_deleted_topic_stays_deleted_after_power_loss(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    disk = Disk(tmp_path / "s")
    with replaced(disk):
        topics = open_topics(tmp_path / "s")
        topics.put(topic("kept"))
        topics.put_soon(topic("made"))
        disk.remember_all()  # the kernel has written it by itself
        topics.delete("made")
        disk.after_power_loss(tmp_path / "lost", random.Random(1), 0.0)
    disk.close()
    for _ in range(2):
        again = open_topics(tmp_path / "lost")
        assert list(again.all()) == ["kept"]
        again.put_soon(topic("another"))
        again.delete("another")


@pytest.mark.parametrize("luck", [0.0, 0.5])
def test_created_topics_survive_power_loss_after_sync(tmp_path: Path, luck: float) -> None:
    (tmp_path / "s").mkdir()
    disk = Disk(tmp_path / "s")
    with replaced(disk):
        topics = open_topics(tmp_path / "s")
        topics.put_soon(topic("a"))
        topics.put_soon(topic("b"))
        topics.sync()
        topics.put_soon(topic("unsynced"))
        disk.after_power_loss(tmp_path / "lost", random.Random(2), luck)
    disk.close()
    assert set(open_topics(tmp_path / "lost").all()) - {"unsynced"} == {"a", "b"}


@pytest.mark.parametrize("nth", [1, 2])
def test_topic_created_after_a_failed_snapshot_survives(tmp_path: Path, nth: int) -> None:
    # The snapshot may be on disk although its folder could not be synced; later events are newer than it.
    journal = open_tables(tmp_path / "s", topics := TopicConfigs())
    topics.put(topic("old"))
    journal.compact()
    topics.put(topic("old", 2))
    topics.delete("old")
    journal.sync()
    with replaced(count := FaultyCalls("fsync", nth, errno.EIO)), pytest.raises(StoreError):
        journal.compact()
    assert count.failed
    try:
        topics.put_soon(topic("made"))
    except StoreFailed:  # the journal's own folder could not be synced: no event is accepted any more
        assert topics.get("made") is None
    expected = set(topics.all())
    shutil.copytree(tmp_path / "s", tmp_path / "killed")
    assert set(open_topics(tmp_path / "killed").all()) == expected


def test_created_topics_survive_kills(tmp_path: Path) -> None:
    topics = open_topics(tmp_path)
    topics.put(topic("kept"))
    for number in range(5):
        topics.put_soon(topic(f"made{number}", number + 1))
    journal = open_tables(tmp_path, again := TopicConfigs())
    assert set(again.all()) == {"kept", *(f"made{number}" for number in range(5))}
    again.put_soon(topic("later"))
    assert len(open_table(tmp_path, TopicConfigs(), writable=False)) == 7
    journal.compact()
    again.delete("made3")
    found = open_topics(tmp_path).all()
    assert set(found) == {"kept", "made0", "made1", "made2", "made4", "later"}
    assert found["made4"].write_queues == 5


def test_journal_without_frames_is_skipped(tmp_path: Path) -> None:
    journal = open_tables(tmp_path, topics := TopicConfigs())
    topics.put(topic("kept"))
    journal.close(compact=True)
    newest = max((tmp_path / "raymq" / "state").glob("journal-*"))
    newest.write_text('{"name":"old","setting":{}}\n')
    again = open_topics(tmp_path)
    assert set(again.all()) == {"kept"}
    again.put_soon(topic("made"))
    assert set(open_topics(tmp_path).all()) == {"kept", "made"}
