"""An empty store whose log does not begin at 0: that of a replica which takes its master's state as it is.

What the master's log had before its first file is gone there, and what it says of that nobody will ask.
"""

from __future__ import annotations

import os
from pathlib import Path

from raymq.storage.config import StoreConfig
from raymq.storage.errors import InvalidInput
from raymq.storage.files import fileutil, holes
from raymq.storage.files.mapped_file_queue import file_name, files_of
from raymq.storage.paths import Paths, take_lock


def begin_log(directory: str | os.PathLike[str], config: StoreConfig, offset: int) -> None:
    """Make a directory in which `Store.open` finds a log without records, from `offset` on; it is on disk then.

    A death meanwhile leaves one without a log, or all of it. Where the log begins there already nothing is done.

    Args:
        offset: where the master's log begins, with a file.
        config: with the master's `commitlog_file_bytes`.

    Raises:
        InvalidInput: there is another log, or no file begins at that place.
        StoreLocked: the directory is in use. StoreFull, StoreFailed: not done.
    """
    paths = Paths(Path(directory))
    if offset < 0 or offset % config.commitlog_file_bytes:
        raise InvalidInput("offset", f"a multiple of the files' {config.commitlog_file_bytes} bytes", offset)
    lock = take_lock(paths)
    try:
        wanted = paths.commit_log / file_name(offset)
        if any(path != wanted or _has_bytes(path) for path in files_of(paths.commit_log)):
            raise InvalidInput("directory", "one without a log", str(directory))
        fileutil.make_folder(paths.commit_log)
        fd = fileutil.create_sparse(wanted, config.commitlog_file_bytes)
        try:
            fileutil.fdatasync(fd, wanted)
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
