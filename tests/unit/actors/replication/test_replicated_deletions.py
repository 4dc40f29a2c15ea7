"""Test topics that are deleted and recreated on a master while a replica follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import QueueNotFound, StoreFollows
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import InFlightMessage
from raymq.storage.tables.topic_config import TopicConfig
from tests.state_shipping import content_of, keep_events
from tests.store_records import SMALL, append, make_record
from tests.store_replication import fill, read_bodies
from tests.unit.actors.replication.replica_pair import ReplicaPair

CONFIG = replace(SMALL, index_slots=500, index_entries=400, flush_interval_ms=3_600_000)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicaPair]:
    made = ReplicaPair(tmp_path, CONFIG)
    yield made
    made.close()


@pytest.mark.parametrize("killed", [True, False])
def test_recreated_topic_begins_at_0_on_the_replica(pair: ReplicaPair, killed: bool) -> None:
    for number in range(4):
        append(pair.master, *[make_record(b"%d" % number)] * (number + 1))
        pair.ship()
        pair.master.delete_topic("orders")
        if number % 2:
            pair.ship()
            pair.reopen(killed=killed)
    append(pair.master, make_record(b"last"))
    pair.ship()
    pair.check_equal()
    assert pair.follower.max_offset("orders", 0) == 1
    pair.reopen(killed=killed)
    pair.check_equal()
    pair.follower.become_leader()
    pair.check_equal()


def test_deletion_is_applied_without_further_bytes(pair: ReplicaPair) -> None:
    append(pair.master, make_record(b"old"))
    pair.ship()
    pair.master.delete_topic("orders")
    pair.ship()
    with pytest.raises(QueueNotFound):
        pair.follower.max_offset("orders", 0)
    pair.reopen(killed=True)
    append(pair.master, make_record(b"new"))
    pair.ship()
    pair.check_equal()


def test_recreated_topic_waits_for_its_deletion_on_disk(pair: ReplicaPair) -> None:
    """Else a loss of power could leave two topics of this name in the replica's log."""
    append(pair.master, make_record(b"old"))
    pair.ship()
    pair.master.delete_topic("orders")
    append(pair.master, make_record(b"new"))
    pair.ship(steps=1)
    assert pair.follower._dispatcher.unsynced_deletions == {"orders"}
    pair.ship()
    assert pair.follower._dispatcher.unsynced_deletions == set()
    assert pair.follower.journal._synced >= pair.follower.journal.last


@pytest.mark.parametrize("killed", [True, False])
def test_copy_ahead_of_the_log_hides_deleted_records(pair: ReplicaPair, killed: bool) -> None:
    """A copy is newer than the replica's log: a deletion in it is behind the log's end."""
    fill(pair.master, 10)
    pair.ship_log()
    fill(pair.master, 5, seed=1)
    pair.master.delete_topic("orders")
    fill(pair.master, 5, seed=2)
    pair.master.delete_topic("parts")
    pair.copy()
    if killed:
        pair.reopen(killed=True)
    fill(pair.master, 5, seed=3)
    pair.ship(most_bytes=300, steps=1)
    if killed:
        pair.reopen(killed=True)
    pair.ship()
    pair.check_equal()
    pair.reopen(killed=killed)
    pair.follower.become_leader()
    pair.check_equal()


@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "becomes master"])
@pytest.mark.parametrize("saved", [True, False])
def test_copy_of_successor_reverts_a_lost_deletion(
    tmp_path: Path, pair: ReplicaPair, goes_on: bool, saved: bool
) -> None:
    """The former master deleted the topic; its successor was elected without that deletion."""
    fill(pair.master, 10)
    pair.ship()
    other = keep_events(Store.open(tmp_path / "other", CONFIG))
    other.follow()
    offset = 0
    while offset < pair.master.max_physical_offset:
        with pair.master.log_slice(offset, pair.master.max_physical_offset) as part:
            other.append_replicated(offset, bytes(part.view))
            offset = part.end
    pair.master.delete_topic("orders")
    pair.ship()
    if saved:
        pair.follower._save_checkpoint()
    with pytest.raises(QueueNotFound):
        pair.follower.max_offset("orders", 0)
    other.become_leader()
    other.topic_configs.put(TopicConfig("orders", 4, 4))
    other.close()
    pair.restart_master("other")
    pair.copy()
    if goes_on:
        append(pair.master, make_record(b"of the successor"))
        pair.ship()
        pair.reopen(killed=False)
    else:
        pair.follower.become_leader()
    pair.check_equal()
    assert not (tmp_path / "replica" / "raymq" / "rebuild_queues").exists()


