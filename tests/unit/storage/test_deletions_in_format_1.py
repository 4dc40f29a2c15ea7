"""Test that a directory of format 1 brings back nothing of a deleted topic, and keeps what came after it.

Its journals of offsets and of in-flight messages each recorded the deletions that they included. A deletion that they
lacked, because the disk refused it or the process was killed, was applied by the next start.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from raymq.storage.state_opening import open_state
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.state_tables import StateTables
from tests.state_journals import append_frames

QUEUE = ("g", "t", 0)
#: What the journals began with since they recorded deletions.
RECORDS_DELETIONS = ("k",)
KNOWN: tuple[object, ...] = ("k", "", "", 0, {})


def deliver(offset: int) -> tuple[object, ...]:
    return ("d", *QUEUE, offset + 1, [[offset, 1_000, 2_000, 0, 16]])


@pytest.fixture
def raymq(tmp_path: Path) -> Path:
    """Return the folder of a format 1 that lists topic t as deleted at 100."""
    append_frames(tmp_path / "raymq" / "deletions.journal", ("t", 100))
    return tmp_path / "raymq"


def convert(raymq: Path) -> StateTables:
    """Convert the directory, and return the tables of the start after that."""
    for _ in range(2):
        tables = StateTables()
        journal, _ = open_state(StorePaths(raymq.parent), tables, lambda _: None, writable=True)
        journal.close(compact=False)
    assert not list(raymq.glob("*.journal"))
    return tables


def test_deletion_that_the_journals_lack_is_applied(raymq: Path) -> None:
    append_frames(raymq / "progress.journal", RECORDS_DELETIONS, ("c", *QUEUE, 15), ("c", "g", "other", 0, 3))
    append_frames(raymq / "in_flight.journal", KNOWN, deliver(15))
    tables = convert(raymq)
    assert tables.consumer_offsets.offsets == {"g": {"other": {0: 3}}}
    assert not tables.in_flight.queues
    assert tables.deleted_topics.places == {"t": 100}


def test_progress_after_a_recorded_deletion_is_kept(raymq: Path) -> None:
    deletion = ("t", "", "t", 0, 100)
    append_frames(raymq / "progress.journal", RECORDS_DELETIONS, ("c", *QUEUE, 15), ("t", "t", 100), ("c", *QUEUE, 12))
    append_frames(raymq / "in_flight.journal", KNOWN, deliver(15), deletion, deliver(12))
    tables = convert(raymq)
    assert tables.consumer_offsets.get(*QUEUE) == 12
    assert list(tables.in_flight.queues[QUEUE].deliveries) == [12]


def test_journals_that_did_not_record_deletions_are_kept(raymq: Path) -> None:
    # An older version's first run: the topic was recreated, and the entries say where the group is now.
    append_frames(raymq / "progress.journal", ("c", *QUEUE, 15), ("g", "g", "t"), ("c", *QUEUE, 12))
    append_frames(raymq / "in_flight.journal", deliver(12))
    tables = convert(raymq)
    assert tables.consumer_offsets.get(*QUEUE) == 12
    assert list(tables.in_flight.queues[QUEUE].deliveries) == [12]
