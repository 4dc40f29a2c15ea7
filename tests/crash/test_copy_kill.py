"""Kill a replica, and cut its power, at each step of a copy.

Afterwards it has either its former tables or the master's. The next opening completes what has begun.
"""

from __future__ import annotations

import itertools
import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage import checkpointer, store_parts
from raymq.storage.failpoints import NAMES
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal.journal_copy import is_exchanging
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.topic_config import TopicConfig
from tests.crash.killed_call import is_killed_at_change, run_killed
from tests.crash.power_loss import Disk
from tests.faulty_calls import UnsyncedCalls
from tests.state_shipping import content_of, state_of
from tests.store_records import SMALL, append, bodies, make_record
from tests.store_replication import log_content
from tests.unit.actors.replication.replica_pair import ReplicaPair

pytestmark = pytest.mark.crash

CONFIG = replace(SMALL, flush_interval_ms=3_600_000)
COPY_POINTS = tuple(name for name in NAMES if name.startswith("copy."))
#: At these the exchange of the journals has begun, so that the next opening has the master's tables.
EXCHANGED_POINTS = ("copy.within_exchange", "copy.after_exchange", "copy.before_epochs", "copy.after_epochs")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ReplicaPair]:
    """Start with a replica that has everything, and topics "kept", "gone" and "recreated"."""
    pair = ReplicaPair(tmp_path, CONFIG)
    send(pair.master, "kept", "gone", "recreated")
    pair.copy()
    pair.ship()
    yield pair
    pair.close()


def send(master: Store, *topics: str) -> None:
    for topic in topics:
        master.topic_configs.put(TopicConfig(topic, 1, 1))
        append(master, *(make_record(b"%s %d" % (topic.encode(), number), topic=topic) for number in range(5)))
        master.consumer_offsets.commit("g", topic, 0, 3)


def change(master: Store) -> None:
    """Change the master so that a copy has deletions, a snapshot, and events behind it."""
    master.delete_topic("gone")
    master.delete_topic("recreated")
    send(master, "recreated", "new")
    master.journal.compact()
    master.consumer_offsets.commit("g", "kept", 0, 5)


def check_complete(pair: ReplicaPair) -> None:
    """Check that the replica has all that the master has, and nothing else."""
    pair.check_equal()
    assert sorted(pair.follower.topics()) == ["kept", "new", "recreated"]
    assert not is_exchanging(StorePaths(pair.follower.directory).state_journal)
    assert log_content(pair.follower.directory) == log_content(pair.master.directory)


@pytest.mark.parametrize("keeps_log", [True, False], ids=["log kept", "log restarted"])
@pytest.mark.parametrize("failpoint", COPY_POINTS)
def test_killed_copy_leaves_former_state_or_masters(pair: ReplicaPair, failpoint: str, keeps_log: bool) -> None:
    directory = pair.follower.directory
    pair.reopen(killed=True)
    pair.kill()
    former = state_of(directory)
    change(pair.master)
    masters = content_of(pair.master.tables)

    def copy() -> None:
        pair.reopen(killed=True)
        pair.copy(keeps_log=keeps_log)

    assert run_killed(failpoint, copy) == -signal.SIGKILL
    expected = masters if failpoint in EXCHANGED_POINTS else former
    assert former != masters
    assert state_of(directory) == expected
    with Store.open(directory, CONFIG, read_only=True) as store:  # which ignores what refers to missing log
        assert content_of(store.tables)["TopicConfigs"] == expected["TopicConfigs"]
    pair.reopen(killed=True)
    assert not is_exchanging(StorePaths(directory).state_journal)
    assert content_of(pair.follower.tables) == expected
    if expected is former:
        pair.copy(keeps_log=keeps_log)
    pair.ship()
    check_complete(pair)
    pair.reopen(killed=True)
    check_complete(pair)


