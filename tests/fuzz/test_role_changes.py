"""Fuzz three copies of a store that change roles, while topics are deleted and messages expire.

In each life one copy is elected: one with the newest epoch of those that can be reached, which need not have
everything. It appends, commits offsets, delivers delayed messages, deletes topics, has deletions refused by its disk,
and removes its log's beginning. Others connect, are killed repeatedly within that, continue, truncate or take a copy of
the journal, follow for a while, and lag; their disks refuse writes, too. Then the master steps down or is killed,
perhaps in the midst of its work or of its promotion, replicas are killed, and sometimes all machines reboot. None of
this loses anything that the elected copy had.

At each election and at each life's end the master's queues and offsets must match the model in histories.py, and its
tables refer to nothing that its log lacks. A replica's must match when it has everything, and then its log, index and
tables equal the master's, too.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.broker.replica import replica_stream
from raymq.actors.broker.replication.epoch_file import EpochFileCache
from raymq.actors.errors import ProtocolError
from raymq.storage import checkpointer, emergency_cleaner, store_parts
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import InvalidInput, MessageExpired, StoreError, StoreFull
from raymq.storage.files import file_calls
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal import state_journal
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig
from tests.crash.killing_calls import Killed, KillingCalls
from tests.crash.replication_link import ReplicationLink
from tests.faulty_calls import FaultyCalls
from tests.fuzz.copies import Copy
from tests.fuzz.histories import GROUP, LEVEL, TOPICS, Commit, Deletion
from tests.fuzz.seeds import seeded, try_each
from tests.state_journals import wait_for_compaction
from tests.state_shipping import content_of, state_of
from tests.store_records import SMALL, append, make_record, write_entries

CONFIG = replace(SMALL, commitlog_file_bytes=2048, flush_interval_ms=3_600_000, retention_hours=1.0, delete_at_hour="*")
LIVES = 6
LATE_MS = 1 << 60
#: The number of the current boot of all machines.
BOOT = [0]


class RoleChangesFuzz:
    """Three copies; the elected one is the `Master` of tests/crash/replication_link.py."""

    epochs: EpochFileCache
    store: Store

    def __init__(self, directory: Path, seed: int) -> None:
        self.log: list[str] = []
        self.verdicts: list[type] = []
        self.epoch = 0
        self._random = random.Random(seed)
        self._calls = KillingCalls()
        self._copies = [Copy(directory / str(number), CONFIG) for number in range(3)]
        self._master = self._copies[0]
        self._lines: dict[Copy, ReplicationLink] = {}
        #: Copies that were killed when they returned to their master: they may be neither as before nor as the master.
        self._torn: set[Copy] = set()
        #: A copy whose tables may be ahead of its log.
        self._ahead: Copy | None = None
        self._count = 0

    def live(self) -> None:
        with replaced(self._calls):
            try:
                for _ in range(LIVES):
                    self._life()
            finally:
                self._calls.disarm()
                for copy in self._copies:
                    copy.kill()

    def _life(self) -> None:
        self._elect()
        self._lines.clear()
        try:
            self._lead()
        except Killed:
            self._bury(self._master)
        else:
            self._master.history.check(self.store)
            assert _comparable(state_of(self._master.directory)) == _comparable(content_of(self.store.tables))
            if self._random.random() < 0.4:
                self._master.resign()
                self.log.append("it resigns")
            else:
                self._master.kill()
                self.log.append("it is killed")
        for copy in self._copies:
            if copy.stream is not None and self._random.random() < 0.3:
                copy.kill()
        if self._random.random() < 0.15:
            for copy in self._copies:
                copy.kill()
            BOOT[0] += 1
            self.log.append("all machines start anew")

    def _lead(self) -> None:
        choice, chance = self._random.choice, self._random.random
        self._work(choice((0, 2, 6)))
        others = [copy for copy in self._copies if copy is not self._master]
        self._random.shuffle(others)
        for copy in others:
            if chance() < 0.75 and self._connect(copy, patience=choice((0.4, 1.0))):
                self._compare(copy)
        haste = choice((0.1, 0.5, 0.9))
        for _ in range(choice((0, 5, 15))):
            self._work()
            if self._lines and chance() < haste:
                self._follow(choice(list(self._lines)))
        for copy in list(self._lines):
            if chance() < 0.5:
                self._catch_up(copy)
        if chance() < 0.7:
            self._be_lost_with_news()

    # -- roles ---------------------------------------------------------------------------------------------------

    def _elect(self) -> None:
        while not self._promote(self._choose()):
            pass

    def _choose(self) -> Copy:
        """Return a copy with the newest epoch of those that can be reached."""
        streams = {copy: copy.follow() for copy in self._copies}
        assert not any(stream.is_state_lost for stream in streams.values())  # no power is lost
        for copy in self._copies:
            copy.history.settle(streams[copy].store)
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead
        for copy in self._torn:
            del streams[copy]
        if self._random.random() < 0.3:  # an unclean election
            streams = dict(self._random.sample([*streams.items()], self._random.randint(1, len(streams))))
        epoch = max(stream.extent.epoch for stream in streams.values())
        best = [copy for copy, stream in streams.items() if stream.extent.epoch == epoch]
        if self._random.random() < 0.5:
            end = max(streams[copy].end for copy in best)
            best = [copy for copy in best if streams[copy].end == end]
        if self._random.random() < 0.6:
            best = [copy for copy in best if copy is not self._master] or best
        return self._random.choice(best)

    def _promote(self, copy: Copy) -> bool:
        """Let the copy become master; return False if it is killed, or its disk refuses that."""
        if self._random.random() < 0.3:
            copy.kill()
        self.epoch += 1
        end = copy.follow().end
        fate = self._random.random()
        if fate < 0.2:
            self._arm(copy)
        calls = self._calls if fate < 0.7 else self._full_disk()
        try:
            with replaced(calls):
                self.store, self.epochs = copy.lead(self.epoch)
        except Killed:
            self._bury(copy)
            return False
        except StoreFull:
            self.log.append(f"{self._name(copy)} has no room to become master")
            return False
        self._calls.disarm()
        self._master = copy
        self.log.append(f"{self._name(copy)} is elected at {end}")
        copy.history.become_leader(end)
        copy.history.check(self.store)
        copy.history.check_delivered(self.store)
        assert all(place <= end.offset for place in self.store.tables.deleted_topics.places.values())
        return True

    def _connect(self, copy: Copy, patience: float = 1.0) -> bool:
        """Connect the copy until it has everything, over some kills; return False if it lags instead.

        Args:
            patience: how probably the copy goes on after each step.
        """
        self._lines.pop(copy, None)
        for attempt in range(60):
            if attempt < 4 and self._random.random() < 0.5:
                self._arm(copy)
            before = len(self.verdicts)
            is_whole = self._random.random() < patience
            try:
                stream = copy.follow()
                stream.master_begin = self.store.min_physical_offset
                line = ReplicationLink(self, stream)
                line.connect()
                is_whole = is_whole or stream.end.offset == stream.store.min_physical_offset  # it has no queue's end
                if is_whole:
                    line.all()
                else:
                    line.some(self._random)
            except Killed:
                self._bury(copy)
                if self._random.random() > patience:
                    self._torn.add(copy)
                    return False
            except (MessageExpired, ProtocolError) as error:
                _check_that_data_are_gone(error)
            else:
                self._calls.disarm()
                verdicts = [verdict.__name__ for verdict in self.verdicts[before:]]
                self.log.append(f"{self._name(copy)} has {'all' if is_whole else 'some'}: {verdicts}")
                self._lines[copy] = line
                self._torn.discard(copy)
                self._hear(copy)
                return is_whole
        raise AssertionError(f"{self._name(copy)} never has all")

    def _follow(self, copy: Copy) -> None:
        """Ship some more to the copy, and let it work alone."""
        calls = self._full_disk() if self._random.random() < 0.15 else self._calls
        try:
            with replaced(calls):
                self._lines[copy].some(self._random)
        except (MessageExpired, ProtocolError) as error:
            _check_that_data_are_gone(error)
            self._connect(copy, patience=0.5)
        except StoreFull:
            self.log.append(f"the disk of {self._name(copy)} is full")
            self._connect(copy)
        except StoreError as error:
            self.log.append(f"{self._name(copy)} is broken: {type(error).__name__}")
            copy.reopen()
            self._connect(copy)
        stream = copy.follow()
        if self._random.random() < 0.2:
            stream.store._age.now_ms = lambda: LATE_MS  # type: ignore[method-assign]
            stream.retain(self.store.min_physical_offset)
        if self._random.random() < 0.1:
            stream.store._save_checkpoint()
        self._hear(copy)

    def _catch_up(self, copy: Copy) -> None:
        try:
            self._lines[copy].all()
        except (MessageExpired, ProtocolError) as error:
            _check_that_data_are_gone(error)
            self._connect(copy)
        self._hear(copy)
        self._compare(copy)

    def _be_lost_with_news(self) -> None:
        """Change things on the master that some replicas receive only in part."""
        for _ in range(self._random.choice((1, 2, 4))):
            self._random.choice((self.send_some, self.expire, self.commit, self.deliver, self.delete, self.delete))()
        if self._lines and self._random.random() < 0.3:
            self.forget_events()
            copy = self._random.choice(list(self._lines))
            if not self._connect(copy, patience=0) and copy not in self._torn:
                self._ahead = copy
        for copy, line in list(self._lines.items()):
            if copy is not self._ahead and self._random.random() < 0.4:
                try:
                    for _ in range(self._random.choice((1, 2, 3))):
                        line.step(self._random.choice((200, 1 << 20)))
                except (MessageExpired, ProtocolError) as error:
                    _check_that_data_are_gone(error)
                self._hear(copy)

    def _arm(self, copy: Copy) -> None:
        """Let the copy's process die soon."""
        self._calls.arm(copy.directory, self._random.choice((1, 2, 3, 5, 8, 13, 20, 40, 80)))

    def _bury(self, copy: Copy) -> None:
        """Leave the directory as the death has left it."""
        self.log.append(f"{self._name(copy)} is killed in the midst of it")
        copy.kill()
        self._calls.take_place()

    def _full_disk(self) -> FaultyCalls:
        """Return calls one of which finds no room."""
        kind = self._random.choice(("write", "rename", "allocate", "make_folder"))
        return FaultyCalls(kind, self._random.choice((1, 2, 3, 5)), errno.ENOSPC, real=self._calls)

    def _hear(self, copy: Copy) -> None:
        copy.history.hear(self._master.history, copy.follow().end)

    def _compare(self, copy: Copy) -> None:
        """Check that a replica with everything equals the master."""
        stream = copy.follow()
        assert stream.end == (self.store.max_physical_offset, self.store.journal.last)
        stream.confirm(stream.end)
        stream.write_events([])  # complete a deletion for which the disk had no room
        copy.history.check(stream.store)
        for store in (stream.store, self.store):
            store.wait_for_removals()
            wait_for_compaction(store)
        content = _comparable(content_of(self.store.tables))
        assert _comparable(content_of(stream.store.tables)) == content
        assert _comparable(state_of(copy.directory)) == content
        assert _comparable(state_of(self._master.directory)) == content
        assert stream.store.delay_offsets.get(LEVEL) == self.store.delay_offsets.get(LEVEL)
        begin = max(store.min_physical_offset for store in (stream.store, self.store))
        assert _log_of(stream.store, begin) == _log_of(self.store, begin)
        assert _found_by_key(stream.store, begin) == _found_by_key(self.store, begin)

    # -- what the master does ------------------------------------------------------------------------------------

    def _work(self, count: int = 1) -> None:
        works: list[Callable[[], None]] = [self.send_some] * 11 + [self.delete] * 3 + [self.expire] * 2
        works += [self.be_refused, self.checkpoint, self.write_queues, self.commit, self.commit, self.set_topic]
        works += [self.forget_events, self.deliver, self.deliver, self.flush]
        for _ in range(count):
            if self._random.random() < 0.04:
                self._arm(self._master)
            self._random.choice(works)()
            self._calls.disarm()

    def send(self) -> None:
        """Send while a snapshot is shipped."""
        if self._random.random() < 0.3:
            self._random.choice((self.send_some, self.send_some, self.commit, self.delete))()

    def send_some(self) -> None:
        topic = self._random.choice((*TOPICS, SCHEDULE_TOPIC))
        count = self._random.choice((1, 1, 2, 9))
        self.log.append(f"{count} to {topic}")
        for _ in range(count):
            self._store(topic, b"x" * self._random.choice((1, 30, 300)))

    def deliver(self) -> None:
        """Deliver the next delayed message."""
        store = self.store
        offset = store.delay_offsets.get(LEVEL) or 0
        if offset < self._master.history.end(SCHEDULE_TOPIC):
            self.log.append(f"{offset} delivered")
            self._store(self._random.choice(TOPICS), b"%d" % offset)
            store.delay_offsets.commit(LEVEL, offset + 1, store.max_physical_offset)

    def _store(self, topic: str, content: bytes) -> None:
        self._count += 1
        body, history = b"%d %b" % (self._count, content), self._master.history
        history.begin_message(topic, body, self.store.max_physical_offset)
        append(self.store, make_record(body, topic=topic, keys=f"k{self._count}"))
        history.settle(self.store)

    def delete(self) -> None:
        topic, store = self._random.choice(TOPICS), self.store
        delete = self._random.choice((store.delete_topic, store.delete_topic_soon))
        history = self._master.history
        history.pending = Deletion(topic, store.max_physical_offset, store.journal.last + 1)
        self.log.append(f"{topic} deleted at {history.pending.place}")
        try:
            delete(topic)
        except StoreFull:
            self.log.append("refused")
        history.settle(store)

    def be_refused(self) -> None:
        """Fail the rename of the folder of a deleted queue; without such a folder, another rename."""
        write_entries(self.store)
        with replaced(FaultyCalls("rename", 1, errno.ENOSPC, real=file_calls.current)):
            self.delete()

    def commit(self) -> None:
        """Commit any offset of a queue that has messages."""
        topic, store, history = self._random.choice(TOPICS), self.store, self._master.history
        if end := history.end(topic):
            commit = Commit(topic, self._random.randint(0, end), store.journal.last + 1)
            history.pending = commit
            self.log.append(f"{commit.offset} of {topic} committed")
            store.consumer_offsets.commit(GROUP, topic, 0, commit.offset)
            history.settle(store)

    def set_topic(self) -> None:
        topic, queues = self._random.choice(TOPICS), self._random.randint(1, 9)
        self.store.topic_configs.put(TopicConfig(topic, queues, queues))

    def expire(self) -> None:
        """Expire the log's beginning, up to a random position."""
        store = self.store
        store.flush()
        store._age.now_ms = lambda: LATE_MS  # type: ignore[method-assign]
        keep = max(store.min_physical_offset, store.max_physical_offset - self._random.choice((1, 3000, 6000)))
        store.delete_expired(asked=True, rescue=lambda log_min: min(log_min, keep))
        self.log.append(f"the log begins at {store.min_physical_offset}")

    def checkpoint(self) -> None:
        self.store._save_checkpoint()

    def flush(self) -> None:
        self.store.flush()
        self.store.delay_offsets.settled()

    def write_queues(self) -> None:
        write_entries(self.store)

    def forget_events(self) -> None:
        """Drop all events from memory, as if there had been too many."""
        backlog = self.store.journal.backlog
        assert backlog is not None
        most, backlog._most_bytes = backlog._most_bytes, 0
        backlog.retain(None)
        backlog._most_bytes = most
        self.log.append("events are dropped")

    def _name(self, copy: Copy) -> str:
        return f"copy {self._copies.index(copy)}"


