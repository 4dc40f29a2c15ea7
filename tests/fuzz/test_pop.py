"""Fuzz pop, ordered and not: each message is finally acknowledged or dead, and not delivered after that.

The real classes have a simulated clock and are killed by being dropped: their directory is reopened. The disk is full
for a while, and bytes of messages are damaged. The model is small: the finished messages of each queue. In ordered mode
the delivered messages are the first unfinished ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from logging import Logger
from pathlib import Path

import pytest

from raymq.actors.broker.core.periodic_retry import PerKeyRetry
from raymq.storage.errors import StoreError
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal import state_journal
from tests.fuzz.failing_disk import FailingDisk
from tests.fuzz.seeds import do, seeded, try_each
from tests.store_records import SMALL, write_entries
from tests.unit.actors import pop_bench
from tests.unit.actors.pop_bench import Handle, PopBench
from tests.validation import check_invariants

QUEUES = range(2)
#: Where a body begins in a record.
BODY_AT = 88


class PopFuzz:
    """Consumers of one group. With an even seed all of them pop in order, and neither disk nor bytes fail."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.log: list[str] = []
        self._random = random.Random(seed)
        self._disk = FailingDisk(seed, "write", "rename", "allocate")
        self._directory = directory
        self._in_order = seed % 2 == 0
        self._handles: list[Handle] = []
        self._sent = [0 for _ in QUEUES]
        #: By queue the offsets that are finished, or before the group's reset offset.
        self._done: list[set[int]] = [set() for _ in QUEUES]
        #: The offsets that may or may not be delivered again: damaged ones, and those with a refused acknowledgement.
        self._in_doubt: list[set[int]] = [set() for _ in QUEUES]

    def live(self) -> None:
        works: list[Callable[[], None]] = [self.send, self.receive, self.receive, self.acknowledge, self.acknowledge]
        works += [self.acknowledge_many, self.change, self.wait, self.wait, self.sweep, self.kill, self.reopen]
        works += [self.flush, self.flush]
        if self._in_order:
            works += [self.receive, self.acknowledge, self.reset]
        else:
            works += [self.damage, self.fill_disk]
        with replaced(self._disk):
            self._bench = PopBench(self._directory, queues=len(QUEUES))
            try:
                for _ in range(150):
                    self._do(self._random.choice(works))
                self._disk.heal()
                self._drain()
                self._check()
            finally:
                self._disk.heal()
                with suppress(StoreError):
                    self._bench.store.close()

    def _do(self, work: Callable[[], None]) -> None:
        do(self.log, work, lambda: self._bench.store, self.kill)
        check_invariants(self._bench.pop)

    def send(self) -> None:
        queue_id, count = self._random.choice(QUEUES), self._random.randint(1, 4)
        self._bench.send(*(b"x" * self._random.choice((1, 50, 400)) for _ in range(count)), queue_id=queue_id)
        self._sent[queue_id] += count

    def receive(self) -> None:
        choice = self._random.choice
        handles = self._bench.receive(
            choice((1, 2, 5, 32)),
            choice((1.0, 5.0, 30.0)),
            maximum=1_000 if self._in_order else choice((2, 1_000)),
            queue_id=choice((None, *QUEUES)),
            ordered=self._in_order or self._random.random() < 0.2,
            max_bytes=choice((1 << 20, 600, 1_200)),
            attempt_id=choice((None, None, "a", "b")) if self._in_order else None,
        )
        self._handles += handles
        self._look_at(handles)

    def acknowledge(self) -> None:
        if not self._handles:
            return
        handle = self._handles.pop(self._random.randrange(len(self._handles)))
        in_doubt = self._in_doubt[handle.queue_id]
        was_in_doubt = handle.offset in in_doubt
        in_doubt.add(handle.offset)
        [is_done] = self._bench.ack(handle)  # a refusal leaves it in doubt
        if not was_in_doubt:
            in_doubt.remove(handle.offset)
        if is_done:
            self._done[handle.queue_id].add(handle.offset)

    def acknowledge_many(self) -> None:
        for _ in range(8):
            self.acknowledge()

    def change(self) -> None:
        if self._handles:
            number = self._random.randrange(len(self._handles))
            seconds, undelivered = self._random.choice((0.5, 3.0, 20.0)), self._random.random() < 0.3
            changed = self._bench.change(self._handles[number], seconds, undelivered=undelivered)
            if changed is not None:
                self._handles[number] = changed

    def wait(self) -> None:
        self._bench.clock.advance(self._random.choice((0.001, 1.0, 5.0, 40.0)))

    def sweep(self) -> None:
        self._bench.pop.sweep()

    def flush(self) -> None:
        self._bench.store.flush()

    def kill(self) -> None:
        self._disk.heal()
        self._bench.kill()

    def reopen(self) -> None:
        self._disk.heal()
        self._bench.store.close()
        self._bench.open()

    def fill_disk(self) -> None:
        self._disk.chance = self._random.choice((0.0, 0.0, 0.1))

    def reset(self) -> None:
        """Reset the group to another offset."""
        queue_id = self._random.choice(QUEUES)
        if self._sent[queue_id] and self._random.random() < 0.2:
            offset = self._random.randint(0, self._sent[queue_id])
            self._bench.store.flush()  # a reset must stay within the readable offsets
            self._bench.core.ensure_group("g")
            self._bench.core.reset_offset("g", "t", queue_id, offset)
            self._bench.core.offsets.take_reset("g", "t", queue_id)
            self._done[queue_id] = set(range(offset))

    def damage(self) -> None:
        """Damage a byte of an unfinished message, or restore it."""
        queue_id = self._random.choice(QUEUES)
        offset = self._random.randrange(self._sent[queue_id] or 1)
        if self._random.random() < 0.7 or offset >= self._sent[queue_id] or offset in self._done[queue_id]:
            return
        store = self._bench.store
        store.flush()
        write_entries(store)  # without its entry a start does not see a queue's newest message if it is damaged
        queue = store._dispatcher.queues["t", queue_id]
        place, size, _ = queue.entry(offset)
        if place + size + 200 < store.max_physical_offset:  # the next start would truncate a damaged log end
            file = store._log.files.file_at(place)
            file.view[place % store._log.files.file_bytes + BODY_AT] ^= 0xFF
            queue.reset_checked()
            self._in_doubt[queue_id].add(offset)

    def _look_at(self, handles: list[Handle]) -> None:
        """Check delivered messages."""
        for queue_id in QUEUES:
            offsets = [handle.offset for handle in handles if handle.queue_id == queue_id]
            self.log.append(f"{queue_id}: {offsets}")
            assert not self._done[queue_id].intersection(offsets), "what is done came again"
            if self._in_order:
                left = [offset for offset in range(self._sent[queue_id]) if offset not in self._done[queue_id]]
                assert offsets == left[: len(offsets)], "something came before an older one"

    def _drain(self) -> None:
        """Receive and acknowledge everything."""
        for _ in range(40):
            self._bench.clock.advance(50.0)
            self._bench.store.flush()
            self._bench.pop.sweep()
            handles = self._bench.receive(32, 10.0, maximum=1_000, ordered=self._in_order)
            self._look_at(handles)
            for handle in handles:
                assert self._bench.ack(handle) == [True]
                self._done[handle.queue_id].add(handle.offset)

    def _check(self) -> None:
        dead: list[set[int]] = [set() for _ in QUEUES]
        for letter in self._bench.dead_letters():
            _topic, queue_id, offset, _ = letter.properties["RAYMQ_DIED_IN"].rsplit(":", 3)
            assert int(offset) not in dead[int(queue_id)], "two letters of one message"
            dead[int(queue_id)].add(int(offset))
        for queue_id in QUEUES:
            sent = self._sent[queue_id]
            known = self._done[queue_id] | dead[queue_id] | self._in_doubt[queue_id]
            assert set(range(sent)) - known == set(), f"lost of queue {queue_id}"
            assert self._bench.committed(queue_id) in {None, sent}


@pytest.fixture(autouse=True)
def compact_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact the state journal often, flush synchronously, and fail on errors in a sweep."""

    def failed(self: PerKeyRetry, part: object, name: str, error: Exception, log: Logger) -> None:
        raise AssertionError(f"{name} failed") from error

    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 400)
    monkeypatch.setattr(pop_bench, "SMALL", replace(SMALL, flush="sync", flush_interval_ms=1_000_000))
    monkeypatch.setattr(PerKeyRetry, "failed", failed)


@seeded(few=8, many=300)
def test_popped_messages_finish_once(tmp_path: Path, seeds: range) -> None:
    try_each(seeds, tmp_path, PopFuzz)
