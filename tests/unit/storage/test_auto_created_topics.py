"""Test automatically created topics: creations and deletions survive kills and power loss."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest

from raymq.storage.errors import StoreFailed
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables.topic_config import TopicConfig, TopicConfigs
from tests.crash.power_loss import Disk
from tests.faulty_calls import FaultyCalls


def topic(name: str, queues: int = 1) -> TopicConfig:
    return TopicConfig(name, queues, queues)


def open_topics(directory: Path) -> TopicConfigs:
    return TopicConfigs(directory / "topics.json", writable=True, journal=directory / "topics.journal")


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
        topics.close()
    disk.close()
    for _ in range(2):
        again = open_topics(tmp_path / "lost")
        assert list(again.all()) == ["kept"]
        again.put_soon(topic("another"))
        again.delete("another")
        again.close()


def test_topic_created_after_a_failed_save_survives(tmp_path: Path) -> None:
    # The table is on disk although its folder could not be synced; later journal entries are newer than it.
    topics = open_topics(tmp_path / "s")
    topics.put(topic("old"))
    topics.save()
    topics.put(topic("old", 2))
    with replaced(count := FaultyCalls()):
        topics.save()
    topics.delete_soon("old")
    last = count.counts["fsync"] - 1  # only the sync of the journal's name follows
    with replaced(FaultyCalls("fsync", last, errno.EIO)), pytest.raises(StoreFailed):
        topics.save()
    topics.put_soon(topic("made"))
    shutil.copytree(tmp_path / "s", tmp_path / "killed")
    assert set(open_topics(tmp_path / "killed").all()) == {"made"}
    topics.save()
    assert set(open_topics(tmp_path / "s").all()) == {"made"}


def test_created_topics_survive_kills(tmp_path: Path) -> None:
    topics = open_topics(tmp_path)
    topics.put(topic("kept"))
    for number in range(5):
        topics.put_soon(topic(f"made{number}", number + 1))
    again = open_topics(tmp_path)
    assert set(again.all()) == {"kept", *(f"made{number}" for number in range(5))}
    again.put_soon(topic("later"))
    assert len(open_topics(tmp_path)) == 7
    write = again.pending()
    assert write is not None
    write()
    again.delete("made3")
    assert set(open_topics(tmp_path).all()) == {"kept", "made0", "made1", "made2", "made4", "later"}


def test_journal_without_frames_is_skipped(tmp_path: Path) -> None:
    topics = open_topics(tmp_path)
    topics.put(topic("kept"))
    topics.save()
    topics.close()
    (tmp_path / "topics.journal").write_text('{"name":"old","setting":{}}\n')
    again = open_topics(tmp_path)
    assert set(again.all()) == {"kept"}
    again.put_soon(topic("made"))
    assert set(open_topics(tmp_path).all()) == {"kept", "made"}
