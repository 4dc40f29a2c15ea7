"""Test that progress recorded for lost messages is clamped, and does not apply to new ones at the same offsets."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from raymq.actors.broker.acks import LocalAcks
from raymq.actors.broker.core.appending.producer_state_journal import ProducerStateJournal
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.staged_commits import StagedCommits
from raymq.client import Message
from raymq.storage import checkpointer as checkpointing_module
from raymq.storage import failpoints
from raymq.storage.errors import MessageNotFound, StoreBusy, StoreFailed
from raymq.storage.files import file_calls
from raymq.storage.files.descriptor_reserve import DESCRIPTOR_RESERVE
from raymq.storage.files.file_calls import replaced
from raymq.storage.files.json_file import load
from raymq.storage.records.producer_sequence import ProducerSequence, stamp
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig
from tests import staged_rows
from tests.crash.power_loss import Disk
from tests.crash.power_loss_broker import CONFIG
from tests.store_records import bodies
from tests.unit.actors.bench import encoded
from tests.unit.actors.clock import FakeClock

pytestmark = pytest.mark.crash


@pytest.fixture(autouse=True)
def another_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing_module, "boot_id", lambda: "an earlier boot")


class Machine:
    """A broker's core in a machine that loses power, and with it everything unsynced."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lives = 0
        self.clock = FakeClock(1_700_000_000.0)
        self.directory = root / "0"
        self.directory.mkdir()

    @contextmanager
    def life(self) -> Iterator[BrokerCore]:
        disk = Disk(self.directory)
        disk.remember_all()
        with replaced(disk):
            store = Store.open(self.directory, CONFIG, now_ms=lambda: int(self.clock.now * 1000))
            core = BrokerCore("broker-a", store, clock=self.clock)
            core.topics.create("t", 1)
            if store.group_configs.get("g") is None:
                store.group_configs.put(GroupConfig("g"))
            yield core
            self._lives += 1
            self.directory = self._root / str(self._lives)
            disk.after_power_loss(self.directory, random.Random(1), 0.0)
            store._flusher.stop()
            store._abandon()
        disk.close()


def send(core: BrokerCore, *numbers: int, delay_level: int = 0) -> None:
    messages = [Message("t", b"%d" % number, delay_level=delay_level) for number in numbers]
    records, sizes = encoded(*messages)
    core.append("t", 0, memoryview(records), sizes, delayed=delay_level > 0)


def test_delay_level_delivers_acknowledged_after_power_loss(tmp_path: Path) -> None:
    """Guard against fault 13.9: the level's progress was 6, its queue ended at 1."""
    machine = Machine(tmp_path)
    with machine.life() as core:
        send(core, 0, delay_level=1)
        core.store._save_checkpoint()
        send(core, 1, 2, 3, 4, 5, delay_level=1)
        machine.clock.advance(5)
        assert core.deliver_due().delivered == 6
        core.store.sync_state()
    with machine.life() as core:
        assert core.store.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 1
        send(core, *range(10, 17), delay_level=1)
        machine.clock.advance(5)
        core.deliver_due()
        assert bodies(core.store, "t") == [b"%d" % number for number in (0, *range(10, 17))]


def test_delayed_copies_lost_with_power_are_delivered_again(tmp_path: Path) -> None:
    """Guard against the reverse of fault 13.9: the waiting messages and the progress are on disk, the copies not."""
    machine = Machine(tmp_path)
    with machine.life() as core:
        send(core, 0, 1, 2, delay_level=1)
        core.store.flush()
        machine.clock.advance(5)
        assert core.deliver_due().delivered == 3
        core.store._parts.journal.compact()
        core.store.sync_state()
    for _ in range(2):
        with machine.life() as core:
            core.deliver_due()
            assert bodies(core.store, "t") == [b"0", b"1", b"2"]
            core.store.flush()


def test_group_offset_is_clamped_to_queue_end(tmp_path: Path) -> None:
    """Guard against fault 13.10: the queue ended at 10, the group's offset was 20; also with a second loss at once."""
    machine = Machine(tmp_path)
    with machine.life() as core:
        send(core, *range(10))
        core.store._save_checkpoint()
        send(core, *range(10, 20))
        core.offsets.commit("g", "t", 0, 20)
        core.store.sync_state()
    with machine.life() as core:
        assert core.offsets.get("g", "t", 0) == 10
        send(core, *range(30, 42))
        core.store.flush()
    with machine.life() as core:
        assert core.offsets.get("g", "t", 0) == 10
        assert bodies(core.store, "t")[10:] == [b"%d" % number for number in range(30, 42)]


