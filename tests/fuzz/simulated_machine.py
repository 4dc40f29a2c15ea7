"""A broker's core over several processes and boots, on the disk of power_loss.py.

Its process is closed or killed, and the machine loses power: between two operations, within one, at any failpoint or
sync, or after a proper stop. The clients then know what they knew at that moment.
"""

from __future__ import annotations

import copy
import itertools
import random
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path

from raymq.actors.broker.core.appending.producer_state_journal import ProducerStateJournal
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.recall_handle import RecallHandle
from raymq.storage import failpoints
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from raymq.storage.tables.group_config import GroupConfig
from tests.crash.power_loss import Disk
from tests.state_journals import wait_for_compaction
from tests.store_records import SMALL
from tests.unit.actors.clock import FakeClock

CONFIG = replace(
    SMALL,
    commitlog_file_bytes=1 << 15,
    consume_queue_file_entries=64,
    index_slots=100,
    index_entries=150,
    flush_interval_ms=3_600_000,
    retention_hours=1.0,
    delete_at_hour="*",
)
LEVELS = ("1s 5s 30s 1h", "1s 5s", "10s 2s 2h 3h 50h", "1s 5s 30s 1h 30h")
HOUR = 3_600.0
#: Topics and their numbers of queues. Queue 2 of "t" gets only staged rows and delayed messages.
TOPICS = {"t": 3, "v": 1}
GROUP, POPPERS = "readers", "poppers"
TopicQueue = tuple[str, int]
#: The number of the current boot.
BOOT = [0]


@dataclass
class Sent:
    """One message, identified by its name."""

    due_ms: int = 0
    handle: RecallHandle | None = None
    #: An answer acknowledged it, and no later power loss may have removed it.
    alive: bool = False
    #: A later flush covered it.
    durable: bool = False
    #: Its topic was deleted; `gone`: the deletion is on disk.
    void: bool = False
    gone: bool = False


