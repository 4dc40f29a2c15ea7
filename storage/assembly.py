"""How the parts of a store come to be: lock, state of the last owner, log, queues and index, recovery, settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from raymq.storage import paths as layout_of
from raymq.storage.clock import boot_id
from raymq.storage.config import StoreConfig, split_host
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.file_work import Ahead
from raymq.storage.files.health import Health
from raymq.storage.log.checkpoint import Checkpoint, State
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.delay_tables import DelayTables
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.key_index import KeyIndex
from raymq.storage.log.recovery import RecoveryReport, recover
from raymq.storage.records import record as layout
from raymq.storage.tables.epochs import Epochs
from raymq.storage.tables.group_config import GroupConfigs
from raymq.storage.tables.in_flight import InFlight
from raymq.storage.tables.journal import Journal
from raymq.storage.tables.progress import Progress
from raymq.storage.tables.remains import Remains
from raymq.storage.tables.request_mode import RequestModes
from raymq.storage.tables.staging import StagedRecords
from raymq.storage.tables.topic_config import TopicConfigs


@dataclass(slots=True)
class Parts:
    """What a store consists of, recovered. `close` lets go of files, threads and lock, and writes nothing."""

    paths: layout_of.Paths
    config: StoreConfig
    health: Health
    log: CommitLog
    dispatcher: Dispatcher
    ahead: Ahead
    checkpoint: Checkpoint
    deleted_topics: dict[str, int]
    deletions: Journal
    recovery: RecoveryReport
    epochs: Epochs
    remains: Remains
    progress: Progress
    in_flight: InFlight
    topic_configs: TopicConfigs
    group_configs: GroupConfigs
    request_modes: RequestModes
    resources: ExitStack = field(repr=False)

    def close(self) -> None:
        """May be called again."""
        self.resources.close()


@dataclass(frozen=True, slots=True)
class _Left:
    """What the last owner left behind.

    Attributes:
        same_boot: memory was not lost since, and the disk did not fail.
    """

    state: State | None
    clean: bool
    same_boot: bool

    @property
    def distrusted(self) -> State | None:
        """The state, if more than what it says cannot be relied on."""
        return None if self.clean or self.same_boot else self.state

    @property
    def own_files(self) -> bool:
        """Whether sizes were written down, so that a file of another size is damaged and not another store's."""
        return self.state is not None and bool(self.state.geometry)


