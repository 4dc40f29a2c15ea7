"""A broker's core over several lives, each continued by the replica of the master before.

At the end of a life the master is lost, and its replica has some prefix of what was shipped: all of the log and the
state at one moment. The next life begins with an ordinary start in the replica's directory. Acknowledged messages
count only if they were shipped before.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.store import Store
from tests.crash.power_loss_broker import CONFIG, PowerLossBroker
from tests.state_journals import wait_for_compaction
from tests.state_shipping import StateShipper, state_of, take_snapshot
from tests.store_replication import log_content


class FailoverBroker(PowerLossBroker):
    """A broker for which acknowledged messages count once `flush` or `checkpoint` has shipped them.

    Attributes:
        compared: how often a replica's files were compared with its master's, and were equal.
    """

    def __init__(self, root: Path, random_: random.Random, *, sync: bool) -> None:
        super().__init__(root, random_, sync=sync)
        self.compared = 0
        self._former: StateReplica | None = None
        self._threads: list[threading.Thread] = []

    @contextmanager
    def life(self) -> Iterator[None]:
        """Start the broker as master with a replica, and lose the master at the end."""
        recorder = StateRecorder.begin(
            self.directory, log_end=lambda: self._log_end, on_change=lambda: None, predecessor=self._former
        )
        try:
            self._log_end = 0
            self._recorder = recorder
            self._shipping: StateShipper | None = None
            self._open()
            recorder.log_end = lambda: self.store.max_physical_offset
            self._lives += 1
            successor = self._root / str(self._lives)
            replica = StateReplica(successor)
            take_snapshot(recorder, replica)
            follower = Store.open(successor, CONFIG, is_replica=True)
            self._shipping = StateShipper(self.store, recorder, follower, replica)
            self._shipping.all()  # before that the replica is not in sync, and no candidate
            yield
            self._end(recorder)
        finally:
            recorder.stop()
        self.directory = successor
        self.known.acknowledged = [body for body in self.known.acknowledged if body in self.known.durable]
        if self._random.random() < 0.5:
            follower.close()
        else:  # as after SIGKILL
            follower._flusher.stop()
            follower._abandon()
        self._former = None
        if self._random.random() < 0.5:
            self._former = replica  # the process lives on
        else:
            replica.close()

    def close(self) -> None:
        """Close the last replica."""
        if self._former is not None:
            self._former.close()

    def _end(self, recorder: StateRecorder) -> None:
        """Ship a random part of the rest; then the master is lost."""
        assert self._shipping is not None
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        wait_for_compaction(self.store)
        if self._random.random() < 0.3:
            self._shipping.all()
            assert state_of(self._root / str(self._lives)) == state_of(self.directory)
            assert log_content(self._root / str(self._lives)) == log_content(self.directory)
            self.compared += 1
        else:
            self._shipping.some(self._random)
        recorder.stop()
        self.store._flusher.stop()
        self._producers.close()
        self.core.timers.log.close()
        self.store._abandon()

    def some_work(self, *, flushed: bool = True) -> None:
        """Perform one operation; sometimes also work of other threads, or a part of the shipping."""
        super().some_work(flushed=flushed)
        assert self._shipping is not None
        others: list[Callable[[], None]] = [self.save_settings, lambda: self._shipping.some(self._random)]  # type: ignore[union-attr]
        if self._random.random() < 0.3:
            self._random.choice(others)()

    def save_settings(self) -> None:
        """Save the settings tables, as the broker does on another thread."""
        self._threads.append(threading.Thread(target=self.store.begin_export()))
        self._threads[-1].start()

    def flush(self) -> None:
        """Ship everything: all acknowledged messages are on the replica."""
        self.store.flush()
        if self._shipping is not None:
            self._shipping.all()
            self.known.durable.update(self.known.acknowledged)

    def checkpoint(self) -> None:
        """Save the store's checkpoint."""
        self.store._save_checkpoint()
        self.flush()

    def stage(self) -> None:
        """Stage, and ship it before the client continues: a commit does not repeat staged rows."""
        super().stage()
        self.flush()

    def _acknowledged(self, bodies: list[bytes], *, durable: bool = False) -> None:
        super()._acknowledged(bodies)
        if durable:
            self.flush()
