"""Cut a replica's journal at every byte of its newest events."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from raymq.storage.journal.journal_frames import HEAD
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.in_flight_messages import InFlightMessage
from raymq.storage.tables.state_tables import StateTables
from raymq.storage.tables.topic_config import TopicConfig
from tests.state_shipping import content_of, copy_state, keep_events, record_contents, ship_all, state_of
from tests.store_records import SMALL, append, bodies, make_record
from tests.store_replication import read_bodies

pytestmark = pytest.mark.crash

CONFIG = replace(SMALL, flush_interval_ms=3_600_000)


def kill(store: Store) -> None:
    store._flusher.stop()
    store._abandon()


def newest_journal(directory: Path) -> Path:
    return max((directory / "raymq" / "state").glob("journal-*"))


def last_event(frames: bytes, before: int) -> int:
    """Return the number of the last whole event of the frames, or `before`."""
    at, last = 0, before
    while at + HEAD.size <= len(frames):
        length, _ = HEAD.unpack_from(frames, at)
        end = at + HEAD.size + length
        if end > len(frames):
            break
        last = msgpack.unpackb(frames[at + HEAD.size : end])[0]
        at = end
    return last


def append_bytes(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def check(journal: StateJournal, tables: StateTables, last: int, contents: Mapping[int, object]) -> None:
    """Check that a journal has exactly the events up to `last`."""
    assert not journal.is_lossy
    assert journal.last == last
    assert content_of(tables) == contents[last]


def test_torn_event_is_cut_off_and_fetched_again(tmp_path: Path) -> None:
    base = tmp_path / "base"
    with keep_events(Store.open(tmp_path / "master", CONFIG)) as master:
        contents = record_contents(master)
        assert master.journal.backlog is not None
        for topic in ("kept", "gone"):
            master.topic_configs.put(TopicConfig(topic, 1, 1))
            append(master, *(make_record(b"%d" % number, topic=topic) for number in range(5)))
        copy_state(master, base)
        with Store.open(base, CONFIG, is_replica=True) as follower:
            ship_all(master, follower)
        before = master.journal.last

        master.consumer_offsets.commit("g", "kept", 0, 2)
        master.in_flight.deliver(("g", "kept", 0), 3, {2: InFlightMessage(1, 2, 0, 16)})
        master.delete_topic("gone")
        master.topic_configs.put(TopicConfig("gone", 1, 1))
        master.group_configs.put(GroupConfig("g"))
        shutil.copytree(base, tmp_path / "full")
        follower = Store.open(tmp_path / "full", CONFIG, is_replica=True)
        ship_all(master, follower)
        kill(follower)
        former = newest_journal(base).read_bytes()
        frames = newest_journal(tmp_path / "full").read_bytes()
        assert frames.startswith(former)
        tail = frames[len(former) :]

        append(master, *(make_record(b"new %d" % number, topic="gone") for number in range(3)))
        master.consumer_offsets.commit("g", "gone", 0, 1)
        found = set()
        for cut in range(len(tail) + 1):
            expected = last_event(tail[:cut], before)
            is_new = expected not in found
            found.add(expected)
            probe = tmp_path / "probe"
            if is_new or cut % 10 == 0:
                shutil.copytree(base, probe)
                append_bytes(newest_journal(probe), tail[:cut])
                with Store.open(probe, CONFIG, is_replica=True) as follower:
                    assert ("gone" in follower.topics()) == ("gone" not in follower.tables.deleted_topics.places)
                    check(follower.journal, follower.tables, expected, contents)
                    ship_all(master, follower)
                    assert content_of(follower.tables) == content_of(master.tables)
                    assert read_bodies(follower) == read_bodies(master)
                    assert bodies(follower, "gone") == [b"new 0", b"new 1", b"new 2"]
            else:  # the same without a store, which takes less time
                shutil.copytree(base / "raymq" / "state", probe / "raymq" / "state")
                append_bytes(newest_journal(probe), tail[:cut])
                tables = StateTables()
                journal = StateJournal(probe / "raymq" / "state", tables.all(), writable=True)
                check(journal, tables, expected, contents)
                events = master.journal.backlog.after(expected)
                journal.append_shipped(events)
                assert content_of(tables) == content_of(master.tables)
                journal.close(compact=False)
                assert state_of(probe) == content_of(master.tables)
            shutil.rmtree(probe)
    assert found == set(range(before, before + 6))
