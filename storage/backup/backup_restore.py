"""Restore a backup into an empty directory.

The directory is then in the state that a power loss at that moment would have left. So a start can handle it: it walks
the log, rebuilds queues and key index, and begins a new recovery epoch, which shows readers that had read more that the
log was truncated. The identity of the directory among the replicas of its group is not in a backup: a restored
directory is a new one, which no coordinator mistakes for the original.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from raymq.storage.backup.backup_manifest import Manifest
from raymq.storage.backup.backup_progress import BackupProgress, ignore_progress
from raymq.storage.backup.backup_reader import ExtentReader, read_catalog, select_backup
from raymq.storage.backup.backup_target import BackupTarget
from raymq.storage.directory_format import check_format_supported, write_format
from raymq.storage.errors import InvalidInput
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file import sync_path
from raymq.storage.store_paths import StorePaths, take_lock
from raymq.storage.tables.broker_identity import write_broker_identity

#: The content of the abort file, in place of a process id.
_NOBODY: Final = b"0"


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was restored, or would be restored by a dry run."""

    name: str
    made_at_ms: int
    broker: str
    cluster: str
    log_begin: int
    log_end: int
    files: int
    bytes: int
    restored: bool


def restore(
    target: BackupTarget,
    directory: Path,
    *,
    at: str | None = None,
    new_address: bool = False,
    dry_run: bool = False,
    progress: Callable[[BackupProgress], None] = ignore_progress,
) -> RestoreReport:
    """Restore a backup durably; until then the directory cannot be opened.

    A directory in which a restoration was interrupted is emptied, and the restoration starts again.

    Args:
        at: the name of the backup; None: the newest one.
        new_address: let the broker use another port than the original, beside which it is to run.
        dry_run: check whether all objects exist, and change nothing.

    Raises:
        InvalidInput: the directory is not empty, or there is no such backup.
        FormatTooNew: the backup is of a directory that a newer RayMQ has written.
        StoreCorrupt: the named object or file is damaged or missing.
        StoreLocked: another process restores there, too.
        BackupFailed, StoreFull, StoreFailed: the target cannot be read, or the directory cannot be written.
    """
    manifest = select_backup(read_catalog(target), target.where, at)
    check_format_supported(
        f"backup {manifest.name} of {target.where}", manifest.store.number, manifest.store.written_by
    )
    _check_empty(directory)
    if dry_run:
        reader, sizes = ExtentReader(target), target.objects()
        for extent in manifest.extents():
            if sizes.get(extent.object, -1) < extent.at + extent.length:
                reader.read(extent)  # raises an error that names the fault
    else:
        lock = take_lock(StorePaths(directory))
        try:
            _check_empty(directory)
            _restore(target, manifest, directory, new_address, progress)
        finally:
            lock.release()
    return RestoreReport(
        manifest.name,
        manifest.made_at_ms,
        manifest.broker.name,
        manifest.broker.cluster,
        manifest.log_begin,
        manifest.log_end,
        len(manifest.files),
        manifest.stored_bytes,
        not dry_run,
    )


def _check_empty(directory: Path) -> None:
    if os.path.lexists(directory) and not directory.is_dir():
        raise InvalidInput("directory", "a folder, or a path where one can be created", str(directory))
    paths = StorePaths(directory)
    there = set(fileutil.names_in(directory))
    begun = fileutil.temp_path_of(paths.restoring).name  # left by a restoration that crashed at its very beginning
    if there - {paths.lock.name, begun, "lost+found"} and paths.restoring.name not in there:
        raise InvalidInput("directory", f"an empty folder; it has {min(there)}", str(directory))


def _restore(
    target: BackupTarget,
    manifest: Manifest,
    directory: Path,
    new_address: bool,
    progress: Callable[[BackupProgress], None],
) -> None:
    paths = StorePaths(directory)
    fileutil.replace(paths.restoring, manifest.name.encode())
    for entry in fileutil.entries_of(directory):
        if entry.is_dir(follow_symlinks=False) and entry.name != "lost+found":
            fileutil.remove_tree(Path(entry.path))
        elif entry.name not in (paths.lock.name, paths.restoring.name, "lost+found"):
            fileutil.unlink(Path(entry.path))
    for folder in ("commitlog", "config", "raymq", *manifest.folders):
        fileutil.make_folder(directory / folder, durable=False)
    reader, done = ExtentReader(target), 0
    for file in manifest.files:
        failpoint("restore.before_file")
        path = directory / file.path
        fileutil.make_folder(path.parent, durable=False)
        fd = fileutil.create_sparse(path, file.size)
        try:
            os.lseek(fd, 0, os.SEEK_SET)
            for extent in file.extents:
                fileutil.write_all(fd, reader.read(extent), path)
                done += extent.length
                progress(BackupProgress(file.path, done, manifest.stored_bytes, done))
        finally:
            fileutil.close(fd)
        sync_path(path)
    broker = replace(manifest.broker, port=0) if new_address else manifest.broker
    if broker.name:
        write_broker_identity(directory / "raymq" / "broker.json", broker)
    write_format(directory, manifest.store)
    fileutil.replace(paths.abort, _NOBODY)
    _sync_folders(directory)
    failpoint("restore.before_end")
    fileutil.remove(paths.restoring)


def _sync_folders(folder: Path) -> None:
    for entry in fileutil.entries_of(folder):
        if entry.is_dir(follow_symlinks=False) and entry.name != "lost+found":
            _sync_folders(Path(entry.path))
    fileutil.sync_directory(folder)
