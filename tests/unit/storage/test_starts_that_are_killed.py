"""What a start has cut off or forgotten stays so: over a second start, and wherever the first one is killed.

The log may have grown beyond the old places by then, and a topic of that name may be another one: what came back would
hold for messages that nobody was given yet.
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
#: The topic was deleted, and one of its name made, that has so many messages by now.
MADE_ANEW = RecoveryBounds(1 << 40, max_offsets={("t", 0): 150}, deleted_topics={"t": 5_000})


class Killed(BaseException):
    """Nothing is done any more."""


def in_flight_of(directory: Path, recovery_bounds: RecoveryBounds) -> InFlightTable:
    return InFlightTable(directory / "in_flight.journal", writable=True, recovery_bounds=recovery_bounds)


def progress_of(directory: Path, recovery_bounds: RecoveryBounds) -> ConsumerOffsetStore:
    return ConsumerOffsetStore(
        directory / "config", directory / "raymq" / "progress.journal", writable=True, recovery_bounds=recovery_bounds
    )


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has the tables die at a failpoint, the next time that it is reached."""

    def arm(name: str) -> None:
        def reached(point: str) -> None:
            if point == name:
                arm("")
                raise Killed(point)

        monkeypatch.setattr(progress_module, "failpoint", reached)
        monkeypatch.setattr(journal_module, "failpoint", reached)

    return arm


@pytest.mark.parametrize("at", ["journal", "base"])
def test_what_a_start_cuts_off_stood_where_a_rewriting_had_put_it(tmp_path: Path, at: str) -> None:
    """In the file of what is out beside an empty journal, as each start leaves it where there was one once."""
    table = in_flight_of(tmp_path, RecoveryBounds(1 << 40))
    table.deliver(QUEUE, 7, dict.fromkeys(range(7), FIRST))
    if at == "base":
        table._journal.rotate()
        table._settle()
    table.close(rewrite=True)
    lost = RecoveryBounds(10, True, max_offsets={("t", 0): 6})
    in_flight_of(tmp_path, lost).close(rewrite=False)
    table = in_flight_of(tmp_path, RecoveryBounds(20, max_offsets={("t", 0): 8}))  # the log has gone on
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
def test_what_a_start_cuts_off_stood_in_the_file_beside_the_journal(
    tmp_path: Path, recovery_bounds: RecoveryBounds
) -> None:
    """A rewriting had begun; its frames were kept for the next start, in which the log had other messages there."""
    table = in_flight_of(tmp_path, RecoveryBounds(1 << 40))
    table.deliver(QUEUE, 3, dict.fromkeys(range(3), FIRST))
    table._journal.rotate()
    table.deliver(QUEUE, 100, dict.fromkeys(range(90, 100), FIRST))
    table.acknowledge(QUEUE, range(90, 95))
    table.close(rewrite=False)
    table = in_flight_of(tmp_path, recovery_bounds)
    found = {queue: (each.next_offset, list(each.deliveries)) for queue, each in table.queues.items()}
    table.close(rewrite=False)
    later = replace(recovery_bounds, log_end=1 << 41, max_offsets={("t", 0): 200})
    table = in_flight_of(tmp_path, later)
    assert {queue: (each.next_offset, list(each.deliveries)) for queue, each in table.queues.items()} == found
    table.close(rewrite=False)


def test_what_was_stored_after_a_loss_of_power_during_a_rewriting_is_given_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boots = ["before"]
    monkeypatch.setattr(checkpointing_module, "boot_id", lambda: boots[0])
    monkeypatch.setattr(store_parts, "boot_id", lambda: boots[0])
    config = replace(SMALL, commitlog_file_bytes=1 << 16, flush_interval_ms=3_600_000)

    def given(core: BrokerCore, most: int) -> tuple[int, list[int]]:
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
        given(core, 2)
        store._save_checkpoint()
        store.in_flight._journal.rotate()
        append(store, *[make_record(topic="t") for _ in range(20)])
        pop_time_ms, _ = given(core, 20)
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
    store._abandon()  # killed, before anybody pops
    with Store.open(tmp_path / "left", config) as store:
        _, offsets = given(BrokerCore("b", store), 32)
        assert offsets[:17] == list(range(5, 22))


@pytest.mark.parametrize("point", ["compaction.before_delays", "compaction.before_clear", "journal.before_rename"])
def test_offsets_of_a_deleted_topic_do_not_come_back_by_a_start_that_is_killed(
    tmp_path: Path, dying: Callable[[str], None], point: str
) -> None:
    """The disk took no note of the deletion; the file of the start's fold knew of it, and its journal did not."""
    progress = progress_of(tmp_path, RecoveryBounds(1 << 40))
    progress.consumer_offsets.commit(*QUEUE, 100)
    with replaced(FaultyCalls("write", 1, errno.ENOSPC, lasting=True)):
        progress.forget_topic("t", 5_000)
    progress.journal.close()
    dying(point)
    with pytest.raises(Killed):
        progress_of(tmp_path, MADE_ANEW)
    progress = progress_of(tmp_path, MADE_ANEW)
    assert progress.consumer_offsets.get(*QUEUE) is None
    progress.close(fold=False)


@pytest.mark.parametrize("is_rotated", [False, True])
@pytest.mark.parametrize("point", ["journal.after_base", "journal.before_rename", "journal.after_rename"])
def test_what_was_out_of_a_deleted_topic_does_not_come_back_by_a_start_that_is_killed(
    tmp_path: Path, dying: Callable[[str], None], point: str, is_rotated: bool
) -> None:
    table = in_flight_of(tmp_path, RecoveryBounds(1 << 40))
    table.deliver(("h", "other", 0), 1, {0: FIRST})
    table._journal.rotate()
    table._settle()
    if is_rotated:
        table._journal.rotate()
    table.deliver(QUEUE, 100, dict.fromkeys(range(90, 100), FIRST))
    with replaced(FaultyCalls("write", 1, errno.ENOSPC, lasting=True)):
        table.forget_topic("t", 5_000)
    table.close(rewrite=False)
    recovery_bounds = replace(MADE_ANEW, max_offsets={("t", 0): 150, ("other", 0): 1})
    dying(point)
    with pytest.raises(Killed):
        in_flight_of(tmp_path, recovery_bounds)
    table = in_flight_of(tmp_path, recovery_bounds)
    assert list(table.queues) == [("h", "other", 0)]
    table.close(rewrite=True)


def test_a_stop_that_is_killed_does_not_take_back_a_deletion_that_is_owed(
    tmp_path: Path, dying: Callable[[str], None]
) -> None:
    """The frame that is owed came into the new journal, and the one beside was heard again behind it."""
    progress = progress_of(tmp_path, RecoveryBounds(1 << 40))
    progress.journal.rotate()
    progress.consumer_offsets.commit(*QUEUE, 100)
    with replaced(FaultyCalls("write", 1, errno.ENOSPC, lasting=True)):
        progress.forget_topic("t", 5_000)
    dying("journal.after_rename")
    with pytest.raises(Killed):
        progress.close(fold=True)
    progress = progress_of(tmp_path, MADE_ANEW)
    assert progress.consumer_offsets.get(*QUEUE) is None
    progress.close(fold=False)
