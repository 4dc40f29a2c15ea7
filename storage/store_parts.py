"""Build the parts of a store: lock, saved state, log, queues, index, recovery and settings."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raymq.storage import store_paths as layout_of
from raymq.storage.clock import boot_id
from raymq.storage.config import StoreConfig, split_host
from raymq.storage.directory_format import check_format, upgrade_format
from raymq.storage.errors import InvalidInput
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.background_preparer import BackgroundPreparer
from raymq.storage.files.disk_health import DiskHealth
from raymq.storage.log.checkpoint import Checkpoint, CheckpointState
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.delay_level_history import DelayLevelHistory
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.key_index import KeyIndex
from raymq.storage.log.recovery import Corruption, RecoveryReport, recover
from raymq.storage.records import record as layout
from raymq.storage.state import expired_queue_offsets, sequence_file, topic_deletion_journal
from raymq.storage.state.recording_file_calls import current_recorder
from raymq.storage.state.state_files import saved_delay_levels, snapshot_marker
from raymq.storage.tables.consumer_offset_store import ConsumerOffsetStore
from raymq.storage.tables.group_config import GroupConfigs
from raymq.storage.tables.in_flight_messages import InFlightTable
from raymq.storage.tables.journal import Journal
from raymq.storage.tables.pending_truncation import PendingTruncation
from raymq.storage.tables.recovery_bounds import RecoveryBounds
from raymq.storage.tables.recovery_epochs import RecoveryEpochs
from raymq.storage.tables.request_mode import RequestModes
from raymq.storage.tables.staged_records import StagedRecords
from raymq.storage.tables.topic_config import TopicConfigs


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
    deletions: Journal
    recovery: RecoveryReport
    epochs: RecoveryEpochs
    recovery_bounds: RecoveryBounds
    progress: ConsumerOffsetStore
    in_flight: InFlightTable
    topic_configs: TopicConfigs
    group_configs: GroupConfigs
    request_modes: RequestModes
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
        settled: the deleted topics whose deletion is missing in the journal of deletions. A replica has such deletions
            in its own checkpoint if its master's log began after them; the tables that arrived with the master's
            journal already took them into account.
        cut: the ordered truncation of the log, if any.
        own_files: whether the file sizes are recorded, so that a file of another size is damaged and not from another
            store.
        clean: whether the store was closed properly and no truncation is ordered.
        same_boot: whether no memory was lost since then and the disk did not fail.
    """

    state: CheckpointState | None
    deleted: Mapping[str, int]
    settled: frozenset[str]
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
        state = CheckpointState.load(paths.state)
        deletions = Journal(paths.deletions, writable=opening.has_tables, on_failure=health.fail)
        resources.callback(deletions.close)
        config = layout_of.with_existing_sizes(config, paths, state)
        inherited = _inspect_last_shutdown(paths, opening, health, state, deletions)
        if opening.writable:
            failpoint("open.before_abort")
            fileutil.replace(paths.abort, str(os.getpid()).encode())
        ahead = BackgroundPreparer()
        log = _open_log(paths, config, health, inherited, writable=opening.writable)
        resources.callback(log.close)
        dispatcher = _open_dispatcher(paths, config, ahead, inherited, writable=opening.writable)
        resources.callback(dispatcher.close)
        resources.callback(ahead.stop)
        checkpoint = Checkpoint.load(paths.checkpoint)
        recovery = _recovered(paths, opening, health, inherited, log, dispatcher, checkpoint)
        epochs = RecoveryEpochs(paths.epochs, writable=opening.has_tables)
        _make_safe(directory, opening, inherited, log, epochs, recovery)
        # With a recorder the store may have been a replica's since: the log was checked again, the tables were not.
        doubtful = inherited.may_lack or (recorder is not None and recorder.is_stale)
        # A clean close syncs the log and the tables, but not the other files.
        recovery_bounds = _remains(log, dispatcher, inherited, memory_lost=doubtful or not inherited.same_boot)
        tables = paths.no_tables if is_replica else paths
        progress, in_flight = _open_progress(tables, opening, health, resources, log, recovery_bounds)
        if opening.has_tables:
            StagedRecords(directory).clamp(recovery_bounds)
        topic_configs, group_configs = _open_settings(tables, health, resources, writable=opening.has_tables)
        if not doubtful:  # else unsynced pages may be missing although the disk is sound
            damage = (progress.journal.damage, in_flight.damage, topic_configs.damage, group_configs.damage)
            recovery.corruption += [
                Corruption(str(path), at, f"{count} bytes are not what was written; the changes in them are lost")
                for path, at, count in itertools.chain(deletions.damage, *damage)
            ]
        return StoreParts(
            paths,
            config,
            health,
            log,
            dispatcher,
            ahead,
            replace(checkpoint, confirm_offset=min(checkpoint.confirm_offset, recovery_bounds.log_end)),
            # A replica's state may be ahead of its log, so a deletion keeps its offset even after the log's end.
            dict(inherited.deleted if is_replica else recovery_bounds.deleted_topics),
            deletions,
            recovery,
            epochs,
            recovery_bounds,
            progress,
            in_flight,
            topic_configs,
            group_configs,
            RequestModes(tables.request_modes, writable=opening.has_tables),
            inherited.cut,
            resources.pop_all(),
        )


