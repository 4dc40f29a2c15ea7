"""Test that the settings a store accepts are readable by the next start."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from raymq.storage.config import StoreConfig
from raymq.storage.errors import InvalidInput
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.table_repair import find_broken, repair
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.journal import Journal
from raymq.storage.tables.settings_table import MAX_LINE
from raymq.storage.tables.topic_config import TopicConfig
from tests.faulty_calls import FaultyCalls, UnsyncedCalls

CONFIG = StoreConfig(commitlog_file_bytes=1 << 20, index_slots=100, index_entries=1_000)


def nested_value(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"x": 1}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def group(name: str, field: str, value: Any) -> GroupConfig:
    return GroupConfig.from_json(name, {**GroupConfig(name).to_json(), field: value})


def groups_after(directory: Path, store: Store, end: str) -> dict[str, GroupConfig]:
    """Return what the next start finds after a kill, a save and kill, or a close."""
    if end == "saved":
        store.group_configs.save()
    if end == "closed":
        store.close()
    else:
        store._flusher.stop()
        store._abandon()
    with Store.open(directory, CONFIG) as again:
        return again.group_configs.all()


@pytest.mark.parametrize("field", ["groupRetryPolicy", "attributes"])
@pytest.mark.parametrize("depth", [59, 60, 61, 62, 63, 64, 65, 70, 500, 5_000])
@pytest.mark.parametrize("end", ["killed", "saved", "closed"])
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
        assert groups_after(tmp_path, store, rng.choice(["killed", "saved", "closed"])) == taken


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
    journal = Journal(StorePaths(directory).changed_groups, writable=True)
    good, deep = (
        json.dumps(each.to_json()) for each in (GroupConfig("a"), group("b", "groupRetryPolicy", nested_value(70)))
    )
    number = json.dumps({"retryMaxTimes": "many"})
    for entry in (
        ("p", counter + 1, 1, [("a", good), ("b", deep)]),
        ("p", counter + 2, 2, [("billing", number)]),
        ("p", counter + 3),
        ("b", counter + 4, 4, "forbiddenTable", "{"),
        ("p", counter + 5, 5, [("c", json.dumps(GroupConfig("c", retry_max_times=5).to_json()))]),
    ):
        journal.append(entry)
    journal.close()
    return directory


def test_unreadable_change_is_set_aside_alone(unreadable_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    # One such frame used to keep the broker down, with all other changes of the journal.
    expected = {"a", "billing", "c"}
    with Store.open(unreadable_store, CONFIG) as store:
        assert set(store.group_configs.all()) == expected
        assert store.group_configs.get("billing") == GroupConfig("billing", retry_max_times=3), "as it was before"
        assert store.group_configs.get("c") == GroupConfig("c", retry_max_times=5)
        store.group_configs.put(GroupConfig("later"))
    messages = [record.getMessage() for record in caplog.records if "groups.journal" in record.getMessage()]
    assert len(messages) == 4
    assert ["the change of b cannot be read" in each for each in messages].count(True) == 1
    kept = [json.loads(path.read_bytes()) for path in sorted(StorePaths(unreadable_store).damaged.iterdir())]
    assert [each["name"] for each in kept] == ["b", "billing", "", ""]
    assert json.loads(kept[0]["told"])["groupRetryPolicy"] == nested_value(70)
    caplog.clear()
    with Store.open(unreadable_store, CONFIG) as store:
        assert set(store.group_configs.all()) == {*expected, "later"}
    assert not [record for record in caplog.records if "groups.journal" in record.getMessage()]


def test_killed_starts_set_a_change_aside_once(unreadable_store: Path) -> None:
    for _ in range(3):
        store = Store.open(unreadable_store, CONFIG)
        store._flusher.stop()
        store._abandon()
    assert len(list(StorePaths(unreadable_store).damaged.iterdir())) == 4


def test_start_succeeds_when_a_change_cannot_be_set_aside(unreadable_store: Path) -> None:
    class Full(FaultyCalls):
        def write(self, fd: int, data: Any) -> int:
            if b'"told"' in bytes(data[:200]):
                raise OSError(28, "injected")
            return super().write(fd, data)

    with replaced(Full()), Store.open(unreadable_store, CONFIG) as store:
        assert set(store.group_configs.all()) == {"a", "billing", "c"}


def test_repair_reports_unreadable_journal_changes(unreadable_store: Path) -> None:
    # The repair used to find nothing where a broker did not start because of its journal.
    [found] = find_broken(unreadable_store)
    assert found.file == str(StorePaths(unreadable_store).changed_groups)
    assert found.problem.startswith("4 changes cannot be read")
    assert "b, billing" in found.lost
    assert not StorePaths(unreadable_store).damaged.exists(), "looking changes nothing"
    [done] = repair(unreadable_store)
    assert len(done.set_aside) == 4
    assert find_broken(unreadable_store) == repair(unreadable_store) == []
    with Store.open(unreadable_store, CONFIG) as store:
        assert set(store.group_configs.all()) == {"a", "billing", "c"}


def test_table_and_its_journal_are_repaired_together(unreadable_store: Path) -> None:
    config = StorePaths(unreadable_store).groups
    for path in (config, config.with_name(config.name + ".bak")):
        path.write_bytes(b"{")
    assert [Path(each.file).name for each in find_broken(unreadable_store)] == [
        "subscriptionGroup.json",
        "groups.journal",
    ]
    assert len(repair(unreadable_store)) == 2
    assert find_broken(unreadable_store) == []
    with Store.open(unreadable_store, CONFIG) as store:
        assert {"a", "c"} <= set(store.group_configs.all())
