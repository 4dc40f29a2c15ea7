"""The replica of test_state_prefixes.py: it applies what a master shipped, until it is killed.

    python state_follower.py DIRECTORY STREAM

It prints a line before each piece of the stream, and "snapshot" before it loads the full state. After a kill it
continues where it was.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgpack

from raymq.storage.state.state_changes import StateChange
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.store import Store
from tests.crash.power_loss_broker import CONFIG


class Recording:
    """A record of what a master ships, to be replayed in a process."""

    def __init__(self, store: Store, recorder: StateRecorder) -> None:
        self._store, self._recorder = store, recorder
        snapshot = recorder.snapshot()
        self._snapshot: list[Any] = [snapshot.sequence, list(snapshot.parts())]
        snapshot.close()
        self._sequence, self._log_end = snapshot.sequence, 0
        self._events: list[Any] = []

    def record(self) -> None:
        """Record the changes since the last call."""
        while changes := self._recorder.after(self._sequence):
            for change in changes:
                self._log(change.log_offset)
                self._events.append(["state", change.sequence, change.log_offset, change.payload])
                self._sequence = change.sequence
        if not self._store._closed:
            self._log(self._store.max_physical_offset)

    def _log(self, end: int) -> None:
        while self._log_end < end:
            with self._store.log_slice(self._log_end, min(end, self._log_end + 500)) as part:
                self._events.append(["log", part.offset, 0, bytes(part.view)])
                self._log_end = part.end

    def save(self, path: Path) -> None:
        """Write the record to a file for the program."""
        path.write_bytes(msgpack.packb([self._snapshot, self._events]))


def main(directory: Path, stream: Path) -> None:
    """Replay the stream."""
    (sequence, parts), events = msgpack.unpackb(stream.read_bytes())
    replica = StateReplica(directory)
    if not replica.last:
        os.write(1, b"snapshot\n")
        replica.begin_snapshot()
        for part in parts:
            os.write(1, b"part\n")
            replica.load(part)
        replica.end_snapshot(sequence)
    store = Store.open(directory, CONFIG, is_replica=True)
    for kind, place, log_offset, content in events:
        if kind == "log" and place + len(content) > store.received_offset:
            os.write(1, b"log\n")
            store.append_replicated(store.received_offset, content[store.received_offset - place :])
        elif kind == "state" and place > replica.last:
            os.write(1, b"state\n")
            replica.apply([StateChange(place, log_offset, content)])
    replica.sync()
    store.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