def _inspect_last_shutdown(
    paths: layout_of.StorePaths,
    opening: _Opening,
    health: DiskHealth,
    state: CheckpointState | None,
    deletions: Journal,
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
    journaled = [*deletions.entries, *deletions.behind]
    state, deleted = _with_deletions(state, [*beside, *journaled], cut)
    news = deleted if deletions.damage else CheckpointState().with_deletions(journaled).deleted_topics
    settled = frozenset(topic for topic, place in deleted.items() if news.get(topic, -1) < place)
    clean = not paths.abort.exists() and cut is None
    return _InheritedState(state, deleted, settled, cut, own_files=own_files, clean=clean, same_boot=same_boot)


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
    recovery = recover(
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
    if not opening.is_replica:
        dispatcher.delays.begin(log.min_offset, log.max_offset, writable=opening.writable)
    return recovery


def _make_safe(
    root: Path,
    opening: _Opening,
    inherited: _InheritedState,
    log: CommitLog,
    epochs: RecoveryEpochs,
    recovery: RecoveryReport,
) -> None:
    """Bring the result of recovery to disk before a checkpoint is saved.

    That checkpoint records that this boot has opened the directory.
    """
    if inherited.may_lack and opening.has_tables:
        # A replica needs no new epoch: its master has the lost data, and the master's epochs are shipped.
        epochs.cut(log.max_offset)
    if opening.is_replica:
        topic_deletion_journal.sync(root)
    if opening.writable:
        # The next recovery relies on this part of the log, so it is synced before a checkpoint refers to it.
        log.files.sync(recovery.walked_from, log.max_offset, names=True)


def _open_progress(
    paths: layout_of.StorePaths,
    opening: _Opening,
    health: DiskHealth,
    resources: ExitStack,
    log: CommitLog,
    recovery_bounds: RecoveryBounds,
) -> tuple[ConsumerOffsetStore, InFlightTable]:
    """Open the tables of offsets and of in-flight messages; `resources` closes them."""
    progress = ConsumerOffsetStore(
        paths.config,
        paths.journal,
        writable=opening.has_tables,
        on_failure=health.fail,
        recovery_bounds=recovery_bounds,
        flushed_offset=lambda: log.flushed_offset,
    )
    resources.callback(progress.close, fold=False)
    in_flight = InFlightTable(
        paths.in_flight, writable=opening.has_tables, on_failure=health.fail, recovery_bounds=recovery_bounds
    )
    resources.callback(in_flight.close, rewrite=False)
    return progress, in_flight


def _with_deletions(
    state: CheckpointState | None, deletions: Sequence[tuple[str, int] | tuple[Any, ...]], cut: PendingTruncation | None
) -> tuple[CheckpointState | None, Mapping[str, int]]:
    """Return the state with the journal's deletions, and the log's end at each deletion.

    The journal lists all deletions, in case the state is damaged. Deletions after an ordered truncation are dropped;
    the returned state is None then.
    """
    updated = (state or CheckpointState()).with_deletions((str(topic), int(log_end)) for topic, log_end in deletions)
    retained = {topic: place for topic, place in updated.deleted_topics.items() if cut is None or place <= cut.offset}
    if len(retained) < len(updated.deleted_topics):
        return (
            None,
            retained,
        )  # deletions after the truncation point are undone, so their queues are rebuilt from the log's beginning
    return state and updated, retained


def _open_settings(
    paths: layout_of.StorePaths, health: DiskHealth, resources: ExitStack, *, writable: bool
) -> tuple[TopicConfigs, GroupConfigs]:
    """Open the tables of topics and groups; `resources` closes them."""
    aside = paths.damaged
    topics = TopicConfigs(
        paths.topics, writable=writable, journal=paths.changed_topics, aside=aside, on_failure=health.fail
    )
    resources.callback(topics.close)
    groups = GroupConfigs(
        paths.groups, writable=writable, journal=paths.changed_groups, aside=aside, on_failure=health.fail
    )
    resources.callback(groups.close)
    return topics, groups


def _remains(
    log: CommitLog, dispatcher: Dispatcher, inherited: _InheritedState, *, memory_lost: bool
) -> RecoveryBounds:
    """Return the bounds to which recovery clamps all other tables."""
    return RecoveryBounds(
        log.max_offset,
        memory_lost,
        {topic_queue: queue.max_offset for topic_queue, queue in dispatcher.queues.items()},
        {topic: min(place, log.max_offset) for topic, place in inherited.deleted.items()},
        inherited.settled,
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
    is_whole = not snapshot_marker(
        paths.root
    ).exists()  # an interrupted snapshot may have no delay levels yet, or other ones
    tables = paths.delay_levels if is_whole else saved_delay_levels(paths.root)
    return Dispatcher(
        paths.consume_queue,
        paths.deleted_queues,
        config.consume_queue_file_entries,
        index,
        DelayLevelHistory(tables, config.delay_levels),
        writable=writable,
        rebuilt=inherited.own_files,
        whole=inherited.distrusted.queues if inherited.distrusted else None,
    )
