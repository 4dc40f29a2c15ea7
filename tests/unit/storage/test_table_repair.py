"""Test unreadable tables: spare copies, errors that name the remedy, and the repair."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from raymq.cluster.cli import main_group
from raymq.storage.config import StoreConfig
from raymq.storage.errors import InvalidInput, StoreCorrupt, StoreError, StoreFailed, StoreFull, StoreLocked
from raymq.storage.files import json_file
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.table_repair import find_broken, repair
from raymq.storage.tables.broker_identity import read_port_epoch, write_identity
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.request_mode import RequestMode
from raymq.storage.tables.topic_config import TopicConfig
from raymq.storage.timers import timer_state
from tests.faulty_calls import FaultyCalls
from tests.store_records import append, flip_byte, make_record

CONFIG = StoreConfig(commitlog_file_bytes=1 << 20, index_slots=100, index_entries=1_000)
#: A store in which the tables had a file or a journal each.
FORMAT_1 = Path(__file__).resolve().parents[2] / "fixtures" / "format_1" / "closed.tar.xz"
TABLES = ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Create a cleanly closed store, whose tables are in its state journal."""
    with Store.open(tmp_path / "store", CONFIG) as store:
        store.topic_configs.put(TopicConfig("orders", 4, 4))
        store.group_configs.put(GroupConfig("billing", retry_max_times=3))
        for queue_id in range(3):
            append(store, make_record(queue_id=queue_id))
        store.consumer_offsets.commit("billing", "orders", 1, 1)
        store.delay_offsets.commit(3, 0, 0)
    return tmp_path / "store"


@pytest.fixture
def foreign(directory: Path) -> Path:
    """Create the same directory as RocketMQ leaves it: without a state journal, and with spare copies."""
    shutil.rmtree(StorePaths(directory).state_journal)
    for file in (directory / "config").glob("*.json"):
        content = json_file.load(file)
        del content["raymqCrc"]
        for path in (file, json_file.backup_path_of(file)):
            path.write_text(json.dumps(content))
    return directory


def test_first_version_of_a_file_has_a_spare_copy(tmp_path: Path) -> None:
    # Fault 14.19: an empty consumerOffset.json kept a broker down: the spare copy came with the second write.
    path = tmp_path / "config" / "a.json"
    json_file.save(path, {"n": 1}, dict)
    path.write_bytes(b"")
    assert json_file.load(path) == {"n": 1}
    json_file.save(path, {"n": 2}, dict)
    json_file.save(path, {"n": 3}, dict)
    path.write_bytes(b"")
    assert json_file.load(path) == {"n": 2}


@pytest.mark.parametrize("name", TABLES)
def test_emptied_table_of_rocketmq_is_read_from_its_spare(foreign: Path, name: str) -> None:
    (foreign / "config" / name).write_bytes(b"")
    with Store.open(foreign, CONFIG) as store:
        check_content(store)


def check_content(store: Store) -> None:
    assert store.topic_configs.get("orders") == TopicConfig("orders", 4, 4)
    assert store.group_configs.get("billing") == GroupConfig("billing", retry_max_times=3)
    assert store.consumer_offsets.get("billing", "orders", 1) == 1
    assert store.delay_offsets.get(3) == 0
    assert store.max_offset("orders", 2) == 1


