"""Backups of stopped directories: what is restored is what was there, and what is damaged is named."""

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
def no_waiting_for_the_disk() -> Iterator[None]:
    with replaced(UnsyncedCalls()):
        yield


@pytest.fixture
def target(tmp_path: Path) -> FolderTarget:
    return FolderTarget(tmp_path / "target")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of two topics, with some of everything beside the log."""
    made = tmp_path / "store"
    with Store.open(made, CONFIG) as store:
        fill(store, 60)
        store.topic_configs.put(TopicConfig("orders", 4, 4))
        store.consumer_offsets.commit("g", "orders", 0, 5)
    write_identity(made / "raymq" / "broker.json", name="broker-a", cluster="c", host="h", port=7, epoch=3)
    return made


def made(directory: Path, target: FolderTarget, **options: object) -> BackupReport:
    with StoppedDirectory(directory) as source:
        return create_backup(source, target, **options)  # type: ignore[arg-type]


def contents(directory: Path) -> dict[str, object]:
    """What readers see."""
    with Store.open(directory, CONFIG) as store:
        return {
            "orders": [bodies(store, "orders", queue_id) for queue_id in store.queues("orders")],
            "parts": [bodies(store, "parts", queue_id) for queue_id in store.queues("parts")],
            "offset": store.consumer_offsets.get("g", "orders", 0),
            "topic": store.topic_configs.get("orders"),
            "by key": [each.body for each in store.query("orders", "k3.0", 0, 1 << 62, 10)],
        }


def test_what_is_restored_is_what_was_there(tmp_path: Path, directory: Path, target: FolderTarget) -> None:
    told: list[BackupProgress] = []
    report = made(directory, target, progress=told.append)
    assert report.copied_bytes == report.bytes == told[-1].done_bytes
    assert [each.done_bytes for each in told] == sorted(each.done_bytes for each in told)
    restored = restore(target, tmp_path / "restored")
    assert (restored.files, restored.broker, restored.restored) == (report.files, "broker-a", True)
    assert log_content(tmp_path / "restored") == log_content(directory)
    assert state_of(tmp_path / "restored") == state_of(directory)
    assert verify(tmp_path / "restored").bad_records == 0
    assert contents(tmp_path / "restored") == contents(directory)
    assert contents(directory)["by key"]


def test_a_restored_directory_is_a_new_one_in_another_epoch(
    tmp_path: Path, directory: Path, target: FolderTarget
) -> None:
    """No keeper takes it for the original, whose place in the group it cannot have."""
    original = ReplicaFile(directory).now
    with Store.open(directory, CONFIG) as store:
        epoch = store.epoch
    made(directory, target)
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
def test_queues_whose_messages_have_expired_end_where_they_did(
    tmp_path: Path, target: FolderTarget, made_anew: bool
) -> None:
    """Also those of a topic that was deleted and made anew before."""
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
    made(tmp_path / "store", target)
    restore(target, tmp_path / "restored")
    with Store.open(tmp_path / "restored", EXPIRING, now_ms=lambda: now_ms) as store:
        assert store.consumer_offsets.get("g", "quiet", 0) == end
        assert append(store, make_record(b"new", topic="quiet")).queue_offsets.tolist() == [end]


@pytest.mark.parametrize("half", ["cut.json", "state_snapshot", "rebuild_queues", "expired_queues.json"])
def test_what_a_start_has_to_bring_to_its_end_is_not_backed_up(
    directory: Path, target: FolderTarget, half: str
) -> None:
    (directory / "raymq" / half).write_bytes(b"")
    with pytest.raises(InvalidInput, match=f"a complete store; it has {half}"):
        made(directory, target)


def test_only_what_is_new_is_copied(tmp_path: Path, directory: Path, target: FolderTarget) -> None:
    first = made(directory, target)
    assert made(directory, target).copied_bytes == 0
    with Store.open(directory, CONFIG) as store:
        append(store, make_record(b"one more" * 10, topic="orders"))
    third = made(directory, target)
    assert 0 < third.copied_bytes < CONFIG.commitlog_file_bytes + 40_000
    assert third.copied_bytes < first.copied_bytes
    catalog = read_catalog(target)
    assert len(catalog.backups) == 3
    restore(target, tmp_path / "now")
    restore(target, tmp_path / "then", at=first.name)
    now, then = contents(tmp_path / "now"), contents(tmp_path / "then")
    assert now["parts"] == then["parts"]
    assert now["orders"] != then["orders"]


def test_a_log_file_that_was_written_anew_is_copied_anew(tmp_path: Path, directory: Path, target: FolderTarget) -> None:
    """As by a replica that was cut back: the same name, other bytes."""
    made(directory, target)
    path = min((directory / "commitlog").iterdir())
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + b"x")
    made(directory, target)
    restore(target, tmp_path / "restored")
    assert log_content(tmp_path / "restored") == log_content(directory)


def test_offsets_of_messages_that_have_expired_are_not_given_again(tmp_path: Path, target: FolderTarget) -> None:
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
    report = made(directory, target)
    assert report.log_begin > 0
    restore(target, tmp_path / "restored")
    with Store.open(tmp_path / "restored", EXPIRING, now_ms=lambda: now_ms + 7_200_000) as store:
        assert store.max_offset("old", 0) == 2
        assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (begin, end)


def test_former_backups_go_with_what_only_they_had(tmp_path: Path, directory: Path, target: FolderTarget) -> None:
    names = []
    for number in range(4):
        with Store.open(directory, CONFIG) as store:
            fill(store, 10, seed=number)
        names.append(made(directory, target, name=f"b{number}", now_ms=lambda n=number: 1_000 + n).name)
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
    assert made(directory, target, keep=1).gone == names[2:]
    assert verify_backups(target).bad == []
    restore(target, tmp_path / "restored")
    assert contents(tmp_path / "restored") == contents(directory)


def test_the_last_one_made_is_the_newest_whatever_the_clock_says(
    tmp_path: Path, directory: Path, target: FolderTarget
) -> None:
    """A clock that was set back neither lets the backup go that was just made, nor an older one be restored."""
    made(directory, target, name="a", now_ms=lambda: 9_000)
    with Store.open(directory, CONFIG) as store:
        store.consumer_offsets.commit("g", "orders", 0, 6)
    report = made(directory, target, name="b", now_ms=lambda: 1_000, keep=1)
    assert (report.name, report.gone, target.names()) == ("b", ["a"], ["b"])
    with Store.open(directory, CONFIG) as store:
        store.consumer_offsets.commit("g", "orders", 0, 7)
    made(directory, target, name="c", now_ms=lambda: 2_000)
    restore(target, tmp_path / "restored")
    assert contents(tmp_path / "restored")["offset"] == 7


def test_the_newest_is_not_restored_while_one_cannot_be_read(
    directory: Path, target: FolderTarget, tmp_path: Path
) -> None:
    """It may be the newest; an older one has to be asked for by name."""
    made(directory, target, name="a", now_ms=lambda: 1)
    made(directory, target, name="b", now_ms=lambda: 2)
    flip_byte(tmp_path / "target" / "backups" / "b.json", 50)
    with pytest.raises(StoreCorrupt, match=r"b\.json.*--at") as raised:
        restore(target, tmp_path / "restored")
    assert "--at" in str(raised.value)
    assert not (tmp_path / "restored").exists()
    restore(target, tmp_path / "restored", at="a")


def test_a_backup_of_which_nothing_is_held_at_its_end_is_none(directory: Path, target: FolderTarget) -> None:
    """What was read last may have been written over since it was held last, as by a master that became a replica."""

    class LostAtTheEnd(StoppedDirectory):
        def check(self) -> None:
            assert self.log_end
            assert target.objects()
            raise BackupFailed("nothing is held any more")

    with LostAtTheEnd(directory) as source, pytest.raises(BackupFailed, match="held any more"):
        create_backup(source, target)
    assert target.names() == []


def test_a_manifest_that_cannot_be_read_keeps_all_bytes(directory: Path, target: FolderTarget, tmp_path: Path) -> None:
    made(directory, target, name="a", now_ms=lambda: 1)
    made(directory, target, name="b", now_ms=lambda: 2)
    before = target.objects()
    flip_byte(tmp_path / "target" / "backups" / "a.json", 50)
    prune_backups(target, 1)
    assert target.objects() == before
    report = verify_backups(target)
    assert [each.object.endswith("backups/a.json") for each in report.bad] == [True]
    with pytest.raises(StoreCorrupt, match=r"a\.json"):
        restore(target, tmp_path / "restored", at="a")
    restore(target, tmp_path / "restored", at="b")


def test_every_damaged_or_missing_object_is_named(directory: Path, target: FolderTarget, tmp_path: Path) -> None:
    made(directory, target, name="a")
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
            made(tmp_path / "restored", FolderTarget(tmp_path / "other"))
        path.write_bytes(content)
    restore(target, tmp_path / "restored")
    assert contents(tmp_path / "restored") == contents(directory)


def test_a_backup_heals_what_is_too_short(directory: Path, target: FolderTarget, tmp_path: Path) -> None:
    made(directory, target, name="a")
    path = max((p for p in (tmp_path / "target" / "objects").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    path.write_bytes(path.read_bytes()[:100])
    made(directory, target, name="b")
    assert verify_backups(target).bad == []


def test_a_directory_that_is_not_empty_is_refused(directory: Path, target: FolderTarget, tmp_path: Path) -> None:
    made(directory, target)
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


def test_a_dry_run_changes_nothing(directory: Path, target: FolderTarget, tmp_path: Path) -> None:
    made(directory, target)
    report: RestoreReport = restore(target, tmp_path / "restored", dry_run=True)
    assert not report.restored
    assert report.bytes > 0
    assert not (tmp_path / "restored").exists()
    name = next(iter(target.objects()))
    target.remove_object(name)
    with pytest.raises(StoreCorrupt, match=name):
        restore(target, tmp_path / "restored", dry_run=True)


def test_what_cannot_be_backed_up(directory: Path, target: FolderTarget, tmp_path: Path) -> None:
    with Store.open(directory, CONFIG), pytest.raises(StoreLocked):
        StoppedDirectory(directory)
    with pytest.raises(InvalidInput, match="a store directory"):
        StoppedDirectory(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    made(directory, target, name="a")
    with pytest.raises(InvalidInput, match="a name that is not in use"):
        made(directory, target, name="a")
    for name in ("", "../a", "a/b", ".a", "a" * 101, "a\n"):
        if name:
            with pytest.raises(InvalidInput, match="a name of"):
                made(directory, target, name=name)
    write_identity(directory / "raymq" / "broker.json", name="broker-b", cluster="c", host="h", port=7, epoch=3)
    with pytest.raises(InvalidInput, match="broker-a of c"):
        made(directory, target)
    with pytest.raises(InvalidInput, match=r"a backup in .*: a"):
        restore(target, tmp_path / "restored", at="z")
    with pytest.raises(InvalidInput, match="which has none"):
        restore(FolderTarget(tmp_path / "empty"), tmp_path / "restored")


@pytest.mark.parametrize("place", ["config/x", "raymq/x", "x", ".", "link"])
def test_a_target_within_the_directory_itself_is_refused(directory: Path, tmp_path: Path, place: str) -> None:
    """Each backup had those before it, as a part of the state."""
    (tmp_path / "link").symlink_to(directory / "config")
    with pytest.raises(InvalidInput, match="outside"):
        made(directory, FolderTarget(tmp_path / "link" if place == "link" else directory / place))
    assert not list(directory.rglob("objects"))
    made(directory, FolderTarget(directory / ".." / "beside"))


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
def test_a_forged_manifest_reaches_nothing(
    directory: Path, target: FolderTarget, tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(directory, target, name="a")
    told = json.loads(target.read_manifest("a"))
    file = next(each for each in told["files"] if each["path"].startswith("config/") and each["extents"])
    file |= HOSTILE[which]  # type: ignore[operator]
    told.pop("sha256")
    target.write_manifest("a", json.dumps(told | {"sha256": layout._digest(told)}).encode())
    before = set(tmp_path.rglob("*"))
    with pytest.raises(StoreCorrupt, match=r"a\.json"):
        restore(target, tmp_path / "restored", at="a")
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.update(format=0),
        lambda told: told["files"].append(told["files"][0]),
        lambda told: told["files"].remove(next(e for e in told["files"] if e["path"].startswith("commitlog"))),
        lambda told: told["folders"].append("config/../.."),
        lambda told: told["folders"].append("raymq/state.json/x"),
        lambda told: told.update(log_end=1 << 50),
        lambda told: told.update(name="../b"),
        lambda told: told.update(name="b"),
        lambda told: told.update(broker=None),
        lambda told: told.pop("files"),
    ],
)
def test_a_manifest_of_another_form_is_none(directory: Path, target: FolderTarget, change: object) -> None:
    made(directory, target, name="a")
    told = json.loads(target.read_manifest("a"))
    told.pop("sha256")
    change(told)  # type: ignore[operator]
    target.write_manifest("a", json.dumps(told | {"sha256": layout._digest(told)}).encode())
    catalog = read_catalog(target)
    assert catalog.backups == ()
    assert len(catalog.broken) == 1


def test_any_flipped_byte_of_a_manifest_is_noticed(directory: Path, target: FolderTarget, tmp_path: Path) -> None:
    made(directory, target, name="a")
    content = target.read_manifest("a")
    for at in range(0, len(content), 97):
        target.write_manifest("a", content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert read_catalog(target).backups == (), at
    for at in range(0, len(content), 997):
        target.write_manifest("a", content[:at])
        assert read_catalog(target).backups == (), at


@pytest.mark.parametrize("where", ["s3:///", "nothing://x/y", "s3://", "fsspec+nothing://x"])
def test_an_address_that_is_none(where: str) -> None:
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
def test_what_an_address_has_of_secrets_is_not_shown(where: str, shown: str) -> None:
    assert without_secrets(where) == shown
    try:
        told = open_target(where).where
    except (InvalidInput, BackupFailed) as error:
        told = str(error)
    assert "hush" not in told
    assert "hu%40sh" not in told
    assert shown in told


def test_addresses_of_folders(tmp_path: Path) -> None:
    assert isinstance(open_target(f"file://{tmp_path}/target"), FolderTarget)
    assert isinstance(open_target(f"{tmp_path}/a b"), FolderTarget)
    assert open_target("relative/folder").names() == []
