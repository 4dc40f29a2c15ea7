"""Use a store under a low descriptor limit, and print "done". Run by test_descriptor_exhaustion.py."""

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


def open_until_limit() -> list[int]:
    """Open /dev/null until the descriptor limit is reached."""
    taken: list[int] = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    return taken


def is_refused(store: Store) -> bool:
    """Check whether an append to a new queue is refused as retriable."""
    try:
        append(store, make_record(b"x", topic="another"))
    except StoreBusy as error:
        return error.retriable
    return False


def append_keyed_messages(store: Store, first: int, count: int) -> None:
    """Append messages with one key each, singly and in batches."""
    for number in range(first, first + count // 2):
        append(store, make_record(b"k", topic="keyed", keys=f"key{number}"))
    for number in range(first + count // 2, first + count, 5):
        append(store, *(make_record(b"k", topic="keyed", keys=f"key{n}") for n in range(number, number + 5)))


def main(directory: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    with Store.open(directory, _CONFIG) as store:
        append(store, make_record(b"0"))
        taken = open_until_limit()
        first = store._log.files.end
        count = 1
        while store._log.files.end == first:  # the log's next file uses reserved descriptors
            append(store, make_record(b"%d" % count))
            count += 1
        store.flush()
        taken += open_until_limit()
        append(store, make_record(b"%d" % count))
        count += 1
        entries = store._parts.dispatcher.entry_writer
        poll_until(lambda: entries.added == entries._written or entries._failure is not None, what="entries written")
        if entries._failure is not None:
            raise entries._failure
        append(store, make_record(b"x", topic="another"))  # the files of a new queue use the reserve, too
        append_keyed_messages(store, 0, 2 * _CONFIG.index_entries)  # and so do those of the index
        store._save_checkpoint()
        DESCRIPTOR_RESERVE.close()
        taken += open_until_limit()
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
