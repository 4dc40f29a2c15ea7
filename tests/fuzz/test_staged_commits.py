"""Fuzz staged commits: all rows of one appear once and in order, or none; and no reader is reset.

The real classes are killed by being dropped: their directory is reopened. The disk is full for a while, or fails where
a commit is recorded, which leaves it unknown whether the record exists. The model is small: the rows of each
transaction, and its progress.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

import numpy as np

from raymq.actors.broker.acks import LocalAcks
from raymq.actors.broker.core.pop.pop_request import PopRequest
from raymq.actors.broker.staged_commits import StagedCommits
from raymq.actors.errors import RayMQError
from raymq.client import Message
from raymq.storage.errors import StoreError
from raymq.storage.files.file_calls import replaced
from tests import staged_rows
from tests.fuzz.failing_disk import FailingDisk
from tests.fuzz.seeds import seeded, try_each
from tests.unit.actors.bench import Bench, encoded

QUEUES = range(2)


class Progress(Enum):
    """The progress of a transaction."""

    STAGING = auto()  # and no further, if that was refused
    STAGED = auto()
    COMMITTING = auto()
    COMMITTED = auto()
    ABORTED = auto()


@dataclass
class Transaction:
    """A transaction's parts, and the bodies of its rows by queue in their order."""

    name: str
    parts: dict[str, int] = field(default_factory=dict)
    rows: dict[int, list[bytes]] = field(default_factory=lambda: {queue_id: [] for queue_id in QUEUES})
    progress: Progress = Progress.STAGING

    def among(self, bodies: list[bytes]) -> list[bytes]:
        """Return the transaction's own bodies in a queue."""
        return [body for body in bodies if body.startswith(self.name.encode() + b":")]


