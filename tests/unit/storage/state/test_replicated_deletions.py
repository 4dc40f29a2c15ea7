"""Test topics that are deleted and recreated on a master while a replica follows."""

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
from raymq.storage.tables.deleted_topics import DeletedTopics
from raymq.storage.tables.in_flight_messages import InFlightMessage
from raymq.storage.tables.topic_config import TopicConfig
from tests.faulty_calls import FaultyCalls
from tests.state_journals import open_table
from tests.state_shipping import StateShipper, ship_state, state_of, take_snapshot
from tests.store_records import SMALL, append, make_record, write_entries
from tests.store_replication import fill, read_bodies, ship

CONFIG = replace(SMALL, index_slots=500, index_entries=400, flush_interval_ms=3_600_000)


class Pair:
    """Hold a master with its replica."""

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
        """Restart the master, which then does not know the changes the replica lacks."""
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
def test_recreated_topic_begins_at_0_on_the_replica(pair: Pair, killed: bool) -> None:
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


def test_replica_killed_before_a_deletion_applies_it_at_startup(pair: Pair) -> None:
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


def test_deletion_failed_on_the_master_keeps_the_topic(pair: Pair) -> None:
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
def test_snapshot_ahead_of_the_log_hides_deleted_records(pair: Pair, killed: bool) -> None:
    # A snapshot is newer than the replica's log: a deletion in the snapshot is behind the log's end.
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
def test_snapshot_of_successor_reverts_a_lost_deletion(
    tmp_path: Path, pair: Pair, is_replica: bool, saved: bool
) -> None:
    # The former master deleted the topic; its successor was elected without that deletion.
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


def test_replica_uses_delay_levels_of_the_storing_master(tmp_path: Path, pair: Pair) -> None:
    # A schedule topic's entry has the delivery time by the delay table of the master that stored it.
    pair.snapshot()
    append(pair.master, make_record(b"1", topic="SCHEDULE_TOPIC_XXXX", queue_id=1, delay_level=2))
    pair.shipping.all()
    pair.master.close()
    ship_state(pair.recorder, pair.replica)
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


def test_tables_of_a_replica_store_are_empty_and_read_only(tmp_path: Path, pair: Pair) -> None:
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


def test_log_is_read_correctly_after_an_aborted_snapshot(pair: Pair) -> None:
    # An aborted snapshot removes the tables that say a topic was recreated; the log is read as before.
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


def recreate_topic_and_expire_log(pair: Pair) -> int:
    """Recreate a topic, then expire the master's log up to there; keep the replica's.

    Returns:
        The begin of the master's log.
    """
    pair.snapshot()
    append(pair.master, *(make_record(b"old %d" % number, topic="v") for number in range(20)))
    pair.master.delete_topic("v")
    pair.master.sync_state()
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


def test_deletion_before_the_masters_log_begin_is_applied(pair: Pair) -> None:
    # The master does not report the deletion any more; the replica, which was away, still has older files.
    begin = recreate_topic_and_expire_log(pair)
    pair.snapshot()
    pair.reopen(killed=False)
    pair.follower.follow(lambda: pair.replica.last, begin)
    assert read_bodies(pair.follower)["v", 0] == [b"new"]
    pair.master.delete_topic("other")
    append(pair.master, make_record(b"newer", topic="v"))
    pair.shipping.all()
    assert read_bodies(pair.follower)["v", 0] == [b"new", b"newer"]
    assert pair.follower.max_offset("v", 0) == pair.master.max_offset("v", 0)


def test_group_progress_since_old_deletion_survives_election(pair: Pair) -> None:
    # The master's tables do not have that deletion any more: it must not be applied to them again.
    recreate_topic_and_expire_log(pair)
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


def test_old_deletion_survives_reverting_a_lost_deletion(pair: Pair) -> None:
    # Queues of a topic whose deletion is reverted are rebuilt; queues of a deleted topic are not.
    begin = recreate_topic_and_expire_log(pair)
    open_table(pair.root / "replica", deleted := DeletedTopics([])).record(
        "d", "other", pair.follower.max_physical_offset
    )
    assert deleted.places["other"]
    pair.reopen(killed=False)
    pair.snapshot()
    for killed in (True, False):
        pair.reopen(killed=killed)
        pair.follower.follow(lambda: pair.replica.last, begin)
        assert read_bodies(pair.follower)["v", 0] == [b"new"]
        assert read_bodies(pair.follower)["other", 0] == [b"of another"]
        assert pair.follower.max_offset("v", 0) == pair.master.max_offset("v", 0)


def test_first_deletion_survives_reverting_the_second(pair: Pair) -> None:
    # This holds also for two deletions of one topic: the journal of the store that made them has both.
    begin = recreate_topic_and_expire_log(pair)
    pair.reopen(killed=False, is_replica=False)
    assert pair.follower._deletions.last_of("v") < begin
    pair.follower.delete_topic("v")
    pair.follower.sync_state()
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