def test_clamped_offset_is_synced_before_first_message(tmp_path: Path) -> None:
    """Otherwise a second power loss would find the old offset in a queue that grew beyond it."""
    machine = Machine(tmp_path)
    with machine.life() as core:
        send(core, *range(20))
        core.offsets.commit("g", "t", 0, 20)
        core.store._parts.journal.compact()
    with machine.life() as core:
        send(core, *range(30, 60))
        core.store.flush()
    with machine.life() as core:
        assert core.offsets.get("g", "t", 0) == 0


def test_lost_batch_is_not_taken_for_later_messages(tmp_path: Path) -> None:
    """The producers' state was on disk, the log that it described was not; this happens twice."""
    machine = Machine(tmp_path)

    def send_numbered(core: BrokerCore, first: int) -> int:
        records, sizes = encoded(Message("t", b"numbered %d" % first), Message("t", b"numbered %d" % (first + 1)))
        stamped = bytearray(records)
        sizes = stamp(stamped, sizes, ProducerSequence("00000000000000ab", 0, first, 2))
        return int(core.append("t", 0, memoryview(bytes(stamped)), sizes, sequenced=True).queue_offsets[0])

    def restore_producers(core: BrokerCore) -> ProducerStateJournal:
        history = ProducerStateJournal(core.producers, core.store)
        history.restore()
        return history

    with machine.life() as core:
        history = restore_producers(core)
        assert send_numbered(core, 0) == 0
        core.store.flush()
        assert send_numbered(core, 2) == 2
        for write in history.save():
            write()
        core.store.tables.producer_states.sync()
    with machine.life() as core:
        restore_producers(core)
        send(core, *range(10))
        core.store.flush()
    with machine.life() as core:
        restore_producers(core)
        assert send_numbered(core, 0) == 0
        assert send_numbered(core, 2) == 12
        assert bodies(core.store, "t")[-2:] == [b"numbered 2", b"numbered 3"]


