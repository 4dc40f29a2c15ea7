"""Create an empty log that does not begin at offset 0, for a new replica.

The replica copies the master's current state. The records that the master's log had before its first file are gone
there, and no reader asks for the state that refers to them.
"""

from __future__ import annotations

import os
from pathlib import Path

from raymq.storage.config import StoreConfig
from raymq.storage.errors import InvalidInput
from raymq.storage.files import fileutil, holes
from raymq.storage.files.mapped_file_queue import file_name, files_of
from raymq.storage.store_paths import StorePaths, take_lock


def create_empty_log(directory: str | os.PathLike[str], config: StoreConfig, offset: int) -> None:
    """Create a directory with an empty log that begins at `offset`, durably, for `Store.open`.

    A crash meanwhile leaves either no log or the complete one. If the directory already has an empty log that begins at
    `offset`, nothing is written.

    Args:
        offset: the offset at which the master's log and its first file begin.
        config: settings with the master's `commitlog_file_bytes`.

    Raises:
        InvalidInput: the directory has another log, or no file begins at that offset.
        StoreLocked: the directory is in use.
        StoreFull, StoreFailed: the log was not created.
    """
    paths = StorePaths(Path(directory))
    if offset < 0 or offset % config.commitlog_file_bytes:
        raise InvalidInput("offset", f"a multiple of the files' {config.commitlog_file_bytes} bytes", offset)
    lock = take_lock(paths)
    try:
        first = paths.commit_log / file_name(offset)
        if any(path != first or _has_bytes(path) for path in files_of(paths.commit_log)):
            raise InvalidInput("directory", "a directory without a log", str(directory))
        fileutil.make_folder(paths.commit_log)
        fd = fileutil.create_sparse(first, config.commitlog_file_bytes)
        try:
            fileutil.fdatasync(fd, first)
        finally:
            fileutil.close(fd)
        fileutil.sync_directory(paths.commit_log)
    finally:
        lock.release()


def _has_bytes(path: Path) -> bool:
    fd = fileutil.open_to_read(path)
    try:
        return holes.last_data(fd, 0, os.fstat(fd).st_size, path) > 0
    finally:
        fileutil.close(fd)
