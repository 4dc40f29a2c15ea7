"""The names of a store directory's parts, its lock, and the file sizes that it was made with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from raymq.storage.config import StoreConfig
from raymq.storage.directory_format import check_format
from raymq.storage.files import fileutil
from raymq.storage.files.directory_lock import DirectoryLock
from raymq.storage.files.mapped_file_queue import files_of
from raymq.storage.log import index_sizes
from raymq.storage.log.checkpoint import State
from raymq.storage.log.consume_queue import ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class Paths:
    """Where everything is; RocketMQ's names, and `raymq/` for what is ours alone."""

    root: Path

    @property
    def commit_log(self) -> Path:
        """The folder of the log's files."""
        return self.root / "commitlog"

    @property
    def consume_queue(self) -> Path:
        """The folder with a folder for each topic, and in that one for each queue."""
        return self.root / "consumequeue"

    @property
    def index(self) -> Path:
        """The folder of the index files."""
        return self.root / "index"

    @property
    def config(self) -> Path:
        """The folder of settings and consumers' progress."""
        return self.root / "config"

    @property
    def topics(self) -> Path:
        """The topics' settings."""
        return self.config / "topics.json"

    @property
    def groups(self) -> Path:
        """The consumer groups' settings."""
        return self.config / "subscriptionGroup.json"

    @property
    def checkpoint(self) -> Path:
        """RocketMQ's checkpoint."""
        return self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        """There while a broker runs and after it was killed; holds its process id."""
        return self.root / "abort"

    @property
    def restoring(self) -> Path:
        """There while a backup is being restored here: not all of the store is there yet."""
        return self.root / ".raymq-restoring"

    @property
    def lock(self) -> Path:
        """Whose first byte is locked by the owner."""
        return self.root / "lock"

    @property
    def state(self) -> Path:
        """Our own checkpoint."""
        return self.root / "raymq" / "state.json"

    @property
    def journal(self) -> Path:
        """Commits of progress since the last folding."""
        return self.root / "raymq" / "progress.journal"

    @property
    def in_flight(self) -> Path:
        """What consumers have been lent by pop."""
        return self.root / "raymq" / "in_flight.journal"

    @property
    def changed_topics(self) -> Path:
        """What was changed of the topics since their settings were written."""
        return self.root / "raymq" / "topics.journal"

    @property
    def changed_groups(self) -> Path:
        """What was changed of the consumer groups since their settings were written."""
        return self.root / "raymq" / "groups.journal"

    @property
    def deletions(self) -> Path:
        """Topics that were deleted."""
        return self.root / "raymq" / "deletions.journal"

    @property
    def deleted_queues(self) -> Path:
        """The folder of deleted topics' queues until they are removed."""
        return self.root / "raymq" / "deleted_queues"

    @property
    def request_modes(self) -> Path:
        """Which groups pop which topics."""
        return self.config / "messageRequestMode.json"

    @property
    def healthy(self) -> Path:
        """There unless the disk has failed."""
        return self.root / "raymq" / "healthy"

    @property
    def settings(self) -> Path:
        """What tools have changed of the broker's settings."""
        return self.root / "raymq" / "settings.json"

    @property
    def clock(self) -> Path:
        """What is known of the wall clock."""
        return self.root / "raymq" / "clock.json"

    @property
    def ballast(self) -> Path:
        """Room that is given back where the disk is full."""
        return self.root / "raymq" / "ballast"

    @property
    def timers(self) -> Path:
        """The folder of the timer log."""
        return self.root / "raymq" / "timers"

    @property
    def staged(self) -> Path:
        """The folder of staged writes."""
        return self.root / "raymq" / "staged"

    @property
    def epochs(self) -> Path:
        """Where losses of power have cut the log."""
        return self.root / "raymq" / "epochs.json"

    @property
    def master_epochs(self) -> tuple[Path, Path]:
        """In which epochs of its masters the log was made: RocketMQ's file, and ours with the state sequences."""
        return self.root / "epochFileCheckpoint", self.root / "raymq" / "epochs"

    @property
    def ordered_cut(self) -> Path:
        """What of the log never was, if that is to be cut off."""
        return self.root / "raymq" / "cut.json"

    @property
    def rebuild_queues(self) -> Path:
        """There if queues lack what was deleted by a change of state that never was."""
        return self.root / "raymq" / "rebuild_queues"

    @property
    def no_tables(self) -> Paths:
        """Where there is nothing: what a replica's store has of tables, as its master changes them."""
        return Paths(self.root / "raymq" / "no_tables")

    @property
    def delay_levels(self) -> Path:
        """Which table of delay levels was in force in which part of the log."""
        return self.root / "raymq" / "delay_levels.json"

    @property
    def damaged(self) -> Path:
        """The folder of copies of damaged bytes."""
        return self.root / "raymq" / "damaged"


def take_lock(paths: Paths) -> DirectoryLock:
    """Make the directory if need be and take its lock.

    Raises:
        FormatTooNew: a newer RayMQ has written there; nothing was changed. StoreLocked: somebody has it.
    """
    check_format(paths.root)
    fileutil.make_folder(paths.root)
    lock = DirectoryLock(paths.lock, paths.abort)
    try:
        check_format(paths.root)  # its last owner may have been a newer one, until a moment ago
    except BaseException:
        lock.release()
        raise
    return lock


_GEOMETRY = ("commitlog_file_bytes", "consume_queue_file_entries", "index_slots", "index_entries")


def geometry(config: StoreConfig) -> dict[str, int]:
    """The settings that decide the sizes of files."""
    return {field: getattr(config, field) for field in _GEOMETRY}


def fitted(config: StoreConfig, paths: Paths, state: State | None) -> StoreConfig:
    """`config` with the sizes that the directory was made with.

    Ours are written down. A directory of RocketMQ's shows those of log and queues in the sizes of its files, and the
    index's two in what is in them.
    """
    if state is not None and all(field in state.geometry for field in _GEOMETRY):
        kept = state.geometry
        return replace(
            config,
            commitlog_file_bytes=kept["commitlog_file_bytes"],
            consume_queue_file_entries=kept["consume_queue_file_entries"],
            index_slots=kept["index_slots"],
            index_entries=kept["index_entries"],
        )
    log_files = files_of(paths.commit_log)
    if len(log_files) > 1:
        config = replace(config, commitlog_file_bytes=int(log_files[1].name) - int(log_files[0].name))
    elif log_files and log_files[0].stat().st_size:
        config = replace(config, commitlog_file_bytes=log_files[0].stat().st_size)
    sizes = Counter(path.stat().st_size for path in _queue_files(paths.consume_queue))
    whole = [size for size, _ in sizes.most_common() if size and size % ENTRY_BYTES == 0]
    if whole:
        config = replace(config, consume_queue_file_entries=whole[0] // ENTRY_BYTES)
    index = index_sizes.find(paths.index, config.index_slots, config.index_entries)
    return replace(config, index_slots=index[0], index_entries=index[1]) if index else config


def _queue_files(folder: Path) -> Iterator[Path]:
    """Of all queues of all topics."""
    for topic in fileutil.paths_in(folder):
        for queue in fileutil.paths_in(topic):
            yield from (path for path in fileutil.paths_in(queue) if path.name[0].isdigit())
