"""A broker's core over several lives, each continued by the replica of the master before.

At the end of a life the master is lost, and its replica has some prefix of what was shipped: all of the log and the
state at one moment. The next life begins with the promotion of the replica, whose process lives on or was replaced, or
with an ordinary start in its directory. Acknowledged messages count only if they were shipped before.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from raymq.storage.store import Store
from tests.crash.power_loss_broker import PowerLossBroker
from tests.state_journals import wait_for_compaction
from tests.state_shipping import StateShipper, content_of, copy_state, keep_events, state_of
from tests.store_replication import log_content


class FailoverBroker(PowerLossBroker):
    """A broker for which acknowledged messages count once `flush` or `checkpoint` has shipped them.

    Attributes:
        compared: how often a replica's files and tables were compared with its master's, and were equal.
    """

    def __init__(self, root: Path, random_: random.Random, *, sync: bool) -> None:
        super().__init__(root, random_, sync=sync)
        self.compared = 0
        #: The open store of an elected replica whose process lives on.
        self._elected: Store | None = None
        self._shipping: StateShipper | None = None
        self._threads: list[threading.Thread] = []

    @contextmanager
    def life(self) -> Iterator[None]:
        """Start the broker as master with a replica, and lose the master at the end."""
        self._shipping = None
        self._open()
        self._lives += 1
        successor = self._root / str(self._lives)
        copy_state(self.store, successor)
        follower = self._open_replica(successor)
        self._shipping = StateShipper(self.store, follower)
        self._shipping.all()  # before that the replica is not in sync, and no candidate
        yield
        self._end(follower)
        self.directory = successor
        self.known.acknowledged = [body for body in self.known.acknowledged if body in self.known.durable]
        end = self._random.choice((self._live_on, Store.close, _kill))
        end(follower)

    def _open_store(self) -> Store:
        """Open the master's store: that of a running replica, or by another process."""
        store, self._elected = self._elected, None
        if store is None and self._random.random() < 0.5:
            store = self._open_replica(self.directory)
        if store is not None:
            store.become_leader()
        return keep_events(store or super()._open_store())

    def _open_replica(self, directory: Path) -> Store:
        store = Store.open(directory, self.config, now_ms=lambda: int(self.clock.now * 1000), is_replica=True)
        store.follow()
        return store

    def _live_on(self, follower: Store) -> None:
        self._elected = follower

    def close(self) -> None:
        """Close the last replica."""
        if self._elected is not None:
            self._elected.close()

    def _end(self, follower: Store) -> None:
        """Ship a random part of the rest; then the master is lost."""
        assert self._shipping is not None
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        wait_for_compaction(self.store)
        if self._random.random() < 0.3:
            self._shipping.all()
            assert state_of(follower.directory) == state_of(self.directory) == content_of(follower.tables)
            assert log_content(follower.directory) == log_content(self.directory)
            self.compared += 1
        else:
            self._shipping.some(self._random)
        self.core.timers.log.close()
        _kill(self.store)

    def some_work(self, *, flushed: bool = True) -> None:
        """Perform one operation; sometimes also work of other threads, or a part of the shipping."""
        super().some_work(flushed=flushed)
        assert self._shipping is not None
        others: list[Callable[[], None]] = [self.save_settings, lambda: self._shipping.some(self._random)]  # type: ignore[union-attr]
        if self._random.random() < 0.3:
            self._random.choice(others)()

    def save_settings(self) -> None:
        """Write RocketMQ's files of the tables, as the broker does on another thread."""
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


def _kill(store: Store) -> None:
    """Leave the store's directory as after SIGKILL."""
    store._flusher.stop()
    store._abandon()
