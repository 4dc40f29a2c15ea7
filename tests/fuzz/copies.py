"""One of several copies of a store over many processes: as replica, as master, or killed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replica.replica_stream import ReplicaStream
from raymq.actors.broker.replication.epoch_file_cache import EpochFileCache
from raymq.storage.config import StoreConfig
from raymq.storage.state import recording_file_calls
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.store import Store
from tests.crash.killing_calls import Killed
from tests.fuzz.histories import History


class Copy:
    """A copy that begins with an empty directory.

    Attributes:
        history: the expected content of its queues.
        stream: open while the copy is a replica.
        store: open while the copy is the master.
        recorder: the master's; its numbers continue if the same process becomes a replica.
    """

    def __init__(self, directory: Path, config: StoreConfig) -> None:
        directory.mkdir()
        self.directory = directory
        self._config = config
        self.history = History()
        self.stream: ReplicaStream | None = None
        self.store: Store | None = None
        self.recorder: StateRecorder | None = None

    def follow(self) -> ReplicaStream:
        """Return the replica's stream, opened by another process unless it is open."""
        if self.stream is None:
            former, self.recorder = self.recorder, None
            states = StateReplica(self.directory, predecessor=former)
            try:
                self.stream = self._opened(states)
            except BaseException:
                with suppress(Killed):
                    states.close()
                raise
        return self.stream

    def reopen(self) -> None:
        """Open the store again in the same process, as after `DeletionRolledBack`."""
        assert self.stream is not None
        self.stream.store.close()
        self.stream = self._opened(self.stream.states)

    def lead(self, epoch: int) -> tuple[Store, StateRecorder, EpochFileCache]:
        """Become the master."""
        stream = self.follow()
        end = stream.end
        self.stream, recorder = None, stream.stop_following(lambda: None)
        self.recorder = recorder
        recorder.log_end = lambda: end.offset
        epochs = stream.begin_epoch_at(end._replace(sequence=recorder.last), epoch)
        store = self.store = Store.open(self.directory, self._config)
        recorder.log_end = lambda: store.max_physical_offset
        assert store.max_physical_offset == end.offset
        return store, recorder, epochs

    def resign(self) -> None:
        """Step down as master; the process lives on."""
        assert self.store is not None
        store, self.store = self.store, None
        store.close()

    def kill(self) -> None:
        """End the process in any role."""
        (stream, self.stream), (store, self.store) = (self.stream, None), (self.store, None)
        if stream is not None:
            _abandon(stream.store)
            with suppress(Killed):
                stream.states.close()
        if store is not None:
            _abandon(store)
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            with suppress(Killed):
                recorder.stop()
        elif (left := recording_file_calls.current_recorder(self.directory)) is not None:
            recording_file_calls.uninstall_recorder(left)

    def _opened(self, states: StateReplica) -> ReplicaStream:
        return ReplicaStream.open(self.directory, self._config, ReplicaFile(self.directory), states)


def _abandon(store: Store) -> None:
    """Leave the store as after SIGKILL, after a removal by another thread."""
    if (removing := store._remover._thread) is not None:
        removing.join()
    store._flusher.stop()
    with suppress(Killed):
        store._abandon()
