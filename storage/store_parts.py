"""Build the parts of a store: lock, saved state, log, queues, index, recovery and settings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

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
from raymq.storage.state import expired_queue_offsets, sequence_file, topic_deletion_journal
from raymq.storage.state.delay_levels_of_replica import delay_levels_of_replica
from raymq.storage.state.recording_file_calls import current_recorder
from raymq.storage.state.state_files import snapshot_marker
from raymq.storage.state_opening import open_state
from raymq.storage.tables.pending_truncation import PendingTruncation
from raymq.storage.tables.recovery_epochs import RecoveryEpochs
from raymq.storage.tables.state_tables import StateTables


@dataclass(slots=True)
class StoreParts:
    """The recovered parts of a store.

    `close` releases files, threads and the lock, and writes nothing.
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
    resources: ExitStack = field(repr=False)

    def close(self) -> None:
        """Release the resources. May be called again."""
        self.resources.close()


@dataclass(frozen=True, slots=True)
class _Opening:
    """How a directory is opened.

    Attributes:
        has_tables: whether its tables are read and written, too.
    """

    read_only: bool
    is_replica: bool

    @property
    def writable(self) -> bool:
        return not self.read_only

    @property
    def has_tables(self) -> bool:
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
        recorder = current_recorder(directory) if opening.has_tables else None
        if opening.has_tables and recorder is None:
            sequence_file.remove_sequence_file(directory)
        health = DiskHealth(paths.healthy)
        tables = StateTables()
        journal, rocketmq_files = open_state(
            paths, tables, health.fail, writable=opening.has_tables, is_replica=opening.is_replica
        )
        resources.callback(journal.close, compact=False)
        has_events = journal.has_events
        state = CheckpointState.load(paths.state)
        config = layout_of.with_existing_sizes(config, paths, state)
        deletions = (
            topic_deletion_journal.read_deleted_topics(directory) if is_replica else tables.deleted_topics.places
        )
        inherited = _inspect_last_shutdown(paths, opening, health, state, deletions)
        if opening.writable:
            failpoint("open.before_abort")
            fileutil.replace(paths.abort, str(os.getpid()).encode())
        ahead = BackgroundPreparer()
        log = _open_log(paths, config, health, inherited, writable=opening.writable)
        resources.callback(log.close)
        journal.log_end = lambda: log.max_offset
        tables.delay_offsets.flushed_offset = lambda: log.flushed_offset
        if opening.is_replica:
            tables.delay_levels.apply((delay_levels_of_replica(directory),))
        tables.delay_levels.use(config.delay_levels)
        dispatcher = _open_dispatcher(paths, config, ahead, inherited, tables, writable=opening.writable)
        resources.callback(dispatcher.close)
        resources.callback(ahead.stop)
        checkpoint = Checkpoint.load(paths.checkpoint)
        recovery = _recovered(paths, opening, health, inherited, log, dispatcher, checkpoint)
        if not is_replica:
            levels = tables.delay_levels
            journal.change([(levels, fields) for fields in levels.beginning(log.min_offset, log.max_offset)])
        _make_safe(directory, opening, inherited, log, journal, tables, recovery)
        # With a recorder the store may have been a replica's since: the log was checked again, the tables were not.
        doubtful = inherited.may_lack or (recorder is not None and recorder.is_stale)
        # A clean close syncs the log and the tables, but not the other files.
        recovery_bounds = _remains(log, dispatcher, inherited, tables, memory_lost=doubtful or not inherited.same_boot)
        if not is_replica:
            failpoint("open.before_clamp")
            journal.clamp(recovery_bounds)
        if opening.has_tables:
            journal.compact_after_damage()
            if has_events and not health.was_healthy:
                journal.compact()  # a failed sync may not have written what is read from memory now
        if not doubtful:  # else unsynced pages may be missing although the disk is sound
            recovery.corruption += _journal_damage(journal)
        return StoreParts(
            paths,
            config,
            health,
            log,
            dispatcher,
            ahead,
            replace(checkpoint, confirm_offset=min(checkpoint.confirm_offset, recovery_bounds.log_end)),
            # A replica's state may be ahead of its log, so a deletion keeps its offset even after the log's end.
            dict(inherited.deleted) if is_replica else tables.deleted_topics.places,
            recovery,
            recovery_bounds,
            tables,
            journal,
            rocketmq_files,
            inherited.cut,
            resources.pop_all(),
        )


