"""Spark's Python daemon, which forks the workers that tasks run in, with two costs of each task taken away.

Run by Spark as `python -m raymq.spark_bridge.worker_daemon` (`spark.python.daemon.module`), in place of
`pyspark.daemon`, whose loop it calls.

* What tasks import is imported here, once, and not by each worker, whose first task waited for it. Spark has a worker
  collect garbage behind every task: all that was here at the fork is left out of that.
* Spark has a worker call `importlib.invalidate_caches()` before every task. Python then reads the directory of each
  archive on the path anew (pyspark.zip several times), which takes longer than a small task. An archive that has not
  changed is not read.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import zipimport
from typing import Final

#: What nearly every task of a bridge needs.
_OF_TASKS: Final = (
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.types",
    "raymq.spark_bridge.decode",
    "raymq.spark_bridge.tasks",
    "raymq.spark_bridge.tickets",
)

_Mark = tuple[int, int, int]


def keep_unchanged_archives() -> None:
    """Have `importlib.invalidate_caches` read those archives on the path anew that have changed, and no others."""
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
    """What another content of the file would have otherwise."""
    try:
        told = os.stat(archive)
    except OSError:
        return None
    return told.st_mtime_ns, told.st_size, told.st_ino


def main() -> None:
    """Load what workers need, then fork them as Spark asks for them, until it goes."""
    from pyspark.daemon import manager

    os.setpgid(0, 0)  # as it does later: an interrupt at the driver's terminal is not for us
    for name in _OF_TASKS:
        with contextlib.suppress(ImportError):  # a task that needs it will say so
            importlib.import_module(name)
    keep_unchanged_archives()
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
