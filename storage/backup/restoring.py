"""Restores a backup into an empty directory, as what a loss of power would have left of its broker at that moment.

So a start bears it: it walks the log, makes queues and keys anew, and begins another recovery epoch, by which readers
that had seen more know that the log is not the one that they read. What says who the directory is among the replicas of
its group is not in a backup: a restored directory is a new one, which no keeper takes for the one that was backed up.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from raymq.storage.backup.manifest import Manifest
from raymq.storage.backup.progress import BackupProgress, ignore
from raymq.storage.backup.reading import ExtentReader, chosen, read_catalog
from raymq.storage.backup.target import Target
from raymq.storage.directory_format import check_known, write_format
from raymq.storage.errors import InvalidInput
from raymq.storage.failpoints import failpoint
from raymq.storage.files import fileutil
from raymq.storage.files.mapped_file import sync_path
from raymq.storage.paths import Paths, take_lock
from raymq.storage.tables.broker_identity import write_broker

#: In place of the process's number: nobody's.
_NOBODY: Final = b"0"


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was restored, or would be."""

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
    target: Target,
    directory: Path,
    *,
    at: str | None = None,
    new_address: bool = False,
    dry_run: bool = False,
    progress: Callable[[BackupProgress], None] = ignore,
) -> RestoreReport:
    """Restore a backup; all of it is on disk when this returns, and until then nobody can open the directory.

    A directory in which a restoration was broken off is emptied, and it begins anew.

    Args:
        at: the name of the backup; None: the newest one.
        new_address: let the broker take another port than the one of the original, beside which it is to run.
        dry_run: look whether all objects are there and change nothing.

    Raises:
        InvalidInput: the directory is not empty, or there is no such backup.
        FormatTooNew: it is of a directory that a newer RayMQ has written.
        StoreCorrupt: something is damaged or missing, which is named. StoreLocked: somebody restores there, too.
        BackupFailed, StoreFull, StoreFailed.
    """
    manifest = chosen(read_catalog(target), target.where, at)
    check_known(f"backup {manifest.name} of {target.where}", manifest.store.number, manifest.store.written_by)
    _check_empty(directory)
    if dry_run:
        reader, sizes = ExtentReader(target), target.objects()
        for extent in manifest.extents():
            if sizes.get(extent.object, -1) < extent.at + extent.length:
                reader.read(extent)  # which says what is wrong with it
    else:
        lock = take_lock(Paths(directory))
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
        raise InvalidInput("directory", "a folder, or a place where one can be made", str(directory))
    paths = Paths(directory)
    there = set(fileutil.names_in(directory))
    begun = fileutil.successor_of(paths.restoring).name  # of one that was killed before it had made anything
    if there - {paths.lock.name, begun, "lost+found"} and paths.restoring.name not in there:
        raise InvalidInput("directory", f"an empty one; there is {min(there)}", str(directory))


def _restore(
    target: Target, manifest: Manifest, directory: Path, new_address: bool, progress: Callable[[BackupProgress], None]
) -> None:
    paths = Paths(directory)
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
        write_broker(directory / "raymq" / "broker.json", broker)
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
