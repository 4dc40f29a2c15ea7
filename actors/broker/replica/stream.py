"""A replica's part of the stream, on its disk: the log, the state beside it and the epochs, open to be followed.

All calls belong to the broker's loop, one at a time; those that may take long are made on another thread, and nothing
else is called meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Self

from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replication.election import first_entry
from raymq.actors.broker.replication.epoch_file import EpochFile
from raymq.actors.broker.replication.epoch_map import EpochMap, EpochStart
from raymq.actors.broker.replication.frames import Buffer
from raymq.actors.broker.replication.kept_epochs import KeptEpochs
from raymq.actors.broker.replication.positions import StreamPosition
from raymq.actors.broker.replication.reconciling import StreamExtent
from raymq.storage.clock import boot_id, boottime
from raymq.storage.config import StoreConfig
from raymq.storage.errors import StoreError
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file_queue import files_of
from raymq.storage.followed_state import NotDeleted
from raymq.storage.log.retention import EARLY_RATIO, Disk
from raymq.storage.log_beginning import begin_log
from raymq.storage.paths import Paths
from raymq.storage.state.changes import StateChange, takes_a_place
from raymq.storage.state.recorder import StateRecorder
from raymq.storage.state.replica import StateReplica
from raymq.storage.store import Store
from raymq.storage.tables.epochs import Epochs


class FollowedStream:
    """What `open` opened.

    Attributes:
        store: a replica's.
        states: its state, which this process changes as its masters say.
        confirmed: what is known to be confirmed and is here.
    """

    def __init__(self, directory: Path, config: StoreConfig, memory: ReplicaFile, states: StateReplica) -> None:
        """See `open`."""
        self.directory = directory
        self._config = config
        self._memory = memory
        self.states = states
        self.store = self._open_store()
        try:
            self._load_epochs()
            self.confirmed = StreamPosition(self.store.confirmed_before, 0)
            self.store.confirmed.hold(self.confirmed.offset)
        except BaseException:
            self.store.close()
            raise

    @classmethod
    def open(cls, directory: Path, config: StoreConfig, memory: ReplicaFile, states: StateReplica) -> Self:
        """Open a directory to follow; what was begun and not finished before is finished, or begun anew.

        Raises:
            as `Store.open`.
        """
        if memory.now.wiping is not None:
            _wipe(directory, config, memory, 0)  # where it is to begin depends on the size of the master's files
        return cls(directory, config, memory, states)

    @property
    def end(self) -> StreamPosition:
        """Where the stream ends here."""
        return StreamPosition(self.store.max_physical_offset, self.states.last)

    @property
    def received(self) -> StreamPosition:
        """As `end`, with what has come of a record that is not whole yet."""
        return StreamPosition(self.store.received_offset, self.states.last)

    @property
    def extent(self) -> StreamExtent:
        """What is here. No change of state can be cut off any more: they are made in the files at once."""
        end = self.end
        return StreamExtent(self._epochs.map, StreamPosition(self.store.min_physical_offset, end.sequence), end)

    @property
    def epochs(self) -> EpochMap:
        """Its epochs; not to be changed."""
        return self._epochs.map

    def fit(self, file_bytes: int) -> str:
        """Have log files of the size that the master's have: its log's bytes fit into no others. May take long.

        Returns:
            why they cannot be had, as there are messages in others; empty: they are.
        """
        self._config = replace(self._config, commitlog_file_bytes=file_bytes)
        own = self.store.config.commitlog_file_bytes
        if own == file_bytes:
            return ""
        if self.store.max_physical_offset > self.store.min_physical_offset:
            return f"its log files have {own} B, and its master's {file_bytes} B: let it begin with an empty directory"
        self._begin_log(0)
        self._load_epochs()
        return ""

    def begin_connection(self) -> None:
        """The next bytes of the log come at its end."""
        self.store.follow(self._state_changes, self.states.master_begin)

    def write_log(self, offset: int, content: Buffer, written: Callable[[], None]) -> None:
        """As `Store.take_log`."""
        try:
            self.store.take_log(offset, content, written)
        except NotDeleted:
            self.states.doubt()  # what is to be made anew a snapshot says
            raise

    def write_states(self, changes: Sequence[StateChange]) -> None:
        """As `StateReplica.apply`."""
        self.states.apply(changes)

    def waits_for_disk(self, changes: Sequence[StateChange]) -> bool:
        """Whether `write_states` of these may take as long as the disk does."""
        return any(takes_a_place(change.payload) for change in changes)

    def begin_epoch(self, entry: EpochStart) -> None:
        """As `KeptEpochs.begin`."""
        self._epochs.begin(entry)

    def stop_following(self, on_change: Callable[[], None]) -> StateRecorder:
        """It is elected: close the store, and have the changes of state numbered, which go on from what is here."""
        self.close()
        failpoint("office.before_recorder")
        log_end = self.store.max_physical_offset
        return StateRecorder.begin(self.directory, log_end=lambda: log_end, on_change=on_change, continues=self.states)

    def begin_epoch_at(self, end: StreamPosition, epoch: int) -> KeptEpochs:
        """Begin a master's epoch where its stream ends: at `end`; epochs that begin behind it never were."""
        begin = StreamPosition(self.store.min_physical_offset, end.sequence)
        epochs = KeptEpochs(EpochFile(*Paths(self.directory).master_epochs), begin._replace(sequence=0), end)
        if epoch > epochs.map.last_epoch:
            epochs.begin(first_entry(epochs.map, epoch, begin, end))
        return epochs

    def tell_loss(self, end: StreamPosition, election: int, epoch: int) -> int | None:
        """Begin a new recovery epoch at `end`, once for that election: readers may have seen more. It is closed.

        Returns:
            where it begins, if it is the master of `epoch` that does so; None: another one has, or there was no loss.
        """
        readers = Epochs(Paths(self.directory).epochs)
        if readers.election < election:
            readers.cut(end.offset, election)
        elif election != epoch:
            return None
        return readers.newest_cut

    def confirm(self, confirmed: StreamPosition) -> None:
        """So much is confirmed, and is here."""
        self.confirmed = self.confirmed.join(confirmed)
        self.store.confirmed.advance(self.confirmed.offset)

    @property
    def is_short_of_room(self) -> bool:
        """Whether the disk is so full that files go as soon as they have expired."""
        return Disk.of(self.directory).ratio >= EARLY_RATIO

    def retain(self, master_begin: int) -> None:
        """Let old files go, as the rules say, and none that the master still has: something in it may wait there."""
        self.store.delete_expired(rescue=lambda log_min: min(log_min, master_begin))
        self._epochs.drop_before(StreamPosition(self.store.min_physical_offset, 0))

    def cut(self, position: StreamPosition, epoch: int) -> None:
        """Cut the log to this place and the epochs to this one; it is durable when this returns. May take long."""
        self.store.order_cut(position.offset, epoch)
        self._reopen()
        self._load_epochs()

    def begin_snapshot(self, position: StreamPosition, *, keeps_log: bool) -> None:
        """Drop the state, and cut the log to `position` or begin it there. May take long."""
        self.states.begin_snapshot()
        if keeps_log:
            if position.offset < self.store.max_physical_offset:
                self.store.order_cut(position.offset)
                self._reopen()
            return
        self._begin_log(position.offset)

    def load(self, content: Buffer) -> None:
        """A part of a snapshot."""
        self.states.load(bytes(content))

    def end_snapshot(self, sequence: int, epochs: EpochMap) -> None:
        """The snapshot is whole; it is on disk when this returns. May take long."""
        if self.states.brings_topics_back:
            self._let_go_before(self.states.master_begin)
        self.states.end_snapshot(sequence)
        failpoint("snapshot.before_epochs")
        self._epochs.replace(epochs)
        failpoint("snapshot.after_epochs")
        # As they are: state that was taken may know of epochs that the log has not reached yet.
        self._reopen()  # deletions of topics came with it

    def sync(self) -> None:
        """Bring all that is here to disk. Any thread."""
        self.store.flush()
        self.states.sync()

    def make_safe(self) -> bool:
        """Whether what is here is as safe as an acknowledgement says: whoever is elected may rely on that."""
        if self._config.flush == "sync":
            try:
                self.sync()
            except StoreError:
                return False
        return True

    @property
    def is_safe(self) -> bool:
        """Whether no disk has failed: closing it brings to disk what is here, or raises."""
        return self.store.is_healthy and not self.states.is_lost

    def close(self) -> None:
        """Close the store, properly; state that cannot be brought to disk any more is left as after a kill."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.store.close)
            if not self.states.is_lost:
                self.states.sync()

    def _let_go_before(self, place: int) -> None:
        """No queue is made anew from what the master has let go of: of deletions in there nobody need tell any more."""
        files = files_of(Paths(self.directory).commit_log)
        old = [path for path, following in pairwise(files) if int(following.name) <= place]
        if old and self.store.is_healthy:
            self.store.close()  # with a checkpoint that tells how far the queues are which end in these files
            for path in old:
                fileutil.remove(path)
            self._reopen()

    def _begin_log(self, offset: int) -> None:
        self._memory.change(wiping=offset)
        failpoint("wipe.after_order")
        self.store.close()
        _wipe(self.directory, self._config, self._memory, offset)
        self._reopen()

    def _reopen(self) -> None:
        held = self.confirmed
        self.store.close()
        self.store = self._open_store()
        self.confirmed = held.meet(self.end)
        self.store.confirmed.hold(self.confirmed.offset)

    def _load_epochs(self) -> None:
        begin = StreamPosition(self.store.min_physical_offset, 0)
        self._epochs = KeptEpochs(EpochFile(*Paths(self.directory).master_epochs), begin, self.end)

    def _open_store(self) -> Store:
        store = Store.open(self.directory, self._config, elapsed=boottime, follows=True)
        store.follow(self._state_changes, self.states.master_begin)
        return store

    def _state_changes(self) -> int:
        return self.states.last


def note_start(memory: ReplicaFile, *, flushes: bool) -> None:
    """A process begins with the directory: what it had may be gone with its machine.

    Args:
        flushes: what is acknowledged is on disk, from now on.
    """
    before, boot = memory.now, boot_id()
    flushed = flushes if before.flushes is None else before.flushes
    lost = not before.stopped and not flushed and (boot == "" or before.boot != boot)
    memory.change(boot=boot, stopped=False, flushes=flushes, tail_lost=before.tail_lost or lost)


def _wipe(directory: Path, config: StoreConfig, memory: ReplicaFile, offset: int) -> None:
    """Put an empty log that begins at `offset` in the place of the one that is there, and of all made of it."""
    paths = Paths(directory)
    for folder in (paths.commit_log, paths.consume_queue, paths.index, paths.deleted_queues):
        fileutil.remove_tree(folder)
    for path in (paths.checkpoint, paths.abort, paths.state, paths.ordered_cut, *paths.master_epochs):
        for each in (path, path.with_name(path.name + ".bak")):
            fileutil.remove(each)
    failpoint("wipe.before_log")
    begin_log(directory, config, offset)
    failpoint("wipe.before_done")
    memory.change(wiping=None)
