"""How the parts of a store come to be: lock, state of the last owner, log, queues and index, recovery, settings."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raymq.storage import paths as layout_of
from raymq.storage.clock import boot_id
from raymq.storage.config import StoreConfig, split_host
from raymq.storage.directory_format import check_format, raise_format
from raymq.storage.errors import InvalidInput
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.file_work import Ahead
from raymq.storage.files.health import Health
from raymq.storage.log.checkpoint import Checkpoint, State
from raymq.storage.log.commit_log import CommitLog
from raymq.storage.log.delay_tables import DelayTables
from raymq.storage.log.dispatch import Dispatcher
from raymq.storage.log.key_index import KeyIndex
from raymq.storage.log.recovery import Corruption, RecoveryReport, recover
from raymq.storage.records import record as layout
from raymq.storage.state import queue_ends, sequence_file, told_deletions
from raymq.storage.state.recording import recorder_of
from raymq.storage.state.state_files import levels_aside_of, marker_of
from raymq.storage.tables.epochs import Epochs
from raymq.storage.tables.group_config import GroupConfigs
from raymq.storage.tables.in_flight import InFlight
from raymq.storage.tables.journal import Journal
from raymq.storage.tables.ordered_cut import OrderedCut
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
    ordered_cut: OrderedCut | None
    resources: ExitStack = field(repr=False)

    def close(self) -> None:
        """May be called again."""
        self.resources.close()


@dataclass(frozen=True, slots=True)
class _Opening:
    """How a directory is opened.

    Attributes:
        has_tables: its tables are read and written, too.
    """

    read_only: bool
    follows: bool

    @property
    def writable(self) -> bool:
        return not self.read_only

    @property
    def has_tables(self) -> bool:
        return not (self.read_only or self.follows)


@dataclass(frozen=True, slots=True)
class _Left:
    """What the last owner left behind.

    Attributes:
        deleted: where the log ended when which topics were deleted.
        settled: those of them that the journal of deletions does not tell. One who followed a master whose log began
            behind them knows them of itself; the tables that came with that journal had heeded them.
        own_files: sizes were written down, so that a file of another size is damaged and not another store's.
        same_boot: memory was not lost since, and the disk did not fail.
    """

    state: State | None
    deleted: Mapping[str, int]
    settled: frozenset[str]
    cut: OrderedCut | None
    own_files: bool
    clean: bool
    same_boot: bool

    @property
    def distrusted(self) -> State | None:
        """The state, if more than what it says cannot be relied on."""
        return None if self.clean or self.same_boot else self.state

    @property
    def may_lack(self) -> bool:
        """Whether less may be there than was: memory was lost, or a cut was ordered."""
        return not (self.clean or (self.same_boot and self.cut is None))


def open_parts(directory: Path, config: StoreConfig, *, read_only: bool, follows: bool = False) -> Parts:
    """Take the lock, open everything and recover it; raises as `Store.open`, and leaves nothing open then."""
    paths = layout_of.Paths(directory)
    opening = _Opening(read_only, follows)
    with ExitStack() as resources:
        if opening.writable:
            resources.callback(layout_of.take_lock(paths).release)
        else:
            check_format(directory)
        if paths.restoring.exists():
            remedy = "let `raymq store restore` come to its end: it begins anew there"
            raise InvalidInput("directory", "one into which no backup is being restored", str(directory), remedy=remedy)
        if opening.writable:
            raise_format(directory)
        recorder = recorder_of(directory) if opening.has_tables else None
        if opening.has_tables and recorder is None:
            sequence_file.forget(directory)
        health = Health(paths.healthy)
        state = State.load(paths.state)
        deletions = Journal(paths.deletions, writable=opening.has_tables, on_failure=health.fail)
        resources.callback(deletions.close)
        config = layout_of.fitted(config, paths, state)
        left = _what_is_left(paths, opening, health, state, deletions)
        if opening.writable:
            failpoint("open.before_abort")
            fileutil.replace(paths.abort, str(os.getpid()).encode())
        ahead = Ahead()
        log = _open_log(paths, config, health, left, writable=opening.writable)
        resources.callback(log.close)
        dispatcher = _open_dispatcher(paths, config, ahead, left, writable=opening.writable)
        resources.callback(dispatcher.close)
        resources.callback(ahead.stop)
        checkpoint = Checkpoint.load(paths.checkpoint)
        recovery = _recovered(paths, opening, health, left, log, dispatcher, checkpoint)
        epochs = Epochs(paths.epochs, writable=opening.has_tables)
        _make_safe(directory, opening, left, log, epochs, recovery)
        # With a recorder the store may have followed since: the log is known again, the tables never were looked at.
        doubtful = left.may_lack or (recorder is not None and recorder.is_doubtful)
        # A stop syncs the log and the tables, but not what stands beside them.
        remains = _remains(log, dispatcher, left, memory_lost=doubtful or not left.same_boot)
        tables = paths.no_tables if follows else paths
        progress, in_flight = _open_progress(tables, opening, health, resources, log, remains)
        if opening.has_tables:
            StagedRecords(directory).clamp(remains)
        topic_configs, group_configs = _open_settings(tables, health, resources, writable=opening.has_tables)
        if not doubtful:  # else pages may be missing of what was not synced, and nothing is wrong with the disk
            damage = (progress.journal.damage, in_flight.damage, topic_configs.damage, group_configs.damage)
            recovery.corruption += [
                Corruption(str(path), at, f"{count} bytes are not what was written; what they said is lost")
                for path, at, count in itertools.chain(deletions.damage, *damage)
            ]
        return Parts(
            paths,
            config,
            health,
            log,
            dispatcher,
            ahead,
            replace(checkpoint, confirm_offset=min(checkpoint.confirm_offset, remains.log_end)),
            # The state of a replica may be ahead of its log: a deletion counts where it was, also behind the log's end.
            dict(left.deleted if follows else remains.deleted_topics),
            deletions,
            recovery,
            epochs,
            remains,
            progress,
            in_flight,
            topic_configs,
            group_configs,
            RequestModes(tables.request_modes, writable=opening.has_tables),
            left.cut,
            resources.pop_all(),
        )


def _what_is_left(
    paths: layout_of.Paths, opening: _Opening, health: Health, state: State | None, deletions: Journal
) -> _Left:
    same_boot = state is not None and state.boot == boot_id() != "" and health.was_good
    own_files = state is not None and bool(state.geometry)
    cut = OrderedCut.load(paths.ordered_cut)
    if opening.writable and paths.rebuild_queues.exists():
        state = None  # it tells of deletions that never were; queues are made anew from the log's beginning on
    # Where a snapshot of a master's state was broken off, what it was to take the place of is told beside it; and
    # where it lacks deletions that never were, those that were.
    beside = [*told_deletions.load(marker_of(paths.root)), *told_deletions.load(paths.rebuild_queues)]
    told = [*deletions.entries, *deletions.behind]
    state, deleted = _with_deletions(state, [*beside, *told], cut)
    news = deleted if deletions.damage else State().with_deletions(told).deleted_topics
    settled = frozenset(topic for topic, place in deleted.items() if news.get(topic, -1) < place)
    clean = not paths.abort.exists() and cut is None
    return _Left(state, deleted, settled, cut, own_files=own_files, clean=clean, same_boot=same_boot)


def _recovered(
    paths: layout_of.Paths,
    opening: _Opening,
    health: Health,
    left: _Left,
    log: CommitLog,
    dispatcher: Dispatcher,
    checkpoint: Checkpoint,
) -> RecoveryReport:
    """Bring log, queues and index to agree, and say what was found."""
    if left.state is not None and left.distrusted is None and health.was_good:
        dispatcher.trust(left.state.queues)
    failpoint("open.before_recovery")
    recovery = recover(
        log,
        dispatcher,
        left.state,
        checkpoint,
        deleted=left.deleted,
        clean=left.clean,
        same_boot=left.same_boot,
        aside=paths.damaged if opening.writable else None,
        expired=queue_ends.load(queue_ends.aside_of(paths.root)),
        cut=None if left.cut is None else left.cut.offset,
    )
    if not opening.follows:
        dispatcher.delays.begin(log.min_offset, log.max_offset, writable=opening.writable)
    return recovery


def _make_safe(
    root: Path, opening: _Opening, left: _Left, log: CommitLog, epochs: Epochs, recovery: RecoveryReport
) -> None:
    """What recovery has come to is on disk, before a state is saved that says that this boot has seen the directory."""
    if left.may_lack and opening.has_tables:
        # A replica's readers are its master's, which has what this one may have lost, and whose epochs are shipped.
        epochs.cut(log.max_offset)
    if opening.follows:
        told_deletions.sync(root)
    if opening.writable:
        # What recovery goes by has to be there at the next loss of power, before anything says that it is.
        log.files.sync(recovery.walked_from, log.max_offset, names=True)


def _open_progress(
    paths: layout_of.Paths,
    opening: _Opening,
    health: Health,
    resources: ExitStack,
    log: CommitLog,
    remains: Remains,
) -> tuple[Progress, InFlight]:
    """The tables of what groups have come to, and of what is lent; `resources` closes them."""
    progress = Progress(
        paths.config,
        paths.journal,
        writable=opening.has_tables,
        on_failure=health.fail,
        remains=remains,
        flushed_offset=lambda: log.flushed_offset,
    )
    resources.callback(progress.close, fold=False)
    in_flight = InFlight(paths.in_flight, writable=opening.has_tables, on_failure=health.fail, remains=remains)
    resources.callback(in_flight.close, rewrite=False)
    return progress, in_flight


def _with_deletions(
    state: State | None, deletions: Sequence[tuple[str, int] | tuple[Any, ...]], cut: OrderedCut | None
) -> tuple[State | None, Mapping[str, int]]:
    """The state, and where the log ended when which topics were deleted: of a damaged state the journal tells all."""
    told = (state or State()).with_deletions((str(topic), int(log_end)) for topic, log_end in deletions)
    kept = {topic: place for topic, place in told.deleted_topics.items() if cut is None or place <= cut.offset}
    if len(kept) < len(told.deleted_topics):
        return (
            None,
            kept,
        )  # what was deleted behind the cut was not; its queues are made anew from the log's beginning on
    return state and told, kept


def _open_settings(
    paths: layout_of.Paths, health: Health, resources: ExitStack, *, writable: bool
) -> tuple[TopicConfigs, GroupConfigs]:
    """The tables of topics and groups; `resources` closes them."""
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


def _remains(log: CommitLog, dispatcher: Dispatcher, left: _Left, *, memory_lost: bool) -> Remains:
    """What recovery has left."""
    return Remains(
        log.max_offset,
        memory_lost,
        {topic_queue: queue.max_offset for topic_queue, queue in dispatcher.queues.items()},
        {topic: min(place, log.max_offset) for topic, place in left.deleted.items()},
        left.settled,
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
    is_whole = not marker_of(paths.root).exists()  # else the snapshot that was broken off may have none yet, or others
    tables = paths.delay_levels if is_whole else levels_aside_of(paths.root)
    return Dispatcher(
        paths.consume_queue,
        paths.deleted_queues,
        config.consume_queue_file_entries,
        index,
        DelayTables(tables, config.delay_levels),
        writable=writable,
        rebuilt=left.own_files,
        whole=left.distrusted.queues if left.distrusted else None,
    )
