"""Test that data dropped by a start stay dropped, after a second start or a kill of the first.

The log may have grown beyond the old places by then, and the topic may have been recreated: restored data would
apply to messages that were not delivered yet.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.pop.pop_request import PopRequest
from raymq.storage import checkpointer as checkpointing_module
from raymq.storage import failpoints, store_parts
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal.recovery_bounds import RecoveryBounds
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.store import Store
from raymq.storage.tables.consumer_offsets import ConsumerOffsets
from raymq.storage.tables.delay_offsets import DelayOffsets
from raymq.storage.tables.deleted_topics import DeletedTopics
from raymq.storage.tables.in_flight_messages import InFlightMessage, InFlightTable
from raymq.storage.tables.transaction_checks import TransactionChecks
from tests.crash.power_loss import Disk
from tests.state_journals import open_tables
from tests.store_records import SMALL, append, make_record

QUEUE = ("g", "t", 0)
HALVES = ("RMQ_SYS_TRANS_HALF_TOPIC", 0)
FIRST = InFlightMessage(1_000, 2_000, 0, 16)


class Killed(BaseException):
    """Simulate a kill of the process."""


class Tables:
    """The tables that a start clamps to the log, as a start after a kill finds them."""

    def __init__(self, directory: Path, bounds: RecoveryBounds) -> None:
        self.offsets, self.delays, self.in_flight = ConsumerOffsets(), DelayOffsets(), InFlightTable()
        self.delays.flushed_offset = lambda: 940  # so that a snapshot has the commits behind it
        self.deleted, self.checks = DeletedTopics([]), TransactionChecks()
        self.journal: StateJournal = open_tables(
            directory, self.deleted, self.offsets, self.delays, self.in_flight, self.checks
        )
        deleted = {topic: min(place, bounds.log_end) for topic, place in self.deleted.places.items()}
        self.journal.clamp(replace(bounds, deleted_topics=deleted))

    def fill(self) -> None:
        """Write what refers to the first 7 messages of queue 0 of t, and to the log up to 1,000."""
        self.offsets.commit(*QUEUE, 7)
        self.offsets.reset("g", "t", 1, 7)
        self.in_flight.deliver(QUEUE, 7, dict.fromkeys(range(7), FIRST))
        self.in_flight.deliver(("h", "t", 0), 9, dict.fromkeys((7, 8), FIRST))
        self.delays.commit(1, 5, 900)
        self.delays.commit(1, 6, 1_000)
        self.delays.commit(2, 6, 1_000)
        self.deleted.record("k", "gone", 1_000)
        self.checks.count(3, 2)
        self.checks.count(6, 2)
        self.checks.note_complete(1_000)

    def found(self) -> object:
        """Return the content of all tables."""
        queues = {queue: (each.next_offset, list(each.deliveries)) for queue, each in self.in_flight.queues.items()}
        levels = self.delays.get(1), self.delays.get(2), self.delays.log_end
        checks = self.checks.asked(3), self.checks.asked(6), self.checks.known_before
        return self.offsets.of("g", "t"), self.offsets.resets, queues, levels, self.deleted.places, checks


#: The log has lost its end; later it has grown again, with other messages.
LOST = RecoveryBounds(950, True, {("t", 0): 6, ("t", 1): 2, (SCHEDULE_TOPIC, 0): 8, (SCHEDULE_TOPIC, 1): 8, HALVES: 5})
GROWN = RecoveryBounds(
    5_000, False, {("t", 0): 60, ("t", 1): 60, (SCHEDULE_TOPIC, 0): 60, (SCHEDULE_TOPIC, 1): 60, HALVES: 60}
)
CUT = (
    {0: 6, 1: 2},
    {("g", "t", 1)},
    {QUEUE: (6, [0, 1, 2, 3, 4, 5])},
    (5, None, 900),
    {"gone": 950},
    (2, None, 950),
)


@pytest.fixture(autouse=True)
def disarm() -> Iterator[None]:
    yield
    failpoints.arm("")


def kill() -> None:
    raise Killed


@pytest.mark.parametrize("compacted", [False, True], ids=["journal", "snapshot"])
def test_values_cut_by_a_start_stay_cut(tmp_path: Path, compacted: bool) -> None:
    tables = Tables(tmp_path, GROWN)
    tables.fill()
    if compacted:
        tables.delays.flushed_offset = lambda: 940  # so that a snapshot has the commits behind it
        tables.journal.compact()
        tables.fill()
    for bounds in (LOST, GROWN, GROWN):
        tables = Tables(tmp_path, bounds)
        assert tables.found() == CUT, "the messages at these offsets are other ones, which nobody was given"
        tables.journal.close(compact=bounds is GROWN)


@pytest.mark.parametrize("point", ["state.before_write", "state.after_write"])
def test_start_killed_while_it_cuts_is_finished_by_the_next(tmp_path: Path, point: str) -> None:
    for nth in range(1, 100):
        directory = tmp_path / str(nth)
        Tables(directory, GROWN).fill()
        failpoints.arm(f"{point}:{nth}", kill)
        try:
            Tables(directory, LOST)
            survived = True
        except Killed:
            survived = False
        failpoints.arm("")
        for bounds in (LOST, GROWN):
            assert Tables(directory, bounds).found() == CUT
        if survived:
            break
    assert 8 < nth < 99


@pytest.mark.parametrize("point", ["state.before_snapshot", "state.after_snapshot", "replace.before_rename"])
def test_cut_values_stay_cut_if_a_compaction_is_killed(tmp_path: Path, point: str) -> None:
    Tables(tmp_path, GROWN).fill()
    tables = Tables(tmp_path, LOST)
    failpoints.arm(point, kill)
    with pytest.raises(Killed):
        tables.journal.compact()
    failpoints.arm("")
    assert Tables(tmp_path, GROWN).found() == CUT


def test_messages_after_power_loss_are_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        store._parts.journal.compact()
        append(store, *[make_record(topic="t") for _ in range(20)])
        pop_time_ms, _ = pop_messages(core, 20)
        core.pop.acknowledge("g", "t", 0, pop_time_ms, range(5, 22))
        store.sync_state()
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


@pytest.mark.parametrize("point", ["open.before_clamp", "state.before_write", "open.before_checkpoint"])
def test_killed_open_keeps_a_deleted_topic_deleted(tmp_path: Path, point: str) -> None:
    config = replace(SMALL, commitlog_file_bytes=1 << 16, flush_interval_ms=3_600_000)
    store = Store.open(tmp_path, config)
    append(store, *[make_record(topic="t")] * 10, *[make_record(topic="u")] * 3)
    store.consumer_offsets.commit(*QUEUE, 9)
    store.consumer_offsets.commit("g", "u", 0, 30)  # behind the queue's end: the start has something to cut
    store.in_flight.deliver(QUEUE, 10, {9: FIRST})
    store.delete_topic_soon("t")
    append(store, *[make_record(b"new", topic="t")] * 20)
    store._flusher.stop()
    store._abandon()
    failpoints.arm(point, kill)
    with pytest.raises(Killed):
        Store.open(tmp_path, config)
    failpoints.arm("")
    with Store.open(tmp_path, config) as store:
        assert store.consumer_offsets.get(*QUEUE) is None
        assert store.consumer_offsets.get("g", "u", 0) == 3
        assert store.in_flight.queues == {}
        assert store.max_offset("t", 0) == 20
