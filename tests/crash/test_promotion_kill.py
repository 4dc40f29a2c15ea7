"""Kill an elected replica at each change of its promotion, and promote it again."""

from __future__ import annotations

import itertools
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import InFlightMessage
from raymq.storage.tables.topic_config import TopicConfig
from tests.crash.killing_calls import Killed, KillingCalls
from tests.state_shipping import content_of, copy_state, keep_events, ship_all
from tests.store_records import SMALL, append, bodies, make_record

pytestmark = pytest.mark.crash

CONFIG = replace(SMALL, flush_interval_ms=3_600_000)


def make_replica_ahead_of_its_log(root: Path) -> Path:
    """Make the directory of a replica whose events are ahead of its log."""
    with keep_events(Store.open(root / "master", CONFIG)) as master:
        backlog = master.journal.backlog
        assert backlog is not None
        for topic in ("t", "gone"):
            master.topic_configs.put(TopicConfig(topic, 1, 1))
        append(master, *(make_record(b"%d" % number, topic="t") for number in range(3)), make_record(topic="gone"))
        copy_state(master, root / "replica")
        with Store.open(root / "replica", CONFIG, is_replica=True) as follower:
            ship_all(master, follower)
            append(master, *(make_record(b"lost %d" % number, topic="t") for number in range(3)))
            append(master, make_record(topic=SCHEDULE_TOPIC))
            master.consumer_offsets.commit("g", "t", 0, 6)
            master.in_flight.deliver(
                ("g", "t", 0), 6, {1: InFlightMessage(1, 2, 0, 16), 5: InFlightMessage(2, 2, 0, 16)}
            )
            master.delay_offsets.commit(1, 1, master.max_physical_offset)
            master.delete_topic("gone")
            follower.append_events(backlog.after(follower.journal.last))
    return root / "replica"


def test_promotion_killed_at_each_change_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # threads end with their simulated process
    base, probe, calls = make_replica_ahead_of_its_log(tmp_path), tmp_path / "probe", KillingCalls()
    contents = []
    with replaced(calls):
        for changes in itertools.count(1):
            shutil.copytree(base, probe)
            store = Store.open(probe, CONFIG, is_replica=True)
            calls.arm(probe, changes)
            is_killed = False
            try:
                store.become_leader(memory_lost=True)
            except Killed:
                is_killed = True
                store._flusher.stop()
                store._abandon()
                calls.take_place()
                store = Store.open(probe, CONFIG, is_replica=True)
                store.become_leader(memory_lost=True)
            calls.disarm()
            contents.append(content_of(store.tables))
            assert store.topics() == ["t"]
            assert list(store.topic_configs.all()) == ["t"]
            assert bodies(store, "t") == [b"0", b"1", b"2"]
            assert store.consumer_offsets.get("g", "t", 0) == 3
            assert sorted(store.in_flight.queues["g", "t", 0].deliveries) == [1]
            assert store.delay_offsets.log_end <= store.max_physical_offset
            append(store, make_record(b"new", topic="t"))
            store.close()
            with Store.open(probe, CONFIG, is_replica=True) as reopened:
                assert bodies(reopened, "t") == [b"0", b"1", b"2", b"new"]
            shutil.rmtree(probe)
            if not is_killed:
                break
    assert len(contents) > 6
    assert all(each == contents[-1] for each in contents)
