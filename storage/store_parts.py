"""Build the parts of a store: lock, saved state, log, queues, index, recovery and settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from raymq.storage import expired_queue_offsets
from raymq.storage import store_paths as layout_of
from raymq.storage.clock import boot_id
from raymq.storage.config import StoreConfig, split_host
from raymq.storage.directory_format import check_format, upgrade_format
from raymq.storage.errors import InvalidInput
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.background_preparer import BackgroundPreparer
from raymq.storage.files.disk_health import DiskHealth
from raymq.storage.journal.recovery_bounds import RecoveryBounds
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.log.checkpoint import Checkpoint, CheckpointState
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.key_index import KeyIndex
from raymq.storage.log.recovery import Corruption, RecoveryReport, recover
from raymq.storage.records import record as layout
from raymq.storage.rocketmq_files import RocketMQFiles
from raymq.storage.state_opening import open_state, take_foreign_files
from raymq.storage.tables.pending_truncation import PendingTruncation
from raymq.storage.tables.state_tables import StateTables


@dataclass(slots=True)
class StoreParts:
    """The recovered parts of a store.

    `close` releases files, threads and the lock, and writes nothing. `boot_ms` is what the last checkpoint since the
    machine's start had as `CheckpointState.boot_ms`.
    """

    paths: layout_of.StorePaths
    config: StoreConfig
    health: DiskHealth
    log: CommitLog
    dispatcher: Dispatcher
    ahead: BackgroundPreparer
    checkpoint: Checkpoint
    deleted_topics: dict[str, int]
    recovery: RecoveryReport
    recovery_bounds: RecoveryBounds
    tables: StateTables
    journal: StateJournal
    rocketmq_files: RocketMQFiles
    ordered_cut: PendingTruncation | None
    boot_ms: int | None
    resources: ExitStack = field(repr=False)

    def begin_leading(self, *, memory_lost: bool) -> None:
        """Make a replica's parts those of a master, which appends events of its own.

        Args:
            memory_lost: as `RecoveryBounds.memory_lost`.

        Raises:
            StoreFull, StoreFailed: not all of it is done; may be called again.
        """
        self.log.flush()
        take_foreign_files(self.journal, self.rocketmq_files, writable=True)
        _begin_tables(self.journal, self.tables, self.log, memory_lost=memory_lost)
        self.recovery_bounds = bounds = _bounds(self.log, self.dispatcher, self.deleted_topics, memory_lost=memory_lost)
        self.journal.clamp(bounds)
        if self.journal.is_lossy:
            self.journal.compact()
        self.journal.sync()

    def close(self) -> None:
        """Release the resources. May be called again."""
        self.resources.close()


@dataclass(frozen=True, slots=True)
class _Opening:
    """How a directory is opened.

    Attributes:
        leads: whether events are appended that no master has sent.
    """

    read_only: bool
    is_replica: bool

    @property
    def writable(self) -> bool:
        return not self.read_only

    @property
    def leads(self) -> bool:
        return not (self.read_only or self.is_replica)


@dataclass(frozen=True, slots=True)
class _InheritedState:
    """What the previous process left in the directory.

    Attributes:
        state: its last checkpoint; None if there is none or it must not be used.
        deleted: the log's end at the deletion of each deleted topic.
        cut: the ordered truncation of the log, if any.
        own_files: whether the file sizes are recorded, so that a file of another size is damaged and not from another
            store.
        clean: whether the store was closed properly and no truncation is ordered.
        same_boot: whether no memory was lost since then and the disk did not fail.
    """

    state: CheckpointState | None
    deleted: Mapping[str, int]
    cut: PendingTruncation | None
    own_files: bool
    clean: bool
    same_boot: bool

    @property
    def distrusted(self) -> CheckpointState | None:
        """Return the checkpoint if data after it cannot be relied on, else None."""
        return None if self.clean or self.same_boot else self.state

    @property
    def may_lack(self) -> bool:
        """Return True if data may be missing: memory was lost, or a truncation was ordered."""
        return not (self.clean or (self.same_boot and self.cut is None))


def open_parts(directory: Path, config: StoreConfig, *, read_only: bool, is_replica: bool = False) -> StoreParts:
    """Take the lock, open all parts and recover them.

    Raise the errors of `Store.open`; nothing stays open then.
    """
    paths = layout_of.StorePaths(directory)
    opening = _Opening(read_only, is_replica)
    with ExitStack() as resources:
        _take_directory(directory, paths, opening, resources)
        health = DiskHealth(paths.healthy)
        tables = StateTables()
        journal, rocketmq_files = open_state(
            paths, tables, health.fail, writable=opening.writable, is_replica=opening.is_replica
        )
        resources.callback(journal.close, compact=False)
        has_events = journal.has_events
        state = CheckpointState.load(paths.state)
        config = layout_of.with_existing_sizes(config, paths, state)
        known = tables.deleted_topics.places
        inherited = _inspect_last_shutdown(paths, opening, health, state, known, is_lossy=journal.is_lossy)
        if opening.writable:
            failpoint("open.before_abort")
            fileutil.replace(paths.abort, str(os.getpid()).encode())
        ahead = BackgroundPreparer()
        log = _open_log(paths, config, health, inherited, writable=opening.writable)
        resources.callback(log.close)
        journal.log_end = lambda: log.max_offset
        tables.delay_offsets.flushed_offset = lambda: log.flushed_offset
        tables.delay_levels.use(config.delay_levels)
        dispatcher = _open_dispatcher(paths, config, ahead, inherited, tables, writable=opening.writable)
        resources.callback(dispatcher.close)
        resources.callback(ahead.stop)
        checkpoint = Checkpoint.load(paths.checkpoint)
        recovery = _recovered(paths, opening, health, inherited, log, dispatcher, checkpoint)
        if not is_replica:  # a replica's master has what it has lost, and ships the events of its own start
            is_lost = not (inherited.clean or inherited.same_boot)
            _begin_tables(journal, tables, log, memory_lost=is_lost)
            if inherited.may_lack and opening.leads:
                tables.recovery_epochs.cut(log.max_offset)
        if opening.writable:
            # The next recovery relies on this part of the log, so it is synced before a checkpoint refers to it.
            log.files.sync(recovery.walked_from, log.max_offset, names=True)
        # A clean close syncs the log and the tables, but not the other files.
        memory_lost = inherited.may_lack or not inherited.same_boot
        bounds = _bounds(log, dispatcher, inherited.deleted, memory_lost=memory_lost, known=known)
        if is_replica:
            tables.delay_offsets.end_loading()
        else:
            failpoint("open.before_clamp")
            journal.clamp(bounds)
        if opening.writable and not (is_replica and journal.is_lossy):  # a replica takes a copy of its master's
            journal.compact_after_damage()
            if has_events and not health.was_healthy:
                journal.compact()  # a failed sync may not have written what is read from memory now
        if not inherited.may_lack:  # else unsynced pages may be missing although the disk is sound
            recovery.corruption += _journal_damage(journal)
        return StoreParts(
            paths,
            config,
            health,
            log,
            dispatcher,
            ahead,
            replace(checkpoint, confirm_offset=min(checkpoint.confirm_offset, bounds.log_end)),
            tables.deleted_topics.places,
            recovery,
            bounds,
            tables,
            journal,
            rocketmq_files,
            inherited.cut,
            state.boot_ms if state is not None and state.boot == boot_id() != "" else None,
            resources.pop_all(),
        )


def _take_directory(directory: Path, paths: layout_of.StorePaths, opening: _Opening, resources: ExitStack) -> None:
    """Lock the directory, and bring it to the present format.

    Only check the format to read.
    """
    if opening.writable:
        resources.callback(layout_of.take_lock(paths).release)
    else:
        check_format(directory)
    if paths.restoring.exists():
        remedy = "run `raymq store restore` again: it starts over there"
        raise InvalidInput(
            "directory", "a directory into which no backup is being restored", str(directory), remedy=remedy
        )
    if opening.writable:
        upgrade_format(directory)


def _inspect_last_shutdown(
    paths: layout_of.StorePaths,
    opening: _Opening,
    health: DiskHealth,
    state: CheckpointState | None,
    deletions: Mapping[str, int],
    *,
    is_lossy: bool,
) -> _InheritedState:
    same_boot = state is not None and state.boot == boot_id() != "" and health.was_healthy
    own_files = state is not None and bool(state.geometry)
    cut = PendingTruncation.load(paths.ordered_cut)
    if opening.writable and paths.rebuild_queues.exists():
        state = None  # it lists deletions that were undone; the queues are rebuilt from the log's beginning
    # A replica's deletions are those of its journal, which only its master's copy takes back.
    of_master = None if opening.is_replica else cut
    state, deleted = _with_deletions(state, [*deletions.items()], of_master, replaces=not is_lossy)
    clean = not paths.abort.exists() and cut is None
    return _InheritedState(state, deleted, cut, own_files=own_files, clean=clean, same_boot=same_boot)


def _recovered(
    paths: layout_of.StorePaths,
    opening: _Opening,
    health: DiskHealth,
    inherited: _InheritedState,
    log: CommitLog,
    dispatcher: Dispatcher,
    checkpoint: Checkpoint,
) -> RecoveryReport:
    """Recover log, queues and index to the same end, and return the report."""
    if inherited.state is not None and inherited.distrusted is None and health.was_healthy:
        dispatcher.mark_synced(inherited.state.queues)
    failpoint("open.before_recovery")
    return recover(
        log,
        dispatcher,
        inherited.state,
        checkpoint,
        deleted=inherited.deleted,
        clean=inherited.clean,
        same_boot=inherited.same_boot,
        aside=paths.damaged if opening.writable else None,
        expired=expired_queue_offsets.load(paths.expired_queues),
        cut=None if inherited.cut is None else inherited.cut.offset,
    )


def _begin_tables(journal: StateJournal, tables: StateTables, log: CommitLog, *, memory_lost: bool) -> None:
    """Put delay levels in force and begin the first recovery epoch.

    Args:
        memory_lost: unsynced data may be lost.
    """
    levels, epochs = tables.delay_levels, tables.recovery_epochs
    journal.change([(levels, fields) for fields in levels.beginning(log.min_offset, log.max_offset)])
    if journal.loaded.lacks_synced(epochs.NUMBER, memory_lost=memory_lost) or not epochs.is_begun:
        journal.change([(epochs, epochs.beginning())])  # without the newest truncation they would look complete


def _journal_damage(journal: StateJournal) -> list[Corruption]:
    """Return what is damaged and lost in the state journal, for the report of recovery."""
    loaded = journal.loaded
    folder = str(journal.folder)
    found = [Corruption(str(path), at, f"{count} bytes are not what was written") for path, at, count in loaded.damage]
    if loaded.lost:
        found.append(Corruption(folder, 0, f"{loaded.lost} changes are lost"))
    return found + [Corruption(folder, 0, str(each)) for each in loaded.set_aside]


def _with_deletions(
    state: CheckpointState | None,
    deletions: Sequence[tuple[str, int]],
    cut: PendingTruncation | None,
    *,
    replaces: bool,
) -> tuple[CheckpointState | None, Mapping[str, int]]:
    """Return the state with the journal's deletions, and the log's end at each deletion.

    The journal lists all deletions, in case the state is damaged. Deletions after an ordered truncation are dropped;
    the returned state is None then.
    """
    updated = (state or CheckpointState()).with_deletions(deletions, replaces=replaces)
    retained = {topic: place for topic, place in updated.deleted_topics.items() if cut is None or place <= cut.offset}
    if len(retained) < len(updated.deleted_topics):
        return (
            None,
            retained,
        )  # deletions after the truncation point are undone, so their queues are rebuilt from the log's beginning
    return state and updated, retained


def _bounds(
    log: CommitLog,
    dispatcher: Dispatcher,
    deleted: Mapping[str, int],
    *,
    memory_lost: bool,
    known: Mapping[str, int] | None = None,
) -> RecoveryBounds:
    """Return the bounds to which all other tables are clamped.

    Args:
        deleted: where the log ended when each topic was deleted.
        known: those of the deletions that the journal has; None: all.
    """
    return RecoveryBounds(
        log.max_offset,
        memory_lost,
        {topic_queue: queue.max_offset for topic_queue, queue in dispatcher.queues.items()},
        {
            topic: min(place, log.max_offset)
            for topic, place in deleted.items()
            if known is None or topic in known or place > log.min_offset
        },
    )


def _open_log(
    paths: layout_of.StorePaths, config: StoreConfig, health: DiskHealth, inherited: _InheritedState, *, writable: bool
) -> CommitLog:
    host, port = split_host(config.store_host)
    return CommitLog(
        paths.commit_log,
        config.commitlog_file_bytes,
        layout.pack_host_bytes(host, port),
        health,
        writable=writable,
        whole_to=inherited.distrusted.dispatched_to if inherited.distrusted else None,
    )


def _open_dispatcher(
    paths: layout_of.StorePaths,
    config: StoreConfig,
    ahead: BackgroundPreparer,
    inherited: _InheritedState,
    tables: StateTables,
    *,
    writable: bool,
) -> Dispatcher:
    index = KeyIndex(
        paths.index,
        config.index_slots,
        config.index_entries,
        writable=writable,
        ahead=ahead,
        rebuilt=inherited.own_files,
    )
    return Dispatcher(
        paths.consume_queue,
        paths.deleted_queues,
        config.consume_queue_file_entries,
        index,
        tables.delay_levels,
        writable=writable,
        rebuilt=inherited.own_files,
        whole=inherited.distrusted.queues if inherited.distrusted else None,
    )