def test_replica_has_the_masters_tables_and_refuses_own_changes(pair: ReplicaPair) -> None:
    fill(pair.master, 5)
    pair.master.topic_configs.put(TopicConfig("orders", 4, 4))
    pair.master.consumer_offsets.commit("g", "orders", 0, 1)
    pair.ship()
    config = pair.follower.topic_configs.get("orders")
    assert config is not None
    assert config.read_queues == 4
    assert pair.follower.consumer_offsets.get("g", "orders", 0) == 1
    with pytest.raises(StoreFollows):
        pair.follower.delete_topic("orders")
    pair.follower._save_checkpoint()
    pair.follower.delete_expired(asked=True)
    pair.reopen(killed=False)
    pair.check_equal()
    assert pair.follower.journal.last == pair.master.journal.last


def test_promotion_opens_nothing_and_clamps_nothing_needless(pair: ReplicaPair) -> None:
    fill(pair.master, 20)
    pair.master.consumer_offsets.commit("g", "orders", 0, pair.master.max_offset("orders", 0))
    pair.ship()
    last, store = pair.follower.journal.last, pair.follower
    store.become_leader()
    assert store.journal.last == last
    pair.check_equal()
    append(store, make_record(b"own"))
    store.consumer_offsets.commit("g", "orders", 0, store.max_offset("orders", 0, written=True))
    assert store.journal.last == last + 1


def test_promotion_removes_what_refers_to_lost_log(pair: ReplicaPair) -> None:
    """The log of a replica without memory may end before events that refer to it."""
    fill(pair.master, 20)
    half = pair.master.max_offset("orders", 0)
    pair.ship()
    fill(pair.master, 20, seed=1)
    pair.master.consumer_offsets.commit("g", "orders", 0, pair.master.max_offset("orders", 0))
    end = pair.follower.max_physical_offset
    pair.copy()  # as if the log behind it was lost
    assert pair.follower.max_physical_offset == end
    assert pair.follower.consumer_offsets.get("g", "orders", 0) == pair.master.max_offset("orders", 0)
    pair.follower.become_leader(memory_lost=True)
    assert pair.follower.consumer_offsets.get("g", "orders", 0) == half
    assert pair.follower.recovery_bounds.memory_lost


def test_log_is_read_correctly_after_an_aborted_copy(pair: ReplicaPair) -> None:
    """An aborted copy leaves the tables that say that a topic was recreated."""
    append(pair.master, *[make_record(b"old")] * 3)
    pair.ship()
    pair.master.delete_topic("orders")
    append(pair.master, make_record(b"new"))
    pair.ship()
    expected, state = read_bodies(pair.follower), content_of(pair.follower.tables)
    pair.stream.begin_snapshot(pair.stream.end, keeps_log=True)
    for _ in range(2):
        pair.reopen(killed=True)
        assert pair.follower.recovery.corruption == []
        assert read_bodies(pair.follower) == expected == read_bodies(pair.master)
        assert content_of(pair.follower.tables) == state
    assert not (pair.root / "replica" / "raymq" / "state.next").exists()
    pair.copy()
    append(pair.master, make_record(b"newer"))
    pair.ship()
    pair.check_equal()


def recreate_topic_and_expire_log(pair: ReplicaPair) -> int:
    """Recreate a topic, then expire the master's log up to there; keep the replica's.

    Returns:
        The begin of the master's log.
    """
    append(pair.master, *(make_record(b"old %d" % number, topic="v") for number in range(20)))
    pair.master.delete_topic("v")
    pair.master.sync_state()
    append(pair.master, make_record(b"new", topic="v"))
    append(pair.master, make_record(b"of another", topic="other"))
    fill(pair.master, 40)
    pair.ship()
    pair.master.flush()
    pair.master._age.now_ms = lambda: 1 << 60  # type: ignore[method-assign]
    assert pair.master.delete_expired(asked=True).log_files
    begin = pair.stream.master_begin = pair.master.min_physical_offset
    assert begin > pair.follower.min_physical_offset
    return begin


