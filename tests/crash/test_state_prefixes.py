"""Test that every prefix of a master's stream, and a replica after any kill, has a state that the master had."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.broker.core.broker import BrokerCore
from raymq.client import Message
from raymq.storage.journal import state_journal
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import InFlightMessage
from raymq.storage.timers import timer_log
from tests import fork_server, staged_rows
from tests.crash import state_follower
from tests.crash.power_loss_broker import CONFIG
from tests.crash.state_follower import Recording
from tests.state_journals import wait_for_compaction
from tests.state_shipping import StateShipper, copy_state, keep_events, state_of
from tests.unit.actors.bench import encoded

pytestmark = pytest.mark.crash

PROGRAM = Path(state_follower.__file__)


@dataclass
class StateAt:
    """The state between two operations, with its sequence number and log end."""

    sequence: int
    log_end: int
    facts: dict[str, Any]


class RandomMaster:
    """A master that performs one random operation after another."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = keep_events(Store.open(directory, CONFIG))
        self.core = BrokerCore("broker-a", self.store)
        self.core.topics.create("t", 2)
        self.store.sync_state()
        self.moments = [self.moment()]
        self.number = 0

    def moment(self) -> StateAt:
        return StateAt(self.store.journal.last, self.store.max_physical_offset, broker_state(self.store, self.core))

    def work(self) -> None:
        """Perform one operation."""
        self.number += 1
        getattr(self, self.random.choice(["send", "commit", "topic", "lend", "stage", "decide", "delete", "timer"]))()
        self.moments.append(self.moment())

    def send(self) -> None:
        name = f"topic{self.random.randrange(6)}"
        topic = name if name in self.core.topics else "t"
        records, sizes = encoded(*[Message(topic, b"%d" % self.number)] * self.random.choice((1, 5)))
        self.core.append(topic, 0, memoryview(records), sizes)

    def timer(self) -> None:
        records, sizes = encoded(Message("t", b"%d" % self.number, deliver_at=time.time() + 100_000))
        self.core.append("t", 0, memoryview(records), sizes, delayed=True)
        if (write := self.core.timers.checkpoint()) is not None and self.random.random() < 0.5:
            write()

    def commit(self) -> None:
        end = self.store.max_offset("t", 0) if 0 in self.store.queues("t") else 0
        self.store.consumer_offsets.commit(f"g{self.number % 3}", "t", 0, self.random.randint(0, end))

    def topic(self) -> None:
        self.core.topics.create(f"topic{self.random.randrange(6)}", 1)
        if self.random.random() < 0.3:
            self.store.begin_export()()

    def delete(self) -> None:
        name = f"topic{self.random.randrange(6)}"
        if name in self.core.topics:
            self.core.topics.delete(name)

    def lend(self) -> None:
        if 0 in self.store.queues("t"):
            end = self.store.max_offset("t", 0)
            # as pop does: a start drops deliveries of a group without an offset, as one that was deleted
            if self.store.consumer_offsets.get("g", "t", 0) is None:
                self.store.consumer_offsets.commit("g", "t", 0, 0)
            lent = InFlightMessage(self.number, 4_000_000_000_000, 0, 16)
            self.store.in_flight.deliver(("g", "t", 0), end, {end - 1: lent})

    def stage(self) -> None:
        records, sizes = encoded(Message("t", b"staged %d" % self.number))
        staged_rows.stage(self.core.staging, f"tx{self.number}", "p", 0, ("t", 0), memoryview(records), sizes)

    def decide(self) -> None:
        name = next((each for each in self.store.tables.staged.transactions() if not each.over), None)
        if name is not None:
            for _ in staged_rows.commit(self.core.staging, name.name, ["p"]):
                pass
            self.store.flush()
            staged_rows.close(self.core.staging, name.name)

    def close(self) -> None:
        self.core.timers.close()
        wait_for_compaction(self.store)
        self.store.close()


