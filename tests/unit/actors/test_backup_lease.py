"""Test what a broker retains for a backup, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.broker.core import backup_lease as module
from raymq.actors.broker.core.backup_lease import LEASE_SECONDS, BackupLeases
from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.errors import InvalidInput
from raymq.storage.errors import BackupFailed, StateMismatch
from raymq.storage.log.retention import DiskUsage
from raymq.storage.store import Store
from tests.store_records import EXPIRING, append, make_record
from tests.unit.actors.clock import FakeClock

START_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Yield a store whose first files have expired."""
    now = [START_MS]
    config = replace(EXPIRING, commitlog_file_bytes=1 << 14)
    with Store.open(tmp_path, config, now_ms=lambda: now[0]) as store:
        for _ in range(100):
            append(store, make_record(b"x" * 1000))
        store.flush()
        now[0] += 7_200_000
        yield store


def test_backup_lease_blocks_file_deletion(store: Store, clock: FakeClock) -> None:
    core = BrokerCore("b", store, elapsed=clock)
    core.backups = BackupLeases(store, clock)
    lease = core.backups.begin()
    assert core.delete_expired().log_files == 0
    second = store.min_physical_offset + (1 << 14)
    core.backups.renew(lease.id, second + 5)
    assert core.delete_expired().log_files == 1
    assert store.min_physical_offset == second
    with pytest.raises(InvalidInput, match="from"):
        core.backups.renew(lease.id, second)
    core.backups.end(lease.id)
    assert core.delete_expired().log_files > 1


def test_full_disk_overrides_backup_lease(store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    core = BrokerCore("b", store, elapsed=clock)
    core.backups = BackupLeases(store, clock)
    core.backups.begin()

    class Full:
        @staticmethod
        def of(_: Path) -> DiskUsage:
            return DiskUsage(86, 14)

    monkeypatch.setattr(module, "DiskUsage", Full)
    assert core.delete_expired().log_files > 0
    core.backups.end()


def test_backup_lease_expires(store: Store, clock: FakeClock) -> None:
    backups = BackupLeases(store, clock)
    lease = backups.begin()
    with pytest.raises(BackupFailed, match="another backup"):
        backups.begin()
    clock.now += LEASE_SECONDS - 1
    assert backups.renew(lease.id) is lease
    clock.now += LEASE_SECONDS - 1
    assert backups.retained_from() == store.min_physical_offset
    clock.now += 1
    assert backups.retained_from() is None
    with pytest.raises(StateMismatch):
        list(lease.parts)  # its files are closed
    with pytest.raises(BackupFailed, match="start a new backup"):
        backups.renew(lease.id)
    other = backups.begin()
    backups.end(lease.id)
    assert backups.retained_from() is not None, "the end of a former one says nothing of this one"
    backups.end(other.id)
    backups.end(other.id)
