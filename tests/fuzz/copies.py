"""One of several copies of a store over many processes: as replica, as master, or killed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.replica_stream import ReplicaStream, record_start
from raymq.actors.broker.replication.epoch_file import EpochFileCache
from raymq.storage.config import StoreConfig
from raymq.storage.errors import StoreError
from raymq.storage.journal.replication_backlog import ReplicationBacklog
from raymq.storage.store import Store
from tests.crash.killing_calls import Killed
from tests.fuzz.histories import History

#: A position behind any log.
_EVERYTHING = 1 << 60


class Copy:
    """A copy that begins with an empty directory.

    Attributes:
        history: the expected content of its queues.
        stream: open while the copy is a replica.
        store: open while the copy is the master.
    """

    def __init__(self, directory: Path, config: StoreConfig) -> None:
        directory.mkdir()
        self.directory = directory
        self._config = config
        self.history = History()
        self.stream: ReplicaStream | None = None
        self.store: Store | None = None
        #: The metadata while the process lives.
        self._metadata: ReplicaFile | None = None
        #: The events that the process had in memory as master.
        self._backlog: ReplicationBacklog | None = None

    def follow(self) -> ReplicaStream:
        """Return the replica's stream, opened by another process unless one lives."""
        if self.stream is None:
            if self._metadata is None:
                self._metadata = ReplicaFile(self.directory)
                record_start(self._metadata, flushes=False)
            backlog, self._backlog = self._backlog, None
            self.stream = ReplicaStream.open(self.directory, self._config, self._metadata, backlog)
        return self.stream

    def lead(self, epoch: int) -> tuple[Store, EpochFileCache]:
        """Become the master, as `ReplicaProcess` does; after a StoreError the copy is a replica again."""
        stream, metadata = self.follow(), self._metadata
        assert metadata is not None
        end, store = stream.end, stream.store
        memory_lost = metadata.now.memory_lost
        metadata.change(fenced=epoch, tail_lost=False)
        try:
            epochs = stream.begin_epoch_at(end, epoch)
            stream.lead(memory_lost=memory_lost)
            store.confirmed.advance(_EVERYTHING)
            metadata.change(memory_lost=False)
        except StoreError:
            self.stream, self._backlog = None, store.journal.backlog
            stream.abandon()
            raise
        assert store.max_physical_offset == end.offset
        self.stream, self.store = None, store
        return store, epochs

    def reopen(self) -> None:
        """Open the replica's store again in the same process, after an error that has broken it."""
        assert self.stream is not None
        stream, self.stream = self.stream, None
        stream.abandon()

    def resign(self) -> None:
        """Step down as master; the process lives on."""
        assert self.store is not None
        store, self.store = self.store, None
        store.close()
        self._backlog = store.journal.backlog

    def kill(self) -> None:
        """End the process in any role."""
        stream, store = self.stream, self.store
        self.stream = self.store = self._metadata = self._backlog = None
        if stream is not None:
            stream.timers.close()
            _abandon(stream.store)
        if store is not None:
            _abandon(store)


def _abandon(store: Store) -> None:
    """Leave the store as after SIGKILL, after a removal by another thread."""
    if (removing := store._remover._thread) is not None:
        removing.join()
    store._flusher.stop()
    with suppress(Killed):
        store._abandon()