def test_recreated_topic_has_no_old_offset_after_power_loss(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with machine.life() as core:
        send(core, *range(10))
        core.offsets.commit("g", "t", 0, 7)
        core.store._save_checkpoint()
        core.topics.delete("t")
        core.topics.create("t", 1)
        send(core, *range(10, 30))
        core.store.flush()
    with machine.life() as core:
        assert core.offsets.get("g", "t", 0) is None
        assert len(bodies(core.store, "t")) == 20


def test_clamping_keeps_valid_offsets(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with machine.life() as core:
        send(core, *range(10))
        send(core, 10, delay_level=2)
        core.offsets.commit("g", "t", 0, 10)
        core.store.delay_offsets.commit(2, 1, core.store.max_physical_offset)
        core.store.close()
        assert load(machine.directory / "config" / "delayOffset.json")["offsetTable"] == {"2": 1}
        with Store.open(machine.directory, CONFIG) as store:
            assert store.consumer_offsets.get("g", "t", 0) == 10
            assert store.delay_offsets.get(2) == 1


def stage(core: BrokerCore, *chunks: range) -> None:
    for number, rows in enumerate(chunks):
        records, sizes = encoded(*(Message("t", b"%d" % row) for row in rows))
        staged_rows.stage(core.staging, "tx", "p", number, ("t", 0), memoryview(records), sizes)


def test_read_barrier_is_clamped_to_queue_end_after_power_loss(tmp_path: Path) -> None:
    """The commit recorded the queue's end as 4; a later kill exposed staged rows at offsets 1, 2 and 3."""
    machine = Machine(tmp_path)
    with machine.life() as core:
        send(core, 0)
        core.store._save_checkpoint()
        stage(core, range(10, 15), range(15, 20))
        send(core, 1, 2, 3)
        next(iter(staged_rows.commit(core.staging, "tx", ["p"])))
    with machine.life() as core:
        assert bodies(core.store, "t") == [b"0"]
        added = staged_rows.commit(core.staging, "tx", ["p"])
        while not next(added):
            pass
        assert core.store.max_offset("t", 0, written=True) == 6
        shutil.copytree(machine.directory, tmp_path / "killed")
    with Store.open(tmp_path / "killed", CONFIG) as store, closing(BrokerCore("broker-a", store).timers.log):
        assert bodies(store, "t") == [b"0"]


def test_power_loss_keeps_read_barrier_of_deleted_topic(tmp_path: Path) -> None:
    """Messages that the deleted topic had before the commit stay readable by their ids."""
    machine = Machine(tmp_path)
    with machine.life() as core:
        send(core, 0)
        place = 0
        stage(core, range(10, 15))
        row_place = core.store.max_physical_offset
        next(iter(staged_rows.commit(core.staging, "tx", ["p"])))
        core.topics.delete("t")
        core.store.sync_state()
        core.store._save_checkpoint()
    with machine.life() as core:
        assert core.view(place).body == b"0"
        with pytest.raises(MessageNotFound):
            core.view(row_place)


@contextmanager
def busy_sync(point: str) -> Iterator[None]:
    """Let the first sync of the state journal after a failpoint find no file descriptor."""
    calls = file_calls.current
    duplicate, is_due = calls.duplicate, [False]

    def failing(fd: int) -> int:
        if is_due[0]:
            is_due[0] = False
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return duplicate(fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DESCRIPTOR_RESERVE, "release_one", lambda: False)
        patch.setattr(calls, "duplicate", failing)
        failpoints.arm(point, lambda: is_due.__setitem__(0, True))
        try:
            yield
        finally:
            failpoints.arm("")
    assert not is_due[0]


def test_unsynced_commit_decision_is_synced_before_rows(tmp_path: Path) -> None:
    """The next attempt took the decision for written; a power loss exposed rows, and the commit stored them twice."""
    machine = Machine(tmp_path)
    with machine.life() as core:
        send(core, 0)
        core.store._save_checkpoint()
        stage(core, range(10, 15), range(15, 20))
        with busy_sync("staged.before_commit"), pytest.raises(StoreBusy):
            next(iter(staged_rows.commit(core.staging, "tx", ["p"])))
        assert next(iter(staged_rows.commit(core.staging, "tx", ["p"]))) == 5
        core.store.flush()
    with machine.life() as core:
        assert bodies(core.store, "t") == [b"0"]
        assert sum(staged_rows.commit(core.staging, "tx", ["p"])) == 5
        core.store.flush()
        staged_rows.close(core.staging, "tx")
        assert bodies(core.store, "t") == [b"0", *(b"%d" % row for row in range(10, 20))]


def test_failed_sync_of_decision_stops_the_store(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with machine.life() as core:
        send(core, 0)
        core.store._save_checkpoint()
        stage(core, range(10, 15), range(15, 20))
        disk = file_calls.current
        assert isinstance(disk, Disk)
        disk._fail_at = disk.syncs + 1
        for _ in range(2):
            with pytest.raises(StoreFailed):
                next(iter(staged_rows.commit(core.staging, "tx", ["p"])))
    with machine.life() as core:
        assert bodies(core.store, "t") == [b"0"]
        assert sum(staged_rows.commit(core.staging, "tx", ["p"])) == 10
        core.store.flush()
        staged_rows.close(core.staging, "tx")
        assert bodies(core.store, "t") == [b"0", *(b"%d" % row for row in range(10, 20))]


def test_next_attempt_ends_commit_with_unsynced_end(tmp_path: Path) -> None:
    """The marker existed, so the next attempt did nothing: its queues stayed hidden until a restart."""
    with Store.open(tmp_path, CONFIG) as store:
        core = BrokerCore("broker-a", store)
        core.topics.create("t", 1)
        stage(core, range(10, 15), range(15, 20))

        async def commit() -> None:
            commits = StagedCommits(core, LocalAcks(core.store))
            with pytest.raises(StoreBusy):
                await commits.commit("tx", {"p": 10})
            send(core, 20)
            assert await commits.commit("tx", {"p": 10}) == (0, None)
            assert await commits.commit("tx", {"p": 10}) == (0, None)

        with busy_sync("staged.before_close"), closing(core.timers.log):
            asyncio.run(commit())
        assert bodies(store, "t") == [b"%d" % row for row in range(10, 21)]


def test_commit_with_unsynced_begin_hides_new_messages(tmp_path: Path) -> None:
    """The next attempt hid messages that readers had seen: a group that pops went back, and got them twice."""
    with Store.open(tmp_path, CONFIG) as store:
        core = BrokerCore("broker-a", store)
        core.topics.create("t", 1)
        stage(core, range(10, 15), range(15, 20))
        send(core, 0)

        async def commit() -> None:
            commits = StagedCommits(core, LocalAcks(core.store))
            with pytest.raises(StoreBusy):
                await commits.commit("tx", {"p": 10})
            send(core, 20)
            assert bodies(store, "t") == [b"0"]
            assert await commits.commit("tx", {"p": 10}) == (10, None)

        with busy_sync("staged.before_commit"), closing(core.timers.log):
            asyncio.run(commit())
        assert bodies(store, "t") == [b"0", b"20", *(b"%d" % row for row in range(10, 20))]
