"""Topics that are deleted and made again under a store that follows: its queues are its master's."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import QueueNotFound, StoreError, StoreFailed
from raymq.storage.files import file_calls
from raymq.storage.files.file_calls import replaced
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import InFlightMessage
from raymq.storage.tables.journal import Journal
from raymq.storage.tables.topic_config import TopicConfig
from tests.faulty_calls import FaultyCalls
from tests.state_shipping import StateShipper, state_of, take_snapshot
from tests.store_records import SMALL, append, make_record, write_entries
from tests.store_replication import fill, read_bodies, ship

CONFIG = replace(SMALL, index_slots=500, index_entries=400, flush_interval_ms=3_600_000)


class Pair:
    """A master with its replica."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.recorder = StateRecorder.begin(root / "master", log_end=lambda: 0)
        self.master = Store.open(root / "master", CONFIG)
        self.recorder.log_end = lambda: self.master.max_physical_offset
        self.replica = StateReplica(root / "replica")
        self.follower = Store.open(root / "replica", CONFIG, is_replica=True)

    def snapshot(self) -> None:
        take_snapshot(self.recorder, self.replica)

    def restart_master(self) -> None:
        """Nobody knows afterwards what the replica lacks."""
        self.master.close()
        self.recorder.stop()
        self.recorder = StateRecorder.begin(self.root / "master", log_end=lambda: 0)
        self.master = Store.open(self.root / "master", CONFIG)
        self.recorder.log_end = lambda: self.master.max_physical_offset
        self.recorder.invalidate_numbers()

    @property
    def shipping(self) -> StateShipper:
        return StateShipper(self.master, self.recorder, self.follower, self.replica)

    def reopen(self, *, killed: bool, is_replica: bool = True) -> None:
        if killed:
            self.follower._flusher.stop()
            self.follower._abandon()
        else:
            self.follower.close()
        self.follower = Store.open(self.root / "replica", CONFIG, is_replica=is_replica)

    def close(self) -> None:
        self.follower.close()
        self.master.close()
        self.recorder.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("killed", [True, False])
def test_a_topic_that_is_made_again_begins_at_0_on_the_replica_too(pair: Pair, killed: bool) -> None:
    pair.snapshot()
    for number in range(4):
        append(pair.master, *[make_record(b"%d" % number)] * (number + 1))
        pair.shipping.all()
        pair.master.delete_topic("orders")
        if number % 2:
            pair.shipping.all()
            pair.reopen(killed=killed)
    append(pair.master, make_record(b"last"))
    pair.shipping.all()
    assert read_bodies(pair.follower) == read_bodies(pair.master)
    assert pair.follower.max_offset("orders", 0) == 1
    pair.reopen(killed=killed)
    assert read_bodies(pair.follower) == read_bodies(pair.master)
    pair.reopen(killed=killed, is_replica=False)
    assert read_bodies(pair.follower) == read_bodies(pair.master)


def test_a_follower_that_dies_before_it_heeds_a_deletion_heeds_it_when_it_starts(pair: Pair) -> None:
    pair.snapshot()
    append(pair.master, make_record(b"old"))
    pair.shipping.all()
    pair.master.delete_topic("orders")
    while pair.shipping.step():
        pass
    assert pair.follower.max_offset("orders", 0) == 1, "no bytes came behind it, so that it was not looked at"
    pair.reopen(killed=True)
    append(pair.master, make_record(b"new"))
    pair.shipping.all()
    assert read_bodies(pair.follower) == read_bodies(pair.master)


def test_a_deletion_that_the_masters_disk_refused_is_none(pair: Pair) -> None:
    pair.snapshot()
    append(pair.master, make_record(b"kept"))
    pair.shipping.all()
    write_entries(pair.master)  # so that there is a folder to move away
    with replaced(FaultyCalls("rename", 1, errno.ENOSPC, real=file_calls.current)), pytest.raises(StoreError):
        pair.master.delete_topic("orders")
    append(pair.master, make_record(b"next"))
    pair.shipping.all()
    assert pair.follower.max_offset("orders", 0) == 2
    assert read_bodies(pair.follower) == read_bodies(pair.master)


@pytest.mark.parametrize("killed", [True, False])
def test_tables_that_are_ahead_of_the_log_say_which_records_are_nobodys(pair: Pair, killed: bool) -> None:
    """A snapshot is newer than what the replica has of the log: a deletion in it is behind the log's end."""
    fill(pair.master, 10)
    ship(pair.master, pair.follower)
    fill(pair.master, 5, seed=1)
    pair.master.delete_topic("orders")
    fill(pair.master, 5, seed=2)
    pair.master.delete_topic("parts")
    pair.snapshot()
    if killed:
        pair.reopen(killed=True)
    fill(pair.master, 5, seed=3)
    pair.shipping.step(most_bytes=300)
    if killed:
        pair.reopen(killed=True)
    pair.shipping.all()
    assert read_bodies(pair.follower) == read_bodies(pair.master)
    pair.reopen(killed=killed, is_replica=False)
    assert read_bodies(pair.follower) == read_bodies(pair.master)


