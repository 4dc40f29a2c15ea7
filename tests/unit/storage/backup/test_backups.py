"""Test backups of stopped directories: restore, verification, retention, forged manifests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replication.replica_claims import ClaimRefused, ReplicaClaim, apply_claim
from raymq.actors.keeper.group_state import GroupState, ReplicaRecord
from raymq.storage.backup import backup_manifest as layout
from raymq.storage.backup.backup_progress import BackupProgress
from raymq.storage.backup.backup_reader import read_catalog
from raymq.storage.backup.backup_restore import RestoreReport, restore
from raymq.storage.backup.backup_retention import prune_backups
from raymq.storage.backup.backup_source import StoppedDirectory
from raymq.storage.backup.backup_target import FolderTarget, open_target, without_secrets
from raymq.storage.backup.backup_verification import verify_backups
from raymq.storage.backup.backup_writer import BackupReport, create_backup
from raymq.storage.errors import BackupFailed, InvalidInput, StoreCorrupt, StoreLocked
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from raymq.storage.tables.broker_identity import read_broker_identity, write_identity
from raymq.storage.tables.topic_config import TopicConfig
from raymq.storage.verify import verify
from tests.faulty_calls import UnsyncedCalls
from tests.state_shipping import state_of
from tests.store_records import EXPIRING, SMALL, append, bodies, flip_byte, make_record
from tests.store_replication import fill, log_content

CONFIG = replace(SMALL, commitlog_file_bytes=1 << 14)


@pytest.fixture(autouse=True)
def skip_disk_syncs() -> Iterator[None]:
    with replaced(UnsyncedCalls()):
        yield


@pytest.fixture
def target(tmp_path: Path) -> FolderTarget:
    return FolderTarget(tmp_path / "target")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Create a directory of two topics, with some of everything beside the log."""
    made = tmp_path / "store"
    with Store.open(made, CONFIG) as store:
        fill(store, 60)
        store.topic_configs.put(TopicConfig("orders", 4, 4))
        store.consumer_offsets.commit("g", "orders", 0, 5)
    write_identity(made / "raymq" / "broker.json", name="broker-a", cluster="c", host="h", port=7, epoch=3)
    return made


def back_up(directory: Path, target: FolderTarget, **options: object) -> BackupReport:
    with StoppedDirectory(directory) as source:
        return create_backup(source, target, **options)  # type: ignore[arg-type]


def contents(directory: Path) -> dict[str, object]:
    """Return what readers see."""
    with Store.open(directory, CONFIG) as store:
        return {
            "orders": [bodies(store, "orders", queue_id) for queue_id in store.queues("orders")],
            "parts": [bodies(store, "parts", queue_id) for queue_id in store.queues("parts")],
            "offset": store.consumer_offsets.get("g", "orders", 0),
            "topic": store.topic_configs.get("orders"),
            "by key": [each.body for each in store.query("orders", "k3.0", 0, 1 << 62, 10)],
        }


def test_restored_directory_equals_the_original(tmp_path: Path, directory: Path, target: FolderTarget) -> None:
    progress: list[BackupProgress] = []
    report = back_up(directory, target, progress=progress.append)
    assert report.copied_bytes == report.bytes == progress[-1].done_bytes
    assert [each.done_bytes for each in progress] == sorted(each.done_bytes for each in progress)
    restored = restore(target, tmp_path / "restored")
    assert (restored.files, restored.broker, restored.restored) == (report.files, "broker-a", True)
    assert log_content(tmp_path / "restored") == log_content(directory)
    assert state_of(tmp_path / "restored") == state_of(directory)
    assert verify(tmp_path / "restored").bad_records == 0
    assert contents(tmp_path / "restored") == contents(directory)
    assert contents(directory)["by key"]


def test_restored_directory_has_new_identity_and_epoch(tmp_path: Path, directory: Path, target: FolderTarget) -> None:
    # No keeper takes the copy for the original, whose place in the group it cannot have.
    original = ReplicaFile(directory).now
    with Store.open(directory, CONFIG) as store:
        epoch = store.epoch
    back_up(directory, target)
    for new_address, port in ((False, 7), (True, 0)):
        there = tmp_path / f"restored{port}"
        restore(target, there, new_address=new_address)
        assert read_broker_identity(there / "raymq" / "broker.json").port == port
        with Store.open(there, CONFIG) as store:
            assert store.epoch != epoch
            assert not store.recovery.clean
        copy = ReplicaFile(there).now
        assert copy.identity != original.identity
        known = ReplicaRecord(original.identity, "h:1", "nonce")
        state = GroupState().with_replica(1, known)
        claim = ReplicaClaim(1, ReplicaRecord(copy.identity, "h:2", "new"), copy.nonces)
        with pytest.raises(ClaimRefused, match=original.identity):
            apply_claim(state, claim, registered_answers=False)


