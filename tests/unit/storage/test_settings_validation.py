"""Test that the settings a store accepts are readable by the next start."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from raymq.storage.config import StoreConfig
from raymq.storage.errors import InvalidInput
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal.journal_files import files_in
from raymq.storage.journal.journal_frames import encode_frame
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.table_repair import find_broken, repair
from raymq.storage.tables.group_config import GroupConfig, GroupConfigs
from raymq.storage.tables.settings_table import MAX_LINE
from raymq.storage.tables.topic_config import TopicConfig
from tests.faulty_calls import FaultyCalls, UnsyncedCalls

ENDS = ["killed", "compacted", "exported", "closed"]
CONFIG = StoreConfig(commitlog_file_bytes=1 << 20, index_slots=100, index_entries=1_000)


def nested_value(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"x": 1}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def group(name: str, field: str, value: Any) -> GroupConfig:
    return GroupConfig.from_json(name, {**GroupConfig(name).to_json(), field: value})


def groups_after(directory: Path, store: Store, end: str) -> dict[str, GroupConfig]:
    """Return what the next start finds after a kill, a snapshot and a kill, an export to RocketMQ, or a close."""
    if end == "compacted":
        store._parts.journal.compact()
    if end == "exported":
        store.begin_export()()
    if end == "closed":
        store.close()
    else:
        store._flusher.stop()
        store._abandon()
    if end == "exported":  # as RocketMQ reads the directory, which has no journal then
        shutil.rmtree(StorePaths(directory).state_journal)
    with Store.open(directory, CONFIG) as again:
        return again.group_configs.all()


@pytest.mark.parametrize("field", ["groupRetryPolicy", "attributes"])
@pytest.mark.parametrize("depth", [59, 60, 61, 62, 63, 64, 65, 70, 500, 5_000])
@pytest.mark.parametrize("end", ENDS)
def test_too_deeply_nested_setting_is_refused(tmp_path: Path, field: str, depth: int, end: str) -> None:
    # Such a setting was written to the journal or the file, and no start read either: the broker stayed down.
    with replaced(UnsyncedCalls()):
        store = Store.open(tmp_path, CONFIG)
        store.group_configs.put(GroupConfig("billing"))
        wanted = group("g", field, nested_value(depth))
        taken = {"billing": GroupConfig("billing")}
        if depth <= 61:  # itself, the setting, the table, the file: 64 levels
            store.group_configs.put(wanted)
            taken["g"] = wanted
        else:
            version = store.group_configs.version
            with pytest.raises(InvalidInput) as refused:
                store.group_configs.put(GroupConfig("other"), wanted)
            assert refused.value.field == field
            assert store.group_configs.version == version
        assert groups_after(tmp_path, store, end) == taken


@pytest.mark.parametrize("seed", range(30))
def test_accepted_settings_are_read_by_the_next_start(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with replaced(UnsyncedCalls()):
        store = Store.open(tmp_path, CONFIG)
        for number in range(30):
            field = rng.choice(["groupRetryPolicy", "attributes", "groupSysFlag", "brokerId"])
            value = random_value(rng) if field != "attributes" else {"k": random_value(rng)}
            with contextlib.suppress(InvalidInput):
                store.group_configs.put_soon(group(f"g{number}", field, value))
        taken = store.group_configs.all()
        assert taken
        assert groups_after(tmp_path, store, rng.choice(ENDS)) == taken


def random_value(rng: random.Random) -> Any:
    match rng.randrange(9):
        case 0:
            return nested_value(rng.randrange(50, 80))
        case 1:
            return "x" * rng.randrange(MAX_LINE - 1_000, MAX_LINE + 1_000)
        case 2:
            return rng.choice([float("nan"), float("inf"), 1e308, 10**400, -0.0])
        case 3:
            return rng.choice(["\ud800", "a\udfffb", "😀", "\x00\x01", '{1:2,"a":{3:4}}', "\\", '"', "\u2028"])
        case 4:
            return [[[random_value(rng)]]]
        case 5:
            return {rng.choice(["", "\ud83d", "1", "a:1"]): random_value(rng)}
        case _:
            return rng.choice([None, True, 7, [], {}, [None]])


def test_settings_of_a_group_are_limited_in_size(tmp_path: Path) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        with pytest.raises(InvalidInput, match=f"groupRetryPolicy: settings of at most {MAX_LINE} characters"):
            store.group_configs.put(group("g", "groupRetryPolicy", "x" * MAX_LINE))
        store.group_configs.put(group("g", "groupRetryPolicy", "x" * (MAX_LINE - 1_000)))


@pytest.fixture
def unreadable_store(tmp_path: Path) -> Path:
    """Create a store whose journal has unreadable changes between readable ones."""
    directory = tmp_path / "store"
    with Store.open(directory, CONFIG) as store:
        store.topic_configs.put(TopicConfig("orders", 4, 4))
        store.group_configs.put(GroupConfig("billing", retry_max_times=3))
        counter = store.group_configs.version.counter
    journals, _ = files_in(StorePaths(directory).state_journal)
    first = max(journals)
    assert journals[first].read_bytes() == b"", "a closed store begins a new file"
    good, deep = (
        json.dumps(each.to_json()) for each in (GroupConfig("a"), group("b", "groupRetryPolicy", nested_value(70)))
    )
    number = json.dumps({"retryMaxTimes": "many"})
    changes: list[tuple[Any, ...]] = [
        ("p", counter + 1, 1, [("a", good), ("b", deep)]),
        ("p", counter + 2, 2, [("billing", number)]),
        ("p", counter + 3),
        ("b", counter + 4, 4, "forbiddenTable", "{"),
        ("p", counter + 5, 5, [("c", json.dumps(GroupConfig("c", retry_max_times=5).to_json()))]),
    ]
    with journals[first].open("ab") as file:
        for at, change in enumerate(changes, first):
            file.write(encode_frame((at, 0, GroupConfigs.NUMBER, *change)))
    return directory


def set_aside(directory: Path) -> list[dict[str, Any]]:
    paths = sorted(StorePaths(directory).damaged.glob(f"state-{GroupConfigs.NUMBER}-*"))
    return [json.loads(path.read_bytes()) for path in paths]


def test_unreadable_change_is_set_aside_alone(unreadable_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    # One such frame used to keep the broker down, with all other changes of the journal.
    expected = {"a", "billing", "c"}
    with Store.open(unreadable_store, CONFIG) as store:
        assert set(store.group_configs.all()) == expected
        assert store.group_configs.get("billing") == GroupConfig("billing", retry_max_times=3), "as it was before"
        assert store.group_configs.get("c") == GroupConfig("c", retry_max_times=5)
        assert store.topic_configs.get("orders") == TopicConfig("orders", 4, 4)
        store.group_configs.put(GroupConfig("later"))
    messages = [record.getMessage() for record in caplog.records if "saved in" in record.getMessage()]
    assert len(messages) == 4
    assert ["ValueError('b: " in each for each in messages] == [True, False, False, False]
    kept = set_aside(unreadable_store)
    assert len(kept) == 4
    assert kept[0]["event"].count('{"a": ') == 69, "the whole setting, also of 70 levels"
    assert "billing" in kept[1]["event"]
    caplog.clear()
    with Store.open(unreadable_store, CONFIG) as store:
        assert set(store.group_configs.all()) == {*expected, "later"}
    assert not [record for record in caplog.records if "not applied" in record.getMessage()]


def test_killed_starts_set_a_change_aside_once(unreadable_store: Path) -> None:
    for _ in range(3):
        store = Store.open(unreadable_store, CONFIG)
        store._flusher.stop()
        store._abandon()
    assert len(set_aside(unreadable_store)) == len(list(StorePaths(unreadable_store).damaged.iterdir())) == 4


class Full(FaultyCalls):
    """Fake a disk without room for files that contain `content` near their begin."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self._content = content

    def write(self, fd: int, data: Any) -> int:
        if self._content in bytes(data[:500]):
            self.failed = True
            raise OSError(28, "injected")
        return super().write(fd, data)


