"""Test that data dropped by a start stay dropped, after a second start or a kill of the first.

The log may have grown beyond the old places by then, and the topic may have been recreated: restored data would
apply to messages that were not delivered yet.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.pop.pop_request import PopRequest
from raymq.storage import checkpointer as checkpointing_module
from raymq.storage import store_parts
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from raymq.storage.tables import consumer_offset_store as progress_module
from raymq.storage.tables import journal as journal_module
from raymq.storage.tables.consumer_offset_store import ConsumerOffsetStore
from raymq.storage.tables.in_flight_messages import InFlightMessage, InFlightTable
from raymq.storage.tables.recovery_bounds import RecoveryBounds
from tests.crash.power_loss import Disk
from tests.faulty_calls import FaultyCalls
from tests.store_records import SMALL, append, make_record

QUEUE = ("g", "t", 0)
FIRST = InFlightMessage(1_000, 2_000, 0, 16)
#: The topic was deleted and recreated, and has so many messages by now.
RECREATED = RecoveryBounds(1 << 40, max_offsets={("t", 0): 150}, deleted_topics={"t": 5_000})


class Killed(BaseException):
    """Simulate a kill of the process."""


def open_in_flight_table(directory: Path, recovery_bounds: RecoveryBounds) -> InFlightTable:
    return InFlightTable(directory / "in_flight.journal", writable=True, recovery_bounds=recovery_bounds)


def open_offset_store(directory: Path, recovery_bounds: RecoveryBounds) -> ConsumerOffsetStore:
    return ConsumerOffsetStore(
        directory / "config", directory / "raymq" / "progress.journal", writable=True, recovery_bounds=recovery_bounds
    )


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Kill the process at a failpoint when a table reaches it next."""

    def arm(name: str) -> None:
        def reached(point: str) -> None:
            if point == name:
                arm("")
                raise Killed(point)

        monkeypatch.setattr(progress_module, "failpoint", reached)
        monkeypatch.setattr(journal_module, "failpoint", reached)

    return arm


@pytest.mark.parametrize("at", ["journal", "base"])
def test_entries_cut_by_a_start_stay_cut_after_a_rewrite(tmp_path: Path, at: str) -> None:
    # The entries are in the base file beside an empty journal, as each start leaves it after a rewrite.
    table = open_in_flight_table(tmp_path, RecoveryBounds(1 << 40))
    table.deliver(QUEUE, 7, dict.fromkeys(range(7), FIRST))
    if at == "base":
        table._journal.rotate()
        table._settle()
    table.close(rewrite=True)
    lost = RecoveryBounds(10, True, max_offsets={("t", 0): 6})
    open_in_flight_table(tmp_path, lost).close(rewrite=False)
    table = open_in_flight_table(tmp_path, RecoveryBounds(20, max_offsets={("t", 0): 8}))  # the log has grown
    assert table.queues[QUEUE].next_offset == 6, "the message at 6 is another one, which nobody was given"
    assert list(table.queues[QUEUE].deliveries) == list(range(6))
    table.close(rewrite=True)


@pytest.mark.parametrize(
    "recovery_bounds",
    [
        RecoveryBounds(10, max_offsets={("t", 0): 3}),
        RecoveryBounds(1 << 40, max_offsets={("t", 0): 100}, deleted_topics={"t": 5_000}),
    ],
    ids=["the log has lost its end", "the topic was deleted"],
)
def test_entries_cut_from_the_journal_beside_stay_cut(tmp_path: Path, recovery_bounds: RecoveryBounds) -> None:
    # The frames of an interrupted rewrite were kept for the next start, when the log had other messages there.
    table = open_in_flight_table(tmp_path, RecoveryBounds(1 << 40))
    table.deliver(QUEUE, 3, dict.fromkeys(range(3), FIRST))
    table._journal.rotate()
    table.deliver(QUEUE, 100, dict.fromkeys(range(90, 100), FIRST))
    table.acknowledge(QUEUE, range(90, 95))
    table.close(rewrite=False)
    table = open_in_flight_table(tmp_path, recovery_bounds)
    found = {queue: (each.next_offset, list(each.deliveries)) for queue, each in table.queues.items()}
    table.close(rewrite=False)
    later = replace(recovery_bounds, log_end=1 << 41, max_offsets={("t", 0): 200})
    table = open_in_flight_table(tmp_path, later)
    assert {queue: (each.next_offset, list(each.deliveries)) for queue, each in table.queues.items()} == found
    table.close(rewrite=False)


