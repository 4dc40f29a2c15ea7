"""A store in a process that may open few files; says on standard output what it met. Used by test_descriptors.py."""

from __future__ import annotations

import errno
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path

from raymq.storage.errors import StoreBusy
from raymq.storage.files.descriptor_reserve import DESCRIPTOR_RESERVE
from raymq.storage.store import Store
from tests.polling import poll_until
from tests.store_records import SMALL, append, bodies, make_record

_FILES = 128
_CONFIG = replace(SMALL, commitlog_file_bytes=1 << 15, consume_queue_file_entries=10_000)


def use_up() -> list[int]:
    """Open until nothing more can be opened."""
    taken: list[int] = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    return taken


def is_refused(store: Store) -> bool:
    """Whether an append is refused, whose queue's entries cannot be written."""
    try:
        append(store, make_record(b"x", topic="another"))
    except StoreBusy as error:
        return error.retriable
    return False


def keyed(store: Store, first: int, count: int) -> None:
    """Append messages with a key each, one by one and in batches."""
    for number in range(first, first + count // 2):
        append(store, make_record(b"k", topic="keyed", keys=f"key{number}"))
    for number in range(first + count // 2, first + count, 5):
        append(store, *(make_record(b"k", topic="keyed", keys=f"key{n}") for n in range(number, number + 5)))


def main(directory: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    with Store.open(directory, _CONFIG) as store:
        append(store, make_record(b"0"))
        taken = use_up()
        first = store._log.files.end
        count = 1
        while store._log.files.end == first:  # the log's next file takes descriptors that were held back
            append(store, make_record(b"%d" % count))
            count += 1
        store.flush()
        taken += use_up()
        append(store, make_record(b"%d" % count))
        count += 1
        entries = store._parts.dispatcher.entry_writer
        poll_until(lambda: entries.added == entries._written or entries._failure is not None, what="entries written")
        if entries._failure is not None:
            raise entries._failure
        append(store, make_record(b"x", topic="another"))  # the files of a new queue, too
        keyed(store, 0, 2 * _CONFIG.index_entries)  # and those of the index
        store._save_checkpoint()
        DESCRIPTOR_RESERVE.close()
        taken += use_up()
        poll_until(lambda: is_refused(store), what="no descriptor is left at all")
        assert store._parts.health.is_healthy
        for fd in taken:
            os.close(fd)
        DESCRIPTOR_RESERVE.fill()
        append(store, make_record(b"x", topic="another"))
        append(store, make_record(b"%d" % count))
        assert [int(body) for body in bodies(store)] == list(range(count + 1))
        store.flush()
        index = store._parts.paths.index
        if len(list(index.iterdir())) < 2:
            raise AssertionError("the index has not rolled")
        for number in range(2 * _CONFIG.index_entries):
            if not store.query("keyed", f"key{number}", 0, 1 << 62, 1):
                raise AssertionError(f"key {number} is not found")
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