@dataclass
class ClientState:
    """What clients know."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    #: The names that were seen in each queue, by offset.
    seen: dict[TopicQueue, dict[int, bytes]] = field(default_factory=dict)
    places: dict[bytes, tuple[str, int, int]] = field(default_factory=dict)
    #: The same at the last flush.
    sure_seen: dict[TopicQueue, dict[int, bytes]] = field(default_factory=dict)
    low: dict[TopicQueue, int] = field(default_factory=dict)
    withdrawn: set[bytes] = field(default_factory=set)
    sure_withdrawn: set[bytes] = field(default_factory=set)
    maybe_withdrawn: set[bytes] = field(default_factory=set)
    #: Of the reading group: the least and most that it may have committed, and what is on disk.
    committed: dict[TopicQueue, int] = field(default_factory=dict)
    perhaps_committed: dict[TopicQueue, int] = field(default_factory=dict)
    sure_committed: dict[TopicQueue, int] = field(default_factory=dict)
    consumed: dict[TopicQueue, dict[int, bytes]] = field(default_factory=dict)
    popped: set[bytes] = field(default_factory=set)
    pop_done: set[bytes] = field(default_factory=set)
    #: A deletion of "v" may not be on disk.
    loose: bool = False
    #: A retention run has begun.
    letting_go: bool = False
    epoch: int = 0
    next: int = 0
    numbered_at: float = 0.0
    unanswered: list[bytes] | None = None
    staged: dict[str, tuple[TopicQueue, list[bytes]]] = field(default_factory=dict)


@dataclass
class Image:
    """What a death within an operation left."""

    directory: Path
    disk: Disk | None
    known: ClientState
    cause: str


class SimulatedMachine(ABC):
    """A broker in a simulated machine. Subclasses define its operations and checks."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.log: list[str] = []
        self._random = random.Random(seed)
        self._root = directory
        self._numbers = itertools.count()
        self._directories = itertools.count()
        self._levels = LEVELS[0]
        self.clock = FakeClock(1_700_000_000.0)
        self.known = ClientState()
        self._image: Image | None = None
        self._power: bool | None = None
        self._countdown = 0
        self._armed = False

    # -- lives ---------------------------------------------------------------------------------------------------

    def live(self) -> None:
        """Run some boots one after another, and a last one in which everything completes."""
        directory = self._new_directory()
        directory.mkdir()
        reached, failpoints._reached = failpoints._reached, self._tick
        failpoints._armed = "any"
        try:
            for _ in range(self._random.randint(2, 4)):
                directory = self._machine(directory)
            self._machine(directory, last=True)
        finally:
            failpoints._reached, failpoints._armed = reached, None

    def _new_directory(self) -> Path:
        return self._root / str(next(self._directories))

    def _machine(self, directory: Path, *, last: bool = False) -> Path:
        """Run one boot up to its power loss; return the next directory."""
        BOOT[0] += 1
        self.log.append("== boot")
        self._disk = Disk(directory)
        self._disk.remember_all()
        self._directory = directory
        while True:
            with replaced(self._disk):
                self._disk.before_sync = self._tick
                ended = self._process(last=last)
            if ended:
                return self._directory

    def _process(self, *, last: bool) -> bool:
        """Run a broker's process; return whether the machine ended with it."""
        self._image = None
        end = "last" if last else self._random.choice(("close", "kill", "kill", "power", "power", "power"))
        within = not last and self._random.random() < 0.6
        works = self._random.randint(0, 40)
        # -1: within the start
        arm_at = self._random.choice((-1, self._random.randint(0, works))) if within else works + 1
        self._power = end == "power"
        if arm_at < 0:
            self._arm(120)
        self._open()
        if self._image is None:
            self._check_start()
            for number in range(works):
                if number == arm_at:
                    self._arm(20)
                self._work()
                if self._image is not None:
                    break
            if last:
                self._settle()
                self._check_end()
        if self._image is None and end == "close":
            if within:
                self._power = self._random.random() < 0.5
                self._arm(40)
            self._close()
            self._armed = False
            if self._image is None:
                self.log.append("-- closed")
                return self._random.random() < 0.3 and self._power_behind_the_stop()
        self._armed = False
        image = self._image
        self.store.wait_for_removals()
        wait_for_compaction(self.store)
        if image is None:
            self.log.append(f"-- {end}")
            if end == "power" or last:
                target = self._new_directory()
                self._disk.after_power_loss(target, self._random, self._luck())
                image = Image(target, None, self.known, end)
        else:
            self.log.append(f"-- {image.cause} in the midst")
        self._abandon()
        if image is None:
            return False
        self.known = image.known
        self._directory = image.directory
        if image.disk is not None:
            self._disk.close()
            self._disk = image.disk
            return False
        self._disk.close()
        self._lose_power()
        return True

    def _power_behind_the_stop(self) -> bool:
        """Cut the power before the next process: what a stop does not sync may be lost."""
        self.log.append("-- power behind the stop")
        self._directory = self._new_directory()
        self._disk.after_power_loss(self._directory, self._random, self._luck())
        self._disk.close()
        self._lose_power()
        return True

    def _luck(self) -> float:
        return self._random.choice((0.0, 0.3, 0.7, 1.0))

    def _arm(self, most: int) -> None:
        self._armed, self._countdown = True, self._random.randint(1, most)

    def _tick(self, name: str = "sync") -> None:
        if not self._armed or threading.current_thread() is not threading.main_thread():
            return
        self._countdown -= 1
        if self._countdown > 0:
            return
        self._armed = False
        target = self._new_directory()
        if self._power:
            self._disk.after_power_loss(target, self._random, self._luck())
            self._image = Image(target, None, copy.deepcopy(self.known), f"power at {name}")
        else:
            disk = self._disk.forked(target, self._new_directory())
            self._image = Image(target, disk, copy.deepcopy(self.known), f"kill at {name}")

    def _open(self) -> None:
        if self._random.random() < 0.3:
            self._levels = self._random.choice(LEVELS)
            self.log.append(self._levels)
        config = replace(CONFIG, delay_levels=self._levels)
        self.store = Store.open(self._directory, config, now_ms=self._now_ms)
        self.core = BrokerCore("broker-a", self.store, clock=self.clock)
        self._producers = ProducerStateJournal(self.core.producers, self.store)
        self._producers.restore()
        for topic, queues in TOPICS.items():
            self.core.topics.create(topic, queues)
        self.store.sync_state()
        for group in (GROUP, POPPERS):
            if self.store.group_configs.get(group) is None:
                self.store.group_configs.put(GroupConfig(group))

    def _close(self) -> None:
        self._look()
        for write in self._producers.save():
            write()
        self.core.timers.close()
        self.core.schedule.close()
        self.store.close()
        self._all_durable()
        self._progress_durable()

    def _abandon(self) -> None:
        self.store._flusher.stop()
        self.core.timers.log.close()
        self.store._abandon()

    def _lose_power(self) -> None:
        """Reduce what is known to what is on disk."""
        known = self.known
        for sent in known.sent.values():
            sent.alive = sent.durable
        known.seen = copy.deepcopy(known.sure_seen)
        known.places = {
            name: (topic, queue_id, offset)
            for (topic, queue_id), names in known.seen.items()
            for offset, name in names.items()
        }
        known.withdrawn = known.sure_withdrawn.copy()
        known.pop_done = set()  # the group's offset on disk may be older than its deliveries
        known.committed = known.sure_committed.copy()

    def _now_ms(self) -> int:
        return int(self.clock.now * 1000)

    def _state_of_log(self) -> tuple[dict[TopicQueue, dict[int, bytes]], set[bytes], set[bytes]]:
        known = self.known
        alive = {name for name, sent in known.sent.items() if sent.alive}
        return copy.deepcopy(known.seen), known.withdrawn.copy(), alive

    def _flushed(self, state: tuple[dict[TopicQueue, dict[int, bytes]], set[bytes], set[bytes]]) -> None:
        self.known.sure_seen, self.known.sure_withdrawn, alive = state
        for name in alive:
            self.known.sent[name].durable = True

    def _all_durable(self) -> None:
        self._flushed(self._state_of_log())

    def _progress_durable(self) -> None:
        self.known.sure_committed = self.known.committed.copy()

    @abstractmethod
    def _work(self) -> None:
        """Perform one random operation."""

    @abstractmethod
    def _look(self, *, anew: bool = False) -> None:
        """Read new messages, or all of them."""

    @abstractmethod
    def _check_start(self) -> None:
        """Check that the start found what is known."""

    @abstractmethod
    def _settle(self) -> None:
        """Complete everything."""

    @abstractmethod
    def _check_end(self) -> None:
        """Check the end state."""
