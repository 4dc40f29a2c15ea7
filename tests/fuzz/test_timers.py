"""Fuzz timers and delay levels: each message is delivered once, not early, and not after a recall.

The real classes have a simulated clock and are killed by being dropped: their directory is reopened, sometimes with
other delay levels. The disk is full for a while, and retention removes log files before their waiting messages are due
(they are relocated first). The model is small: when each message is due, what was delivered, and what was recalled.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.protocol import RecallStatus
from raymq.client import Message
from raymq.storage.errors import StoreError
from raymq.storage.files.file_calls import replaced
from tests.fuzz.failing_disk import FailingDisk
from tests.fuzz.seeds import seeded, try_each
from tests.fuzz.small_steps import delay_in_small_steps
from tests.unit.actors import timer_bench
from tests.unit.actors.timer_bench import HOST, HOUR, TimerBench

LEVELS = ("1s 5s 30s 1h", "1s 5s", "10s 2s 2h 3h 50h", "1s 5s 30s 1h 30h")
#: The bytes of a body that contain its name.
NAME_BYTES = 6


class TimersFuzz:
    """One broker, its senders, which also recall, and its reader."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.log: list[str] = []
        self._random = random.Random(seed)
        self._disk = FailingDisk(seed, "write", "truncate", "rename", "allocate")
        self._directory = directory
        self._named = 0
        #: Due milliseconds by name; None: it may be delivered, or not.
        self._due: dict[bytes, int | None] = {}
        self._recallable: dict[bytes, Message] = {}
        self._withdrawn: set[bytes] = set()
        self._come: set[bytes] = set()
        #: The next offset to read in each queue.
        self._read: dict[int, int] = {}

    def live(self) -> None:
        works: list[Callable[[], None]] = [self.send, self.send, self.send_with_level, self.send_with_level]
        works += [self.deliver, self.deliver, self.wait, self.wait, self.wait_long, self.checkpoint, self.forget]
        works += [self.let_go, self.kill, self.restart, self.recall, self.grow, self.fill_disk]
        with replaced(self._disk):
            self._bench = TimerBench(self._directory, replace(timer_bench.CONFIG, delay_levels=LEVELS[0]))
            try:
                for _ in range(120):
                    self._do(self._random.choice(works))
                self._disk.heal()
                for _ in range(12):
                    self._bench.clock.advance(50 * HOUR)
                    self._bench.core.deliver_due()
                    self.deliver()
                    self._look()
                due = {name for name, due_ms in self._due.items() if due_ms is not None}
                assert due - self._come - self._withdrawn == set(), "never came"
            finally:
                self._disk.heal()
                with suppress(StoreError):
                    self._bench.close()

    def _do(self, work: Callable[[], None]) -> None:
        self.log.append(work.__name__)
        try:
            work()
        except StoreError as error:
            self.log.append(type(error).__name__)
            if not self._bench.store.is_healthy:
                self._disk.heal()
                self._bench.kill()
        self._look()

    def send(self) -> None:
        """Send messages with delivery times."""
        for _ in range(self._random.randint(1, 3)):
            after = self._random.choice((0.5, 3.0, 70.0, HOUR, 40 * HOUR, 200 * HOUR))
            message = Message("t", self._new_body(), deliver_at=self._bench.clock.now + after)
            name = message.body[:NAME_BYTES]
            self._due[name] = None  # as long as it may be refused
            self._bench.append(message, queue_id=self._random.randrange(2))
            self._due[name] = message.due_ms
            self._recallable[name] = message

    def send_with_level(self) -> None:
        level = self._random.randint(1, 5)
        message = Message("t", self._new_body(), delay_level=level)
        name = message.body[:NAME_BYTES]
        self._due[name] = None
        self._bench.append(message, queue_id=self._random.randrange(2))
        table = self._bench.store.delay_level_history
        self._due[name] = self._bench.now_ms() + table.delay_ms(min(level, table.levels) - 1)

    def recall(self) -> None:
        if not self._recallable:
            return
        name = self._random.choice(list(self._recallable))
        try:
            status = self._bench.recall(self._recallable[name])
        except StoreError:
            if not self._bench.store.is_healthy:
                self._due[name] = None
            self.log.append(f"{name!r} is refused")  # by a full disk: it stays scheduled
            raise
        self.log.append(f"{name!r} is {status.name}")
        self._look()
        if status is RecallStatus.WITHDRAWN:
            assert name not in self._come, "withdrawn, and it has come"
            self._withdrawn.add(name)
        if status is RecallStatus.DELIVERED:
            assert name in self._come, "delivered, and nobody has seen it"

    def deliver(self) -> None:
        """Deliver everything due, or as much as the disk takes."""
        for _ in range(50):
            report = self._bench.core.deliver_due()
            is_behind = report.next_due_ms is not None and report.next_due_ms <= self._bench.now_ms()
            if not report.delivered and not is_behind:
                return

    def wait(self) -> None:
        self._bench.clock.advance(self._random.choice((0.3, 2.0, 20.0, 100.0)))
        self.deliver()

    def wait_long(self) -> None:
        self._bench.clock.advance(self._random.choice((1, 10, 40)) * HOUR)
        self.deliver()

    def checkpoint(self) -> None:
        self._bench.checkpoint()

    def forget(self) -> None:
        self._bench.forget()

    def let_go(self) -> None:
        self._look()  # its files are removed
        self._bench.store.flush()
        self._bench.let_go()

    def grow(self) -> None:
        """Grow the log, so that files of it can be removed."""
        record = Message("filler", b"x" * 20_000).encode(1, HOST)
        for _ in range(self._random.randint(1, 4)):
            self._bench.store.append(record, np.array([len(record)], np.int32))
        self._bench.store.flush()

    def fill_disk(self) -> None:
        self._disk.chance = self._random.choice((0.0, 0.0, 0.05, 0.3))

    def kill(self) -> None:
        self._disk.heal()
        self._change_levels()
        self._bench.kill()

    def restart(self) -> None:
        self._disk.heal()
        self._change_levels()
        self._bench.restart()

    def _change_levels(self) -> None:
        if self._random.random() < 0.5:
            self._bench.config = replace(self._bench.config, delay_levels=self._random.choice(LEVELS))
            self.log.append(self._bench.config.delay_levels)

    def _new_body(self) -> bytes:
        self._named += 1
        return b"%06d" % self._named + b"x" * self._random.choice((0, 300, 5_000))

    def _look(self) -> None:
        """Read new messages."""
        store = self._bench.store
        for queue_id in store.queues("t"):
            offset = self._read.get(queue_id, 0)
            assert store.min_offset("t", queue_id) <= offset, "what nobody has read is gone"
            while offset < store.max_offset("t", queue_id):
                with store.read("t", queue_id, offset, 1_000) as lease:
                    for record in lease.messages():
                        self._has_come(record.body[:NAME_BYTES], record.store_timestamp_ms)
                    offset = lease.next_offset
            self._read[queue_id] = offset

    def _has_come(self, name: bytes, at_ms: int) -> None:
        assert name not in self._come, f"{name!r} came twice"
        assert name not in self._withdrawn, f"{name!r} was withdrawn and came"
        due_ms = self._due[name]
        assert due_ms is None or due_ms <= at_ms, f"{name!r} came too early"
        self._come.add(name)


@pytest.fixture(autouse=True)
def use_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use many small steps."""
    delay_in_small_steps(monkeypatch)


@seeded(few=4, many=200)
def test_timed_messages_come_once_and_on_time(tmp_path: Path, seeds: range) -> None:
    try_each(seeds, tmp_path, TimersFuzz)