@pytest.mark.parametrize("is_replica", [True, False], ids=["it goes on", "it becomes master"])
@pytest.mark.parametrize("saved", [True, False])
def test_a_deletion_that_never_was_is_taken_back_with_the_snapshot(
    tmp_path: Path, pair: Pair, is_replica: bool, saved: bool
) -> None:
    """The former master had deleted the topic, and nobody else was told before another one succeeded it."""
    pair.snapshot()
    fill(pair.master, 10)
    pair.shipping.all()
    other = Store.open(tmp_path / "other", CONFIG)
    other.follow()
    ship(pair.master, other)
    pair.master.delete_topic("orders")
    pair.shipping.all()
    pair.follower.append_replicated(pair.follower.received_offset, b"")
    if saved:
        pair.follower._save_checkpoint()
    with pytest.raises(QueueNotFound):
        pair.follower.max_offset("orders", 0)
    other.close()

    with_another = StateRecorder.begin(tmp_path / "other", log_end=lambda: 0)
    successor = Store.open(tmp_path / "other", CONFIG)
    with_another.log_end = lambda: successor.max_physical_offset
    take_snapshot(with_another, pair.replica)
    assert state_of(tmp_path / "replica") == state_of(tmp_path / "other")
    if is_replica:
        append(successor, make_record(b"of the successor"))
        with pytest.raises(StoreFailed, match="the deletion of topics was undone"):
            StateShipper(successor, with_another, pair.follower, pair.replica).all()
        pair.reopen(killed=False)
        StateShipper(successor, with_another, pair.follower, pair.replica).all()
    else:
        pair.reopen(killed=False, is_replica=False)
    assert read_bodies(pair.follower) == read_bodies(successor)
    assert not (tmp_path / "replica" / "raymq" / "rebuild_queues").exists()
    successor.close()
    with_another.stop()


def test_delay_levels_that_a_new_master_has_hold_for_what_it_stores(tmp_path: Path, pair: Pair) -> None:
    """Entries of the schedule topic say when a message is due, which is by the table of the master that stored it."""
    pair.snapshot()
    append(pair.master, make_record(b"1", topic="SCHEDULE_TOPIC_XXXX", queue_id=1, delay_level=2))
    pair.shipping.all()
    pair.master.close()
    pair.recorder.stop()
    pair.recorder = StateRecorder.begin(tmp_path / "master", log_end=lambda: pair.follower.max_physical_offset)
    pair.master = Store.open(tmp_path / "master", replace(CONFIG, delay_levels="1s 9h"))
    pair.recorder.log_end = lambda: pair.master.max_physical_offset
    assert pair.replica.last == pair.recorder.folded
    append(pair.master, make_record(b"2", topic="SCHEDULE_TOPIC_XXXX", queue_id=1, delay_level=2))
    pair.shipping.all()
    dues = [
        [queue.entry(number)[2] for number in range(2)]
        for store in (pair.master, pair.follower)
        for queue in [store._dispatcher.queues["SCHEDULE_TOPIC_XXXX", 1]]
    ]
    assert dues[0] == dues[1]
    assert dues[0][1] - dues[0][0] > 8 * 3_600_000


def test_the_tables_of_a_store_that_follows_are_empty_and_are_not_written(tmp_path: Path, pair: Pair) -> None:
    pair.snapshot()
    fill(pair.master, 5)
    pair.master.topic_configs.put(TopicConfig("orders", 4, 4))
    pair.master.consumer_offsets.commit("g", "orders", 0, 1)
    pair.shipping.all()
    before = state_of(tmp_path / "replica")
    assert pair.follower.topic_configs.all() == {}
    assert pair.follower.consumer_offsets.get("g", "orders", 0) is None
    with pytest.raises(StoreError):
        pair.follower.topic_configs.put(TopicConfig("own", 1, 1))
    with pytest.raises(StoreError):
        pair.follower.consumer_offsets.commit("g", "orders", 0, 2)
    pair.follower._save_checkpoint()
    pair.follower.delete_expired(asked=True)
    pair.reopen(killed=False)
    assert state_of(tmp_path / "replica") == before == state_of(tmp_path / "master")


def test_a_log_is_read_right_while_the_tables_are_gone(pair: Pair) -> None:
    """A snapshot was broken off: that its topic was made again is not in the tables any more, and true all the same."""
    pair.snapshot()
    append(pair.master, *[make_record(b"old")] * 3)
    pair.shipping.all()
    pair.master.delete_topic("orders")
    append(pair.master, make_record(b"new"))
    pair.shipping.all()
    expected = read_bodies(pair.follower)
    pair.replica.begin_snapshot()
    for _ in range(2):
        pair.reopen(killed=True)
        assert pair.follower.recovery.corruption == []
        assert read_bodies(pair.follower) == expected == read_bodies(pair.master)
    pair.snapshot()
    append(pair.master, make_record(b"newer"))
    pair.shipping.all()
    assert read_bodies(pair.follower) == read_bodies(pair.master)


