"""Hold a replica's log, timer log, state journal and epochs on disk.

All calls belong to the broker's loop, one at a time. Slow calls are made on another thread; no other call is made
meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Self

from raymq.actors.broker.core.delay.replica_timers import ReplicaTimers
from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replication.election import first_entry
from raymq.actors.broker.replication.epoch_file import EpochFile, EpochFileCache
from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.reconciliation import StreamExtent
from raymq.actors.broker.replication.replication_frames import Buffer
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.storage.clock import boot_id, boottime, wall_ms
from raymq.storage.config import StoreConfig
from raymq.storage.emergency_cleaner import releasable_disk_reserve
from raymq.storage.empty_log import create_empty_log
from raymq.storage.errors import InvalidInput, StateMismatch, StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file_queue import files_of
from raymq.storage.journal.journal_copy import IncomingJournal, decode_part, discard_copy
from raymq.storage.journal.journal_event import JournalEvent
from raymq.storage.journal.replication_backlog import ReplicationBacklog
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.log.retention import EARLY_RATIO, DiskUsage
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.state_tables import StateTables


class ReplicaStream:
    """A replica's directory, opened by `open` to follow a master.

    Attributes:
        store: opened as a replica's.
        timers: the timer log of the store.
        master_begin: where the master's log begins.
        confirmed: the part that is known to be confirmed and is present here.
    """

    store: Store
    timers: ReplicaTimers

    def __init__(
        self, directory: Path, config: StoreConfig, metadata: ReplicaFile, backlog: ReplicationBacklog | None = None
    ) -> None:
        """Open the stream; see `open`."""
        self.directory = directory
        self._config = config
        self._metadata = metadata
        self._incoming: IncomingJournal | None = None
        self.master_begin = 0
        self._open_store(backlog)
        try:
            self._load_epochs()
            self.confirmed = StreamPosition(self.store.last_high_watermark, 0)
            self.store.confirmed.hold(self.confirmed.offset)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls, directory: Path, config: StoreConfig, metadata: ReplicaFile, backlog: ReplicationBacklog | None = None
    ) -> Self:
        """Open a directory to follow a master; finish or restart interrupted operations.

        Args:
            backlog: the newest events that this process had in memory, which may still be the newest ones.

        Raises:
            as `Store.open`.
        """
        if metadata.now.wiping is not None:
            _wipe(directory, config, metadata, 0)  # the later begin depends on the master's file size
        discard_copy(StorePaths(directory).state_journal)
        return cls(directory, config, metadata, backlog)

    @property
    def end(self) -> StreamPosition:
        """Return where the stream ends here."""
        return StreamPosition(self.store.max_physical_offset, self.store.journal.last)

    @property
    def received(self) -> StreamPosition:
        """Return `end`, including the received part of an incomplete record."""
        return StreamPosition(self.store.received_offset, self.store.journal.last)

    @property
    def is_state_lost(self) -> bool:
        """Return True if events are missing; a copy of the journal follows."""
        return self.store.journal.is_lossy

    @property
    def extent(self) -> StreamExtent:
        """Return the part of the stream that is present here.

        Events cannot be cut off any more: they are applied to the tables at once.
        """
        end = self.end
        begin = StreamPosition(self.store.min_physical_offset, end.sequence + self.is_state_lost)
        return StreamExtent(self._epochs.map, begin, end)

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
        self._incoming = None
        self.store.follow()

    def write_log(self, offset: int, content: Buffer, written: Callable[[], None]) -> None:
        """Append log bytes as `Store.append_replicated` does."""
        self.store.append_replicated(offset, content, written)

    def write_events(self, events: Sequence[JournalEvent]) -> None:
        """Append events as `Store.append_events` does."""
        self.store.append_events(events)

    @property
    def has_unsynced_deletions(self) -> bool:
        """Return True if deletions of topics are not on disk yet."""
        return self.store.has_unsynced_deletions

    def begin_epoch(self, entry: EpochStart) -> None:
        """Begin an epoch as `EpochFileCache.begin` does."""
        self._epochs.begin(entry)

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
        """Begin a copy of the master's journal; cut or restart the log.

        The own journal stays until the copy is complete. May take long.
        """
        if not keeps_log:
            self._begin_log(position.offset)
        elif position.offset < self.store.max_physical_offset:
            self.store.order_truncation(position.offset)
            self._reopen()
        self._incoming = IncomingJournal(StorePaths(self.directory).state_journal)

    def load(self, content: Buffer) -> None:
        """Load a part of the copy."""
        if self._incoming is None:
            raise InvalidInput("part", "none before a copy begins", len(content))
        self._incoming.write(decode_part(bytes(content)))

    def end_snapshot(self, sequence: int, epochs: EpochMap) -> None:
        """Put the complete copy durably in the journal's place. May take long.

        Raise StateMismatch if it has not exactly the events up to `sequence`.
        """
        incoming = self._incoming
        if incoming is None:
            raise InvalidInput("copy", "one that was begun", None)
        incoming.sync()
        deleted = self._deleted_topics_of(incoming, sequence)
        former = self.store.tables.deleted_topics.places
        # Deletions from before the master's log are not listed for ever, and cannot be undone.
        listed_from = max(self.store.min_physical_offset, self.master_begin)
        if any(place > max(listed_from, deleted.get(topic, -1)) for topic, place in former.items()):
            self._let_go_before(self.master_begin)
            fileutil.replace(StorePaths(self.directory).rebuild_queues, b"")
        self.close()
        for folder in StorePaths(self.directory).former_staged:
            fileutil.remove_tree(folder)  # the master has converted its own
        incoming.install()
        self._incoming = None
        failpoint("copy.before_epochs")
        self._epochs.replace(epochs)
        failpoint("copy.after_epochs")
        # Unclamped: the events may be of epochs that the log has not reached yet.
        self._reopen(is_copied=True)  # removes the queues of topics that were deleted

    @staticmethod
    def _deleted_topics_of(incoming: IncomingJournal, sequence: int) -> Mapping[str, int]:
        """Check a copy, and return where the log ended at its topics' deletions."""
        tables = StateTables()
        journal = StateJournal(incoming.folder, tables.all(), writable=False)
        if journal.last != sequence or journal.is_lossy:
            raise StateMismatch(f"the copy of the state ends at {journal.last}, not at {sequence}, or has gaps")
        return tables.deleted_topics.places

    def sync(self) -> None:
        """Bring all data to disk. Any thread."""
        self.store.flush()
        self.store.sync_state()

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
        return self.store.is_healthy

    def lead(self, *, memory_lost: bool) -> Store:
        """Make the store a master's and return it; then only `close` is allowed.

        Args:
            memory_lost: as in `Store.become_leader`.

        Raises:
            StoreFull, StoreFailed: it stays a replica's.
        """
        self.timers.close()
        self.store.become_leader(memory_lost=memory_lost)
        return self.store

    def close(self) -> None:
        """Close the timer log and the store properly. May be called again."""
        self.timers.close()
        self.store.close()

    def abandon(self) -> None:
        """Close the stream; ignore errors."""
        with contextlib.suppress(StoreError):
            self.close()

    def _let_go_before(self, place: int) -> None:
        """Delete log files that the master has deleted.

        No queue can be rebuilt from them then, so deletions of topics in that part of the log need no longer be
        recorded.
        """
        files = files_of(StorePaths(self.directory).commit_log)
        old = [path for path, following in pairwise(files) if int(following.name) <= place]
        if old and self.store.is_healthy:
            self.close()  # its checkpoint records the ends of queues whose entries end in these files
            for path in old:
                fileutil.remove(path)
            self._reopen()

    def _begin_log(self, offset: int) -> None:
        self._metadata.change(wiping=offset)
        failpoint("wipe.after_order")
        self.close()
        _wipe(self.directory, self._config, self._metadata, offset)
        self._reopen()

    def _reopen(self, *, is_copied: bool = False) -> None:
        confirmed = self.confirmed
        self.close()
        # A copy may have other events with the same numbers.
        self._open_store(None if is_copied else self.store.journal.backlog, is_copied=is_copied)
        self.confirmed = confirmed.meet(self.end)
        self.store.confirmed.hold(self.confirmed.offset)

    def _load_epochs(self) -> None:
        begin = StreamPosition(self.store.min_physical_offset, 0)
        self._epochs = EpochFileCache(EpochFile(*StorePaths(self.directory).master_epochs), begin, self.end)

    def _open_store(self, backlog: ReplicationBacklog | None = None, *, is_copied: bool = False) -> None:
        self.store = store = Store.open(self.directory, self._config, elapsed=boottime, is_replica=True)
        try:
            store.follow()
            last = store.journal.last
            is_newest = backlog is not None and backlog.last == last
            store.journal.backlog = backlog if is_newest else ReplicationBacklog(last)
            with releasable_disk_reserve(self.directory):
                # A copy may undo what has prevented a delivery, such as the deletion of a topic.
                self.timers = ReplicaTimers(store, wall_ms, keeps_dropped=not is_copied)
        except BaseException:
            store.close()
            raise


def record_start(metadata: ReplicaFile, *, flushes: bool, is_state_lost: bool = False) -> None:
    """Record that a process starts with the directory; data may be lost after a reboot.

    Args:
        flushes: only data on disk are acknowledged, from now on.
        is_state_lost: as `ReplicaStream.is_state_lost`. The conversion of a former format writes a snapshot in which
            the next start could not see that.
    """
    before, boot = metadata.now, boot_id()
    flushed = flushes if before.flushes is None else before.flushes
    is_lost = not before.stopped and (boot == "" or before.boot != boot)
    metadata.change(
        boot=boot,
        stopped=False,
        flushes=flushes,
        tail_lost=before.tail_lost or is_state_lost or (is_lost and not flushed),
        memory_lost=before.memory_lost or is_lost,
    )


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
