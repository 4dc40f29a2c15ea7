"""Test that a replica's state is not taken as durable after a failed sync."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput, StoreFailed
from raymq.storage.files import fileutil
from raymq.storage.files.file_calls import replaced
from raymq.storage.state.state_recorder import StateRecorder
from raymq.storage.state.state_replica import StateReplica
from tests.faulty_calls import FaultyCalls
from tests.state_shipping import ship_state, state_of, take_snapshot


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[StateRecorder]:
    made = StateRecorder.begin(tmp_path / "master", log_end=lambda: 0)
    yield made
    made.stop()


@pytest.fixture
def replica(recorder: StateRecorder, tmp_path: Path) -> Iterator[StateReplica]:
    """Create a replica with three unsynced files, whose first sync has failed."""
    made = StateReplica(tmp_path / "replica")
    take_snapshot(recorder, made)
    for name in ("a", "b", "c"):
        fileutil.replace(recorder.directory / "raymq" / name, name.encode())
    ship_state(recorder, made)
    with replaced(FaultyCalls("fdatasync", 1, errno.EIO)), pytest.raises(StoreFailed):
        made.sync()
    yield made
    made.close()


def test_sync_after_a_failed_sync_fails_too(replica: StateReplica) -> None:
    for _ in range(2):
        with pytest.raises(StoreFailed):
            replica.sync()
    assert replica.is_lost


def test_replica_refuses_changes_after_a_failed_sync(recorder: StateRecorder, replica: StateReplica) -> None:
    assert replica.last == 0
    fileutil.replace(recorder.directory / "raymq" / "d", b"d")
    with pytest.raises(InvalidInput):
        replica.apply(recorder.after(recorder.last - 1))


def test_restarted_replica_has_no_sequence_number(replica: StateReplica) -> None:
    replica.close()
    again = StateReplica(replica.directory)
    assert again.last == 0
    again.close()


def test_snapshot_recovers_from_a_failed_sync(recorder: StateRecorder, replica: StateReplica) -> None:
    take_snapshot(recorder, replica)
    replica.sync()
    assert not replica.is_lost
    assert replica.last == recorder.last
    assert state_of(replica.directory) == state_of(recorder.directory)


def test_recorder_after_a_failed_sync_requires_snapshots(recorder: StateRecorder, replica: StateReplica) -> None:
    before = recorder.last
    elected = StateRecorder.begin(replica.directory, log_end=lambda: 0, predecessor=replica)
    try:
        assert elected.last == elected.folded > before
    finally:
        elected.stop()
