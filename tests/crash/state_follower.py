"""The replica of test_state_prefixes.py: it applies what a master shipped, until it is killed.

    python state_follower.py DIRECTORY STREAM PIECES

It prints a line before each piece of the stream, and "copy" before it takes a copy of the master's journal. At the
given number of pieces another thread kills it, at any step of what follows. The next run continues where it was.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgpack

from raymq.storage.journal.journal_copy import IncomingJournal, decode_part
from raymq.storage.journal.journal_event import JournalEvent
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from tests.crash.power_loss_broker import CONFIG


class Recording:
    """A record of what a master ships, to be replayed in a process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        copy = store.journal.copy()
        self._copy: list[Any] = [copy.sequence, [part.encode() for part in copy.parts()]]
        copy.close()
        self._sequence, self._log_end = copy.sequence, 0
        self._pieces: list[Any] = []

    def record(self) -> None:
        """Record the log and the events since the last call."""
        backlog = self._store.journal.backlog
        assert backlog is not None
        while events := backlog.after(self._sequence):
            for event in events:
                self._log(event.log_offset)
                self._pieces.append(["event", *event])
                self._sequence = event.sequence
        if not self._store._closed:
            self._log(self._store.max_physical_offset)

    def _log(self, end: int) -> None:
        while self._log_end < end:
            with self._store.log_slice(self._log_end, min(end, self._log_end + 500)) as part:
                self._pieces.append(["log", part.offset, 0, bytes(part.view)])
                self._log_end = part.end

    def save(self, path: Path) -> None:
        """Write the record to a file for the program."""
        path.write_bytes(msgpack.packb([self._copy, self._pieces]))


class Doom:
    """Kills this process soon after a number of pieces."""

    def __init__(self, pieces: int) -> None:
        self._left = pieces

    def note(self, what: bytes) -> None:
        """Print what the next piece is."""
        os.write(1, what)
        self._left -= 1
        if not self._left:
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGKILL)).start()


def main(directory: Path, stream: Path, pieces_left: int) -> None:
    """Replay the stream."""
    doom = Doom(pieces_left)
    (sequence, parts), pieces = msgpack.unpackb(stream.read_bytes())
    store = Store.open(directory, CONFIG, is_replica=True)
    if store.journal.last < sequence or store.journal.is_lossy:
        doom.note(b"copy\n")
        incoming = IncomingJournal(StorePaths(directory).state_journal)
        for part in parts:
            doom.note(b"part\n")
            incoming.write(decode_part(part))
        incoming.sync()
        store.close()
        incoming.install()
        store = Store.open(directory, CONFIG, is_replica=True)
    for kind, place, log_offset, content in pieces:
        if kind == "log" and place + len(content) > store.received_offset:
            doom.note(b"log\n")
            store.append_replicated(store.received_offset, content[store.received_offset - place :])
        elif kind == "event" and place > store.journal.last:
            doom.note(b"event\n")
            store.append_events([JournalEvent(place, log_offset, content)])
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
