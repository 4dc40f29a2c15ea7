"""Read the state of store directories, and ship state from a recorder to a replica."""

from __future__ import annotations

import random
from pathlib import Path

from raymq.storage.state.state_files import is_state
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from raymq.storage.store import Store


def state_of(directory: Path) -> dict[str, bytes | None]:
    """Return the content of all state files by path; None for a folder."""
    found: dict[str, bytes | None] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if is_state(name):
            found[name] = None if path.is_dir() else path.read_bytes()
    return found


def take_snapshot(recorder: StateRecorder, replica: StateReplica) -> None:
    """Give the replica a snapshot of the current state."""
    snapshot = recorder.snapshot()
    try:
        replica.begin_snapshot()
        for part in snapshot.parts():
            assert len(part) < 1 << 20
            replica.load(part)
        replica.end_snapshot(snapshot.sequence)
    finally:
        snapshot.close()


def ship_state(recorder: StateRecorder, replica: StateReplica, log_end: int = 1 << 62) -> None:
    """Give the replica all missing changes that refer to the log before `log_end`."""
    while changes := [each for each in recorder.after(replica.last) if each.log_offset <= log_end]:
        replica.apply(changes)


class StateShipper:
    """Ships a master's log and state to a replica in the master's order."""

    def __init__(self, master: Store, recorder: StateRecorder, follower: Store, replica: StateReplica) -> None:
        self._master, self._recorder = master, recorder
        self._follower, self._replica = follower, replica

    def step(self, most_bytes: int = 1 << 20, most_changes: int = 1024) -> bool:
        """Ship a piece of log or some changes; return False if nothing is missing."""
        pending = self._recorder.after(self._replica.last)
        end = min([self._master.max_physical_offset, *(each.log_offset for each in pending[:1])])
        begin = self._follower.received_offset
        if begin < end:
            with self._master.log_slice(begin, min(end, begin + most_bytes)) as part:
                self._follower.append_replicated(part.offset, part.view)
            return True
        due = [each for each in pending[:most_changes] if each.log_offset <= end]
        self._replica.apply(due)
        return bool(due)

    def all(self) -> None:
        """Ship until the replica has all."""
        while self.step():
            pass

    def some(self, random_: random.Random) -> None:
        """Ship a random number of pieces."""
        for _ in range(random_.choice((0, 1, 5, 40))):
            self.step(random_.choice((1, 100, 5_000)), random_.choice((1, 1, 3)))


def ship_all(master: Store, recorder: StateRecorder, follower: Store, replica: StateReplica) -> None:
    """Ship all log and state in the master's order."""
    StateShipper(master, recorder, follower, replica).all()