def test_deletion_before_the_masters_log_is_kept(pair: ReplicaPair) -> None:
    recreate_topic_and_expire_log(pair)
    pair.copy()
    pair.reopen(killed=False)
    assert read_bodies(pair.follower)["v", 0] == [b"new"]
    pair.master.delete_topic("other")
    append(pair.master, make_record(b"newer", topic="v"))
    pair.ship()
    assert read_bodies(pair.follower)["v", 0] == [b"new", b"newer"]
    assert pair.follower.max_offset("v", 0) == pair.master.max_offset("v", 0)


def test_other_deletion_keeps_queue_of_expired_messages(pair: ReplicaPair) -> None:
    """A queue whose messages have all expired belongs to the recreated topic."""
    append(pair.master, make_record(b"old", topic="v"))
    pair.master.delete_topic("v")
    append(pair.master, make_record(b"new", topic="v"))
    fill(pair.master, 40)
    pair.ship()
    for store in (pair.master, pair.follower):
        store.flush()
        store._age.now_ms = lambda: 1 << 60  # type: ignore[method-assign]
        assert store.delete_expired(asked=True).log_files
    assert pair.follower.min_offset("v", 0) == pair.follower.max_offset("v", 0) == 1
    pair.master.delete_topic("other")
    pair.ship()
    assert pair.follower.max_offset("v", 0) == 1


def test_group_progress_since_old_deletion_survives_election(pair: ReplicaPair) -> None:
    recreate_topic_and_expire_log(pair)
    pair.restart_master()
    pair.master.consumer_offsets.commit("g", "v", 0, 1)
    pair.master.in_flight.deliver(("poppers", "v", 0), 1, {0: InFlightMessage(1, 1 << 50, 0, 16)})
    for _ in range(2):
        pair.copy()
        pair.follower.become_leader()
        for killed in (True, False):
            assert read_bodies(pair.follower)["v", 0] == [b"new"]
            assert pair.follower.consumer_offsets.get("g", "v", 0) == 1
            assert ("poppers", "v", 0) in pair.follower.in_flight.queues
            pair.reopen(killed=killed)


def test_old_deletion_survives_reverting_a_lost_one(pair: ReplicaPair) -> None:
    """Queues of a topic whose deletion is reverted are rebuilt; queues of a deleted topic are not."""
    recreate_topic_and_expire_log(pair)
    pair.follower.become_leader()
    pair.follower.delete_topic("other")
    pair.reopen(killed=False)
    pair.copy()  # removes the files of the log that the master does not have
    for killed in (True, False):
        pair.reopen(killed=killed)
        assert read_bodies(pair.follower) == read_bodies(pair.master)
        assert pair.follower.max_offset("v", 0) == pair.master.max_offset("v", 0)


def test_first_deletion_survives_reverting_the_second(pair: ReplicaPair) -> None:
    begin = recreate_topic_and_expire_log(pair)
    assert pair.follower.incarnation("v") < begin
    pair.follower.become_leader()
    pair.follower.delete_topic("v")
    for _ in range(2):
        pair.reopen(killed=True)
        assert read_bodies(pair.follower).get(("v", 0), []) == []
    pair.copy()
    for killed in (True, False):
        pair.reopen(killed=killed)
        assert read_bodies(pair.follower) == read_bodies(pair.master)
        assert pair.follower.max_offset("v", 0) == pair.master.max_offset("v", 0)


def test_events_of_a_lost_epoch_are_not_shipped_after_a_copy(tmp_path: Path, pair: ReplicaPair) -> None:
    """The copy may end at the number at which the lost events ended."""
    pair.ship()
    base = pair.master.journal.last
    pair.follower.become_leader()
    pair.follower.topic_configs.put(TopicConfig("lost", 1, 1))
    assert pair.follower.journal.last == base + 1
    pair.master.topic_configs.put(TopicConfig("kept", 1, 1))
    assert pair.master.journal.last == base + 1
    pair.copy()
    backlog = pair.follower.journal.backlog
    assert backlog is not None
    assert (backlog.dropped, len(backlog)) == (base + 1, 0)
    assert pair.follower.topic_configs.all().keys() == {"kept"}
