"""Test that committed consumer offsets and delay offsets survive any cut of the journal."""

from __future__ import annotations

import json
from pathlib import Path

from raymq.storage.files import json_file
from raymq.storage.tables.consumer_offset_store import ConsumerOffsetStore


def open_offset_store(directory: Path, *, writable: bool = True) -> ConsumerOffsetStore:
    return ConsumerOffsetStore(directory / "config", directory / "raymq" / "progress.journal", writable=writable)


def test_commits_survive_without_close(tmp_path: Path) -> None:
    progress = open_offset_store(tmp_path)
    progress.consumer_offsets.commit("g", "orders", 3, 17)
    progress.consumer_offsets.commit("g", "other", 0, 1)
    progress.consumer_offsets.commit("g", "orders", 3, 12)
    progress.delay_offsets.commit(5, 99, 1234)

    again = open_offset_store(tmp_path, writable=False)
    assert again.consumer_offsets.get("g", "orders", 3) == 12
    assert again.consumer_offsets.of("g", "orders") == {3: 12}
    assert again.consumer_offsets.topics_of("g") == ["orders", "other"]
    assert again.consumer_offsets.groups() == ["g"]
    assert again.delay_offsets.get(5) == 99
    assert again.delay_offsets.get(6) is None
    assert again.delay_offsets.log_end == 1234
    assert again.consumer_offsets.get("g", "orders", 0) is None


def test_folding_leaves_rocketmqs_files_and_an_empty_journal(tmp_path: Path) -> None:
    progress = open_offset_store(tmp_path)
    progress.consumer_offsets.commit("g", "orders", 3, 17)
    progress.delay_offsets.commit(1, 2, 3)
    progress.close(fold=True)

    assert (tmp_path / "raymq" / "progress.journal").stat().st_size == 0
    assert json_file.load(tmp_path / "config" / "consumerOffset.json")["offsetTable"] == {"orders@g": {"3": 17}}
    assert json_file.load(tmp_path / "config" / "delayOffset.json")["offsetTable"] == {"1": 2}
    assert open_offset_store(tmp_path).consumer_offsets.get("g", "orders", 3) == 17


def test_offset_files_of_rocketmq_are_read(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_text(
        '{\n\t"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1},\n\t"groupTopicMap":{},\n\t"offsetTable":'
        '{"orders@g_billing":{0:17,1:42,3:5\n\t\t},"%RETRY%g@g":{0:1\n\t\t}\n\t}\n}'
    )
    (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:17,18:0\n\t}\n}')
    progress = open_offset_store(tmp_path, writable=False)
    assert progress.consumer_offsets.of("g_billing", "orders") == {0: 17, 1: 42, 3: 5}
    assert progress.consumer_offsets.of("g", "%RETRY%g") == {0: 1}
    assert (progress.delay_offsets.get(1), progress.delay_offsets.get(18)) == (17, 0)


def test_journal_cut_at_any_byte_keeps_whole_commits(tmp_path: Path) -> None:
    progress = open_offset_store(tmp_path)
    journal = tmp_path / "raymq" / "progress.journal"
    ends = []
    for offset in range(1, 6):
        progress.consumer_offsets.commit("g", "t", 0, offset)
        ends.append(journal.stat().st_size)
    content = journal.read_bytes()

    for length in range(len(content) + 1):
        copy = tmp_path / str(length)
        (copy / "raymq").mkdir(parents=True)
        (copy / "raymq" / "progress.journal").write_bytes(content[:length])
        survivors = sum(end <= length for end in ends)
        cut = open_offset_store(copy)
        assert cut.consumer_offsets.get("g", "t", 0) == (survivors or None)
        cut.consumer_offsets.commit("g", "t", 0, 77)
        assert open_offset_store(copy, writable=False).consumer_offsets.get("g", "t", 0) == 77
        cut.close(fold=False)


def test_deleted_offsets_stay_deleted(tmp_path: Path) -> None:
    progress = open_offset_store(tmp_path)
    progress.consumer_offsets.commit("g", "t", 0, 1)
    progress.consumer_offsets.delete("g", "t")
    assert open_offset_store(tmp_path).consumer_offsets.groups() == []


def test_journal_does_not_override_rocketmqs_newer_offsets(tmp_path: Path) -> None:
    # RocketMQ had the directory after a kill: the older journal reset groups, and levels delivered again.
    progress = open_offset_store(tmp_path)
    progress.consumer_offsets.commit("g", "orders", 0, 5)
    progress.consumer_offsets.commit("g", "orders", 1, 7)
    progress.consumer_offsets.reset("g", "orders", 2, 1)
    progress.consumer_offsets.commit("g", "mine", 0, 3)
    progress.delay_offsets.commit(1, 4, 100)
    progress.delay_offsets.commit(2, 9, 100)
    progress.journal.close()  # as a kill leaves it
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    offsets = {"orders@g": {"0": 15, "1": 6, "2": 30}}
    for name, table in (("consumerOffset", offsets), ("delayOffset", {"1": 8, "2": 1})):
        path = tmp_path / "config" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"dataVersion": version, "offsetTable": table}))
    for _ in range(2):
        again = open_offset_store(tmp_path)
        assert again.consumer_offsets.of("g", "orders") == {0: 15, 1: 7, 2: 30}
        assert again.consumer_offsets.of("g", "mine") == {0: 3}
        assert not again.consumer_offsets.is_reset_pending("g", "orders", 2)
        assert again.delays == {1: 8, 2: 9}
        again.consumer_offsets.commit("g", "orders", 1, 2)  # RayMQ's own commits may go back again
        assert open_offset_store(tmp_path, writable=False).consumer_offsets.get("g", "orders", 1) == 2
        again.consumer_offsets.commit("g", "orders", 1, 7)
        again.close(fold=True)


def test_damage_in_the_journal_keeps_the_earlier_log_end(tmp_path: Path) -> None:
    # The damaged entry may be a delivery of another level: a start has to search for its copies.
    progress = open_offset_store(tmp_path)
    progress.delay_offsets.commit(2, 1, 100)
    damaged = progress.journal.length
    progress.delay_offsets.commit(1, 5, 1000)
    progress.delay_offsets.commit(2, 3, 2000)
    progress.close(fold=False)
    journal = tmp_path / "raymq" / "progress.journal"
    content = bytearray(journal.read_bytes())
    content[damaged + 9] ^= 1
    journal.write_bytes(content)
    for _ in range(2):
        again = open_offset_store(tmp_path)
        assert (again.delay_offsets.get(1), again.delay_offsets.get(2)) == (None, 3)
        assert again.delay_offsets.log_end == 100
        again.close(fold=True)
