"""A deletion of a topic that its journals have not taken yet, while they are written anew; and one nobody wrote down.

Nothing on disk may say that it knows of a deletion before the frame that tells of it is there: what stands in the
journal would be heard again, and taken for the new topic's.
"""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from raymq.storage.files import json_file
from raymq.storage.files.file_calls import replaced
from raymq.storage.tables.consumer_offset_store import ConsumerOffsetStore
from raymq.storage.tables.in_flight_messages import InFlightMessage, InFlightTable
from raymq.storage.tables.journal import Journal
from raymq.storage.tables.recovery_bounds import RecoveryBounds
from tests.faulty_calls import FaultyCalls

QUEUE = ("g", "t", 0)


def progress_of(directory: Path, **deleted: int) -> ConsumerOffsetStore:
    recovery_bounds = RecoveryBounds(1 << 40, deleted_topics=deleted)
    return ConsumerOffsetStore(
        directory / "config", directory / "progress.journal", writable=True, recovery_bounds=recovery_bounds
    )


def in_flight_of(directory: Path, **deleted: int) -> InFlightTable:
    return InFlightTable(
        directory / "in_flight.journal", writable=True, recovery_bounds=RecoveryBounds(1 << 40, deleted_topics=deleted)
    )


def deleted_without_room(table: ConsumerOffsetStore | InFlightTable, topic: str, log_end: int) -> None:
    with replaced(FaultyCalls("write", 1, errno.ENOSPC)):
        table.forget_topic(topic, log_end)


@pytest.mark.parametrize("moment", ["before the tables are read", "after a table was read"])
def test_offsets_of_a_topic_deleted_during_a_fold_do_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The fold's file knew of the deletion, and the offset came from that file, or from the journal beside it."""
    progress = progress_of(tmp_path)
    reached, go_on = threading.Event(), threading.Event()
    encode = json_file.encode

    def halted(value: Any) -> str:
        encoded = encode(value)
        if value == {0: 15}:
            reached.set()
            assert go_on.wait(10)
        return encoded

    if moment == "before the tables are read":
        encode_all = progress._encoded_consumers

        def late() -> bytes:
            reached.set()
            assert go_on.wait(10)
            return encode_all()

        monkeypatch.setattr(progress, "_encoded_consumers", late)
        progress._fold_beside()
        progress.consumer_offsets.commit(*QUEUE, 15)
    else:
        progress.consumer_offsets.commit(*QUEUE, 15)
        monkeypatch.setattr(json_file, "encode", halted)
        progress._fold_beside()
    assert reached.wait(10)
    deleted_without_room(progress, "t", 100)
    go_on.set()
    progress._wait()
    progress.journal.close()  # as a kill leaves it
    assert progress_of(tmp_path, t=100).consumer_offsets.get(*QUEUE) is None


def test_what_pop_had_out_of_a_topic_deleted_during_a_rewrite_does_not_come_back(tmp_path: Path) -> None:
    table = in_flight_of(tmp_path)
    table._journal.rotate()
    table.deliver(QUEUE, 3, {0: InFlightMessage(1_000, 2_000, 0, 16)})
    deleted_without_room(table, "t", 100)
    table._settle()
    table._journal.close()
    assert not in_flight_of(tmp_path, t=100).queues


@pytest.mark.parametrize("folds", [0, 1, 2])
@pytest.mark.parametrize("beside", [False, True])
def test_what_is_committed_after_an_owed_deletion_stays(tmp_path: Path, folds: int, beside: bool) -> None:
    """The frame that is owed outlives every way in which the journal is written anew."""
    progress, table = progress_of(tmp_path), in_flight_of(tmp_path)
    progress.consumer_offsets.commit(*QUEUE, 15)
    table.deliver(QUEUE, 16, {15: InFlightMessage(1_000, 2_000, 0, 16)})
    deleted_without_room(progress, "t", 100)
    deleted_without_room(table, "t", 100)
    for _ in range(folds):
        if beside:
            progress._fold_beside()
            progress._wait()
        else:
            progress.fold()
        table._rewrite()
    progress.consumer_offsets.commit(*QUEUE, 12)
    table.deliver(QUEUE, 13, {12: InFlightMessage(1_000, 2_000, 0, 16)})
    for _ in range(2):
        progress.journal.close()
        table._journal.close()
        progress, table = progress_of(tmp_path, t=100), in_flight_of(tmp_path, t=100)
        assert progress.consumer_offsets.get(*QUEUE) == 12
        assert list(table.queues[QUEUE].deliveries) == [12]


def test_a_deletion_that_a_first_life_could_not_write_down_holds(tmp_path: Path) -> None:
    """There is no file of offsets yet; the journal itself says that deletions are told in it."""
    progress, table = progress_of(tmp_path), in_flight_of(tmp_path)
    progress.consumer_offsets.commit(*QUEUE, 15)
    table.deliver(QUEUE, 16, {15: InFlightMessage(1_000, 2_000, 0, 16)})
    progress.journal.close()
    table._journal.close()
    assert progress_of(tmp_path, t=100).consumer_offsets.get(*QUEUE) is None
    assert not in_flight_of(tmp_path, t=100).queues


def test_offsets_of_a_journal_that_tells_no_deletions_stay(tmp_path: Path) -> None:
    """An older version's first life: the topic was deleted and made anew, and the frames say where the group is now."""
    journal = Journal(tmp_path / "progress.journal", writable=True)
    for entry in (("c", *QUEUE, 15), ("g", "g", "t"), ("c", *QUEUE, 12)):
        journal.append(entry)
    journal.close()
    for _ in range(2):
        progress = progress_of(tmp_path, t=100)
        assert progress.consumer_offsets.get(*QUEUE) == 12
        progress.journal.close()


def test_one_more_deletion_copies_nothing_of_the_others(tmp_path: Path) -> None:
    progress, table = progress_of(tmp_path), in_flight_of(tmp_path)
    known = progress.forgotten, table._forgotten
    for number in range(3):
        progress.forget_topic(f"t{number}", 10 + number)
        table.forget_topic(f"t{number}", 10 + number)
    assert progress.forgotten is known[0]
    assert table._forgotten is known[1]
    assert progress.forgotten == table._forgotten == {"t0": 10, "t1": 11, "t2": 12}
    progress.journal.close()
    table._journal.close()
