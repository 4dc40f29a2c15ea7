"""A directory says which format RayMQ's own files in it have; what a newer RayMQ has written is refused untouched."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raymq.actors.broker.replica.service import ReplicaService
from raymq.actors.broker.service import BrokerService
from raymq.actors.protocol import BrokerSpec
from raymq.storage import directory_format
from raymq.storage.backup.backup_manifest import decode
from raymq.storage.backup.backup_reader import read_catalog
from raymq.storage.backup.backup_restore import restore
from raymq.storage.backup.backup_retention import prune_backups
from raymq.storage.backup.backup_source import StoppedDirectory
from raymq.storage.backup.backup_target import FolderTarget
from raymq.storage.backup.backup_verification import verify_backups
from raymq.storage.backup.backup_writer import create_backup
from raymq.storage.directory_format import DirectoryFormat, read_format, write_format
from raymq.storage.emergency_cleaner import EmergencyCleaner
from raymq.storage.empty_log import create_empty_log
from raymq.storage.errors import FormatTooNew, StoreCorrupt
from raymq.storage.files import json_file
from raymq.storage.state.state_files import is_state
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


def both(directory: Path) -> list[Path]:
    path = directory_format.path_of(directory)
    return [path, json_file.backup_path_of(path)]


def test_a_new_directory_says_the_present_format(directory: Path) -> None:
    assert read_format(directory) == HERE
    assert [each.read_bytes() for each in both(directory)] == [both(directory)[0].read_bytes()] * 2
    told = json.loads(both(directory)[0].read_bytes())
    assert (told["format"], told["writtenBy"]) == (1, VERSION)


def test_a_directory_without_the_file_has_the_first_format(directory: Path) -> None:
    for each in both(directory):
        each.unlink()
    assert read_format(directory) == DirectoryFormat(1, "")
    with Store.open(directory, SMALL, read_only=True) as store:
        assert bodies(store) == [b"one"]
    assert not both(directory)[0].exists()  # who only looks writes nothing
    with Store.open(directory, SMALL) as store:
        assert bodies(store) == [b"one"]
    assert read_format(directory) == HERE


def test_a_start_of_the_same_format_writes_nothing(directory: Path) -> None:
    before = [(each.stat().st_ino, each.stat().st_mtime_ns) for each in both(directory)]
    Store.open(directory, SMALL).close()
    assert [(each.stat().st_ino, each.stat().st_mtime_ns) for each in both(directory)] == before


async def start_broker(directory: Path) -> None:
    await BrokerService.start(BrokerSpec("broker-a", "c", str(directory), "127.0.0.1", ("127.0.0.1:1",)), "node")


async def start_replica(directory: Path) -> None:
    keepers = {"number": 1, "addresses": ["127.0.0.1:1"]}
    spec = BrokerSpec("broker-a", "c", str(directory), "127.0.0.1", ("127.0.0.1:1",), keepers=keepers)
    await ReplicaService.start(spec, "node")


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
def test_a_newer_directory_is_refused_and_nothing_in_it_changes(directory: Path, use: Callable[[Path], object]) -> None:
    write_format(directory, NEWER)
    before = files_of(directory)
    with pytest.raises(FormatTooNew, match=r"by RayMQ 9.8.7 in format 2; this RayMQ supports formats up to") as raised:
        use(directory)
    assert (raised.value.found, raised.value.known, raised.value.written_by) == (2, 1, "9.8.7")
    assert "use RayMQ 9.8.7 or later" in raised.value.remedy
    assert files_of(directory) == before


def test_whoever_makes_a_directory_newer_while_another_one_waits_for_its_lock_is_seen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was looked at before the lock was taken may be another one's of before."""
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
    Store.open(directory, SMALL).close()  # the lock was given back


def test_an_older_directory_is_raised_by_who_writes_there(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_format, "CURRENT_FORMAT", 2)
    with Store.open(directory, SMALL, read_only=True):
        assert read_format(directory) == HERE
    with Store.open(directory, SMALL) as store:
        assert read_format(directory) == DirectoryFormat(2, VERSION)
        assert bodies(store) == [b"one"]
    monkeypatch.undo()
    with pytest.raises(FormatTooNew):
        Store.open(directory, SMALL)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"format":"1","writtenBy":"x"}', b'{"format":0,"writtenBy":""}']
)
@pytest.mark.parametrize("damaged", [0, 1])
def test_one_damaged_file_of_the_two_is_made_good(directory: Path, damaged: int, content: bytes) -> None:
    write_format(directory, NEWER)
    both(directory)[damaged].write_bytes(content)
    assert read_format(directory) == NEWER
    write_format(directory, HERE)
    both(directory)[damaged].write_bytes(content)
    Store.open(directory, SMALL).close()
    assert both(directory)[0].read_bytes() == both(directory)[1].read_bytes()
    assert read_format(directory) == HERE


def test_every_flipped_bit_is_noticed(directory: Path) -> None:
    whole = both(directory)[0].read_bytes()
    both(directory)[1].unlink()
    for bit in range(8 * len(whole)):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        both(directory)[0].write_bytes(content)
        try:
            assert read_format(directory) == HERE  # a bit of the seal's name: then it is an object without one
        except StoreCorrupt:
            continue


def test_where_neither_can_be_read_nobody_opens_it(directory: Path) -> None:
    for each in both(directory):
        each.write_bytes(b"x")
    before = files_of(directory)
    with pytest.raises(StoreCorrupt, match=r"raymq-format\.json"):
        Store.open(directory, SMALL)
    assert files_of(directory) == before


def test_the_larger_number_counts(directory: Path) -> None:
    """A death between the two leaves the new one in the spare file."""
    first = both(directory)[0].read_bytes()
    write_format(directory, NEWER)
    both(directory)[0].write_bytes(first)
    assert read_format(directory) == NEWER


def test_no_master_ships_it(directory: Path) -> None:
    assert not any(is_state(str(each.relative_to(directory))) for each in both(directory))


# Backups


@pytest.fixture
def target(tmp_path: Path, directory: Path) -> FolderTarget:
    made = FolderTarget(tmp_path / "target")
    with StoppedDirectory(directory) as source:
        create_backup(source, made, name="one")
    return made


def test_a_backup_says_the_format_and_what_is_restored_has_it(
    tmp_path: Path, directory: Path, target: FolderTarget
) -> None:
    (manifest,) = read_catalog(target).backups
    assert manifest.store == HERE
    restore(target, tmp_path / "restored")
    assert read_format(tmp_path / "restored") == HERE


def test_a_backup_of_a_newer_directory_is_not_restored(
    tmp_path: Path, directory: Path, target: FolderTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(directory_format, "CURRENT_FORMAT", 2)
        newer.setattr(directory_format, "VERSION", "9.8.7")
        Store.open(directory, SMALL).close()
        with StoppedDirectory(directory) as source:
            create_backup(source, target, name="two")
    for dry_run in (True, False):
        with pytest.raises(FormatTooNew, match=r"backup two of .* by RayMQ 9.8.7 in format 2"):
            restore(target, tmp_path / "restored", dry_run=dry_run)
    assert not (tmp_path / "restored").exists()
    restore(target, tmp_path / "restored", at="one")  # of before the upgrade
    assert read_format(tmp_path / "restored") == HERE


def test_backups_in_a_newer_form_are_named_and_nothing_of_theirs_goes(
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