def test_exchange_killed_twice_is_completed(pair: ReplicaPair) -> None:
    change(pair.master)
    pair.kill()

    def copy() -> None:
        pair.reopen(killed=True)
        pair.copy()

    assert run_killed("copy.within_exchange", copy) == -signal.SIGKILL
    assert run_killed("copy.after_exchange", lambda: pair.reopen(killed=True)) == -signal.SIGKILL
    assert state_of(pair.follower.directory) == content_of(pair.master.tables)
    pair.reopen(killed=True)
    pair.ship()
    check_complete(pair)


@pytest.mark.parametrize("failpoint", COPY_POINTS)
def test_copy_undoes_deletion_after_kill(pair: ReplicaPair, failpoint: str) -> None:
    """A deletion of the former master that its successor never got: the queue is rebuilt from the log."""
    pair.follower.become_leader()
    pair.follower.delete_topic("kept")
    pair.reopen(killed=False)
    assert "kept" not in pair.follower.topics()
    change(pair.master)
    pair.kill()

    def copy() -> None:
        pair.reopen(killed=True)
        pair.copy()

    assert run_killed(failpoint, copy) == -signal.SIGKILL
    pair.reopen(killed=True)
    if failpoint not in EXCHANGED_POINTS:
        pair.copy()
    pair.ship()
    check_complete(pair)
    assert bodies(pair.follower, "kept") == [b"kept %d" % number for number in range(5)]


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize("keeps_log", [True, False], ids=["log kept", "log restarted"])
def test_copy_killed_at_any_change_is_completed(pair: ReplicaPair, tmp_path: Path, keeps_log: bool) -> None:
    pair.reopen(killed=False)
    pair.stream.close()
    former = content_of(pair.follower.tables)
    change(pair.master)
    masters = content_of(pair.master.tables)
    directory, base = pair.follower.directory, tmp_path / "base"
    directory.rename(base)
    seen = {False: 0, True: 0}

    def copy() -> None:
        pair.reopen(killed=True)
        pair.copy(keeps_log=keeps_log)

    for changes in itertools.count(1, 3 if keeps_log else 5):
        shutil.copytree(base, directory)
        is_killed = is_killed_at_change(directory, changes, copy)
        if is_killed:
            found = state_of(directory)
            assert found in (former, masters)
            seen[found == masters] += 1
        pair.reopen(killed=True)
        assert not is_exchanging(StorePaths(directory).state_journal)
        if content_of(pair.follower.tables) != masters:
            pair.copy(keeps_log=keeps_log)
        pair.ship()
        check_complete(pair)
        if not is_killed:
            break
        pair.stream.close()
        shutil.rmtree(directory)
    assert min(seen.values()) > 3


@pytest.mark.parametrize("seed", range(3))
def test_copy_survives_power_loss_at_each_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: ReplicaPair, seed: int
) -> None:
    boots = [0]
    for module in (checkpointer, store_parts):
        monkeypatch.setattr(module, "boot_id", lambda: f"boot {boots[0]}")
    random_, directory = random.Random(seed), pair.follower.directory
    pair.reopen(killed=False)
    former = state_of(directory)
    change(pair.master)
    masters = content_of(pair.master.tables)
    disk = Disk(directory)
    disk.remember_all()
    seen = {False: 0, True: 0}
    is_done = False

    def look() -> None:
        place = tmp_path / "look"
        disk.after_power_loss(place, random_, random_.choice((0.0, 0.3, 0.7, 1.0)))
        boots[0] += 1
        with replaced(UnsyncedCalls()), Store.open(place, CONFIG, is_replica=True) as found:
            assert not found.journal.is_lossy
            content = content_of(found.tables)
        assert content in (former, masters)
        assert content == masters or not is_done
        seen[content == masters] += 1
        boots[0] -= 1
        shutil.rmtree(place)

    with replaced(disk):
        disk.before_sync = look
        pair.copy()
        is_done = True
        look()
        pair.ship()
        disk.before_sync = None
        pair.stream.sync()
    disk.close()
    assert seen[False]
    assert seen[True]
