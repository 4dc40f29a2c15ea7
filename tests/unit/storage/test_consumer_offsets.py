"""Test that committed consumer offsets and delay offsets survive, and what RocketMQ's files do to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import StoreError
from raymq.storage.files import json_file
from raymq.storage.journal.recovery_bounds import UNBOUNDED, RecoveryBounds
from raymq.storage.journal.state_journal import StateJournal
from raymq.storage.state_opening import open_state
from raymq.storage.store import Store
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.consumer_offsets import ConsumerOffsets
from raymq.storage.tables.delay_offsets import DelayOffsets
from raymq.storage.tables.state_tables import StateTables
from tests.state_journals import open_table, open_tables
from tests.store_records import SMALL, append, make_record


def open_offsets(directory: Path) -> tuple[StateJournal, ConsumerOffsets, DelayOffsets]:
    """Open the two tables as a restart after a kill does."""
    consumers, delays = ConsumerOffsets(), DelayOffsets()
    return open_tables(directory, consumers, delays), consumers, delays


def open_with_files(directory: Path, *, writable: bool = True) -> tuple[StateJournal, StateTables]:
    """Open all tables together with RocketMQ's files, without the log to which a store clamps them."""
    tables = StateTables()
    journal, _ = open_state(StorePaths(directory), tables, lambda _: None, writable=writable)
    journal.clamp(UNBOUNDED)
    return journal, tables


def write_as_rocketmq(directory: Path, **tables: object) -> None:
    """Write files as RocketMQ does, which has no seal."""
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    (directory / "config").mkdir(exist_ok=True)
    for name, table in tables.items():
        (directory / "config" / f"{name}.json").write_text(json.dumps({"dataVersion": version, "offsetTable": table}))


def test_commits_survive_without_close(tmp_path: Path) -> None:
    _, offsets, delays = open_offsets(tmp_path)
    offsets.commit("g", "orders", 3, 17)
    offsets.commit("g", "other", 0, 1)
    offsets.commit("g", "orders", 3, 12)
    delays.commit(5, 99, 1234)

    _, again, delays = open_offsets(tmp_path)
    assert again.get("g", "orders", 3) == 12
    assert again.of("g", "orders") == {3: 12}
    assert again.topics_of("g") == ["orders", "other"]
    assert again.groups() == ["g"]
    assert delays.get(5) == 99
    assert delays.get(6) is None
    assert delays.log_end == 1234
    assert again.get("g", "orders", 0) is None


def test_resets_survive_a_kill_and_a_compaction(tmp_path: Path) -> None:
    journal, offsets, _ = open_offsets(tmp_path)
    offsets.reset("g", "orders", 0, 5)
    offsets.reset("g", "orders", 1, 6)
    offsets.reset("g", "orders", 2, 7)
    offsets.clear_reset("g", "orders", 1)
    offsets.commit("g", "orders", 2, 7)  # the same offset: the group has moved there
    for _ in range(2):
        journal, again, _ = open_offsets(tmp_path)
        assert again.of("g", "orders") == {0: 5, 1: 6, 2: 7}
        assert again.resets == {("g", "orders", 0)}
        journal.compact()


