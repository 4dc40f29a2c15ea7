"""Kill a backup and a restore at each of their steps: earlier backups stay whole, the broker is unaffected."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.client import Admin, Connection, Message, Producer
from raymq.cluster import backup_store, list_backups, restore_store, verify_backups
from raymq.storage.backup.backup_writer import BackupReport
from raymq.storage.config import StoreConfig
from raymq.storage.errors import BackupFailed, InvalidInput
from raymq.storage.failpoints import NAMES
from raymq.storage.store import Store
from tests.broker_process import BrokerProcess
from tests.crash.killed_call import run_killed
from tests.polling import poll_until
from tests.store_records import bodies

pytestmark = pytest.mark.crash

STORE = {"commitlog_file_bytes": 1 << 20, "index_slots": 100, "index_entries": 10_000}
OF_BACKUPS = tuple(name for name in NAMES if name.startswith("backup."))
OF_RESTORING = tuple(name for name in NAMES if name.startswith("restore."))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, Path, Connection]]:
    directory = tmp_path_factory.mktemp("backups")
    process = BrokerProcess("broker-a", directory, store=STORE)
    with Connection([process.name_server]) as mq:
        with Admin(mq) as admin:
            admin.create_topic("t", queues=1)
        yield process, directory / "broker-a", mq
    process.stop()


def send(mq: Connection, *texts: str) -> None:
    with Producer(mq, "p") as producer:
        producer.send_batch([Message("t", text.encode() * 1_000) for text in texts])


def stored_bodies(directory: Path) -> list[bytes]:
    with Store.open(directory, StoreConfig(**STORE)) as store:  # type: ignore[arg-type]
        return [body[:2] for body in bodies(store, "t", 0)]


def test_killed_backup_keeps_earlier_backups(broker: tuple[BrokerProcess, Path, Connection], tmp_path: Path) -> None:
    process, directory, mq = broker
    target = tmp_path / "target"
    sent = ["00"] * 300
    send(mq, *sent)
    backup_store(directory, target)
    for number, failpoint in enumerate([*OF_BACKUPS, *(f"replace.before_rename:{n}" for n in (1, 2))], 1):
        sent += [f"{number:02}"] * 300
        send(mq, *sent[-300:])
        good = {each.name for each in list_backups(target)}
        assert run_killed(failpoint, lambda: backup_store(directory, target, keep=1)) == -signal.SIGKILL, failpoint
        is_made = failpoint in ("backup.after_manifest", "backup.before_object_removed")
        assert len({each.name for each in list_backups(target)} - good) == is_made
        assert verify_backups(target).bad == []
        send(mq, "xx")  # the broker continues
        sent.append("xx")
        made = poll_until(lambda: try_backup(directory, target), what="what the dead one held is given back")
        assert [each.name for each in list_backups(target)] == [made.name]
    files = {path for path in target.rglob("*") if path.is_file()}
    named = {extent.object for extent in list_backups(target)[0].extents()}
    assert len(files) == len(named) + 1, "nothing is left of those that were killed"
    restore_store(target, tmp_path / "restored")
    assert stored_bodies(tmp_path / "restored") == [text.encode() for text in sent]
    assert not process.is_dead


def try_backup(directory: Path, target: Path) -> BackupReport | None:
    """Make a backup, unless another one is running."""
    try:
        return backup_store(directory, target, keep=1)
    except BackupFailed:
        return None


@pytest.mark.parametrize("failpoint", [*OF_RESTORING, "restore.before_file:4"])
def test_killed_restore_is_refused_and_repeatable(
    broker: tuple[BrokerProcess, Path, Connection], tmp_path: Path, failpoint: str
) -> None:
    _, directory, mq = broker
    send(mq, "aa")
    backup_store(directory, tmp_path / "target")
    there = tmp_path / "restored"
    assert run_killed(failpoint, lambda: restore_store(tmp_path / "target", there)) == -signal.SIGKILL
    with pytest.raises(InvalidInput, match="being restored"):
        Store.open(there)
    restore_store(tmp_path / "target", there)
    assert stored_bodies(there)[-1] == b"aa"
    with pytest.raises(InvalidInput, match="empty"):
        restore_store(tmp_path / "target", there)


@pytest.mark.parametrize("failpoint", ["replace.before_write", "replace.before_sync", "replace.before_rename"])
def test_restore_killed_before_its_marker_is_repeatable(
    broker: tuple[BrokerProcess, Path, Connection], tmp_path: Path, failpoint: str
) -> None:
    _, directory, mq = broker
    send(mq, "bb")
    backup_store(directory, tmp_path / "target")
    there = tmp_path / "restored"
    assert run_killed(failpoint, lambda: restore_store(tmp_path / "target", there)) == -signal.SIGKILL
    restore_store(tmp_path / "target", there)
    assert stored_bodies(there)[-1] == b"bb"