@pytest.mark.parametrize("made_anew", [False, True])
def test_restore_keeps_queue_ends_of_expired_messages(tmp_path: Path, target: FolderTarget, made_anew: bool) -> None:
    # This holds also for a topic that was deleted and recreated before.
    now_ms = 1_700_000_000_000
    with Store.open(tmp_path / "store", EXPIRING, now_ms=lambda: now_ms) as store:
        append(store, make_record(b"quiet", topic="quiet"))
        if made_anew:
            store.delete_topic("quiet")
        append(store, *[make_record(b"quiet", topic="quiet")] * 3)
        end = store.max_offset("quiet", 0)
        store.consumer_offsets.commit("g", "quiet", 0, end)
        append(store, *[make_record(30_000 * b"x", topic="busy")] * 3)
        store.flush()
        now_ms += 2 * 3_600_000
        append(store, make_record(b"y", topic="busy"))
        assert store.delete_expired().log_files
        assert store.min_offset("quiet", 0) == end
    back_up(tmp_path / "store", target)
    restore(target, tmp_path / "restored")
    with Store.open(tmp_path / "restored", EXPIRING, now_ms=lambda: now_ms) as store:
        assert store.consumer_offsets.get("g", "quiet", 0) == end
        assert append(store, make_record(b"new", topic="quiet")).queue_offsets.tolist() == [end]


@pytest.mark.parametrize("half", ["cut.json", "rebuild_queues", "state/expired_queues.json", "state.next"])
def test_directory_with_unfinished_recovery_is_not_backed_up(directory: Path, target: FolderTarget, half: str) -> None:
    (directory / "raymq" / half).write_bytes(b"")
    with pytest.raises(InvalidInput, match="a complete store, not one with an unfinished"):
        back_up(directory, target)


def test_backup_copies_only_new_data(tmp_path: Path, directory: Path, target: FolderTarget) -> None:
    first = back_up(directory, target)
    assert back_up(directory, target).copied_bytes == 0
    with Store.open(directory, CONFIG) as store:
        append(store, make_record(b"one more" * 10, topic="orders"))
    third = back_up(directory, target)
    assert 0 < third.copied_bytes < CONFIG.commitlog_file_bytes + 40_000
    assert third.copied_bytes < first.copied_bytes
    catalog = read_catalog(target)
    assert len(catalog.backups) == 3
    restore(target, tmp_path / "now")
    restore(target, tmp_path / "then", at=first.name)
    now, then = contents(tmp_path / "now"), contents(tmp_path / "then")
    assert now["parts"] == then["parts"]
    assert now["orders"] != then["orders"]


def test_rewritten_log_file_is_copied_again(tmp_path: Path, directory: Path, target: FolderTarget) -> None:
    # A replica that was truncated has log files of the same name with other bytes.
    back_up(directory, target)
    path = min((directory / "commitlog").iterdir())
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + b"x")
    back_up(directory, target)
    restore(target, tmp_path / "restored")
    assert log_content(tmp_path / "restored") == log_content(directory)


def test_restore_does_not_reuse_offsets_of_expired_messages(tmp_path: Path, target: FolderTarget) -> None:
    directory = tmp_path / "store"
    now_ms = 1_700_000_000_000
    with Store.open(directory, EXPIRING, now_ms=lambda: now_ms) as store:
        append(store, make_record(b"x" * 1000, topic="old"), make_record(b"x" * 1000, topic="old"))
        for _ in range(100):
            append(store, make_record(b"y" * 1000))
        store.flush()
    with Store.open(directory, EXPIRING, now_ms=lambda: now_ms + 7_200_000) as store:
        append(store, make_record(b"y"))
        store.flush()
        assert store.delete_expired().log_files > 0
        assert store.wait_for_removals(10)
        begin, end = store.min_offset("orders", 0), store.max_offset("orders", 0)
        assert store.max_offset("old", 0) == store.min_offset("old", 0) == 2
    report = back_up(directory, target)
    assert report.log_begin > 0
    restore(target, tmp_path / "restored")
    with Store.open(tmp_path / "restored", EXPIRING, now_ms=lambda: now_ms + 7_200_000) as store:
        assert store.max_offset("old", 0) == 2
        assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (begin, end)