def _inspect_last_shutdown(
    paths: layout_of.StorePaths,
    opening: _Opening,
    health: DiskHealth,
    state: CheckpointState | None,
    deletions: Mapping[str, int],
) -> _InheritedState:
    same_boot = state is not None and state.boot == boot_id() != "" and health.was_healthy
    own_files = state is not None and bool(state.geometry)
    cut = PendingTruncation.load(paths.ordered_cut)
    if opening.writable and paths.rebuild_queues.exists():
        state = None  # it lists deletions that were undone; the queues are rebuilt from the log's beginning
    # An interrupted snapshot of a master's state keeps the replaced deletions in the marker file; after a snapshot that
    # undid deletions, the valid ones are in `rebuild_queues`.
    beside = [
        *topic_deletion_journal.load(snapshot_marker(paths.root)),
        *topic_deletion_journal.load(paths.rebuild_queues),
    ]
    state, deleted = _with_deletions(state, [*beside, *deletions.items()], cut)
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
        expired=expired_queue_offsets.load(expired_queue_offsets.expired_queues_file(paths.root)),
        cut=None if inherited.cut is None else inherited.cut.offset,
    )


def _make_safe(
    root: Path,
    opening: _Opening,
    inherited: _InheritedState,
    log: CommitLog,
    journal: StateJournal,
    tables: StateTables,
    recovery: RecoveryReport,
) -> None:
    """Bring the result of recovery to disk before a checkpoint is saved.

    That checkpoint records that this boot has opened the directory.
    """
    # A replica needs no new epoch: its master has the lost data, and the master's epochs are shipped.
    epochs = tables.recovery_epochs
    is_less = journal.loaded.lacks_synced(epochs.NUMBER, memory_lost=not (inherited.clean or inherited.same_boot))
    if not opening.is_replica and (is_less or not epochs.is_begun):
        journal.change([(epochs, epochs.beginning())])  # without the newest truncation they would look complete
    if inherited.may_lack and opening.has_tables:
        epochs.cut(log.max_offset)
    if opening.is_replica:
        topic_deletion_journal.sync(root)
    if opening.writable:
        # The next recovery relies on this part of the log, so it is synced before a checkpoint refers to it.
        log.files.sync(recovery.walked_from, log.max_offset, names=True)


def _journal_damage(journal: StateJournal) -> list[Corruption]:
    """Return what is damaged and lost in the state journal, for the report of recovery."""
    loaded = journal.loaded
    folder = str(journal.folder)
    found = [Corruption(str(path), at, f"{count} bytes are not what was written") for path, at, count in loaded.damage]
    if loaded.lost:
        found.append(Corruption(folder, 0, f"{loaded.lost} changes are lost"))
    return found + [Corruption(folder, 0, str(each)) for each in loaded.set_aside]


def _with_deletions(
    state: CheckpointState | None, deletions: Sequence[tuple[str, int]], cut: PendingTruncation | None
) -> tuple[CheckpointState | None, Mapping[str, int]]:
    """Return the state with the journal's deletions, and the log's end at each deletion.

    The journal lists all deletions, in case the state is damaged. Deletions after an ordered truncation are dropped;
    the returned state is None then.
    """
    updated = (state or CheckpointState()).with_deletions(deletions)
    retained = {topic: place for topic, place in updated.deleted_topics.items() if cut is None or place <= cut.offset}
    if len(retained) < len(updated.deleted_topics):
        return (
            None,
            retained,
        )  # deletions after the truncation point are undone, so their queues are rebuilt from the log's beginning
    return state and updated, retained


def _remains(
    log: CommitLog, dispatcher: Dispatcher, inherited: _InheritedState, tables: StateTables, *, memory_lost: bool
) -> RecoveryBounds:
    """Return the bounds to which recovery clamps all other tables."""
    known = tables.deleted_topics.places
    return RecoveryBounds(
        log.max_offset,
        memory_lost,
        {topic_queue: queue.max_offset for topic_queue, queue in dispatcher.queues.items()},
        {
            topic: min(place, log.max_offset)
            for topic, place in inherited.deleted.items()
            if topic in known or place > log.min_offset
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
