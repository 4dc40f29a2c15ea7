"""Test unreadable tables: spare copies, errors that name the remedy, and the repair."""

from __future__ import annotations

import contextlib
import errno
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from raymq.cluster.cli import main_group
from raymq.storage.config import StoreConfig
from raymq.storage.errors import InvalidInput, StoreCorrupt, StoreError, StoreFull, StoreLocked
from raymq.storage.files import json_file
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.store import Store
from raymq.storage.table_repair import find_broken, repair
from raymq.storage.tables.broker_identity import read_port_epoch, write_identity
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.request_mode import RequestMode
from raymq.storage.tables.topic_config import TopicConfig
from raymq.storage.timers import timer_state
from tests.faulty_calls import FaultyCalls
from tests.store_records import append, make_record

CONFIG = StoreConfig(commitlog_file_bytes=1 << 20, index_slots=100, index_entries=1_000)
TABLES = ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Create a cleanly closed store, whose journals are folded into its tables."""
    with Store.open(tmp_path / "store", CONFIG) as store:
        store.topic_configs.put(TopicConfig("orders", 4, 4))
        store.group_configs.put(GroupConfig("billing", retry_max_times=3))
        for queue_id in range(3):
            append(store, make_record(queue_id=queue_id))
        store.consumer_offsets.commit("billing", "orders", 1, 1)
        store.delay_offsets.commit(3, 0, 0)
    return tmp_path / "store"


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
def test_table_emptied_after_its_first_write_is_recovered(directory: Path, name: str) -> None:
    (directory / "config" / name).write_bytes(b"")
    with Store.open(directory, CONFIG) as store:
        assert store.topic_configs.get("orders") == TopicConfig("orders", 4, 4)
        assert store.group_configs.get("billing") == GroupConfig("billing", retry_max_times=3)
        assert store.consumer_offsets.get("billing", "orders", 1) == 1


def break_both(directory: Path, name: str, content: bytes = b"") -> None:
    for path in ((file := directory / "config" / name), json_file.backup_path_of(file)):
        path.write_bytes(content)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"offsetTable": 7, "topicConfigTable": 7, "subscriptionGroupTable": 7}']
)
def test_table_without_a_spare_is_rebuilt_by_repair(directory: Path, name: str, content: bytes) -> None:
    break_both(directory, name, content)
    if content in (b"", b"{"):
        with pytest.raises(StoreCorrupt, match=f"raymq store repair {directory} --dry-run"):
            Store.open(directory, CONFIG)
    [found] = find_broken(directory)
    assert found.file == str(directory / "config" / name)
    assert found.set_aside == ()
    before = sorted(directory.rglob("*"))
    find_broken(directory)
    assert sorted(directory.rglob("*")) == before, "looking changes nothing"

    [done] = repair(directory)
    assert [Path(kept).read_bytes() for kept in done.set_aside] == [content, content]
    assert find_broken(directory) == repair(directory) == []
    with Store.open(directory, CONFIG) as store:
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


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("kind", ["nested", "nested for long", "another form"])
def test_table_of_any_content_is_read_or_offered_for_repair(directory: Path, name: str, kind: str) -> None:
    # Deep nesting and a port of 1e999 used to end the repair with RecursionError and OverflowError.
    content = {
        "nested": b'{"x":' + b"[" * 900 + b"]" * 900 + b"}",
        "nested for long": NESTED,
        "another form": UNREADABLE[name],
    }[kind]
    file = directory / name
    for path in (file, json_file.backup_path_of(file)):
        path.write_bytes(content)
    [found] = find_broken(directory)
    assert found.file == str(file)
    if name != "raymq/broker.json":  # a file of the broker, not of the store
        with pytest.raises(StoreCorrupt, match=f"raymq store repair {directory} --dry-run"):
            Store.open(directory, CONFIG)
    [done] = repair(directory)
    assert [Path(kept).read_bytes() for kept in done.set_aside] == [content, content]
    assert find_broken(directory) == []
    Store.open(directory, CONFIG).close()


@pytest.mark.parametrize("name", UNREADABLE)
def test_malformed_table_is_read_from_its_spare_copy(directory: Path, name: str) -> None:
    file = directory / name
    spare = json_file.backup_path_of(file)
    if not spare.exists():
        spare.write_bytes(b"{}")
    file.write_bytes(UNREADABLE[name])
    assert find_broken(directory) == []
    Store.open(directory, CONFIG).close()


@pytest.mark.parametrize("name", UNREADABLE)
def test_malformed_file_never_replaces_its_spare_copy(
    directory: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    # The malformed file was a JSON object, so the next write made it the spare copy: a crash left two bad files.
    file = directory / name
    spare = json_file.backup_path_of(file)
    rewrite_table(directory, name)
    good = spare.read_bytes()
    file.write_bytes(UNREADABLE[name])

    class DiesBeforeReplacing(FileCalls):
        def rename(self, source: Path, target: Path) -> None:
            if target == file:
                raise OSError(errno.EIO, "injected", str(target))
            super().rename(source, target)

    with caplog.at_level("WARNING", "raymq"), replaced(DiesBeforeReplacing()), contextlib.suppress(StoreError):
        rewrite_table(directory, name)
    assert spare.read_bytes() == good
    assert [record for record in caplog.records if name.rsplit("/", 1)[-1] + ".bak" in record.getMessage()]
    assert find_broken(directory) == []
    Store.open(directory, CONFIG).close()


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


@pytest.mark.parametrize("name", ["epochs.json", "state.json", "delay_levels.json"])
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


def test_find_broken_leaves_broken_epochs_unchanged(directory: Path) -> None:
    # The next start begins a new epoch by itself; a check must not.
    epochs = directory / "raymq" / "epochs.json"
    epochs.write_bytes(b"{")
    assert find_broken(directory) == []
    assert epochs.read_bytes() == b"{"
    Store.open(directory, CONFIG).close()
    assert epochs.read_bytes() != b"{"


@pytest.mark.parametrize("nth", range(1, 7))
def test_repair_stopped_by_a_full_disk_leaves_no_table_out(directory: Path, nth: int) -> None:
    # Otherwise the next start would find no table, and begin without topics.
    break_both(directory, "topics.json", b"{")
    calls = FaultyCalls("write", nth, errno.ENOSPC, lasting=True)
    with replaced(calls), contextlib.suppress(StoreFull):
        repair(directory)
    assert calls.failed or nth > 4
    assert (directory / "config" / "topics.json").exists()
    if (directory / "config" / "topics.json").read_bytes() == b"{":
        repair(directory)
    with Store.open(directory, CONFIG) as store:
        assert store.topic_configs.get("orders") is not None


def test_commits_after_the_last_table_write_survive_repair(directory: Path) -> None:
    store = Store.open(directory, CONFIG)
    store.consumer_offsets.commit("billing", "orders", 2, 1)
    store._abandon()
    break_both(directory, "consumerOffset.json")
    repair(directory)
    with Store.open(directory, CONFIG) as again:
        assert again.consumer_offsets.get("billing", "orders", 2) == 1


def test_open_store_is_not_repaired(directory: Path) -> None:
    with Store.open(directory, CONFIG), pytest.raises(StoreLocked):
        repair(directory)
    with pytest.raises(InvalidInput):
        repair(directory / "nowhere")


def test_repair_command_reports_before_it_repairs(directory: Path) -> None:
    def call(*arguments: str, code: int = 0) -> str:
        ended = CliRunner().invoke(main_group, ["store", "repair", str(directory), *arguments])
        assert ended.exit_code == code, ended.output
        return ended.stdout

    assert call() == "every table can be read\n"
    break_both(directory, "topics.json")
    [shown] = json.loads(call("--dry-run", "--json"))
    assert shown["rebuilt"] == "1 topics, from the queues on disk, with ordinary settings"
    call(code=1)
    assert find_broken(directory), "without --yes nothing is done"
    assert len(json.loads(call("--yes", "--json"))) == 1
    assert json.loads(call("--json")) == []
