"""Hold a replica's part of the stream on disk: log, timer log, state and epochs.

All calls belong to the broker's loop, one at a time. Slow calls are made on another thread; no other call is made
meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Self

from raymq.actors.broker.core.delay.replica_timers import ReplicaTimers
from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replication.election import first_entry
from raymq.actors.broker.replication.epoch_file import EpochFile
from raymq.actors.broker.replication.epoch_file_cache import EpochFileCache
from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.reconciliation import StreamExtent
from raymq.actors.broker.replication.replication_frames import Buffer
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage.clock import boot_id, boottime, wall_ms
from raymq.storage.config import StoreConfig
from raymq.storage.emergency_cleaner import releasable_disk_reserve
from raymq.storage.empty_log import create_empty_log
from raymq.storage.errors import StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file_queue import files_of
from raymq.storage.log.retention import EARLY_RATIO, DiskUsage
from raymq.storage.replica_state_watcher import DeletionRolledBack
from raymq.storage.state.state_changes import StateChange, is_rename
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths


class ReplicaStream:
    """A replica's directory, opened by `open` to follow a master.

    Attributes:
        store: opened as a replica's.
        timers: the timer log of the store.
        states: its state beside the log, which this process changes as its masters require.
        confirmed: the part that is known to be confirmed and is present here.
    """

    store: Store
    timers: ReplicaTimers

    def __init__(self, directory: Path, config: StoreConfig, metadata: ReplicaFile, states: StateReplica) -> None:
        """Open the stream; see `open`."""
        self.directory = directory
        self._config = config
        self._metadata = metadata
        self.states = states
        self._open_store()
        try:
            self._load_epochs()
            self.confirmed = StreamPosition(self.store.last_high_watermark, 0)
            self.store.confirmed.hold(self.confirmed.offset)
        except BaseException:
            self.close_store()
            raise

    @classmethod
    def open(cls, directory: Path, config: StoreConfig, metadata: ReplicaFile, states: StateReplica) -> Self:
        """Open a directory to follow a master; finish or restart interrupted operations.

        Raises:
            as `Store.open`.
        """
        if metadata.now.wiping is not None:
            _wipe(directory, config, metadata, 0)  # the later begin depends on the master's file size
        return cls(directory, config, metadata, states)

    @property
    def end(self) -> StreamPosition:
        """Return where the stream ends here."""
        return StreamPosition(self.store.max_physical_offset, self.states.last)

    @property
    def received(self) -> StreamPosition:
        """Return `end`, including the received part of an incomplete record."""
        return StreamPosition(self.store.received_offset, self.states.last)

    @property
    def extent(self) -> StreamExtent:
        """Return the part of the stream that is present here.

        State changes cannot be cut off any more: they are applied to the files at once.
        """
        end = self.end
        return StreamExtent(self._epochs.map, StreamPosition(self.store.min_physical_offset, end.sequence), end)

    @property
    def epochs(self) -> EpochMap:
        """Return its epochs; do not change them."""
        return self._epochs.map

    def fit(self, file_bytes: int) -> str:
        """Use log files of the master's file size, which the master's log bytes require.

        May take long.

        Returns:
            why that is impossible, since files of another size contain messages; empty: it is done.
        """
        self._config = replace(self._config, commitlog_file_bytes=file_bytes)
        own = self.store.config.commitlog_file_bytes
        if own == file_bytes:
            return ""
        if self.store.max_physical_offset > self.store.min_physical_offset:
            return f"its log files have {own} B, its master's have {file_bytes} B: start it with an empty directory"
        self._begin_log(0)
        self._load_epochs()
        return ""

    def begin_connection(self) -> None:
        """Start to follow: the next bytes of the log come at its end."""
        self.store.follow(self._state_changes, self.states.master_begin)

    def write_log(self, offset: int, content: Buffer, written: Callable[[], None]) -> None:
        """Append log bytes as `Store.append_replicated` does."""
        try:
            self.store.append_replicated(offset, content, written)
        except DeletionRolledBack:
            self.states.invalidate()  # a snapshot determines which queues to rebuild
            raise

    def write_states(self, changes: Sequence[StateChange]) -> None:
        """Apply changes as `StateReplica.apply` does."""
        self.states.apply(changes)

    def waits_for_disk(self, changes: Sequence[StateChange]) -> bool:
        """Return True if `write_states` of these changes may wait for the disk."""
        return any(is_rename(change.payload) for change in changes)

    def begin_epoch(self, entry: EpochStart) -> None:
        """Begin an epoch as `EpochFileCache.begin` does."""
        self._epochs.begin(entry)

    def stop_following(self, on_change: Callable[[], None]) -> StateRecorder:
        """Close the store of an elected replica and return its recorder of changes.

        The recorder numbers state changes behind the last one that the replica applied.
        """
        self.close()
        failpoint("leader.before_recorder")
        log_end = self.store.max_physical_offset
        return StateRecorder.begin(
            self.directory, log_end=lambda: log_end, on_change=on_change, predecessor=self.states
        )

    def begin_epoch_at(self, end: StreamPosition, epoch: int) -> EpochFileCache:
        """Begin a master's epoch at `end`, where its stream ends.

        Epochs that begin after it are dropped.
        """
        begin = StreamPosition(self.store.min_physical_offset, end.sequence)
        epochs = EpochFileCache(EpochFile(*StorePaths(self.directory).master_epochs), begin._replace(sequence=0), end)
        if epoch > epochs.map.last_epoch:
            epochs.begin(first_entry(epochs.map, epoch, begin, end))
        return epochs

    def confirm(self, confirmed: StreamPosition) -> None:
        """Raise the confirmed position to `confirmed`, which is present here."""
        self.confirmed = self.confirmed.join(confirmed)
        self.store.confirmed.advance(self.confirmed.offset)

    @property
    def is_disk_low(self) -> bool:
        """Return True if the disk is so full that expired files are deleted at once."""
        return DiskUsage.of(self.directory).ratio >= EARLY_RATIO

    def retain(self, master_begin: int) -> None:
        """Delete old files by the retention rules, but none that the master still has.

        A message in such a file may still be pending on the master.
        """
        self.store.delete_expired(rescue=lambda log_min: min(log_min, master_begin))
        self._epochs.drop_before(StreamPosition(self.store.min_physical_offset, 0))

    def cut(self, position: StreamPosition, epoch: int) -> None:
        """Truncate the log to `position` and the epochs to `epoch`, durably. May take long."""
        self.store.order_truncation(position.offset, epoch)
        self._reopen()
        self._load_epochs()

    def begin_snapshot(self, position: StreamPosition, *, keeps_log: bool) -> None:
        """Drop the state, and truncate the log to `position` or restart it there.

        May take long.
        """
        self.states.begin_snapshot()
        if not keeps_log:
            self._begin_log(position.offset)
            return
        if position.offset < self.store.max_physical_offset:
            self.store.order_truncation(position.offset)
            self._reopen()
        else:
            self.timers.close()
            self.timers = self._open_timers()

    def load(self, content: Buffer) -> None:
        """Load a part of a snapshot."""
        self.states.load(bytes(content))

    def end_snapshot(self, sequence: int, epochs: EpochMap) -> None:
        """Complete the snapshot; it is on disk when this returns. May take long."""
        if self.states.has_resurrected_topics:
            self._let_go_before(self.states.master_begin)
        self.states.end_snapshot(sequence)
        failpoint("snapshot.before_epochs")
        self._epochs.replace(epochs)
        failpoint("snapshot.after_epochs")
        # Unclamped: the snapshot's state may contain epochs that the log has not reached yet.
        self._reopen()  # applies deletions of topics that came with the snapshot

    def sync(self) -> None:
        """Bring all data to disk. Any thread."""
        self.store.flush()
        self.states.sync()

    def ensure_synced(self) -> bool:
        """Return True if the data are as safe as an acknowledgement promises.

        An election relies on that.
        """
        if self._config.flush == "sync":
            try:
                self.sync()
            except StoreError:
                return False
        return True

    @property
    def is_safe(self) -> bool:
        """Return True if no disk has failed.

        `close` then brings the data to disk, or raises.
        """
        return self.store.is_healthy and not self.states.is_lost

    def close(self) -> None:
        """Close the store properly.

        State that cannot be brought to disk any more is left as after a kill.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self.close_store)
            if not self.states.is_lost:
                self.states.sync()

    def close_store(self) -> None:
        """Close the timer log and the store, but not the state. May be called again."""
        self.timers.close()
        self.store.close()

    def _let_go_before(self, place: int) -> None:
        """Delete log files that the master has deleted.

        No queue can be rebuilt from them then, so deletions of topics in that part of the log need no longer be
        recorded.
        """
        files = files_of(StorePaths(self.directory).commit_log)
        old = [path for path, following in pairwise(files) if int(following.name) <= place]
        if old and self.store.is_healthy:
            self.close_store()  # its checkpoint records the ends of queues whose entries end in these files
            for path in old:
                fileutil.remove(path)
            self._reopen()

    def _begin_log(self, offset: int) -> None:
        self._metadata.change(wiping=offset)
        failpoint("wipe.after_order")
        self.close_store()
        _wipe(self.directory, self._config, self._metadata, offset)
        self._reopen()

    def _reopen(self) -> None:
        confirmed = self.confirmed
        self.close_store()
        self._open_store()
        self.confirmed = confirmed.meet(self.end)
        self.store.confirmed.hold(self.confirmed.offset)

    def _load_epochs(self) -> None:
        begin = StreamPosition(self.store.min_physical_offset, 0)
        self._epochs = EpochFileCache(EpochFile(*StorePaths(self.directory).master_epochs), begin, self.end)

    def _open_store(self) -> None:
        self.store = Store.open(self.directory, self._config, elapsed=boottime, is_replica=True)
        try:
            self.store.follow(self._state_changes, self.states.master_begin)
            self.timers = self._open_timers()
        except BaseException:
            self.store.close()
            raise

    def _open_timers(self) -> ReplicaTimers:
        # A snapshot may undo what has prevented a delivery, such as the deletion of a topic.
        with releasable_disk_reserve(self.directory):
            return ReplicaTimers(self.store, wall_ms, keeps_dropped=self.states.is_whole)

    def _state_changes(self) -> int:
        return self.states.last


def record_start(metadata: ReplicaFile, *, flushes: bool) -> None:
    """Record that a process starts with the directory; data may be lost after a reboot.

    Args:
        flushes: only data on disk are acknowledged, from now on.
    """
    before, boot = metadata.now, boot_id()
    flushed = flushes if before.flushes is None else before.flushes
    lost = not before.stopped and not flushed and (boot == "" or before.boot != boot)
    metadata.change(boot=boot, stopped=False, flushes=flushes, tail_lost=before.tail_lost or lost)


def _wipe(directory: Path, config: StoreConfig, metadata: ReplicaFile, offset: int) -> None:
    """Replace the log and all data derived from it by an empty log at `offset`."""
    paths = StorePaths(directory)
    for folder in (paths.commit_log, paths.consume_queue, paths.index, paths.deleted_queues, paths.timers):
        fileutil.remove_tree(folder)
    for path in (paths.checkpoint, paths.abort, paths.state, paths.ordered_cut, *paths.master_epochs):
        for each in (path, path.with_name(path.name + ".bak")):
            fileutil.remove(each)
    failpoint("wipe.before_log")
    create_empty_log(directory, config, offset)
    failpoint("wipe.before_done")
    metadata.change(wiping=None)