def break_both(directory: Path, name: str, content: bytes = b"") -> None:
    for path in ((file := directory / "config" / name), json_file.backup_path_of(file)):
        path.write_bytes(content)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"offsetTable": 7, "topicConfigTable": 7, "subscriptionGroupTable": 7}']
)
def test_table_without_a_spare_is_rebuilt_by_repair(foreign: Path, name: str, content: bytes) -> None:
    break_both(foreign, name, content)
    if content in (b"", b"{"):
        with pytest.raises(StoreCorrupt, match=f"raymq store repair {foreign} --dry-run"):
            Store.open(foreign, CONFIG)
    [found] = find_broken(foreign)
    assert found.file == str(foreign / "config" / name)
    assert found.set_aside == ()
    before = sorted(foreign.rglob("*"))
    find_broken(foreign)
    assert sorted(foreign.rglob("*")) == before, "looking changes nothing"

    [done] = repair(foreign)
    assert [Path(kept).read_bytes() for kept in done.set_aside] == [content, content]
    assert find_broken(foreign) == repair(foreign) == []
    with Store.open(foreign, CONFIG) as store:
        lost = {"consumerOffset.json": None}.get(name, 1)
        assert store.consumer_offsets.get("billing", "orders", 1) == lost
        topic, group = store.topic_configs.get("orders"), store.group_configs.get("billing")
        assert topic is not None
        assert topic.write_queues == (3 if name == "topics.json" else 4), "the fourth queue has no message"
        assert group is not None
        assert group.retry_max_times == (16 if name == "subscriptionGroup.json" else 3)
        assert store.max_offset("orders", 2) == 1


NESTED = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
#: For each table a value that is no valid number or name.
UNREADABLE = {
    "config/topics.json": b'{"topicConfigTable": {"t": {"readQueueNums": 1e999}}}',
    "config/subscriptionGroup.json": b'{"subscriptionGroupTable": {"g": {"retryMaxTimes": 1e999}}}',
    "config/consumerOffset.json": b'{"offsetTable": {"t@g": {"0": 1e999}}}',
    "config/delayOffset.json": b'{"offsetTable": {"1": 1e999}}',
    "config/messageRequestMode.json": b'{"messageRequestModeMap": {"t": {"g": {}}}}',
    "raymq/broker.json": b'{"port": 1e999}',
}


HUGE_MODE = b'{"topic": "t", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 36893488147419103232}'
#: For each table a value that JSON can hold and the state journal cannot: half a character, a number of 65 bits.
UNSTORABLE = [
    ("config/topics.json", b'{"topicConfigTable": {"t": {"topicFilterType": "\\ud800"}}}'),
    ("config/topics.json", b'{"topicConfigTable": {"\\ud800": {}}}'),
    ("config/topics.json", b'{"topicConfigTable": {}, "later": "\\ud800"}'),
    ("config/topics.json", b'{"dataVersion": {"counter": 36893488147419103232}}'),
    ("config/subscriptionGroup.json", b'{"subscriptionGroupTable": {"\\ud800": {}}}'),
    ("config/consumerOffset.json", b'{"offsetTable": {"t@g": {"0": 36893488147419103232}}}'),
    ("config/consumerOffset.json", b'{"offsetTable": {"t@\\ud800": {"0": 1}}}'),
    ("config/delayOffset.json", b'{"offsetTable": {"1": 36893488147419103232}}'),
    ("config/messageRequestMode.json", b'{"messageRequestModeMap": {"t": {"g": %b}}}' % HUGE_MODE),
]


@pytest.mark.parametrize(("name", "content"), UNSTORABLE)
def test_table_that_no_journal_can_hold_is_offered_for_repair(foreign: Path, name: str, content: bytes) -> None:
    # A start ended with UnicodeEncodeError or OverflowError, which named no file and no remedy.
    for path in ((file := foreign / name), json_file.backup_path_of(file)):
        path.write_bytes(content)
    assert [found.file for found in find_broken(foreign)] == [str(file)]
    with pytest.raises(StoreCorrupt, match=f"raymq store repair {foreign} --dry-run"):
        Store.open(foreign, CONFIG)
    repair(foreign)
    Store.open(foreign, CONFIG).close()


