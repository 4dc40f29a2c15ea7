"""What a client has a table of settings keep is what the next start reads; else it is refused, and nothing is kept."""

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


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"x": 1}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def group(name: str, field: str, value: Any) -> GroupConfig:
    return GroupConfig.from_json(name, {**GroupConfig(name).to_json(), field: value})


def groups_after(directory: Path, store: Store, end: str) -> dict[str, GroupConfig]:
    """What the next start finds, after the store was killed, written by its duty and killed, or closed."""
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
def test_what_is_nested_too_deep_for_a_start_is_refused(tmp_path: Path, field: str, depth: int, end: str) -> None:
    """It was written to the journal, or into the file, and no start read either: the broker was down for good."""
    with replaced(UnsyncedCalls()):
        store = Store.open(tmp_path, CONFIG)
        store.group_configs.put(GroupConfig("billing"))
        wanted = group("g", field, nested(depth))
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
def test_whatever_is_taken_is_read_by_the_next_start(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with replaced(UnsyncedCalls()):
        store = Store.open(tmp_path, CONFIG)
        for number in range(30):
            field = rng.choice(["groupRetryPolicy", "attributes", "groupSysFlag", "brokerId"])
            value = strange(rng) if field != "attributes" else {"k": strange(rng)}
            with contextlib.suppress(InvalidInput):
                store.group_configs.put_soon(group(f"g{number}", field, value))
        taken = store.group_configs.all()
        assert taken
        assert groups_after(tmp_path, store, rng.choice(["killed", "saved", "closed"])) == taken


def strange(rng: random.Random) -> Any:
    match rng.randrange(9):
        case 0:
            return nested(rng.randrange(50, 80))
        case 1:
            return "x" * rng.randrange(MAX_LINE - 1_000, MAX_LINE + 1_000)
        case 2:
            return rng.choice([float("nan"), float("inf"), 1e308, 10**400, -0.0])
        case 3:
            return rng.choice(["\ud800", "a\udfffb", "😀", "\x00\x01", '{1:2,"a":{3:4}}', "\\", '"', "\u2028"])
        case 4:
            return [[[strange(rng)]]]
        case 5:
            return {rng.choice(["", "\ud83d", "1", "a:1"]): strange(rng)}
        case _:
            return rng.choice([None, True, 7, [], {}, [None]])


def test_one_group_is_not_the_whole_memory(tmp_path: Path) -> None:
    with Store.open(tmp_path, CONFIG) as store:
        with pytest.raises(InvalidInput, match=f"groupRetryPolicy: settings of at most {MAX_LINE} characters"):
            store.group_configs.put(group("g", "groupRetryPolicy", "x" * MAX_LINE))
        store.group_configs.put(group("g", "groupRetryPolicy", "x" * (MAX_LINE - 1_000)))


@pytest.fixture
def unread(tmp_path: Path) -> Path:
    """A store whose journals tell changes that cannot be read, between others that can."""
    directory = tmp_path / "store"
    with Store.open(directory, CONFIG) as store:
        store.topic_configs.put(TopicConfig("orders", 4, 4))
        store.group_configs.put(GroupConfig("billing", retry_max_times=3))
        counter = store.group_configs.version.counter
    journal = Journal(StorePaths(directory).changed_groups, writable=True)
    good, deep = (json.dumps(each.to_json()) for each in (GroupConfig("a"), group("b", "groupRetryPolicy", nested(70))))
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


def test_a_change_that_cannot_be_read_is_set_aside_alone(unread: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One such frame kept the broker down, with all that the journal says besides."""
    expected = {"a", "billing", "c"}
    with Store.open(unread, CONFIG) as store:
        assert set(store.group_configs.all()) == expected
        assert store.group_configs.get("billing") == GroupConfig("billing", retry_max_times=3), "as it was before"
        assert store.group_configs.get("c") == GroupConfig("c", retry_max_times=5)
        store.group_configs.put(GroupConfig("later"))
    told = [record.getMessage() for record in caplog.records if "groups.journal" in record.getMessage()]
    assert len(told) == 4
    assert ["the change of b cannot be read" in each for each in told].count(True) == 1
    kept = [json.loads(path.read_bytes()) for path in sorted(StorePaths(unread).damaged.iterdir())]
    assert [each["name"] for each in kept] == ["b", "billing", "", ""]
    assert json.loads(kept[0]["told"])["groupRetryPolicy"] == nested(70)
    caplog.clear()
    with Store.open(unread, CONFIG) as store:
        assert set(store.group_configs.all()) == {*expected, "later"}
    assert not [record for record in caplog.records if "groups.journal" in record.getMessage()]


def test_a_start_that_is_killed_keeps_it_once(unread: Path) -> None:
    for _ in range(3):
        store = Store.open(unread, CONFIG)
        store._flusher.stop()
        store._abandon()
    assert len(list(StorePaths(unread).damaged.iterdir())) == 4


def test_where_it_cannot_be_kept_the_start_goes_on(unread: Path) -> None:
    class Full(FaultyCalls):
        def write(self, fd: int, data: Any) -> int:
            if b'"told"' in bytes(data[:200]):
                raise OSError(28, "injected")
            return super().write(fd, data)

    with replaced(Full()), Store.open(unread, CONFIG) as store:
        assert set(store.group_configs.all()) == {"a", "billing", "c"}


def test_the_repair_tells_of_journals_too(unread: Path) -> None:
    """It found nothing where a broker did not start for its journal."""
    [found] = find_broken(unread)
    assert found.file == str(StorePaths(unread).changed_groups)
    assert found.problem.startswith("4 changes cannot be read")
    assert "b, billing" in found.lost
    assert not StorePaths(unread).damaged.exists(), "looking changes nothing"
    [done] = repair(unread)
    assert len(done.set_aside) == 4
    assert find_broken(unread) == repair(unread) == []
    with Store.open(unread, CONFIG) as store:
        assert set(store.group_configs.all()) == {"a", "billing", "c"}


def test_the_repair_of_a_table_and_of_its_journal(unread: Path) -> None:
    config = StorePaths(unread).groups
    for path in (config, config.with_name(config.name + ".bak")):
        path.write_bytes(b"{")
    assert [Path(each.file).name for each in find_broken(unread)] == ["subscriptionGroup.json", "groups.journal"]
    assert len(repair(unread)) == 2
    assert find_broken(unread) == []
    with Store.open(unread, CONFIG) as store:
        assert {"a", "c"} <= set(store.group_configs.all())