def open_parts(directory: Path, config: StoreConfig, *, read_only: bool) -> Parts:
    """Take the lock, open everything and recover it; raises as `Store.open`, and leaves nothing open then."""
    paths = layout_of.Paths(directory)
    with ExitStack() as resources:
        if not read_only:
            resources.callback(layout_of.take_lock(paths).release)
        health = Health(paths.healthy)
        state = State.load(paths.state)
        deletions = Journal(paths.deletions, writable=not read_only, on_failure=health.fail)
        resources.callback(deletions.close)
        # A damaged state forgets none of them: the journal tells of all.
        told = (state or State()).with_deletions((str(topic), int(log_end)) for topic, log_end in deletions.entries)
        state, deleted = (state and told), told.deleted_topics
        config = layout_of.fitted(config, paths, state)
        same_boot = state is not None and state.boot == boot_id() != "" and health.was_good
        left = _Left(state, clean=not paths.abort.exists(), same_boot=same_boot)
        if not read_only:
            failpoint("open.before_abort")
            fileutil.replace(paths.abort, str(os.getpid()).encode())
        ahead = Ahead()
        log = _open_log(paths, config, health, left, writable=not read_only)
        resources.callback(log.close)
        dispatcher = _open_dispatcher(paths, config, ahead, left, writable=not read_only)
        resources.callback(dispatcher.close)
        resources.callback(ahead.stop)
        checkpoint = Checkpoint.load(paths.checkpoint)
        if state is not None and left.distrusted is None and health.was_good:
            dispatcher.trust(state.queues)
        failpoint("open.before_recovery")
        recovery = recover(
            log,
            dispatcher,
            state,
            checkpoint,
            deleted=deleted,
            clean=left.clean,
            same_boot=same_boot,
            aside=None if read_only else paths.damaged,
        )
        dispatcher.delays.begin(log.min_offset, log.max_offset, writable=not read_only)
        epochs = Epochs(paths.epochs, writable=not read_only)
        if not (left.clean or same_boot or read_only):
            epochs.cut(log.max_offset)  # Before the state is saved, which says that this boot has seen the directory.
        if not read_only:
            # What recovery goes by has to be there at the next loss of power, before anything says that it is.
            log.files.sync(recovery.walked_from, log.max_offset, names=True)
        remains = _remains(log, dispatcher, deleted, memory_lost=not (left.clean or same_boot))
        progress = Progress(
            paths.config,
            paths.journal,
            writable=not read_only,
            on_failure=health.fail,
            remains=remains,
            flushed_offset=lambda: log.flushed_offset,
        )
        resources.callback(progress.close, fold=False)
        in_flight = InFlight(paths.in_flight, writable=not read_only, on_failure=health.fail, remains=remains)
        resources.callback(in_flight.close, rewrite=False)
        if not read_only:
            StagedRecords(directory).clamp(remains)
        topic_configs, group_configs = _open_settings(paths, health, resources, writable=not read_only)
        return Parts(
            paths,
            config,
            health,
            log,
            dispatcher,
            ahead,
            replace(checkpoint, confirm_offset=min(checkpoint.confirm_offset, remains.log_end)),
            dict(remains.deleted_topics),
            deletions,
            recovery,
            epochs,
            remains,
            progress,
            in_flight,
            topic_configs,
            group_configs,
            RequestModes(paths.request_modes, writable=not read_only),
            resources.pop_all(),
        )


def _open_settings(
    paths: layout_of.Paths, health: Health, resources: ExitStack, *, writable: bool
) -> tuple[TopicConfigs, GroupConfigs]:
    """The tables of topics and groups; `resources` closes them."""
    topics = TopicConfigs(paths.topics, writable=writable, journal=paths.changed_topics, on_failure=health.fail)
    resources.callback(topics.close)
    groups = GroupConfigs(paths.groups, writable=writable, journal=paths.changed_groups, on_failure=health.fail)
    resources.callback(groups.close)
    return topics, groups


def _remains(log: CommitLog, dispatcher: Dispatcher, deleted: Mapping[str, int], *, memory_lost: bool) -> Remains:
    """What recovery has left."""
    return Remains(
        log.max_offset,
        memory_lost,
        {lane: queue.max_offset for lane, queue in dispatcher.queues.items()},
        {topic: min(place, log.max_offset) for topic, place in deleted.items()},
    )


def _open_log(paths: layout_of.Paths, config: StoreConfig, health: Health, left: _Left, *, writable: bool) -> CommitLog:
    host, port = split_host(config.store_host)
    return CommitLog(
        paths.commit_log,
        config.commitlog_file_bytes,
        layout.pack_host_bytes(host, port),
        health,
        writable=writable,
        whole_to=left.distrusted.dispatched_to if left.distrusted else None,
    )


def _open_dispatcher(
    paths: layout_of.Paths, config: StoreConfig, ahead: Ahead, left: _Left, *, writable: bool
) -> Dispatcher:
    index = KeyIndex(
        paths.index,
        config.index_slots,
        config.index_entries,
        writable=writable,
        ahead=ahead,
        rebuilt=left.own_files,
    )
    return Dispatcher(
        paths.consume_queue,
        paths.deleted_queues,
        config.consume_queue_file_entries,
        index,
        DelayTables(paths.delay_levels, config.delay_levels),
        writable=writable,
        rebuilt=left.own_files,
        whole=left.distrusted.queues if left.distrusted else None,
    )