@pytest.mark.parametrize(("name", "content"), UNSTORABLE)
def test_foreign_file_that_no_journal_can_hold_is_ignored(directory: Path, name: str, content: bytes) -> None:
    (directory / name).write_bytes(content)
    for _ in range(2):
        with Store.open(directory, CONFIG) as store:
            check_content(store)


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("kind", ["nested", "nested for long", "another form"])
def test_table_of_any_content_is_read_or_offered_for_repair(foreign: Path, name: str, kind: str) -> None:
    # Deep nesting and a port of 1e999 used to end the repair with RecursionError and OverflowError.
    content = {
        "nested": b'{"x":' + b"[" * 900 + b"]" * 900 + b"}",
        "nested for long": NESTED,
        "another form": UNREADABLE[name],
    }[kind]
    file = foreign / name
    for path in (file, json_file.backup_path_of(file)):
        path.write_bytes(content)
    [found] = find_broken(foreign)
    assert found.file == str(file)
    if name != "raymq/broker.json":  # a file of the broker, not of the store
        with pytest.raises(StoreCorrupt, match=f"raymq store repair {foreign} --dry-run"):
            Store.open(foreign, CONFIG)
    [done] = repair(foreign)
    assert [Path(kept).read_bytes() for kept in done.set_aside] == [content, content]
    assert find_broken(foreign) == []
    Store.open(foreign, CONFIG).close()


@pytest.mark.parametrize("name", [*TABLES, "messageRequestMode.json"])
@pytest.mark.parametrize("content", [b"", b"{", NESTED, b'{"raymqCrc":7}', b'{"offsetTable":1}'])
def test_damaged_copy_changes_no_table_and_needs_no_repair(directory: Path, name: str, content: bytes) -> None:
    if content == b'{"offsetTable":1}' and "Offset" not in name:
        content = UNREADABLE[f"config/{name}"]
    break_both(directory, name, content)
    assert find_broken(directory) == repair(directory) == []
    for _ in range(2):
        with Store.open(directory, CONFIG) as store:
            check_content(store)
    assert json_file.is_as_written((directory / "config" / name).read_bytes()), "written again"


@pytest.mark.parametrize("name", UNREADABLE)
def test_malformed_table_is_read_from_its_spare_copy(foreign: Path, name: str) -> None:
    file = foreign / name
    spare = json_file.backup_path_of(file)
    if not spare.exists():
        spare.write_bytes(b"{}")
    file.write_bytes(UNREADABLE[name])
    assert find_broken(foreign) == []
    Store.open(foreign, CONFIG).close()


@pytest.mark.parametrize("name", [name for name in UNREADABLE if name.startswith("config")])
def test_malformed_table_of_format_1_is_read_or_repaired(tmp_path: Path, name: str) -> None:
    # The spare copy was not read, and the start ended with AttributeError or KeyError.
    with tarfile.open(FORMAT_1) as archive:
        archive.extractall(tmp_path)
    file, spare = tmp_path / name, json_file.backup_path_of(tmp_path / name)
    with Store.open(tmp_path, read_only=True) as store:
        known = store.topic_configs.all(), store.group_configs.all()
    if file.exists() and not spare.exists():
        shutil.copy(file, spare)
    file.write_bytes(UNREADABLE[name])
    if spare.exists():
        assert find_broken(tmp_path) == []
        with Store.open(tmp_path, read_only=True) as store:
            assert (store.topic_configs.all(), store.group_configs.all()) == known
    spare.write_bytes(UNREADABLE[name])
    assert [found.file for found in find_broken(tmp_path)] == [str(file)]
    with pytest.raises(StoreCorrupt, match=f"raymq store repair {tmp_path} --dry-run"):
        Store.open(tmp_path)
    repair(tmp_path)
    Store.open(tmp_path).close()
    assert find_broken(tmp_path) == []