def test_clean_close_leaves_rocketmqs_files(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store:
        append(store, *[make_record(queue_id=3)] * 20)
        append(store, *[make_record(topic=SCHEDULE_TOPIC)] * 2)
        store.consumer_offsets.commit("g", "orders", 3, 17)
        store.delay_offsets.commit(1, 2, store.max_physical_offset)
    assert json_file.load(tmp_path / "config" / "consumerOffset.json")["offsetTable"] == {"orders@g": {"3": 17}}
    assert json_file.load(tmp_path / "config" / "delayOffset.json")["offsetTable"] == {"1": 2}
    with Store.open(tmp_path, SMALL) as store:
        assert store.consumer_offsets.get("g", "orders", 3) == 17
        assert store.delay_offsets.get(1) == 2


def test_offset_files_of_rocketmq_are_read(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_text(
        '{\n\t"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1},\n\t"groupTopicMap":{},\n\t"offsetTable":'
        '{"orders@g_billing":{0:17,1:42,3:5\n\t\t},"%RETRY%g@g":{0:1\n\t\t}\n\t}\n}'
    )
    (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:17,18:0\n\t}\n}')
    _, tables = open_with_files(tmp_path, writable=False)
    assert tables.consumer_offsets.of("g_billing", "orders") == {0: 17, 1: 42, 3: 5}
    assert tables.consumer_offsets.of("g", "%RETRY%g") == {0: 1}
    assert (tables.delay_offsets.get(1), tables.delay_offsets.get(18)) == (17, 0)


def test_journal_cut_at_any_byte_keeps_whole_commits(tmp_path: Path) -> None:
    offsets = open_table(tmp_path, ConsumerOffsets())
    (journal,) = (tmp_path / "raymq" / "state").iterdir()
    ends = []
    for offset in range(1, 6):
        offsets.commit("g", "t", 0, offset)
        ends.append(journal.stat().st_size)
    content = journal.read_bytes()

    for length in range(len(content) + 1):
        copy = tmp_path / str(length)
        (copy / "raymq" / "state").mkdir(parents=True)
        (copy / "raymq" / "state" / journal.name).write_bytes(content[:length])
        survivors = sum(end <= length for end in ends)
        cut = ConsumerOffsets()
        opened = open_tables(copy, cut)
        assert cut.get("g", "t", 0) == (survivors or None)
        cut.commit("g", "t", 0, 77)
        assert open_table(copy, ConsumerOffsets(), writable=False).get("g", "t", 0) == 77
        opened.close(compact=False)


def test_deleted_offsets_stay_deleted(tmp_path: Path) -> None:
    offsets = open_table(tmp_path, ConsumerOffsets())
    offsets.commit("g", "t", 0, 1)
    offsets.delete("g", "t")
    assert open_table(tmp_path, ConsumerOffsets()).groups() == []


def test_read_only_offsets_refuse_a_commit(tmp_path: Path) -> None:
    open_table(tmp_path, ConsumerOffsets()).commit("g", "t", 0, 1)
    offsets = open_table(tmp_path, ConsumerOffsets(), writable=False)
    with pytest.raises(StoreError):
        offsets.commit("g", "t", 0, 2)
    assert offsets.get("g", "t", 0) == 1


def test_journal_does_not_override_rocketmqs_newer_offsets(tmp_path: Path) -> None:
    # RocketMQ had the directory after a kill: the older journal reset groups, and levels delivered again.
    journal, tables = open_with_files(tmp_path)
    tables.consumer_offsets.commit("g", "orders", 0, 5)
    tables.consumer_offsets.commit("g", "orders", 1, 7)
    tables.consumer_offsets.reset("g", "orders", 2, 1)
    tables.consumer_offsets.commit("g", "mine", 0, 3)
    tables.delay_offsets.commit(1, 4, 100)
    tables.delay_offsets.commit(2, 9, 100)
    journal.close(compact=False)  # as a kill leaves it
    write_as_rocketmq(tmp_path, consumerOffset={"orders@g": {"0": 15, "1": 6, "2": 30}}, delayOffset={"1": 8, "2": 1})
    for _ in range(2):
        journal, tables = open_with_files(tmp_path)
        again = tables.consumer_offsets
        assert again.of("g", "orders") == {0: 15, 1: 7, 2: 30}
        assert again.of("g", "mine") == {0: 3}
        assert not again.is_reset_pending("g", "orders", 2)
        assert (tables.delay_offsets.get(1), tables.delay_offsets.get(2)) == (8, 9)
        again.commit("g", "orders", 1, 2)  # RayMQ's own commits may go back again
        _, read_only = open_with_files(tmp_path, writable=False)
        assert read_only.consumer_offsets.get("g", "orders", 1) == 2
        again.commit("g", "orders", 1, 7)
        journal.close(compact=True)


def test_damage_in_the_journal_keeps_the_earlier_log_end(tmp_path: Path) -> None:
    # The damaged event may be a delivery of another level: a start has to search for its copies.
    delays = open_table(tmp_path, DelayOffsets())
    (path,) = (tmp_path / "raymq" / "state").iterdir()
    delays.commit(2, 1, 100)
    damaged = path.stat().st_size
    delays.commit(1, 5, 1000)
    delays.commit(2, 3, 2000)
    content = bytearray(path.read_bytes())
    content[damaged + 9] ^= 1
    path.write_bytes(content)
    for compacts in (False, False, True, True):
        delays = DelayOffsets()
        journal = open_tables(tmp_path, delays)
        journal.clamp(RecoveryBounds(1 << 40))
        assert (delays.get(1), delays.get(2)) == (None, 3)
        assert delays.log_end == 100
        journal.close(compact=compacts)


def test_delay_commits_behind_the_lost_log_end_are_void(tmp_path: Path) -> None:
    # Until the log is flushed up to a commit's log end, a snapshot holds it as a commit that may become void.
    journal, _, delays = open_offsets(tmp_path)
    journal.clamp(UNBOUNDED)
    delays.flushed_offset = lambda: 150
    for offset, log_end in ((1, 100), (2, 150), (3, 200), (4, 300)):
        delays.commit(1, offset, log_end)
    assert delays.settled() == ({1: 2}, 150)
    for compacts in (False, True):
        for log_end, expected in ((1000, (4, 300)), (250, (3, 200)), (199, (2, 150)), (150, (2, 150))):
            again = DelayOffsets()
            reading = StateJournal(tmp_path / "raymq" / "state", [again, ConsumerOffsets()], writable=False)
            reading.clamp(RecoveryBounds(log_end))
            assert (again.get(1), again.log_end) == expected
        if not compacts:
            journal.compact()
