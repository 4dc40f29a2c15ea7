"""Fuzz a store alone: deletions, retention and backups between kills of its process and power losses.

A store runs on the disk of tests/crash/power_loss.py. Messages are stored in some queues, a group commits offsets,
topics are deleted and created again, time passes or goes back, and messages expire, often all of a queue. Backups are
made of the stopped store, and of the running one during writes. The process is closed or killed, derived files are
removed between runs, the machine loses power, or a backup is restored and the store continues from there.

After each start, and before each end, the store is compared with the model: where each queue begins and ends, what is
at each offset, the group's offset, what keys find, and which topics exist. A restored store is that of the moment when
its backup began.
"""

from __future__ import annotations

import copy
import errno
import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage import checkpointer, emergency_cleaner, store_parts
from raymq.storage.backup.backup_restore import restore
from raymq.storage.backup.backup_source import StoppedDirectory
from raymq.storage.backup.backup_state import BackupState
from raymq.storage.backup.backup_target import FolderTarget
from raymq.storage.backup.backup_writer import create_backup
from raymq.storage.directory_format import read_format
from raymq.storage.errors import StoreFull
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal import state_journal
from raymq.storage.log.retention import DiskUsage as DiskSpace
from raymq.storage.store import Store
from raymq.storage.tables.broker_identity import read_broker_identity
from raymq.storage.tables.topic_config import TopicConfig
from tests.crash.power_loss import Disk
from tests.faulty_calls import FaultyCalls
from tests.fuzz.known_queues import GROUP, KnownQueues, TopicQueue
from tests.fuzz.seeds import seeded, try_each
from tests.state_journals import wait_for_compaction
from tests.store_records import SMALL, append, make_record, write_entries

CONFIG = replace(SMALL, commitlog_file_bytes=2048, flush_interval_ms=3_600_000, retention_hours=1.0, delete_at_hour="*")
QUEUES: tuple[TopicQueue, ...] = (("a", 0), ("a", 1), ("b", 0), ("c", 0), ("d", 3))
TOPICS = "abcd"
LONG_MS = 9_000_000
#: The number of the current boot.
BOOT = [0]


class LiveSource:
    """The backup source of a running store (`BackupSource`). Other work continues while it is read."""

    def __init__(self, store: Store, directory: Path, hold: Callable[[int], None], work: Callable[[], None]) -> None:
        self.directory = directory
        self.broker = read_broker_identity(directory / "raymq" / "broker.json")
        self.format = read_format(directory)
        self.state = BackupState(directory, store.journal.copy(), store.max_physical_offset)
        self.log_begin, self.log_end = store.min_physical_offset, self.state.log_end
        self.file_bytes = CONFIG.commitlog_file_bytes
        self.state_bytes = self.state.total_bytes
        self._hold, self._work = hold, work
        hold(self.log_begin)

    def parts(self) -> Iterator[bytes]:
        for part in self.state.parts():
            yield part
            self._work()

    def hold(self, log_from: int) -> None:
        self._hold(log_from)
        self._work()

    def check(self) -> None:
        pass


