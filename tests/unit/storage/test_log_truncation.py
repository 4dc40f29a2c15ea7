"""Test how a former master truncates lost records and follows the new master."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput, StoreCorrupt, StoreFollows, StoreFull
from raymq.storage.store import Store
from raymq.storage.tables import leader_epoch_checkpoint
from raymq.storage.tables.pending_truncation import PendingTruncation
from tests.store_records import SMALL, append, make_record
from tests.store_replication import diverge_brokers, fill, log_content, read_bodies, ship

CONFIG = replace(SMALL, index_slots=500, index_entries=400, flush_interval_ms=3_600_000)


def test_truncated_former_master_equals_the_new_master(tmp_path: Path) -> None:
    # Traps 1, 3, 11: log, queues, index, groups' offsets, delay levels and deletions end at the truncation.
    both = diverge_brokers(tmp_path, CONFIG)
    with Store.open(both.former, CONFIG) as former:
        assert former.topics() == ["SCHEDULE_TOPIC_XXXX", "orders", "parts"]
        former.order_truncation(both.place)
    with Store.open(both.former, CONFIG) as former:
        assert former.max_physical_offset == both.place
        assert read_bodies(former)["gone", 0] == [b"gone"]
        assert former.incarnation("gone") == 0
        assert former.delay_offsets.get(1) is None, "copies of delivered messages may be among the truncated ones"
    shutil.copytree(both.former, tmp_path / "copy")
    with Store.open(both.former, CONFIG) as former:
        assert both.check(former)
    with Store.open(tmp_path / "copy", CONFIG) as former:
        assert former.max_physical_offset == both.place
        assert both.check(former)


@pytest.mark.parametrize("file", range(4))
def test_log_is_truncated_only_at_record_boundaries(tmp_path: Path, file: int) -> None:
    # The places: a file's begin, before a file's filler, the log's begin, and the log's end.
    with Store.open(tmp_path / "whole", CONFIG) as store:
        fill(store, 20)
        records = list(store.walk(0))
        first = next(record for record in records if record.physical_offset >= file * 4096)
        before = [each for each in records if each.physical_offset < first.physical_offset]
        places = {first.physical_offset, first.physical_offset + first.size, store.max_physical_offset}
        if before:
            places.add(before[-1].physical_offset + before[-1].size)
        whole = b"".join(log_content(tmp_path / "whole").values())
        for wrong in (first.physical_offset + 1, first.physical_offset + first.size - 1, -1, 1 << 40):
            with pytest.raises(InvalidInput):
                store.order_truncation(wrong)
    for number, place in enumerate(sorted(places)):
        shutil.copytree(tmp_path / "whole", tmp_path / str(number))
        with Store.open(tmp_path / str(number), CONFIG) as store:
            store.order_truncation(place)
        with Store.open(tmp_path / str(number), CONFIG) as store:
            assert store.max_physical_offset == place
            found = b"".join(log_content(tmp_path / str(number)).values())
            assert found[:place] == whole[:place]
            assert not any(found[place:])
            assert {lane: len(bodies) for lane, bodies in read_bodies(store).items() if bodies} == {
                lane: count
                for lane in {(record.topic, record.queue_id) for record in records}
                if (count := sum((r.topic, r.queue_id) == lane for r in records if r.physical_offset < place))
            }
            with Store.open(tmp_path / "whole", CONFIG, read_only=True) as master:
                store.follow()
                ship(master, store)
                assert read_bodies(store) == read_bodies(master)


def test_store_with_pending_truncation_refuses_appends(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", CONFIG) as store:
        append(store, make_record(b"0"))
        end = store.max_physical_offset
        append(store, make_record(b"1"))
        store.order_truncation(end)
        with pytest.raises(StoreFollows):
            append(store, make_record(b"2"))
        for refused in (store.become_leader, lambda: store.append_replicated(store.received_offset, b"x")):
            with pytest.raises(InvalidInput):
                refused()
    with Store.open(tmp_path / "s", CONFIG, read_only=True) as store:
        assert read_bodies(store) == {("orders", 0): [b"0"]}
    with Store.open(tmp_path / "s", CONFIG) as store:
        append(store, make_record(b"2"))
        assert read_bodies(store) == {("orders", 0): [b"0", b"2"]}
    with Store.open(tmp_path / "s", CONFIG) as store:
        assert read_bodies(store) == {("orders", 0): [b"0", b"2"]}


def test_truncation_removes_later_leader_epochs(tmp_path: Path) -> None:
    paths = tmp_path / "s" / "epochFileCheckpoint", tmp_path / "s" / "raymq" / "epochs"
    with Store.open(tmp_path / "s", CONFIG) as store:
        append(store, make_record(b"0"))
        for path in paths:
            leader_epoch_checkpoint.save(path, [(1, 0), (2, store.max_physical_offset)])
            leader_epoch_checkpoint.save(path, [(1, 0), (2, store.max_physical_offset), (3, store.max_physical_offset)])
        store.order_truncation(store.max_physical_offset, last_epoch=1)
        assert all(len(leader_epoch_checkpoint.load(path)) == 3 for path in paths)
    Store.open(tmp_path / "s", CONFIG).close()
    assert [leader_epoch_checkpoint.load(path) for path in paths] == [[(1, 0)], [(1, 0)]]


def test_unreadable_truncation_order_raises_store_corrupt(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", CONFIG) as store:
        append(store, make_record(b"0"))
        store.order_truncation(0)
        order = tmp_path / "s" / "raymq" / "cut.json"
    for content in (b"", b"{}", b"[1]", b'{"offset":"x","lastEpoch":1}', b"\xff"):
        order.write_bytes(content)
        with pytest.raises(StoreCorrupt):
            Store.open(tmp_path / "s", CONFIG)


def test_truncation_before_the_log_begin_leaves_an_empty_log(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", CONFIG) as store:
        fill(store, 20)
        store.order_truncation(0)
    (tmp_path / "s" / "commitlog" / f"{0:020d}").unlink()
    with Store.open(tmp_path / "s", CONFIG) as store:
        assert (store.min_physical_offset, store.max_physical_offset) == (4096, 4096)
        assert not any(read_bodies(store).values())


def test_full_disk_refuses_truncation_and_keeps_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StoreFull("no room")

    with Store.open(tmp_path / "s", CONFIG) as store:
        append(store, make_record(b"0"))
        with monkeypatch.context() as broken:
            broken.setattr(PendingTruncation, "save", full)
            with pytest.raises(StoreFull):
                store.order_truncation(0)
        store.become_leader()
        append(store, make_record(b"1"))
    with Store.open(tmp_path / "s", CONFIG) as store:
        assert read_bodies(store) == {("orders", 0): [b"0", b"1"]}


def order_index_truncation(directory: Path) -> int:
    """Order a truncation before the second index file's first record, and return its offset."""
    with Store.open(directory, SMALL) as store:
        append(store, make_record(b"first", keys="k"))
        place = store.max_physical_offset
        append(store, *(make_record(b"never was", keys=f"k{each}") for each in range(60)))
        store.order_truncation(place)
    return place


