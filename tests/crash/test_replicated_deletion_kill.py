"""Kill a broker between a topic's deletion and its queues' removal.

The next opening completes the deletion. A topic of the same name that was created again keeps its messages.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig
from tests.crash.killed_call import run_killed
from tests.crash.killing_calls import Killed, KillingCalls
from tests.state_shipping import content_of, ship_all, state_of
from tests.store_records import SMALL, append, bodies, make_record
from tests.unit.actors.replication.replica_pair import ReplicaPair

pytestmark = pytest.mark.crash

CONFIG = replace(SMALL, flush_interval_ms=3_600_000)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicaPair]:
    """Start with a replica that has all of topics "t" and "u"."""
    pair = ReplicaPair(tmp_path, CONFIG)
    for topic in ("t", "u"):
        send(pair.master, b"first", topic=topic)
    pair.copy()
    pair.ship()
    yield pair
    pair.close()


def send(master: Store, body: bytes, topic: str = "t") -> None:
    """Create the topic, and send to it and read it."""
    master.topic_configs.put(TopicConfig(topic, 2, 2))
    append(master, *(make_record(body, topic=topic, queue_id=number % 2) for number in range(6)))
    master.consumer_offsets.commit("g", topic, 0, 2)


def ship_killed(pair: ReplicaPair) -> None:
    """Ship to a replica that dies before it applies the written events."""
    pair.kill()

    def ship() -> None:
        pair.reopen(killed=True)
        pair.ship()

    directory = pair.follower.directory
    assert run_killed("state.after_write", ship) == -signal.SIGKILL
    assert state_of(directory) == content_of(pair.master.tables)
    assert (directory / "consumequeue" / "t").is_dir()


def test_deletion_that_replica_wrote_is_completed_after_kill(pair: ReplicaPair) -> None:
    pair.master.delete_topic("t")
    ship_killed(pair)
    pair.reopen(killed=True)
    assert pair.follower.topics() == ["u"]
    assert not (pair.follower.directory / "consumequeue" / "t").exists()
    pair.check_equal()
    send(pair.master, b"second")
    pair.ship()
    pair.check_equal()
    assert bodies(pair.follower, "t") == [b"second"] * 3
    for killed in (True, False):  # a known deletion does not harm the topic that was created again
        pair.reopen(killed=killed)
        pair.check_equal()


def test_second_deletion_is_completed_after_kill(pair: ReplicaPair) -> None:
    pair.master.delete_topic("t")
    send(pair.master, b"second")
    pair.ship()
    pair.master.delete_topic("t")
    pair.master.topic_configs.put(TopicConfig("t", 1, 1))
    pair.master.consumer_offsets.commit("g", "u", 0, 3)
    ship_killed(pair)
    pair.reopen(killed=True)
    assert pair.follower.topics() == ["u"]
    send(pair.master, b"third")
    pair.ship()
    pair.check_equal()
    assert bodies(pair.follower, "t") == [b"third"] * 3


@pytest.mark.parametrize("is_running", [True, False], ids=["promoted", "started alone"])
def test_promoted_replica_has_completed_deletion(pair: ReplicaPair, is_running: bool) -> None:
    pair.master.delete_topic("t")
    ship_killed(pair)
    store = Store.open(pair.follower.directory, CONFIG, is_replica=is_running)
    if is_running:
        store.become_leader()
    with store:
        assert store.topics() == ["u"]
        assert list(store.topic_configs.all()) == ["u"]
        assert store.consumer_offsets.get("g", "t", 0) is None
        assert store.consumer_offsets.get("g", "u", 0) == 2
        send(store, b"second")
        assert bodies(store, "t") == [b"second"] * 3


@pytest.mark.parametrize("failpoint", ["delete_topic.before_queues", "delete_topic.after_state"])
def test_deletion_of_killed_master_is_completed(tmp_path: Path, failpoint: str) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        for topic in ("t", "u"):
            send(store, b"first", topic=topic)
    assert run_killed(failpoint, lambda: Store.open(tmp_path, CONFIG).delete_topic("t")) == -signal.SIGKILL
    assert (tmp_path / "consumequeue" / "t").is_dir() == (failpoint == "delete_topic.before_queues")
    with Store.open(tmp_path, CONFIG) as store:
        assert store.topics() == list(store.topic_configs.all()) == ["u"]
        assert not (tmp_path / "consumequeue" / "t").exists()
        assert store.consumer_offsets.get("g", "t", 0) is None
        send(store, b"second")
        kill_and_forget(store)
    with Store.open(tmp_path, CONFIG) as store:
        assert bodies(store, "t") == [b"second"] * 3
        assert bodies(store, "u") == [b"first"] * 3


def kill_and_forget(store: Store) -> None:
    store._flusher.stop()
    store._abandon()


def test_replica_killed_at_each_change_of_deletion_completes_it(
    pair: ReplicaPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # threads end with their simulated process
    pair.stream.close()
    pair.master.delete_topic("t")
    send(pair.master, b"second")
    pair.master.consumer_offsets.commit("g", "u", 0, 3)
    probe, calls = tmp_path / "probe", KillingCalls()
    deaths = 0
    with replaced(calls):
        for changes in itertools.count(1):
            shutil.copytree(pair.stream.directory, probe)
            follower = Store.open(probe, CONFIG, is_replica=True)
            calls.arm(probe, changes)
            try:
                ship_all(pair.master, follower)
            except Killed:
                kill_and_forget(follower)
                calls.take_place()
                deaths += 1
                follower = Store.open(probe, CONFIG, is_replica=True)
                ship_all(pair.master, follower)
            is_whole = not calls.is_dead and calls._directory is not None
            calls.disarm()
            assert content_of(follower.tables) == content_of(pair.master.tables)
            for topic in ("t", "u"):
                assert bodies(follower, topic) == bodies(pair.master, topic)
            follower.close()
            shutil.rmtree(probe)
            if is_whole:
                break
    assert deaths > 6