def broker_state(store: Store, core: BrokerCore) -> dict[str, Any]:
    """Return a broker's state as named values."""
    found: dict[str, Any] = {
        f"offset of {group}": store.consumer_offsets.get(group, "t", 0) for group in ("g0", "g1", "g2")
    }
    for number in range(6):
        found[f"topic{number}"] = f"topic{number}" in core.topics
    for queue, known in store.in_flight.queues.items():
        found[f"lent {queue}"] = sorted(known.deliveries)
    for transaction in store.tables.staged.transactions():
        found[f"decided {transaction.name}"] = bool(transaction.commit) or transaction.over == "committed"
    return found


def opened_master(directory: Path, *, is_running: bool, memory_lost: bool = False) -> Store:
    """Open a replica's directory as a master, by start or promotion."""
    store = Store.open(directory, CONFIG, is_replica=is_running)
    if is_running:
        store.follow()
        store.become_leader(memory_lost=memory_lost)
    return store


@pytest.fixture(autouse=True)
def rewrite_journals_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 800)
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 3)


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize("seed", range(3))
def test_stream_prefix_has_state_of_that_moment(tmp_path: Path, seed: int) -> None:
    worker = RandomMaster(tmp_path / "master", seed)
    copy_state(worker.store, tmp_path / "replica")
    for _ in range(120):
        worker.work()
    follower = Store.open(tmp_path / "replica", CONFIG, is_replica=True)
    shipping = StateShipper(worker.store, follower)
    moments, number = worker.moments, 0
    while shipping.step(most_bytes=300, most_events=1):
        number += 1
        if number % 3:
            continue
        done = [
            at
            for at, moment in enumerate(moments)
            if moment.sequence <= follower.journal.last and moment.log_end <= follower.max_physical_offset
        ]
        if not done:
            continue
        before, after = moments[done[-1]], moments[min(done[-1] + 1, len(moments) - 1)]
        probe = tmp_path / "probe"
        follower.wait_for_removals()
        shutil.copytree(tmp_path / "replica", probe)
        with opened_master(probe, is_running=number % 2 == 0) as store:
            core = BrokerCore("broker-a", store)
            found = broker_state(store, core)
            for name in before.facts.keys() | after.facts.keys() | found.keys():
                allowed = [moment.facts.get(name) for moment in (before, after)]
                assert found.get(name) in allowed, f"{name} after {follower.journal.last}"
            core.timers.close()
        shutil.rmtree(probe)
    assert number > 100
    worker.core.timers.close()
    shipping.all()
    worker.close()
    assert follower.journal.last == worker.store.journal.last
    follower.close()
    assert state_of(tmp_path / "replica") == state_of(tmp_path / "master")


@pytest.mark.parametrize("seed", range(2))
def test_repeatedly_killed_replica_reaches_master_state(tmp_path: Path, seed: int) -> None:
    worker = RandomMaster(tmp_path / "master", seed)
    recording = Recording(worker.store)
    for _ in range(200):
        worker.work()
        recording.record()
    worker.close()
    recording.record()
    recording.save(tmp_path / "stream")
    random_ = random.Random(seed)
    kills, copies, is_following = 0, 0, False
    for pieces in (*random_.choices((1, 2, 5, 20, 50), k=20), 0):
        arguments = [str(PROGRAM), str(tmp_path / "replica"), str(tmp_path / "stream"), str(pieces)]
        done = fork_server.run(arguments, stdout=subprocess.PIPE, timeout=60)
        lines = done.stdout.splitlines()
        copies += b"copy" in lines
        assert not (is_following and b"copy" in lines), "a kill costs no event"
        is_following |= b"event" in lines
        assert done.returncode in (0, -signal.SIGKILL)
        kills += done.returncode != 0
    assert kills >= 3
    assert copies >= 1
    assert state_of(tmp_path / "replica") == state_of(tmp_path / "master")
    with Store.open(tmp_path / "replica", CONFIG) as store, Store.open(tmp_path / "master", CONFIG) as master:
        assert broker_state(store, BrokerCore("broker-a", store)) == broker_state(
            master, BrokerCore("broker-a", master)
        )