def test_prune_removes_old_backups_and_their_objects(tmp_path: Path, directory: Path, target: FolderTarget) -> None:
    names = []
    for number in range(4):
        with Store.open(directory, CONFIG) as store:
            fill(store, 10, seed=number)
        names.append(back_up(directory, target, name=f"b{number}", now_ms=lambda n=number: 1_000 + n).name)
    target.write_object("0" * 64, b"of one that was broken off")
    before = target.objects()
    with pytest.raises(InvalidInput, match="at least 1"):
        prune_backups(target, 0)
    assert prune_backups(target, 2) == names[:2]
    assert prune_backups(target, 2) == []
    assert target.names() == names[2:]
    assert len(target.objects()) < len(before)
    assert "0" * 64 not in target.objects()
    assert verify_backups(target).bad == []
    assert back_up(directory, target, keep=1).gone == names[2:]
    assert verify_backups(target).bad == []
    restore(target, tmp_path / "restored")
    assert contents(tmp_path / "restored") == contents(directory)


def test_newest_backup_is_the_last_made_despite_the_clock(
    tmp_path: Path, directory: Path, target: FolderTarget
) -> None:
    # A clock set back must neither remove the newest backup nor have an older one restored.
    back_up(directory, target, name="a", now_ms=lambda: 9_000)
    with Store.open(directory, CONFIG) as store:
        store.consumer_offsets.commit("g", "orders", 0, 6)
    report = back_up(directory, target, name="b", now_ms=lambda: 1_000, keep=1)
    assert (report.name, report.gone, target.names()) == ("b", ["a"], ["b"])
    with Store.open(directory, CONFIG) as store:
        store.consumer_offsets.commit("g", "orders", 0, 7)
    back_up(directory, target, name="c", now_ms=lambda: 2_000)
    restore(target, tmp_path / "restored")
    assert contents(tmp_path / "restored")["offset"] == 7


def test_default_restore_is_refused_while_a_backup_is_damaged(
    directory: Path, target: FolderTarget, tmp_path: Path
) -> None:
    # The damaged backup may be the newest; an older one has to be asked for by name.
    back_up(directory, target, name="a", now_ms=lambda: 1)
    back_up(directory, target, name="b", now_ms=lambda: 2)
    flip_byte(tmp_path / "target" / "backups" / "b.json", 50)
    with pytest.raises(StoreCorrupt, match=r"b\.json.*--at") as raised:
        restore(target, tmp_path / "restored")
    assert "--at" in str(raised.value)
    assert not (tmp_path / "restored").exists()
    restore(target, tmp_path / "restored", at="a")


def test_failed_final_check_leaves_no_backup(directory: Path, target: FolderTarget) -> None:
    # Files read last may have been overwritten since the last check, as by a master that became a replica.

    class LostAtTheEnd(StoppedDirectory):
        def check(self) -> None:
            assert self.log_end
            assert target.objects()
            raise BackupFailed("nothing is held any more")

    with LostAtTheEnd(directory) as source, pytest.raises(BackupFailed, match="held any more"):
        create_backup(source, target)
    assert target.names() == []


def test_prune_keeps_all_objects_while_a_manifest_is_damaged(
    directory: Path, target: FolderTarget, tmp_path: Path
) -> None:
    back_up(directory, target, name="a", now_ms=lambda: 1)
    back_up(directory, target, name="b", now_ms=lambda: 2)
    before = target.objects()
    flip_byte(tmp_path / "target" / "backups" / "a.json", 50)
    prune_backups(target, 1)
    assert target.objects() == before
    report = verify_backups(target)
    assert [each.object.endswith("backups/a.json") for each in report.bad] == [True]
    with pytest.raises(StoreCorrupt, match=r"a\.json"):
        restore(target, tmp_path / "restored", at="a")
    restore(target, tmp_path / "restored", at="b")


def test_damaged_or_missing_object_is_named_in_the_report(
    directory: Path, target: FolderTarget, tmp_path: Path
) -> None:
    back_up(directory, target, name="a")
    objects = sorted(path for path in (tmp_path / "target" / "objects").rglob("*") if path.is_file())
    for number, path in enumerate(objects):
        content = path.read_bytes()
        damages = [content[:-1], content + b"x", b"", content[:5] + bytes([content[5] ^ 1]) + content[6:], None]
        damage = damages[number % len(damages)]
        path.unlink() if damage is None else path.write_bytes(damage)
        report = verify_backups(target)
        assert {each.object for each in report.bad} == {str(path)}
        assert {each.backup for each in report.bad} == {"a"}
        assert all(each.file for each in report.bad)
        with pytest.raises(StoreCorrupt, match=path.name):
            restore(target, tmp_path / "restored")
        with pytest.raises(InvalidInput, match="being restored"):
            Store.open(tmp_path / "restored", CONFIG)
        with pytest.raises(InvalidInput, match="a complete store"):
            back_up(tmp_path / "restored", FolderTarget(tmp_path / "other"))
        path.write_bytes(content)
    restore(target, tmp_path / "restored")
    assert contents(tmp_path / "restored") == contents(directory)