def test_truncation_removes_later_index_files(tmp_path: Path) -> None:
    # The header of such a file begins behind its end, which a reader that does not know the file sizes refuses.
    place = order_index_truncation(tmp_path)
    with Store.open(tmp_path, SMALL) as store:
        assert store.max_physical_offset == place
        append(store, make_record(b"next", keys="k"))
    (tmp_path / "raymq" / "state.json").unlink()
    with Store.open(tmp_path, SMALL) as store:
        assert len(store.query("orders", "k", 0, 1 << 60, 9)) == 2


def test_damaged_index_is_rebuilt_together_with_queues(tmp_path: Path) -> None:
    # A replica that rebuilds queues after reverted deletions knows the sizes of its files all the same.
    with Store.open(tmp_path, SMALL) as store:
        append(store, make_record(b"first", keys="k"))
    (index,) = (tmp_path / "index").iterdir()
    index.write_bytes(b"\xff" * 40 + index.read_bytes()[40:])
    (tmp_path / "raymq" / "rebuild_queues").write_bytes(b"")
    with Store.open(tmp_path, SMALL, is_replica=True) as store:
        assert len(store.query("orders", "k", 0, 1 << 60, 9)) == 1


def test_topic_recreated_behind_the_truncation_is_restored(tmp_path: Path) -> None:
    # Its queue is rebuilt from the log, over a queue that begins with a lost message.
    with Store.open(tmp_path, SMALL) as store:
        append(store, make_record(b"of another", topic="other"))
        for number in range(3):
            append(store, make_record(b"old", topic="v"))
            if number == 1:
                store.delete_topic("v")  # so that the rest of the queue does not begin at 0
        append(store, make_record(b"kept", topic="v"), make_record(b"kept too", topic="v"))
        place = store.max_physical_offset
        append(store, make_record(b"never was"))
        store.delete_topic("v")
        append(store, *[make_record(b"never was", topic="v")] * 5)
        store.order_truncation(place)
    for _ in range(2):
        with Store.open(tmp_path, SMALL) as store:
            assert read_bodies(store)["v", 0] == [b"old", b"kept", b"kept too"]


def test_expired_queue_keeps_no_entry_behind_the_truncation(tmp_path: Path) -> None:
    # Retention removed the queue's begin from the log, and the queue was recreated behind the truncation.
    with Store.open(tmp_path, SMALL) as store:
        append(store, *[make_record(bytes(300), topic="v")] * 10)
        append(store, *[make_record(b"kept", topic="v")] * 3)
        store.flush()
        store._age.now_ms = lambda: 1 << 60  # type: ignore[method-assign]
        assert store.delete_expired(asked=True).log_files
        expected, low = read_bodies(store)["v", 0], store.min_offset("v", 0)
        assert low > 0
        place = store.max_physical_offset
        append(store, make_record(b"never was"))
        store.delete_topic("v")
        append(store, make_record(b"never was", topic="v"))
        store.order_truncation(place)
    with Store.open(tmp_path, SMALL) as store:
        assert store.min_offset("v", 0) == low
        assert read_bodies(store)["v", 0] == expected
