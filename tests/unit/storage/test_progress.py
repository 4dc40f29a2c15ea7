"""Consumer offsets and delay progress: what is committed stays, wherever the journal is cut."""

from __future__ import annotations

import json
from pathlib import Path

from raymq.storage.files import json_file
from raymq.storage.tables.consumer_offset_store import ConsumerOffsetStore


def opened(directory: Path, *, writable: bool = True) -> ConsumerOffsetStore:
    return ConsumerOffsetStore(directory / "config", directory / "raymq" / "progress.journal", writable=writable)


def test_committed_without_close_is_there(tmp_path: Path) -> None:
    progress = opened(tmp_path)
    progress.consumer_offsets.commit("g", "orders", 3, 17)
    progress.consumer_offsets.commit("g", "other", 0, 1)
    progress.consumer_offsets.commit("g", "orders", 3, 12)
    progress.delay_offsets.commit(5, 99, 1234)

    again = opened(tmp_path, writable=False)
    assert again.consumer_offsets.get("g", "orders", 3) == 12
    assert again.consumer_offsets.of("g", "orders") == {3: 12}
    assert again.consumer_offsets.topics_of("g") == ["orders", "other"]
    assert again.consumer_offsets.groups() == ["g"]
    assert again.delay_offsets.get(5) == 99
    assert again.delay_offsets.get(6) is None
    assert again.delay_offsets.log_end == 1234
    assert again.consumer_offsets.get("g", "orders", 0) is None


def test_folding_leaves_rocketmqs_files_and_an_empty_journal(tmp_path: Path) -> None:
    progress = opened(tmp_path)
    progress.consumer_offsets.commit("g", "orders", 3, 17)
    progress.delay_offsets.commit(1, 2, 3)
    progress.close(fold=True)

    assert (tmp_path / "raymq" / "progress.journal").stat().st_size == 0
    assert json_file.load(tmp_path / "config" / "consumerOffset.json")["offsetTable"] == {"orders@g": {"3": 17}}
    assert json_file.load(tmp_path / "config" / "delayOffset.json")["offsetTable"] == {"1": 2}
    assert opened(tmp_path).consumer_offsets.get("g", "orders", 3) == 17


def test_offsets_of_rocketmq(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_text(
        '{\n\t"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1},\n\t"groupTopicMap":{},\n\t"offsetTable":'
        '{"orders@g_billing":{0:17,1:42,3:5\n\t\t},"%RETRY%g@g":{0:1\n\t\t}\n\t}\n}'
    )
    (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:17,18:0\n\t}\n}')
    progress = opened(tmp_path, writable=False)
    assert progress.consumer_offsets.of("g_billing", "orders") == {0: 17, 1: 42, 3: 5}
    assert progress.consumer_offsets.of("g", "%RETRY%g") == {0: 1}
    assert (progress.delay_offsets.get(1), progress.delay_offsets.get(18)) == (17, 0)


def test_journal_cut_at_every_byte(tmp_path: Path) -> None:
    progress = opened(tmp_path)
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
        cut = opened(copy)
        assert cut.consumer_offsets.get("g", "t", 0) == (survivors or None)
        cut.consumer_offsets.commit("g", "t", 0, 77)
        assert opened(copy, writable=False).consumer_offsets.get("g", "t", 0) == 77
        cut.close(fold=False)


def test_deleted_offsets_stay_deleted(tmp_path: Path) -> None:
    progress = opened(tmp_path)
    progress.consumer_offsets.commit("g", "t", 0, 1)
    progress.consumer_offsets.delete("g", "t")
    assert opened(tmp_path).consumer_offsets.groups() == []


def test_nothing_goes_back_behind_what_rocketmq_has_written_since(tmp_path: Path) -> None:
    """It had the directory after a kill: the journal of before set groups back, and levels delivered again."""
    progress = opened(tmp_path)
    progress.consumer_offsets.commit("g", "orders", 0, 5)
    progress.consumer_offsets.commit("g", "orders", 1, 7)
    progress.consumer_offsets.reset("g", "orders", 2, 1)
    progress.consumer_offsets.commit("g", "mine", 0, 3)
    progress.delay_offsets.commit(1, 4, 100)
    progress.delay_offsets.commit(2, 9, 100)
    progress.journal.close()  # as a kill leaves it
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    told = {"orders@g": {"0": 15, "1": 6, "2": 30}}
    for name, table in (("consumerOffset", told), ("delayOffset", {"1": 8, "2": 1})):
        path = tmp_path / "config" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"dataVersion": version, "offsetTable": table}))
    for _ in range(2):
        again = opened(tmp_path)
        assert again.consumer_offsets.of("g", "orders") == {0: 15, 1: 7, 2: 30}
        assert again.consumer_offsets.of("g", "mine") == {0: 3}
        assert not again.consumer_offsets.is_reset_pending("g", "orders", 2)
        assert again.delays == {1: 8, 2: 9}
        again.consumer_offsets.commit("g", "orders", 1, 2)  # ours may go back again
        assert opened(tmp_path, writable=False).consumer_offsets.get("g", "orders", 1) == 2
        again.consumer_offsets.commit("g", "orders", 1, 7)
        again.close(fold=True)


def test_of_places_behind_damage_none_says_that_the_copies_of_all_levels_are_known(tmp_path: Path) -> None:
    """What was damaged may have said that another level had delivered: a start has to look for its copies."""
    progress = opened(tmp_path)
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
        again = opened(tmp_path)
        assert (again.delay_offsets.get(1), again.delay_offsets.get(2)) == (None, 3)
        assert again.delay_offsets.log_end == 100
        again.close(fold=True)