def test_next_backup_rewrites_truncated_objects(directory: Path, target: FolderTarget, tmp_path: Path) -> None:
    back_up(directory, target, name="a")
    path = max((p for p in (tmp_path / "target" / "objects").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    path.write_bytes(path.read_bytes()[:100])
    back_up(directory, target, name="b")
    assert verify_backups(target).bad == []


def test_restore_into_nonempty_directory_is_refused(directory: Path, target: FolderTarget, tmp_path: Path) -> None:
    back_up(directory, target)
    with pytest.raises(InvalidInput, match="empty"):
        restore(target, directory)
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "abort").write_bytes(b"1")
    with pytest.raises(InvalidInput, match="abort"):
        restore(target, tmp_path / "some")
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        for dry_run in (True, False):
            with pytest.raises(InvalidInput, match="folder"):
                restore(target, tmp_path / name, dry_run=dry_run)
    (tmp_path / "empty" / "lost+found").mkdir(parents=True)
    restore(target, tmp_path / "empty")
    assert (tmp_path / "empty" / "lost+found").is_dir()


def test_dry_run_restore_writes_nothing(directory: Path, target: FolderTarget, tmp_path: Path) -> None:
    back_up(directory, target)
    report: RestoreReport = restore(target, tmp_path / "restored", dry_run=True)
    assert not report.restored
    assert report.bytes > 0
    assert not (tmp_path / "restored").exists()
    name = next(iter(target.objects()))
    target.remove_object(name)
    with pytest.raises(StoreCorrupt, match=name):
        restore(target, tmp_path / "restored", dry_run=True)


def test_backup_refuses_invalid_directories_and_names(directory: Path, target: FolderTarget, tmp_path: Path) -> None:
    with Store.open(directory, CONFIG), pytest.raises(StoreLocked):
        StoppedDirectory(directory)
    with pytest.raises(InvalidInput, match="a store directory"):
        StoppedDirectory(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    back_up(directory, target, name="a")
    with pytest.raises(InvalidInput, match="a name that is not in use"):
        back_up(directory, target, name="a")
    for name in ("", "../a", "a/b", ".a", "a" * 101, "a\n"):
        if name:
            with pytest.raises(InvalidInput, match="a name of"):
                back_up(directory, target, name=name)
    write_identity(directory / "raymq" / "broker.json", name="broker-b", cluster="c", host="h", port=7, epoch=3)
    with pytest.raises(InvalidInput, match="broker-a of c"):
        back_up(directory, target)
    with pytest.raises(InvalidInput, match=r"a backup in .*: a"):
        restore(target, tmp_path / "restored", at="z")
    with pytest.raises(InvalidInput, match="which has none"):
        restore(FolderTarget(tmp_path / "empty"), tmp_path / "restored")


@pytest.mark.parametrize("place", ["config/x", "raymq/x", "x", ".", "link"])
def test_target_inside_the_directory_is_refused(directory: Path, tmp_path: Path, place: str) -> None:
    # Each backup contained those before it, as a part of the state.
    (tmp_path / "link").symlink_to(directory / "config")
    with pytest.raises(InvalidInput, match="outside"):
        back_up(directory, FolderTarget(tmp_path / "link" if place == "link" else directory / place))
    assert not list(directory.rglob("objects"))
    back_up(directory, FolderTarget(directory / ".." / "beside"))


HOSTILE: dict[str, object] = {
    "a path above": {"path": "../outside"},
    "an absolute path": {"path": "/tmp/outside"},
    "a path through a folder of state": {"path": "config/../../outside"},
    "a path in the log": {"path": "commitlog/../../outside00000000"},
    "another folder": {"path": "index/20240101000000000"},
    "whose directory it is": {"path": "raymq/replica.json"},
    "a zero": {"path": "config/a\0b"},
    "a number as path": {"path": 7},
    "a long path": {"path": "config/" + "a" * 2_000},
    "an object elsewhere": {"extents": [["../../../../../../etc/passwd", 0, 1, "0" * 64]]},
    "an object of another name": {"extents": [["A" * 64, 0, 1, "0" * 64]]},
    "an extent before an object": {"extents": [["0" * 64, -1, 1, "0" * 64]]},
    "an extent that is empty": {"extents": [["0" * 64, 0, 0, "0" * 64]]},
    "an extent that is too large": {"extents": [["0" * 64, 0, 1 << 40, "0" * 64]]},
    "more than the file": {"size": 0},
    "a size below zero": {"size": -1},
    "no size": {"size": "1"},
    "half a file": {"size": None},
    "a size that no file can have": {"size": 1 << 63},
    "half a character": {"path": "config/\ud800"},
    "a name that no folder can have": {"path": "config/" + "a" * 256},
}


@pytest.mark.parametrize("which", HOSTILE)
def test_forged_manifest_writes_no_files(
    directory: Path, target: FolderTarget, tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(directory, target, name="a")
    manifest = json.loads(target.read_manifest("a"))
    file = next(each for each in manifest["files"] if each["path"].startswith("config/") and each["extents"])
    file |= HOSTILE[which]  # type: ignore[operator]
    manifest.pop("sha256")
    target.write_manifest("a", json.dumps(manifest | {"sha256": layout._digest(manifest)}).encode())
    before = set(tmp_path.rglob("*"))
    with pytest.raises(StoreCorrupt, match=r"a\.json"):
        restore(target, tmp_path / "restored", at="a")
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(format=0),
        lambda manifest: manifest["files"].append(manifest["files"][0]),
        lambda manifest: manifest["files"].remove(
            next(e for e in manifest["files"] if e["path"].startswith("commitlog"))
        ),
        lambda manifest: manifest["folders"].append("config/../.."),
        lambda manifest: manifest["folders"].append("raymq/state.json/x"),
        lambda manifest: manifest.update(log_end=1 << 50),
        lambda manifest: manifest.update(name="../b"),
        lambda manifest: manifest.update(name="b"),
        lambda manifest: manifest.update(broker=None),
        lambda manifest: manifest.pop("files"),
    ],
)
def test_malformed_manifest_is_listed_as_broken(directory: Path, target: FolderTarget, change: object) -> None:
    back_up(directory, target, name="a")
    manifest = json.loads(target.read_manifest("a"))
    manifest.pop("sha256")
    change(manifest)  # type: ignore[operator]
    target.write_manifest("a", json.dumps(manifest | {"sha256": layout._digest(manifest)}).encode())
    catalog = read_catalog(target)
    assert catalog.backups == ()
    assert len(catalog.broken) == 1


def test_flipped_byte_in_a_manifest_is_detected(directory: Path, target: FolderTarget, tmp_path: Path) -> None:
    back_up(directory, target, name="a")
    content = target.read_manifest("a")
    for at in range(0, len(content), 97):
        target.write_manifest("a", content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert read_catalog(target).backups == (), at
    for at in range(0, len(content), 997):
        target.write_manifest("a", content[:at])
        assert read_catalog(target).backups == (), at


@pytest.mark.parametrize("where", ["s3:///", "nothing://x/y", "s3://", "fsspec+nothing://x"])
def test_invalid_target_address_is_refused(where: str) -> None:
    with pytest.raises((InvalidInput, BackupFailed)):
        open_target(where)


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("s3://KEY:hush@bucket/x?region=us-east-1", "s3://***@bucket/x?region=us-east-1"),
        ("s3://KEY:hu%40sh@bucket/x?bogus=1", "s3://***@bucket/x?bogus=1"),
        ("abfs://:hush@account/x?bad=1", "abfs://***@account/x?bad=1"),
        ("abfs://account/x?sas_token=hush&bad=1", "abfs://account/x?sas_token=***&bad=1"),
        ("s3://KEY:hush@", "s3://***@"),
        ("s3://KEY:x/hush@bucket/x?bogus=1", "s3://***@bucket/x?bogus=1"),
        ("s3://bucket/a@b?bogus=1", "s3://bucket/a@b?bogus=1"),
        ("s3://KEY:hush@a b/x", "s3://***@a b/x"),
        ("nothing://KEY:hush@x/y", "nothing://***@x/y"),
    ],
)
def test_secrets_of_an_address_are_masked(where: str, shown: str) -> None:
    assert without_secrets(where) == shown
    try:
        text = open_target(where).where
    except (InvalidInput, BackupFailed) as error:
        text = str(error)
    assert "hush" not in text
    assert "hu%40sh" not in text
    assert shown in text


def test_folder_addresses_open_a_folder_target(tmp_path: Path) -> None:
    assert isinstance(open_target(f"file://{tmp_path}/target"), FolderTarget)
    assert isinstance(open_target(f"{tmp_path}/a b"), FolderTarget)
    assert open_target("relative/folder").names() == []
