"""Test the format number of a store directory, and that newer formats are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raymq.actors.broker.service import BrokerService
from raymq.actors.protocol import BrokerSpec
from raymq.storage import directory_format
from raymq.storage.backup.backup_manifest import decode
from raymq.storage.backup.backup_reader import read_catalog
from raymq.storage.backup.backup_restore import restore
from raymq.storage.backup.backup_retention import prune_backups
from raymq.storage.backup.backup_source import StoppedDirectory
from raymq.storage.backup.backup_state import is_backup_path
from raymq.storage.backup.backup_target import FolderTarget
from raymq.storage.backup.backup_verification import verify_backups
from raymq.storage.backup.backup_writer import create_backup
from raymq.storage.directory_format import DirectoryFormat, read_format, write_format
from raymq.storage.emergency_cleaner import EmergencyCleaner
from raymq.storage.empty_log import create_empty_log
from raymq.storage.errors import FormatTooNew, StoreCorrupt
from raymq.storage.files import json_file
from raymq.storage.store import Store
from raymq.storage.table_repair import find_broken, repair
from raymq.storage.version import VERSION
from tests.store_records import SMALL, append, bodies, make_record

HERE = DirectoryFormat(directory_format.CURRENT_FORMAT, VERSION)
NEWER = DirectoryFormat(directory_format.CURRENT_FORMAT + 1, "9.8.7")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "broker-a"
    with Store.open(made, SMALL) as store:
        append(store, make_record(b"one"))
    return made


def files_of(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(each): (each.read_bytes() if each.is_file() else b"", each.stat().st_mtime_ns)
        for each in (directory, *directory.rglob("*"))
    }


def format_files(directory: Path) -> list[Path]:
    path = directory_format.path_of(directory)
    return [path, json_file.backup_path_of(path)]


def test_new_directory_has_the_current_format(directory: Path) -> None:
    assert read_format(directory) == HERE
    assert [each.read_bytes() for each in format_files(directory)] == [format_files(directory)[0].read_bytes()] * 2
    fields = json.loads(format_files(directory)[0].read_bytes())
    assert (fields["format"], fields["writtenBy"]) == (3, VERSION)


def test_directory_without_format_file_has_the_first_format(directory: Path) -> None:
    for each in format_files(directory):
        each.unlink()
    assert read_format(directory) == DirectoryFormat(1, "")
    with Store.open(directory, SMALL, read_only=True) as store:
        assert bodies(store) == [b"one"]
    assert not format_files(directory)[0].exists()  # a read-only store writes nothing
    with Store.open(directory, SMALL) as store:
        assert bodies(store) == [b"one"]
    assert read_format(directory) == HERE


def test_start_with_the_same_format_writes_nothing(directory: Path) -> None:
    before = [(each.stat().st_ino, each.stat().st_mtime_ns) for each in format_files(directory)]
    Store.open(directory, SMALL).close()
    assert [(each.stat().st_ino, each.stat().st_mtime_ns) for each in format_files(directory)] == before


async def start_broker(directory: Path) -> None:
    await BrokerService.start(BrokerSpec("broker-a", "c", str(directory), "127.0.0.1", ("127.0.0.1:1",)), "node")


async def start_replica(directory: Path) -> None:
    keepers = {"number": 1, "addresses": ["127.0.0.1:1"]}
    spec = BrokerSpec(
        "broker-a", "c", str(directory), "127.0.0.1", ("127.0.0.1:1",), keepers=keepers, replica=1, replicas=2
    )
    await BrokerService.start(spec, "node")


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda directory: Store.open(directory, SMALL), id="open"),
        pytest.param(lambda directory: Store.open(directory, SMALL, read_only=True), id="read-only"),
        pytest.param(lambda directory: Store.open(directory, SMALL, is_replica=True), id="follow"),
        pytest.param(lambda directory: asyncio.run(start_broker(directory)), id="broker"),
        pytest.param(lambda directory: asyncio.run(start_replica(directory)), id="replica"),
        pytest.param(StoppedDirectory, id="backup"),
        pytest.param(find_broken, id="find-broken"),
        pytest.param(repair, id="repair"),
        pytest.param(lambda directory: create_empty_log(directory, SMALL, 0), id="begin-log"),
        pytest.param(lambda directory: EmergencyCleaner(directory, SMALL, lambda: 0).step(), id="make-room"),
    ],
)
def test_newer_directory_is_refused_unchanged(directory: Path, use: Callable[[Path], object]) -> None:
    write_format(directory, NEWER)
    before = files_of(directory)
    with pytest.raises(FormatTooNew, match=r"by RayMQ 9.8.7 in format 4; this RayMQ supports formats up to") as raised:
        use(directory)
    assert (raised.value.found, raised.value.known, raised.value.written_by) == (4, 3, "9.8.7")
    assert "use RayMQ 9.8.7 or later" in raised.value.remedy
    assert files_of(directory) == before


def test_upgrade_while_waiting_for_the_lock_is_detected(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The format that was read before the lock was taken may be outdated.
    from raymq.storage import store_paths as layout

    class Taken(layout.DirectoryLock):
        def __init__(self, path: Path, pid_hint: Path) -> None:
            write_format(directory, NEWER)
            super().__init__(path, pid_hint)

    monkeypatch.setattr(layout, "DirectoryLock", Taken)
    with pytest.raises(FormatTooNew):
        Store.open(directory, SMALL)
    monkeypatch.undo()
    write_format(directory, HERE)
    Store.open(directory, SMALL).close()  # the lock was released


def test_older_directory_is_upgraded_by_a_writing_store(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_format, "CURRENT_FORMAT", 4)
    with Store.open(directory, SMALL, read_only=True):
        assert read_format(directory) == HERE
    with Store.open(directory, SMALL) as store:
        assert read_format(directory) == DirectoryFormat(4, VERSION)
        assert bodies(store) == [b"one"]
    monkeypatch.undo()
    with pytest.raises(FormatTooNew):
        Store.open(directory, SMALL)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"format":"1","writtenBy":"x"}', b'{"format":0,"writtenBy":""}']
)
@pytest.mark.parametrize("damaged", [0, 1])
def test_damaged_format_file_is_repaired_from_the_other(directory: Path, damaged: int, content: bytes) -> None:
    write_format(directory, NEWER)
    format_files(directory)[damaged].write_bytes(content)
    assert read_format(directory) == NEWER
    write_format(directory, HERE)
    format_files(directory)[damaged].write_bytes(content)
    Store.open(directory, SMALL).close()
    assert format_files(directory)[0].read_bytes() == format_files(directory)[1].read_bytes()
    assert read_format(directory) == HERE


def test_flipped_bit_in_the_format_file_is_detected(directory: Path) -> None:
    whole = format_files(directory)[0].read_bytes()
    format_files(directory)[1].unlink()
    for bit in range(8 * len(whole)):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        format_files(directory)[0].write_bytes(content)
        try:
            assert read_format(directory) == HERE  # a flip in the seal's name leaves no seal
        except StoreCorrupt:
            continue


def test_store_does_not_open_with_two_damaged_format_files(directory: Path) -> None:
    for each in format_files(directory):
        each.write_bytes(b"x")
    before = files_of(directory)
    with pytest.raises(StoreCorrupt, match=r"raymq-format\.json"):
        Store.open(directory, SMALL)
    assert files_of(directory) == before


def test_larger_of_two_formats_counts(directory: Path) -> None:
    # A kill between the two writes leaves the new format in the spare file.
    first = format_files(directory)[0].read_bytes()
    write_format(directory, NEWER)
    format_files(directory)[0].write_bytes(first)
    assert read_format(directory) == NEWER


def test_format_files_are_no_state_of_a_backup(directory: Path) -> None:
    assert not any(is_backup_path(str(each.relative_to(directory))) for each in format_files(directory))


# Backups


@pytest.fixture
def target(tmp_path: Path, directory: Path) -> FolderTarget:
    made = FolderTarget(tmp_path / "target")
    with StoppedDirectory(directory) as source:
        create_backup(source, made, name="one")
    return made


def test_backup_keeps_the_format_for_restore(tmp_path: Path, directory: Path, target: FolderTarget) -> None:
    (manifest,) = read_catalog(target).backups
    assert manifest.store == HERE
    restore(target, tmp_path / "restored")
    assert read_format(tmp_path / "restored") == HERE


def test_backup_of_a_newer_directory_is_not_restored(
    tmp_path: Path, directory: Path, target: FolderTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(directory_format, "CURRENT_FORMAT", 4)
        newer.setattr(directory_format, "VERSION", "9.8.7")
        Store.open(directory, SMALL).close()
        with StoppedDirectory(directory) as source:
            create_backup(source, target, name="two")
    for dry_run in (True, False):
        with pytest.raises(FormatTooNew, match=r"backup two of .* by RayMQ 9.8.7 in format 4"):
            restore(target, tmp_path / "restored", dry_run=dry_run)
    assert not (tmp_path / "restored").exists()
    restore(target, tmp_path / "restored", at="one")  # the backup from before the upgrade
    assert read_format(tmp_path / "restored") == HERE


def test_backups_in_a_newer_format_are_reported_and_kept(
    tmp_path: Path, directory: Path, target: FolderTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raymq.storage.backup.backup_manifest.FORMAT", 2)
    monkeypatch.setattr("raymq.storage.backup.backup_manifest.VERSION", "9.8.7")
    with Store.open(directory, SMALL) as store:
        append(store, make_record(b"two"))
    with StoppedDirectory(directory) as source:
        create_backup(source, target, name="two")
    monkeypatch.undo()
    objects = target.objects()
    with pytest.raises(FormatTooNew, match=r"RayMQ 9\.8\.7"):
        decode("here", target.read_manifest("two"))
    assert [each.name for each in read_catalog(target).backups] == ["one"]
    with pytest.raises(FormatTooNew):
        restore(target, tmp_path / "restored")
    restore(target, tmp_path / "restored", at="one")
    (bad,) = verify_backups(target).bad
    assert bad.object.endswith("two.json")
    with StoppedDirectory(directory) as source, pytest.raises(FormatTooNew):
        create_backup(source, target)
    prune_backups(target, 1)
    assert target.objects() == objects
