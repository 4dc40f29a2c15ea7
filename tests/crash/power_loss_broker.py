"""A broker's core over several power losses, with the expectations of its clients.

It uses everything that recovery restores: groups' offsets, delay levels, timers, pop, idempotent producers, staged
writes, topics that are deleted and created again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.appending.producer_state_journal import ProducerStateJournal
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.pop.pop_request import PopRequest
from raymq.actors.errors import SequenceGap
from raymq.client import Message
from raymq.storage.files.file_calls import replaced
from raymq.storage.records.producer_sequence import ProducerSequence, stamp
from raymq.storage.records.record import decode
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig
from tests import staged_rows
from tests.crash.power_loss import Disk
from tests.state_journals import wait_for_compaction
from tests.store_records import SMALL
from tests.unit.actors.bench import encoded
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants

#: Small files, and a background thread that never wakes up.
CONFIG = replace(
    SMALL,
    commitlog_file_bytes=1 << 17,
    consume_queue_file_entries=64,
    index_slots=100,
    index_entries=500,
    flush_interval_ms=3_600_000,
    delay_levels="1s 5s 10s",
)
TOPICS = {"t": 2, "v": 1}
#: The id of an idempotent producer.
PRODUCER = "00000000000000ab"
GROUP, POPPERS = "readers", "poppers"
Records = tuple[memoryview, npt.NDArray[np.int32]]


@dataclass
class ClientState:
    """What the clients expect. Messages are identified by their bodies."""

    acknowledged: list[bytes] = field(default_factory=list)
    durable: set[bytes] = field(default_factory=set)
    """Acknowledged messages that a later flush covered."""
    void: set[bytes] = field(default_factory=set)
    """Messages of a deleted topic."""
    read: set[bytes] = field(default_factory=set)
    popped: set[bytes] = field(default_factory=set)
    numbers: int = 0


class PowerLossBroker:
    """A broker that starts in a new directory after each power loss; `clock` continues."""

    def __init__(self, root: Path, random_: random.Random, *, sync: bool) -> None:
        self._root = root
        self._random = random_
        self._sync = sync
        self.known = ClientState()
        self.config = CONFIG
        self.clock = FakeClock(1_700_000_000.0)
        self._lives = 0
        self.directory = root / "0"
        self.directory.mkdir()
        self._epoch, self._next = 0, 0
        #: The numbered batch without an answer: it is sent again, in this life or a later one.
        self._unanswered: list[bytes] | None = None
        #: When the newest numbered batch was first sent.
        self._numbered_at = 0.0
        self._staged: dict[str, list[bytes]] = {}

    @contextmanager
    def life(self) -> Iterator[None]:
        """Start the broker, and lose power at the end."""
        disk = Disk(self.directory)
        disk.remember_all()
        with replaced(disk):
            self._open()
            yield
            self._lives += 1
            wait_for_compaction(self.store)
            self.directory = self._root / str(self._lives)
            disk.after_power_loss(self.directory, self._random, self._random.choice((0.0, 0.3, 0.7, 1.0)))
            self.store._flusher.stop()
            self.core.timers.log.close()
            self.store._abandon()
        disk.close()
        self.known.acknowledged = [body for body in self.known.acknowledged if body in self.known.durable]

    def _open_store(self) -> Store:
        return Store.open(self.directory, self.config, now_ms=lambda: int(self.clock.now * 1000))

    def _open(self) -> None:
        self.store = self._open_store()
        self.core = BrokerCore("broker-a", self.store, clock=self.clock)
        self._producers = ProducerStateJournal(self.core.producers, self.store)
        self._producers.restore()
        for topic, queues in TOPICS.items():
            self.core.topics.create(topic, queues)
        self.store.sync_state()  # as before the answer to a client that creates a topic
        self.check_whole()
        for group in (GROUP, POPPERS):
            if self.store.group_configs.get(group) is None:
                self.store.group_configs.put(GroupConfig(group))

    # -- what clients do -----------------------------------------------------------------------------------------

    def live(self, works: int) -> None:
        """Run four lives of so many operations, and a last one that must deliver all acknowledged messages."""
        for _ in range(4):
            with self.life():
                for flushed in (*[True] * works, *[False] * (works // 2)):
                    self.some_work(flushed=flushed)
        with self.life():
            for work in (self.send, self.delay, self.set_timer, self.send_numbered, self.send):
                work()
                work()
            self.flush()
            self.settle()
            self.check()

    def some_work(self, *, flushed: bool = True) -> None:
        """Perform one random operation.

        Args:
            flushed: include operations that sync the log. Without them only other files are synced.
        """
        works: list[Callable[[], None]] = [
            self.send, self.send, self.delay, self.set_timer, self.send_numbered, self.stage,
            self.pass_time, self.pass_time, self.read, self.read, self.pop, self.pop, self.save_producers,
        ]  # fmt: skip
        if flushed:
            works += [
                self.commit_staged, self.flush, self.checkpoint, self.checkpoint_timers, self.delete_and_make_again,
            ]  # fmt: skip
        else:
            works += [self.commit_half, self.store.sync_state, self.store.sync_state, self.checkpoint_timers]
        self._random.choice(works)()
        check_invariants(self.core.pop)
        check_invariants(self.core.producers)

    def _bodies(self, kind: str, most: int = 6) -> list[bytes]:
        first, count = self.known.numbers, self._random.randint(1, most)
        self.known.numbers += count
        padding = b"x" * self._random.choice((1, 1, 300, 700))
        return [b"%s %d %s" % (kind.encode(), first + number, padding) for number in range(count)]

    def _acknowledged(self, bodies: list[bytes], *, durable: bool = False) -> None:
        self.known.acknowledged += bodies
        if self._sync:
            self.flush()
        elif durable:
            self.known.durable.update(bodies)

    def send(self) -> None:
        """Send to a random topic and queue."""
        topic = self._random.choice(("t", "t", "t", "v"))
        bodies, queue_id = self._bodies(topic), self._random.randrange(TOPICS[topic])
        records, sizes = encoded(*(Message(topic, body) for body in bodies), queue_id=queue_id)
        self.core.append(topic, queue_id, memoryview(records), sizes)
        self._acknowledged(bodies)

    def delay(self) -> None:
        """Send with a delay level."""
        bodies = self._bodies("level", 3)
        level = self._random.randint(1, 3)
        records, sizes = encoded(*(Message("t", body, delay_level=level) for body in bodies))
        self.core.append("t", 0, memoryview(records), sizes, delayed=True)
        self._acknowledged(bodies)

    def set_timer(self) -> None:
        """Send for a delivery time."""
        bodies = self._bodies("timer", 3)
        times = [self.clock.now + self._random.choice((1, 20, 3_000, 8_000)) for _ in bodies]
        messages = [Message("t", body, deliver_at=at) for body, at in zip(bodies, times, strict=True)]
        records, sizes = encoded(*messages)
        self.core.append("t", 0, memoryview(records), sizes, delayed=True)
        self._acknowledged(bodies)

    def send_numbered(self) -> None:
        """Send as an idempotent producer. A lost answer makes it send again, perhaps in the next life."""
        if self._unanswered is None:
            self._numbered_at = self.clock.now
        elif self.clock.now - self._numbered_at > 2_000:  # a broker forgets producers that are silent for an hour
            self._epoch, self._next, self._unanswered = self._epoch + 1, 0, None
            self._numbered_at = self.clock.now
        in_doubt = self._unanswered
        bodies = in_doubt or self._bodies("numbered", self._random.choice((4, 4, 30)))
        try:
            self._append_numbered(bodies)
        except SequenceGap:  # the broker lost an acknowledged batch: the producer begins a new epoch
            self._epoch, self._next, self._unanswered = self._epoch + 1, 0, None
            if in_doubt:  # the outcome is unknown
                return
            self._append_numbered(bodies)
        if self._random.random() < 0.3:
            self._unanswered = bodies
            return
        self._unanswered = None
        self._next += len(bodies)
        self._acknowledged(bodies)

    def _append_numbered(self, bodies: list[bytes]) -> None:
        records, sizes = encoded(*(Message("t", body) for body in bodies), queue_id=1)
        stamped = bytearray(records)
        sizes = stamp(stamped, sizes, ProducerSequence(PRODUCER, self._epoch, self._next, len(bodies)))
        tries = [self.core.append("t", 1, memoryview(bytes(stamped)), sizes, sequenced=True) for _ in range(2)]
        assert tries[0].queue_offsets.tolist() == tries[1].queue_offsets.tolist()
        found = []
        for offset in tries[0].queue_offsets.tolist():
            with self.store.read("t", 1, offset, 1) as lease:
                found += [record.body for record in lease.messages()]
        assert found == bodies, "the answer is these messages' places, and no other's"

    def stage(self) -> None:
        """Stage a transaction's chunks, to be committed later in this life or another one."""
        name = f"tx{self.known.numbers}"
        self._staged[name] = []
        for number in range(self._random.randint(1, 3)):
            bodies = self._bodies("staged", 4)
            records, sizes = encoded(*(Message("t", body) for body in bodies))
            staged_rows.stage(self.core.staging, name, "p", number, ("t", 0), memoryview(records), sizes)
            self._staged[name] += bodies

    def check_whole(self) -> None:
        """Check that readers see all rows of each staged write, or none."""
        seen = set(self.content("t", 0))
        for name, bodies in self._staged.items():
            part = seen.intersection(bodies)
            assert len(part) in (0, len(bodies)), f"readers see {len(part)} of {len(bodies)} rows of {name}"

    def commit_half(self) -> None:
        """Begin a commit that may not complete; the client repeats it in another life."""
        if self._staged:
            for _ in staged_rows.commit(self.core.staging, self._random.choice(list(self._staged)), ["p"]):
                self.check_whole()
                if self._random.random() < 0.3:
                    return

    def commit_staged(self) -> None:
        """Commit one staged write. If its answer is lost, it is committed again later."""
        if not self._staged:
            return
        name = self._random.choice(list(self._staged))
        for _ in staged_rows.commit(self.core.staging, name, ["p"]):
            pass
        self.store.flush()
        staged_rows.close(self.core.staging, name)
        if self._random.random() < 0.7:
            self._acknowledged(self._staged.pop(name), durable=True)

    def pass_time(self) -> None:
        """Advance the clock and deliver due messages."""
        self.clock.advance(self._random.choice((0.5, 2, 30, 1_000)))
        self.core.deliver_due()

    def read(self) -> None:
        """Read as a group that pulls; it may die before it commits."""
        topic = self._random.choice(("t", "t", "v"))
        for queue_id in range(TOPICS[topic]):
            _, high = self.core.bounds(topic, queue_id)
            offset = self.core.offsets.get(GROUP, topic, queue_id) or 0
            if offset < high:
                with self.store.read(topic, queue_id, offset, self._random.randint(1, 20)) as lease:
                    self.known.read.update(record.body for record in lease.messages())
                if self._random.random() < 0.9:
                    self.core.offsets.commit(GROUP, topic, queue_id, lease.next_offset)

    def pop(self, *, share: float = 0.6) -> int:
        """Pop as a group, and acknowledge a share of the messages."""
        popped = self.core.pop.receive(PopRequest(POPPERS, "t", range(2), 8, 1 << 20, 5_000, 1_000_000))
        count = 0
        for part in popped.queues:
            for piece in part.taken.pieces:
                at = 0
                while at < len(piece):
                    record = decode(piece, at)
                    at += record.size
                    count += 1
                    self.known.popped.add(record.body)
                    if self._random.random() < share:
                        place = (POPPERS, "t", part.queue_id, popped.pop_time_ms)
                        self.core.pop.acknowledge(*place, [record.queue_offset])
        return count

    # -- what the broker does ------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Flush: all acknowledged messages survive from now on."""
        self.store.flush()
        self.known.durable.update(self.known.acknowledged)

    def checkpoint(self) -> None:
        """Save the store's checkpoint."""
        self.store._save_checkpoint()
        self.known.durable.update(self.known.acknowledged)

    def checkpoint_timers(self) -> None:
        """Save the timers' checkpoint."""
        write = self.core.timers.checkpoint()
        if write is not None:
            write()

    def save_producers(self) -> None:
        """Save the producers' state."""
        for write in self._producers.save():
            write()

    def delete_and_make_again(self) -> None:
        """Delete a topic and create it again; its offsets restart at 0."""
        if self._random.random() < 0.3:
            self.core.topics.delete("v")
            self.core.topics.create("v", TOPICS["v"])
            self.known.void.update(body for body in self.known.acknowledged if body.startswith(b"v "))

    # -- what must be --------------------------------------------------------------------------------------------

    def content(self, topic: str, queue_id: int) -> list[bytes]:
        """Return the bodies of a queue."""
        low, high = self.core.bounds(topic, queue_id)
        found: list[bytes] = []
        while low + len(found) < high:
            with self.store.read(topic, queue_id, low + len(found), 100) as lease:
                found += [record.body for record in lease.messages()]
        return found

    def settle(self) -> None:
        """Deliver all waiting messages, commit all staged writes, and consume everything."""
        for _ in range(8):
            self.clock.advance(2_000)
            self.core.deliver_due()
        while self._staged:
            name, bodies = self._staged.popitem()
            assert sum(staged_rows.commit(self.core.staging, name, ["p"])) >= 0
            self.store.flush()
            staged_rows.close(self.core.staging, name)
            self.known.acknowledged += bodies
        for topic, queues in TOPICS.items():
            for queue_id in range(queues):
                offset = self.core.offsets.get(GROUP, topic, queue_id) or 0
                self.known.read.update(self.content(topic, queue_id)[offset:])
        while self.pop(share=1.0) or self._wait_for_lent():
            pass

    def _wait_for_lent(self) -> bool:
        self.clock.advance(6)
        return bool(self.store.in_flight.queues)

    def check(self) -> None:
        """Check, after `settle`, that durable messages are stored once and both groups got all messages."""
        there = [body for topic, queues in TOPICS.items() for q in range(queues) for body in self.content(topic, q)]
        twice = {body for body in there if there.count(body) > 1}
        assert not twice, f"delivered twice: {sorted(twice)[:5]}"
        lost = self.known.durable - self.known.void - set(there)
        assert not lost, f"lost: {sorted(lost)[:5]}"
        passed_over = set(there) - self.known.read
        assert not passed_over, f"a group was not given: {sorted(passed_over)[:5]}"
        not_popped = {body for q in range(2) for body in self.content("t", q)} - self.known.popped
        assert not not_popped, f"pop did not give: {sorted(not_popped)[:5]}"
