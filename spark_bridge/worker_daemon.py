"""Spark's Python daemon, which forks the workers for tasks, with lower costs per task.

Spark runs it as `python -m raymq.spark_bridge.worker_daemon` (`spark.python.daemon.module`), in place of
`pyspark.daemon`, whose loop it calls.

* Modules that tasks need are imported here, once, and not by each worker, where the first task would wait for them.
  Spark makes a worker collect garbage after every task; objects from before the fork are excluded from this.
* Spark makes a worker call `importlib.invalidate_caches()` before every task. Python then reads the directory of each
  archive on the path again (pyspark.zip several times), which takes longer than a small task. Here an archive that has
  not changed is not read again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import zipimport
from typing import Final

#: Modules that nearly every task of a bridge needs.
_OF_TASKS: Final = (
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.types",
    "raymq.spark_bridge.body_decoder",
    "raymq.spark_bridge.fetch_ranges",
    "raymq.spark_bridge.row_staging",
    "raymq.spark_bridge.stream_tasks",
)

_Mark = tuple[int, int, int]


def cache_unchanged_archives() -> None:
    """Make `importlib.invalidate_caches` read only the archives that have changed."""
    read_anew = zipimport.zipimporter.invalidate_caches
    read: dict[tuple[str, str], _Mark | None] = {}
    for importer in sys.path_importer_cache.values():
        if isinstance(importer, zipimport.zipimporter):
            read[importer.archive, importer.prefix] = _mark(importer.archive)

    def invalidate_caches(importer: zipimport.zipimporter) -> None:
        place, mark = (importer.archive, importer.prefix), _mark(importer.archive)
        if mark is None or read.get(place) != mark:
            read[place] = mark
            read_anew(importer)

    zipimport.zipimporter.invalidate_caches = invalidate_caches  # type: ignore[method-assign, assignment]


def _mark(archive: str) -> _Mark | None:
    """Return values that differ if the file's content has changed, None without a file."""
    try:
        info = os.stat(archive)
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size, info.st_ino


def main() -> None:
    """Load what workers need, then fork workers on Spark's requests until Spark ends."""
    from pyspark.daemon import manager

    # The daemon does the same later: an interrupt at the driver's terminal must not reach this process.
    os.setpgid(0, 0)
    for name in _OF_TASKS:
        with contextlib.suppress(ImportError):  # A task that needs the module will report the error.
            importlib.import_module(name)
    cache_unchanged_archives()
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
