"""The paths in a store directory, its lock, and the file sizes of existing directories."""

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
from raymq.storage.journal.journal_copy import EXPIRED_QUEUES
from raymq.storage.log import index_sizes
from raymq.storage.log.checkpoint import CheckpointState
from raymq.storage.log.consume_queue import ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class StorePaths:
    """All paths of a store directory.

    They have RocketMQ's names; files that only RayMQ has are in `raymq/`.
    """

    root: Path

    @property
    def commit_log(self) -> Path:
        """Return the folder of the log's files."""
        return self.root / "commitlog"

    @property
    def consume_queue(self) -> Path:
        """Return the folder that has a folder for each topic, with one for each queue."""
        return self.root / "consumequeue"

    @property
    def index(self) -> Path:
        """Return the folder of the index files."""
        return self.root / "index"

    @property
    def config(self) -> Path:
        """Return the folder of settings and consumer offsets."""
        return self.root / "config"

    @property
    def topics(self) -> Path:
        """Return the file of the topics' settings."""
        return self.config / "topics.json"

    @property
    def groups(self) -> Path:
        """Return the file of the consumer groups' settings."""
        return self.config / "subscriptionGroup.json"

    @property
    def checkpoint(self) -> Path:
        """Return RocketMQ's checkpoint file."""
        return self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        """Return the file that exists while a broker runs and after it crashed.

        It holds the broker's process id.
        """
        return self.root / "abort"

    @property
    def restoring(self) -> Path:
        """Return the file that exists while a backup is being restored here.

        While it exists, the store is incomplete.
        """
        return self.root / ".raymq-restoring"

    @property
    def lock(self) -> Path:
        """Return the lock file; the process that has the store open locks its first byte."""
        return self.root / "lock"

    @property
    def state(self) -> Path:
        """Return RayMQ's own checkpoint file."""
        return self.root / "raymq" / "state.json"

    @property
    def state_journal(self) -> Path:
        """Return the folder of the state journal and its snapshots."""
        return self.root / "raymq" / "state"

    @property
    def deleted_queues(self) -> Path:
        """Return the folder that holds the queues of deleted topics until they are removed."""
        return self.root / "raymq" / "deleted_queues"

    @property
    def request_modes(self) -> Path:
        """Return the file that lists which groups consume which topics by pop."""
        return self.config / "messageRequestMode.json"

    @property
    def healthy(self) -> Path:
        """Return the file that exists unless the disk has failed."""
        return self.root / "raymq" / "healthy"

    @property
    def settings(self) -> Path:
        """Return the file of format 2 with the broker settings that admin tools changed."""
        return self.root / "raymq" / "settings.json"

    @property
    def replica(self) -> Path:
        """Return the file of a replica's own metadata; only replicas have it."""
        return self.root / "raymq" / "replica.json"

    @property
    def disk_reserve(self) -> Path:
        """Return the reserve file, which is deleted to free space on a full disk."""
        return self.root / "raymq" / "ballast"

    @property
    def timers(self) -> Path:
        """Return the folder of the timer log."""
        return self.root / "raymq" / "timers"

    @property
    def former_staged(self) -> tuple[Path, Path]:
        """Return the folder of staged rows of format 2, and its converted name."""
        return self.root / "raymq" / "staged", self.root / "raymq" / "staged_taken"

    @property
    def master_epochs(self) -> tuple[Path, Path]:
        """Return the two files of leader epochs in which the log was written.

        The first is RocketMQ's file, the second is RayMQ's with the state sequences.
        """
        return self.root / "epochFileCheckpoint", self.root / "raymq" / "epochs"

    @property
    def ordered_cut(self) -> Path:
        """Return the file of the pending truncation of the log, if one was ordered."""
        return self.root / "raymq" / "cut.json"

    @property
    def rebuild_queues(self) -> Path:
        """Return the file that exists if queues of undone topic deletions have to be rebuilt."""
        return self.root / "raymq" / "rebuild_queues"

    @property
    def expired_queues(self) -> Path:
        """Return the file of expired queues' ends of a copied journal."""
        return self.state_journal / EXPIRED_QUEUES

    @property
    def delay_levels(self) -> Path:
        """Return format 2's file of delay levels by part of the log."""
        return self.root / "raymq" / "delay_levels.json"

    @property
    def damaged(self) -> Path:
        """Return the folder of copies of damaged bytes."""
        return self.root / "raymq" / "damaged"


def take_lock(paths: StorePaths) -> DirectoryLock:
    """Create the directory if needed, take its lock and return it.

    Raises:
        FormatTooNew: a newer RayMQ has written there; nothing was changed.
        StoreLocked: another process has the lock.
    """
    check_format(paths.root)
    fileutil.make_folder(paths.root)
    lock = DirectoryLock(paths.lock, paths.abort)
    try:
        check_format(paths.root)  # a newer RayMQ may have had the lock until a moment ago
    except BaseException:
        lock.release()
        raise
    return lock


_GEOMETRY = ("commitlog_file_bytes", "consume_queue_file_entries", "index_slots", "index_entries")


def geometry(config: StoreConfig) -> dict[str, int]:
    """Return the settings that decide the sizes of files."""
    return {field: getattr(config, field) for field in _GEOMETRY}


def with_existing_sizes(config: StoreConfig, paths: StorePaths, state: CheckpointState | None) -> StoreConfig:
    """Return `config` with the file sizes of an existing directory.

    RayMQ's state file records the sizes. In a directory of RocketMQ's the sizes of log and queue files are read from
    the files, and the two sizes of the index from the content of its files.
    """
    if state is not None and all(field in state.geometry for field in _GEOMETRY):
        saved = state.geometry
        return replace(
            config,
            commitlog_file_bytes=saved["commitlog_file_bytes"],
            consume_queue_file_entries=saved["consume_queue_file_entries"],
            index_slots=saved["index_slots"],
            index_entries=saved["index_entries"],
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
    """Return the files of all queues of all topics."""
    for topic in fileutil.paths_in(folder):
        for queue in fileutil.paths_in(topic):
            yield from (path for path in fileutil.paths_in(queue) if path.name[0].isdigit())
