"""Test topic deletions that are not in the journals yet while these are rewritten.

Nothing on disk may claim a deletion before the journal has its frame: former entries of the
journal would be read again, and taken for the new topic's.
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


def open_offset_store(directory: Path, **deleted: int) -> ConsumerOffsetStore:
    recovery_bounds = RecoveryBounds(1 << 40, deleted_topics=deleted)
    return ConsumerOffsetStore(
        directory / "config", directory / "progress.journal", writable=True, recovery_bounds=recovery_bounds
    )


def open_in_flight_table(directory: Path, **deleted: int) -> InFlightTable:
    return InFlightTable(
        directory / "in_flight.journal", writable=True, recovery_bounds=RecoveryBounds(1 << 40, deleted_topics=deleted)
    )


def delete_on_full_disk(table: ConsumerOffsetStore | InFlightTable, topic: str, log_end: int) -> None:
    with replaced(FaultyCalls("write", 1, errno.ENOSPC)):
        table.forget_topic(topic, log_end)


@pytest.mark.parametrize("moment", ["before the tables are read", "after a table was read"])
def test_offsets_of_a_topic_deleted_during_a_fold_stay_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    # The fold's file had the deletion, and the offset came from that file or from the journal beside it.
    progress = open_offset_store(tmp_path)
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
    delete_on_full_disk(progress, "t", 100)
    go_on.set()
    progress._wait()
    progress.journal.close()  # as a kill leaves it
    assert open_offset_store(tmp_path, t=100).consumer_offsets.get(*QUEUE) is None


def test_in_flight_of_topic_deleted_during_rewrite_stays_deleted(tmp_path: Path) -> None:
    table = open_in_flight_table(tmp_path)
    table._journal.rotate()
    table.deliver(QUEUE, 3, {0: InFlightMessage(1_000, 2_000, 0, 16)})
    delete_on_full_disk(table, "t", 100)
    table._settle()
    table._journal.close()
    assert not open_in_flight_table(tmp_path, t=100).queues


@pytest.mark.parametrize("folds", [0, 1, 2])
@pytest.mark.parametrize("beside", [False, True])
def test_commits_after_a_pending_deletion_are_kept(tmp_path: Path, folds: int, beside: bool) -> None:
    # The pending frame survives every way in which the journal is rewritten.
    progress, table = open_offset_store(tmp_path), open_in_flight_table(tmp_path)
    progress.consumer_offsets.commit(*QUEUE, 15)
    table.deliver(QUEUE, 16, {15: InFlightMessage(1_000, 2_000, 0, 16)})
    delete_on_full_disk(progress, "t", 100)
    delete_on_full_disk(table, "t", 100)
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
        progress, table = open_offset_store(tmp_path, t=100), open_in_flight_table(tmp_path, t=100)
        assert progress.consumer_offsets.get(*QUEUE) == 12
        assert list(table.queues[QUEUE].deliveries) == [12]


def test_unwritten_deletion_of_a_first_run_is_applied(tmp_path: Path) -> None:
    # There is no offset file yet; the journal itself says that it records deletions.
    progress, table = open_offset_store(tmp_path), open_in_flight_table(tmp_path)
    progress.consumer_offsets.commit(*QUEUE, 15)
    table.deliver(QUEUE, 16, {15: InFlightMessage(1_000, 2_000, 0, 16)})
    progress.journal.close()
    table._journal.close()
    assert open_offset_store(tmp_path, t=100).consumer_offsets.get(*QUEUE) is None
    assert not open_in_flight_table(tmp_path, t=100).queues


def test_offsets_of_a_journal_without_deletions_are_kept(tmp_path: Path) -> None:
    # An older version's first run: the topic was recreated, and the frames say where the group is now.
    journal = Journal(tmp_path / "progress.journal", writable=True)
    for entry in (("c", *QUEUE, 15), ("g", "g", "t"), ("c", *QUEUE, 12)):
        journal.append(entry)
    journal.close()
    for _ in range(2):
        progress = open_offset_store(tmp_path, t=100)
        assert progress.consumer_offsets.get(*QUEUE) == 12
        progress.journal.close()


def test_another_deletion_does_not_copy_the_former_ones(tmp_path: Path) -> None:
    progress, table = open_offset_store(tmp_path), open_in_flight_table(tmp_path)
    known = progress.forgotten, table._forgotten
    for number in range(3):
        progress.forget_topic(f"t{number}", 10 + number)
        table.forget_topic(f"t{number}", 10 + number)
    assert progress.forgotten is known[0]
    assert table._forgotten is known[1]
    assert progress.forgotten == table._forgotten == {"t0": 10, "t1": 11, "t2": 12}
    progress.journal.close()
    table._journal.close()