class StoreFuzz:
    """The lives of a store for one seed."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.log: list[str] = []
        self._random = random.Random(seed)
        self._root = directory
        self._numbers, self._directories = itertools.count(), itertools.count()
        self._now_ms = 1_700_000_000_000
        self._known = KnownQueues()
        #: The part that is on disk.
        self._sure = KnownQueues()
        #: The machine lost power, and no start has shown yet what is left.
        self._power_was_lost = False
        self._target = FolderTarget(directory / "backups")
        self._backups: list[tuple[str, KnownQueues]] = []
        #: The log position from which a backup still needs the log.
        self._held: int | None = None

    # -- lives ---------------------------------------------------------------------------------------------------

    def live(self) -> None:
        """Run some boots one after another."""
        self._directory = self._new_directory()
        self._directory.mkdir()
        for _ in range(self._random.randint(3, 9)):
            self._machine()
        self._machine(last=True)

    def _new_directory(self) -> Path:
        return self._root / str(next(self._directories))

    def _machine(self, *, last: bool = False) -> None:
        BOOT[0] += 1
        self.log.append("== boot")
        self._disk = Disk(self._directory)
        self._disk.remember_all()
        if not self._power_was_lost:
            self._sure = copy.deepcopy(self._known)
        try:
            with replaced(self._disk):
                if last:
                    self._life("close")
                    return
                end = self._lives()
            target = self._new_directory()
            if end == "restore" and self._backups:
                name, known = self._random.choice(self._backups[-3:])
                self.log.append(f"restores {name}")
                restore(self._target, target, at=name)
                self._known = copy.deepcopy(known)
            else:
                self._disk.after_power_loss(target, self._random, self._random.choice((0.0, 0.3, 0.7, 1.0)))
                self._power_was_lost = True
            self._directory = target
        finally:
            self._disk.close()

    def _lives(self) -> str:
        """Run the processes of one boot; return how the last one ended."""
        while True:
            end = self._random.choice(("close", "kill", "power", "power", "restore"))
            self._life(end)
            self.log.append(f"-- {end}")
            if end not in ("close", "kill") or self._random.random() < 0.4:
                return end
            if self._random.random() < 0.25 and any((self._directory / "commitlog").glob("*")):
                self._back_up_stopped()
            if self._random.random() < 0.3:
                self._remove_something_derived()

    def _life(self, end: str) -> None:
        self.store = Store.open(self._directory, CONFIG, now_ms=lambda: self._now_ms)
        self._check_start()
        for _ in range(self._random.choice((0, 3, 10, 30))):
            self._work()
        self._check(self.store)
        if end == "close":
            self.store.close()
            self._all_sure()
            return
        if self._random.random() < 0.7:
            self.store.wait_for_removals()
        self.store._flusher.stop()
        self.store._remover.stop()
        wait_for_compaction(self.store)
        self.store._abandon()

    def _remove_something_derived(self) -> None:
        """Remove all files of a queue or a topic, or one of the index."""
        found = [*(self._directory / "consumequeue").glob("**/*/"), *(self._directory / "index").glob("*")]
        if found:
            path = self._random.choice(sorted(found))
            self.log.append(f"removes {path.relative_to(self._directory)}")
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            self._disk.remember_all()

    def _back_up_stopped(self) -> None:
        with StoppedDirectory(self._directory) as source:
            name = self._new_backup()
            create_backup(source, self._target, name=name, now_ms=lambda: self._now_ms)
        self._backups.append((name, copy.deepcopy(self._known)))

    def _new_backup(self) -> str:
        self._now_ms += 1
        name = f"backup-{next(self._numbers)}"
        self.log.append(name)
        return name

    # -- what is done --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        work = self._random.choice(
            [self.send] * 6
            + [self.commit, self.commit, self.let_go, self.let_go, self.delete, self.flush, self.checkpoint]
            + [
                self.pass_time,
                self.write_queues,
                self.set_topic,
                self.create_backup,
                self.look_from_outside,
                self.expire_all,
            ]
        )
        self.log.append(work.__name__)
        on_full_disk = (self.send_one, self.let_go, self.checkpoint, self.pass_time, self.write_queues)
        if self._random.random() < 0.1:
            self._on_a_full_disk(self._random.choice(on_full_disk))
        else:
            work()

    def _some_work(self) -> None:
        """Do some work while a backup is made."""
        for _ in range(self._random.choice((0, 1, 4))):
            work = self._random.choice(
                [self.send] * 4
                + [self.delete, self.commit, self.flush, self.checkpoint, self.let_go, self.pass_time]
                + [self.set_topic, self.expire_all]
            )
            self.log.append(work.__name__)
            work()

    def _on_a_full_disk(self, work: Callable[[], None]) -> None:
        kind = self._random.choice(("write", "truncate", "allocate", "rename", "make_folder"))
        nth, lasting = self._random.randint(1, 4), self._random.random() < 0.5
        self.log[-1] = f"{work.__name__}, no room to {kind} {nth}"
        with replaced(FaultyCalls(kind, nth, errno.ENOSPC, lasting=lasting, real=self._disk)):
            try:
                work()
            except StoreFull:
                self.log.append("StoreFull")
        assert self.store.is_healthy

    def send(self, most: int = 17) -> None:
        key = self._random.choice(QUEUES) if self._random.random() < 0.6 else QUEUES[0]
        count = min(most, self._random.choice((1, 1, 2, 5, 17)))
        bodies = [b"%d " % next(self._numbers) + b"x" * self._random.choice((1, 20, 300)) for _ in range(count)]
        records = [make_record(body, topic=key[0], queue_id=key[1], keys=_key_of(body)) for body in bodies]
        placed = append(self.store, *records).queue_offsets.tolist()
        end = self._known.of(key).end
        assert placed == list(range(end, end + count)), f"{key} gives away {placed}, and ended at {end}"
        self._known.stored(key, bodies)

    def send_one(self) -> None:
        self.send(most=1)

    def delete(self) -> None:
        topic = self._random.choice(TOPICS)
        self.log.append(topic)
        self.store.delete_topic(topic)
        for known in (self._known, self._sure):
            known.deleted(topic)

    def set_topic(self) -> None:
        topic, queues = self._random.choice(TOPICS), self._random.randint(1, 9)
        self.store.topic_configs.put(TopicConfig(topic, queues, queues))
        for known in (self._known, self._sure):
            known.settings[topic] = queues

    def commit(self) -> None:
        key = self._random.choice(QUEUES)
        queue = self._known.of(key)
        if queue.end:
            queue.committed = self._random.randint(queue.committed, queue.end)
            self.store.consumer_offsets.commit(GROUP, *key, queue.committed)
            if self._random.random() < 0.3:
                self.store.flush()
                self.store.sync_state()
                self._all_sure()

    def flush(self) -> None:
        self.store.flush()
        self._sure = self._sure.flushed(self._known)

    def checkpoint(self) -> None:
        self.store._save_checkpoint()
        self._all_sure()

    def _all_sure(self) -> None:
        self._sure = copy.deepcopy(self._known)

    def write_queues(self) -> None:
        write_entries(self.store)

    def pass_time(self) -> None:
        self._now_ms += self._random.choice((10, 4_000_000, LONG_MS, -50_000, -8_000_000))

    def let_go(self) -> None:
        """Run retention, as far as a backup allows."""
        for _ in range(self._random.choice((1, 3))):
            try:
                self.store.delete_expired(asked=True, rescue=self._may_go_to)
            finally:
                self._known.learn_lows(self.store)
            if self._random.random() < 0.5:
                self.store.wait_for_removals()

    def expire_all(self) -> None:
        """Let everything expire but one batch."""
        self._now_ms += LONG_MS
        self.send()
        self._now_ms += LONG_MS
        self.flush()
        self.let_go()

    def create_backup(self) -> None:
        known, name = copy.deepcopy(self._known), self._new_backup()
        source = LiveSource(self.store, self._directory, self._hold, self._some_work)
        try:
            keep = self._random.choice((None, 4))
            create_backup(source, self._target, name=name, now_ms=lambda: self._now_ms, keep=keep)
        finally:
            source.state.close()
            self._held = None
        kept = set(self._target.names())
        self._backups = [each for each in self._backups if each[0] in kept] + [(name, known)]

    def _hold(self, log_from: int) -> None:
        self._held = log_from

    def _may_go_to(self, end: int) -> int:
        return end if self._held is None else min(end, self._held)

    def look_from_outside(self) -> None:
        self.store.wait_for_removals()
        with Store.open(self._directory, CONFIG, read_only=True) as store:
            self._check(store)

    # -- what must be --------------------------------------------------------------------------------------------

    def _check_start(self) -> None:
        if self._power_was_lost:
            self._known, self._power_was_lost = self._known.check_between(self.store, self._sure), False
            self._all_sure()
        of_log = [each for each in self.store.recovery.corruption if "commitlog" in each.file]
        assert not of_log
        self._check(self.store)

    def _check(self, store: Store) -> None:
        for key, bodies in self._known.check(store).items():
            for offset in self._random.sample(sorted(bodies), min(3, len(bodies))):
                found = store.query(key[0], _key_of(bodies[offset]), 0, 1 << 62, 9)
                places = [(each.queue_id, each.queue_offset) for each in found]
                assert places == [(key[1], offset)], f"what is at {offset} of {key} is found at {places} by its key"


def _key_of(body: bytes) -> str:
    return f"key-{body.split()[0].decode()}"


@pytest.fixture(autouse=True)
def use_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewrite journals often, report free disk space, and simulate boots."""
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 800)
    monkeypatch.setattr(DiskSpace, "of", lambda _: DiskSpace(0, 1 << 40))
    for module in (store_parts, checkpointer, emergency_cleaner):
        monkeypatch.setattr(module, "boot_id", lambda: f"boot {BOOT[0]}")


@seeded(few=10, many=500)
def test_store_keeps_durable_data_and_reuses_no_offset(tmp_path: Path, seeds: range) -> None:
    try_each(seeds, tmp_path, StoreFuzz)