def made_anew_and_past_retention(pair: Pair) -> int:
    """A topic was deleted and made again, and the master's log begins behind that; the replica has what was before.

    Returns:
        where the master's log begins.
    """
    pair.snapshot()
    append(pair.master, *(make_record(b"old %d" % number, topic="v") for number in range(20)))
    pair.master.delete_topic("v")
    pair.master.sync_settings()
    append(pair.master, make_record(b"new", topic="v"))
    append(pair.master, make_record(b"of another", topic="other"))
    fill(pair.master, 40)
    pair.shipping.all()
    pair.master.flush()
    pair.master._age.now_ms = lambda: 1 << 60  # type: ignore[method-assign]
    assert pair.master.delete_expired(asked=True).log_files
    pair.restart_master()
    begin = pair.replica.master_begin = pair.master.min_physical_offset
    assert begin > pair.follower.min_physical_offset
    return begin


def test_a_deletion_of_before_the_masters_log_begins_was_made_all_the_same(pair: Pair) -> None:
    """The master tells of it no more; the replica, which was away, has files from before it yet."""
    begin = made_anew_and_past_retention(pair)
    pair.snapshot()
    pair.reopen(killed=False)
    pair.follower.follow(lambda: pair.replica.last, begin)
    assert read_bodies(pair.follower)["v", 0] == [b"new"]
    pair.master.delete_topic("other")
    append(pair.master, make_record(b"newer", topic="v"))
    pair.shipping.all()
    assert read_bodies(pair.follower)["v", 0] == [b"new", b"newer"]
    assert pair.follower.max_offset("v", 0) == pair.master.max_offset("v", 0)


def test_what_groups_have_come_to_since_such_a_deletion_stays_on_who_is_elected(pair: Pair) -> None:
    """The master's tables know nothing of that deletion any more: it is no news to them."""
    made_anew_and_past_retention(pair)
    pair.restart_master()
    pair.master.consumer_offsets.commit("g", "v", 0, 1)
    pair.master.in_flight.deliver(("poppers", "v", 0), 1, {0: InFlightMessage(1, 1 << 50, 0, 16)})
    for _ in range(2):
        pair.snapshot()
        pair.reopen(killed=False, is_replica=False)
        assert read_bodies(pair.follower)["v", 0] == [b"new"]
        assert pair.follower.consumer_offsets.get("g", "v", 0) == 1
        assert ("poppers", "v", 0) in pair.follower.in_flight.queues
        pair.reopen(killed=False, is_replica=False)
        assert pair.follower.consumer_offsets.get("g", "v", 0) == 1
        assert ("poppers", "v", 0) in pair.follower.in_flight.queues
        pair.reopen(killed=False)


def test_a_deletion_of_before_the_masters_log_begins_outlives_one_that_never_was(pair: Pair) -> None:
    """Queues that lack what was not deleted after all are made anew, and of no topic that was."""
    begin = made_anew_and_past_retention(pair)
    journal = pair.root / "replica" / "raymq" / "deletions.journal"
    told = Journal(journal, writable=True)
    told.append(("other", pair.follower.max_physical_offset))
    told.close()
    pair.reopen(killed=False)
    pair.snapshot()
    for killed in (True, False):
        pair.reopen(killed=killed)
        pair.follower.follow(lambda: pair.replica.last, begin)
        assert read_bodies(pair.follower)["v", 0] == [b"new"]
        assert read_bodies(pair.follower)["other", 0] == [b"of another"]
        assert pair.follower.max_offset("v", 0) == pair.master.max_offset("v", 0)


def test_the_first_of_two_deletions_outlives_a_second_one_that_never_was(pair: Pair) -> None:
    """Also of the same topic: the journal of who made both tells both."""
    begin = made_anew_and_past_retention(pair)
    pair.reopen(killed=False, is_replica=False)
    assert pair.follower._deletions.last_of("v") < begin
    pair.follower.delete_topic("v")
    pair.follower.sync_settings()
    for _ in range(2):
        pair.reopen(killed=True)
        assert read_bodies(pair.follower).get(("v", 0), []) == []
    pair.replica.begin_snapshot()
    pair.reopen(killed=True)
    assert read_bodies(pair.follower).get(("v", 0), []) == []
    pair.snapshot()
    for killed in (True, False):
        pair.reopen(killed=killed)
        pair.follower.follow(lambda: pair.replica.last, begin)
        assert read_bodies(pair.follower)["v", 0] == [b"new"]
        assert pair.follower.max_offset("v", 0) == pair.master.max_offset("v", 0)