@pytest.mark.parametrize("name", UNREADABLE)
def test_malformed_file_never_replaces_its_spare_copy(
    foreign: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    # The malformed file was a JSON object, so the next write made it the spare copy: a crash left two bad files.
    file = foreign / name
    spare = json_file.backup_path_of(file)
    if name == "raymq/broker.json":
        rewrite_table(foreign, name)
    good = spare.read_bytes()
    file.write_bytes(UNREADABLE[name])

    class DiesBeforeReplacing(FileCalls):
        def rename(self, source: Path, target: Path) -> None:
            if target == file:
                raise OSError(errno.EIO, "injected", str(target))
            super().rename(source, target)

    with caplog.at_level("WARNING", "raymq"), replaced(DiesBeforeReplacing()), contextlib.suppress(StoreError):
        rewrite_table(foreign, name)
    assert spare.read_bytes() == good
    assert [record for record in caplog.records if name.rsplit("/", 1)[-1] + ".bak" in record.getMessage()]
    assert find_broken(foreign) == []
    Store.open(foreign, CONFIG).close()


def rewrite_table(directory: Path, name: str) -> None:
    """Write a file once more."""
    if name == "raymq/broker.json":
        port, epoch = read_port_epoch(directory / name)
        write_identity(directory / name, name="b", cluster="c", host="h", port=port, epoch=epoch + 1)
        return
    with Store.open(directory, CONFIG) as store:
        store.topic_configs.put(TopicConfig("more", 1, 1))
        store.group_configs.put(GroupConfig("more"))
        store.consumer_offsets.commit("billing", "orders", 1, 2)
        store.delay_offsets.commit(3, 0, 0)
        store.request_modes.put(RequestMode("orders", "billing"))


@pytest.mark.parametrize("name", ["state.json", "epochs.json", "delay_levels.json"])
@pytest.mark.parametrize("content", [NESTED, b'{"epoch": 1e999, "cuts": []}', b"[]", b"7"])
def test_derived_file_with_bad_content_is_rebuilt_at_open(directory: Path, name: str, content: bytes) -> None:
    file = directory / "raymq" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    with Store.open(directory, CONFIG) as store:
        assert store.max_offset("orders", 2) == 1


@pytest.mark.parametrize("content", [NESTED, b'{"enqueued": 1e999, "logEnd": 0}', b"[]", b"7"])
def test_malformed_timer_state_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.json").write_bytes(content)
    assert timer_state.load(tmp_path) is None


@pytest.mark.parametrize("nth", range(1, 7))
def test_repair_stopped_by_a_full_disk_leaves_no_table_out(foreign: Path, nth: int) -> None:
    # Otherwise the next start would find no table, and begin without topics.
    break_both(foreign, "topics.json", b"{")
    calls = FaultyCalls("write", nth, errno.ENOSPC, lasting=True)
    with replaced(calls), contextlib.suppress(StoreFull):
        repair(foreign)
    assert calls.failed or nth > 4
    assert (foreign / "config" / "topics.json").exists()
    if (foreign / "config" / "topics.json").read_bytes() == b"{":
        repair(foreign)
    with Store.open(foreign, CONFIG) as store:
        assert store.topic_configs.get("orders") is not None


def test_commits_after_the_last_export_survive_repair(directory: Path) -> None:
    store = Store.open(directory, CONFIG)
    store.consumer_offsets.commit("billing", "orders", 2, 1)
    store._flusher.stop()
    store._abandon()
    break_both(directory, "consumerOffset.json")
    repair(directory)
    with Store.open(directory, CONFIG) as again:
        assert again.consumer_offsets.get("billing", "orders", 2) == 1


@pytest.fixture
def damaged(directory: Path) -> Path:
    """Create a killed store in whose journal the second of three commits is damaged."""
    store = Store.open(directory, CONFIG)
    journal = store._parts.journal
    for queue_id in range(3):
        at = journal._length
        store.consumer_offsets.commit("later", "orders", queue_id, 1)
        if queue_id == 1:
            damage = journal._path, at + 20
    store._flusher.stop()
    store._abandon()
    flip_byte(*damage)
    return directory


def check_rest(directory: Path) -> None:
    with Store.open(directory, CONFIG) as store:
        check_content(store)
        assert store.consumer_offsets.of("later", "orders") == {0: 1, 2: 1}


def test_damaged_journal_is_reported_and_copied_by_repair(damaged: Path) -> None:
    state = StorePaths(damaged).state_journal
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    [found] = find_broken(damaged)
    assert found.file == str(state)
    assert found.problem == "1 changes are missing"
    assert {path.name: path.read_bytes() for path in state.iterdir()} == before, "looking changes nothing"
    [done] = repair(damaged)
    [copied] = done.set_aside
    assert {path.name: path.read_bytes() for path in Path(copied).iterdir()} == before
    assert find_broken(damaged) == repair(damaged) == []
    check_rest(damaged)


def test_repair_of_a_replica_leaves_the_gap_that_elections_see(damaged: Path) -> None:
    # A snapshot with a new number hid it: the repaired replica was elected before one that had all changes.
    paths = StorePaths(damaged)
    paths.replica.touch()
    for _ in range(2):
        [done] = repair(damaged)
        assert "copy" in done.rebuilt
    with Store.open(damaged, CONFIG, is_replica=True) as store:
        assert store.journal.is_lossy


def test_start_without_repair_keeps_the_rest_of_a_journal(damaged: Path) -> None:
    check_rest(damaged)
    assert find_broken(damaged) == [], "the start has written a snapshot"
    check_rest(damaged)


@pytest.mark.parametrize("kind", ["write", "rename", "open"])
@pytest.mark.parametrize("nth", range(1, 12))
def test_journal_repair_stopped_by_a_full_disk_loses_nothing(damaged: Path, kind: str, nth: int) -> None:
    with replaced(FaultyCalls(kind, nth, errno.ENOSPC, lasting=True)), contextlib.suppress(StoreFull, StoreFailed):
        repair(damaged)
    check_rest(damaged)


@pytest.mark.parametrize("damage", [b"", b"x" * 100], ids=["emptied", "overwritten"])
def test_lost_journal_is_replaced_by_rocketmqs_files(directory: Path, damage: bytes) -> None:
    for path in StorePaths(directory).state_journal.iterdir():
        path.write_bytes(damage)
    for _ in range(2):
        with Store.open(directory, CONFIG) as store:
            check_content(store)


def test_unreadable_snapshot_is_moved_by_repair_without_loss(directory: Path) -> None:
    unreadable = min(StorePaths(directory).state_journal.glob("snapshot-*"))

    class BadSector(FileCalls):
        def open(self, path: Path, flags: int) -> int:
            if path == unreadable:
                raise OSError(errno.EIO, "bad sector", str(path))
            return super().open(path, flags)

    with replaced(BadSector()):
        with pytest.raises(StoreFailed):
            Store.open(directory, CONFIG)
        assert "Input/output error" in find_broken(directory)[0].problem
        [repaired] = repair(directory)
    assert (Path(repaired.set_aside[0]) / unreadable.name).exists()
    assert find_broken(directory) == []
    with Store.open(directory, CONFIG) as store:
        check_content(store)


def test_open_store_is_not_repaired(directory: Path) -> None:
    with Store.open(directory, CONFIG), pytest.raises(StoreLocked):
        repair(directory)
    with pytest.raises(InvalidInput):
        repair(directory / "nowhere")


def test_repair_command_reports_before_it_repairs(foreign: Path) -> None:
    def call(*arguments: str, code: int = 0) -> str:
        ended = CliRunner().invoke(main_group, ["store", "repair", str(foreign), *arguments])
        assert ended.exit_code == code, ended.output
        return ended.stdout

    assert call() == "every table can be read\n"
    break_both(foreign, "topics.json")
    [shown] = json.loads(call("--dry-run", "--json"))
    assert shown["rebuilt"] == "1 topics, from the queues on disk, with ordinary settings"
    call(code=1)
    assert find_broken(foreign), "without --yes nothing is done"
    assert len(json.loads(call("--yes", "--json"))) == 1
    assert json.loads(call("--json")) == []