class StagedCommitsFuzz:
    """A broker, its committing clients, and others that send to the same queues and pop from them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.log: list[str] = []
        self._random = random.Random(seed)
        self._disk = FailingDisk(seed, "write", "truncate", "rename", "make_folder")
        self._directory = directory
        self._transactions: list[Transaction] = []
        self._sent: dict[int, list[bytes]] = {queue_id: [] for queue_id in QUEUES}
        self._popped: set[tuple[int, int]] = set()
        self._ends = [0 for _ in QUEUES]
        #: The group's progress by queue.
        self._offsets = [0 for _ in QUEUES]

    def live(self) -> None:
        works: list[Callable[[], None]] = [self.stage, self.commit, self.commit, self.commit, self.commit_some]
        works += [self.send, self.send, self.pop, self.pop, self.kill, self.fail, self.abort, self.restart]
        with replaced(self._disk):
            self._bench = Bench(self._directory / "broker-a")
            try:
                self._bench.core.topics.create("t", len(QUEUES))
                self._bench.core.ensure_group("g")
                for _ in range(100):
                    self._do(self._random.choice(works))
                self._disk.heal()
                if self._random.random() < 0.5:
                    self.kill()
                for transaction in self._that_are(Progress.COMMITTING):
                    self._commit(transaction)
                    self._look()
                self._check()
            finally:
                self._disk.heal()
                with suppress(StoreError):
                    self._bench.core.timers.log.close()
                    self._bench.store.close()

    def _do(self, work: Callable[[], None]) -> None:
        self.log.append(work.__name__)
        try:
            work()
        except (StoreError, RayMQError) as error:
            self.log.append(type(error).__name__)
            if not self._bench.store.is_healthy:
                self.kill()
        self._look()

    def stage(self) -> None:
        """Stage some parts of several writes each; keys may be written twice."""
        transaction = Transaction(f"tx{len(self._transactions)}")
        self._transactions.append(transaction)
        for number in range(self._random.randint(1, 3)):
            part, queue_id = f"p{number}", self._random.choice(QUEUES)
            transaction.parts[part] = 0
            for write in range(self._random.randint(1, 3)):
                rows = range(self._random.randint(1, 3))
                names = (f"{number}.{write}.{row if self._random.random() < 0.7 else 0}" for row in rows)
                messages = [Message("t", f"{transaction.name}:{name}".encode()) for name in names]
                records, sizes = encoded(*messages, queue_id=queue_id)
                staged_rows.stage(
                    self._bench.core.staging,
                    transaction.name,
                    part,
                    write,
                    ("t", queue_id),
                    memoryview(records),
                    np.array(sizes),
                    "broker-a",
                )
                transaction.rows[queue_id] += [message.body for message in messages]
                transaction.parts[part] += len(messages)
        transaction.progress = Progress.STAGED

    def commit(self) -> None:
        if found := self._that_are(Progress.STAGED, Progress.COMMITTING):
            self._commit(self._random.choice(found))

    def _commit(self, transaction: Transaction) -> None:
        self.log.append(transaction.name)
        transaction.progress = Progress.COMMITTING
        asyncio.run(
            StagedCommits(self._bench.core, LocalAcks(self._bench.core.store)).commit(
                transaction.name, transaction.parts
            )
        )
        transaction.progress = Progress.COMMITTED

    def commit_some(self) -> None:
        """Begin a commit and perform some of its steps only."""
        found = self._that_are(Progress.STAGED, Progress.COMMITTING)
        if not found:
            return
        transaction = self._random.choice(found)
        self.log.append(transaction.name)
        transaction.progress = Progress.COMMITTING
        staging, name, parts = self._bench.core.staging, transaction.name, transaction.parts
        steps = staged_rows.begin(staging, name, parts, sum(parts.values())).append()
        for _ in range(self._random.randint(0, 3)):
            next(steps, None)
        steps.close()

    def abort(self) -> None:
        if found := self._that_are(Progress.STAGED):
            transaction = self._random.choice(found)
            transaction.progress = Progress.ABORTED  # it is not committed after that, also if this call fails
            staged_rows.abort(self._bench.core.staging, transaction.name)

    def send(self) -> None:
        queue_id = self._random.choice(QUEUES)
        message = Message("t", b"sent %d" % sum(map(len, self._sent.values())))
        self._bench.append(message, queue_id=queue_id)
        self._sent[queue_id].append(message.body)

    def pop(self) -> None:
        """Pop some messages and acknowledge them at once."""
        pop = self._bench.core.pop
        try:
            popped = pop.receive(PopRequest("g", "t", QUEUES, self._random.choice((1, 5, 32)), 1 << 20, 10_000, 16))
            for part in popped.queues:
                taken = {(part.queue_id, offset) for offset in part.taken.offsets}
                assert not taken & self._popped, "popped twice"
                pop.acknowledge("g", "t", part.queue_id, popped.pop_time_ms, part.taken.offsets)
                self._popped |= taken
        except StoreError:
            self._offsets = [0 for _ in QUEUES]  # a pop that is refused half way is taken back
            raise

    def fail(self) -> None:
        self._disk.chance = self._random.choice((0.0, 0.05, 0.2))
        self._disk.state_chance = self._random.choice((0.0, 0.3))

    def kill(self) -> None:
        self._disk.heal()
        self._bench.core.timers.log.close()
        self._bench.crash()

    def restart(self) -> None:
        self._disk.heal()
        self._bench.core.timers.close()
        self._bench.store.close()
        self._bench.open()

    def _that_are(self, *progress: Progress) -> list[Transaction]:
        return [transaction for transaction in self._transactions if transaction.progress in progress]

    def _look(self) -> None:
        """Check what readers see."""
        store = self._bench.store
        for queue_id in store.queues("t"):
            end = store.max_offset("t", queue_id)
            assert end >= self._ends[queue_id], "what readers have seen is hidden"
            self._ends[queue_id] = end
            offset = store.consumer_offsets.get("g", "t", queue_id) or 0
            assert offset >= self._offsets[queue_id], "the group is sent back"
            self._offsets[queue_id] = offset
            bodies = self._bench.bodies("t", queue_id)
            for transaction in self._transactions:
                found = transaction.among(bodies)
                assert found in ([], transaction.rows[queue_id]), f"{transaction.name}: some rows, or some twice"

    def _check(self) -> None:
        for queue_id in QUEUES:
            bodies = self._bench.bodies("t", queue_id)
            for transaction in self._transactions:
                is_there = transaction.progress is Progress.COMMITTED
                assert transaction.among(bodies) == (transaction.rows[queue_id] if is_there else []), transaction
            assert [body for body in bodies if body.startswith(b"sent")] == self._sent[queue_id]


@seeded(few=5, many=300)
def test_transaction_is_visible_whole_or_not_at_all(tmp_path: Path, seeds: range) -> None:
    try_each(seeds, tmp_path, StagedCommitsFuzz)