def test_messages_after_power_loss_in_a_rewrite_are_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boots = ["before"]
    monkeypatch.setattr(checkpointing_module, "boot_id", lambda: boots[0])
    monkeypatch.setattr(store_parts, "boot_id", lambda: boots[0])
    config = replace(SMALL, commitlog_file_bytes=1 << 16, flush_interval_ms=3_600_000)

    def pop_messages(core: BrokerCore, most: int) -> tuple[int, list[int]]:
        popped = core.pop.receive(PopRequest("g", "t", range(1), most, 1 << 20, 60_000, 16))
        return popped.pop_time_ms, [offset for queue in popped.queues for offset in queue.taken.offsets]

    root = tmp_path / "powered"
    root.mkdir()
    disk = Disk(root)
    with replaced(disk):
        store = Store.open(root, config)
        core = BrokerCore("b", store)
        core.topics.create("t", 1)
        append(store, *[make_record(topic="t") for _ in range(5)])
        pop_messages(core, 2)
        store._save_checkpoint()
        store.in_flight._journal.rotate()
        append(store, *[make_record(topic="t") for _ in range(20)])
        pop_time_ms, _ = pop_messages(core, 20)
        core.pop.acknowledge("g", "t", 0, pop_time_ms, range(5, 22))
        store.sync_progress()
        disk.after_power_loss(tmp_path / "left", random.Random(1), 0.0)
        store._flusher.stop()
        store._abandon()
    boots[0] = "after"
    store = Store.open(tmp_path / "left", config)
    assert store.max_offset("t", 0) == 5
    append(store, *[make_record(topic="t") for _ in range(40)])
    store._flusher.stop()
    store._abandon()  # killed before the next pop
    with Store.open(tmp_path / "left", config) as store:
        _, offsets = pop_messages(BrokerCore("b", store), 32)
        assert offsets[:17] == list(range(5, 22))


@pytest.mark.parametrize("point", ["compaction.before_delays", "compaction.before_clear", "journal.before_rename"])
def test_killed_start_keeps_offsets_of_a_deleted_topic_deleted(
    tmp_path: Path, kill_at: Callable[[str], None], point: str
) -> None:
    # The disk refused the deletion's frame; the file of the start's fold had the deletion, its journal did not.
    progress = open_offset_store(tmp_path, RecoveryBounds(1 << 40))
    progress.consumer_offsets.commit(*QUEUE, 100)
    with replaced(FaultyCalls("write", 1, errno.ENOSPC, lasting=True)):
        progress.forget_topic("t", 5_000)
    progress.journal.close()
    kill_at(point)
    with pytest.raises(Killed):
        open_offset_store(tmp_path, RECREATED)
    progress = open_offset_store(tmp_path, RECREATED)
    assert progress.consumer_offsets.get(*QUEUE) is None
    progress.close(fold=False)


@pytest.mark.parametrize("is_rotated", [False, True])
@pytest.mark.parametrize("point", ["journal.after_base", "journal.before_rename", "journal.after_rename"])
def test_killed_start_keeps_in_flight_of_deleted_topic_deleted(
    tmp_path: Path, kill_at: Callable[[str], None], point: str, is_rotated: bool
) -> None:
    table = open_in_flight_table(tmp_path, RecoveryBounds(1 << 40))
    table.deliver(("h", "other", 0), 1, {0: FIRST})
    table._journal.rotate()
    table._settle()
    if is_rotated:
        table._journal.rotate()
    table.deliver(QUEUE, 100, dict.fromkeys(range(90, 100), FIRST))
    with replaced(FaultyCalls("write", 1, errno.ENOSPC, lasting=True)):
        table.forget_topic("t", 5_000)
    table.close(rewrite=False)
    recovery_bounds = replace(RECREATED, max_offsets={("t", 0): 150, ("other", 0): 1})
    kill_at(point)
    with pytest.raises(Killed):
        open_in_flight_table(tmp_path, recovery_bounds)
    table = open_in_flight_table(tmp_path, recovery_bounds)
    assert list(table.queues) == [("h", "other", 0)]
    table.close(rewrite=True)


def test_killed_stop_keeps_a_pending_deletion(tmp_path: Path, kill_at: Callable[[str], None]) -> None:
    # The pending frame came into the new journal, and the journal beside was read again after it.
    progress = open_offset_store(tmp_path, RecoveryBounds(1 << 40))
    progress.journal.rotate()
    progress.consumer_offsets.commit(*QUEUE, 100)
    with replaced(FaultyCalls("write", 1, errno.ENOSPC, lasting=True)):
        progress.forget_topic("t", 5_000)
    kill_at("journal.after_rename")
    with pytest.raises(Killed):
        progress.close(fold=True)
    progress = open_offset_store(tmp_path, RECREATED)
    assert progress.consumer_offsets.get(*QUEUE) is None
    progress.close(fold=False)