@pytest.mark.parametrize("content", [b'"reason"', b"forbiddenTable"], ids=["set aside", "snapshot"])
def test_start_succeeds_when_a_change_cannot_be_set_aside(unreadable_store: Path, content: bytes) -> None:
    with replaced(full := Full(content)):
        store = Store.open(unreadable_store, CONFIG)
        assert set(store.group_configs.all()) == {"a", "billing", "c"}
        store._flusher.stop()
        store._abandon()
    assert full.failed
    with Store.open(unreadable_store, CONFIG) as store:
        assert set(store.group_configs.all()) == {"a", "billing", "c"}


def test_repair_reports_unreadable_journal_changes(unreadable_store: Path) -> None:
    # The repair used to find nothing where a broker did not start because of its journal.
    [found] = find_broken(unreadable_store)
    assert found.file == str(StorePaths(unreadable_store).state_journal)
    assert found.lost.startswith("4 changes")
    assert "ValueError('b: " in found.problem
    assert "billing" in found.problem, "each setting that keeps its former value"
    assert not StorePaths(unreadable_store).damaged.exists(), "looking changes nothing"
    before = {path.name: path.read_bytes() for path in StorePaths(unreadable_store).state_journal.iterdir()}
    [done] = repair(unreadable_store)
    [copied] = done.set_aside
    assert {path.name: path.read_bytes() for path in Path(copied).iterdir()} == before
    assert find_broken(unreadable_store) == repair(unreadable_store) == []
    with Store.open(unreadable_store, CONFIG) as store:
        assert set(store.group_configs.all()) == {"a", "billing", "c"}


def test_repair_of_the_journal_does_without_rocketmqs_files(unreadable_store: Path) -> None:
    config = StorePaths(unreadable_store).groups
    for path in (config, config.with_name(config.name + ".bak")):
        path.write_bytes(b"{")
    assert [Path(each.file).name for each in find_broken(unreadable_store)] == ["state"]
    assert len(repair(unreadable_store)) == 1
    assert find_broken(unreadable_store) == []
    with Store.open(unreadable_store, CONFIG) as store:
        assert set(store.group_configs.all()) == {"a", "billing", "c"}