def _check_that_data_are_gone(error: MessageExpired | ProtocolError) -> None:
    """Check that the master no longer has what the replica needs."""
    if not isinstance(error, MessageExpired) and not isinstance(error.__cause__, InvalidInput):
        raise error


def _comparable(content: dict[str, list[str] | str]) -> dict[str, list[str] | str]:
    """Return the content of tables without the delay offsets, whose rows depend on what is on disk."""
    return {name: rows for name, rows in content.items() if name != "DelayOffsets"}


def _log_of(store: Store, begin: int) -> bytes:
    content = b""
    while begin < store.max_physical_offset:
        with store.log_slice(begin, store.max_physical_offset) as part:
            content += bytes(part.view)
            begin = part.end
    return content


def _found_by_key(store: Store, begin: int) -> list[list[int]]:
    """Return where each record of the log is found by its key."""
    return [
        [found.physical_offset for found in store.query(record.topic, record.properties["KEYS"], 0, 1 << 62, 9)]
        for record in store.walk(begin)
    ]


@pytest.fixture(autouse=True)
def simulate_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate boots, let threads die with their process, and compact a short journal."""
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 400)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    for module in (store_parts, checkpointer, emergency_cleaner, replica_stream):
        monkeypatch.setattr(module, "boot_id", lambda: f"boot {BOOT[0]}")


@seeded(few=3, many=380)
def test_each_copy_matches_model_over_role_changes(tmp_path: Path, seeds: range) -> None:
    try_each(seeds, tmp_path, RoleChangesFuzz)
