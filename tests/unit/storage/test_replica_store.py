"""Test a replica's store: its log equals the master's, and readers see what is confirmed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import InvalidInput, StoreCorrupt, StoreFailed, StoreFollows, WriteUnknown
from raymq.storage.log.consume_queue import ConsumeQueue
from raymq.storage.store import Store
from raymq.storage.tables.recovery_epochs import RecoveryEpochs
from tests.fake_machine import Machine
from tests.state_journals import open_table
from tests.store_records import SMALL, append, bodies, make_record
from tests.store_replication import fill, iter_pieces, log_content, read_bodies, ship

LARGER = replace(SMALL, index_slots=500, index_entries=400)


@pytest.fixture
def master(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "master", LARGER)


@pytest.fixture
def replica(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "replica", LARGER)
    store.follow()
    return store


@pytest.mark.parametrize("most", [3, 200, 5_000])
def test_replica_files_equal_the_masters(tmp_path: Path, master: Store, replica: Store, most: int) -> None:
    fill(master, 20)
    ship(master, replica, most=most)
    fill(master, 20, seed=1)
    ship(master, replica, seed=1, most=most)
    assert replica.max_physical_offset == master.max_physical_offset > 4 * 4096
    assert read_bodies(replica) == read_bodies(master)
    for number in (0, 7, 19):
        assert [r.body for r in replica.query("orders", f"k{number}.0", 0, 1 << 60, 9)] == [
            r.body for r in master.query("orders", f"k{number}.0", 0, 1 << 60, 9)
        ]
    master.close()
    replica.close()
    assert log_content(tmp_path / "replica") == log_content(tmp_path / "master")
    queues = {path.relative_to(tmp_path / "master") for path in (tmp_path / "master/consumequeue").rglob("0*")}
    for queue in queues:
        if (tmp_path / "master" / queue).is_file():
            assert (tmp_path / "replica" / queue).read_bytes() == (tmp_path / "master" / queue).read_bytes()


def test_promoted_replica_continues_at_the_log_end(master: Store, replica: Store) -> None:
    fill(master, 20)
    ship(master, replica)
    with pytest.raises(StoreFollows):
        append(replica, make_record(b"own"))
    with pytest.raises(StoreFollows):
        append(replica, make_record(b"own"), make_record(b"own"))
    replica.become_leader()
    last = list(master.walk(0))[-1]
    placed = append(replica, make_record(b"own"))
    assert placed.queue_offsets[0] == master.max_offset("orders", 0)
    assert placed.store_timestamp_ms >= last.store_timestamp_ms
    assert bodies(replica)[-1] == b"own"
    with pytest.raises(InvalidInput):
        replica.append_replicated(replica.max_physical_offset, b"x")
    master.close()
    replica.close()


def test_replica_log_ends_with_a_whole_record(master: Store, replica: Store) -> None:
    # All that a replica reports can be read; a record's begin waits for the rest and is not reported.
    fill(master, 10)
    ends = {0, *range(0, 1 << 16, 4096)} | {record.physical_offset + record.size for record in master.walk(0)}
    for offset, content in iter_pieces(master, 0, random.Random(5), 90):
        replica.append_replicated(offset, content)
        assert replica.max_physical_offset in ends
        assert replica.received_offset == offset + len(content)
    half = make_record(b"x" * 500)
    append(master, half)
    end = replica.max_physical_offset
    with master.log_slice(end, end + 40) as found:
        replica.append_replicated(end, bytes(found.view))
    assert (replica.max_physical_offset, replica.received_offset) == (end, end + 40)
    replica.follow()
    assert replica.received_offset == end
    ship(master, replica)
    assert read_bodies(replica) == read_bodies(master)
    master.close()
    replica.close()


def test_replicated_bytes_must_begin_at_the_log_end(master: Store, replica: Store) -> None:
    fill(master, 3)
    first = next(iter_pieces(master, 0, random.Random(0)))
    for wrong in (1, -1, 4096):
        with pytest.raises(InvalidInput):
            replica.append_replicated(wrong, first[1])
    ship(master, replica)
    with pytest.raises(InvalidInput):
        replica.append_replicated(*first)
    master.close()
    replica.close()


@pytest.mark.parametrize("at", [0, 6, 8, 22, 30, 95, 300])
def test_replica_refuses_a_flipped_bit(master: Store, replica: Store, at: int) -> None:
    # Trap 20: a flipped bit in size, magic, CRC, queue offset's top, place or body; nothing is written.
    append(master, make_record(b"0" * 400))
    ship(master, replica)
    end = master.max_physical_offset
    append(master, make_record(b"1" * 400))
    with master.log_slice(end, master.max_physical_offset) as found:
        whole = bytes(found.view)
    wrong = bytearray(whole)
    wrong[at] ^= 0x40
    with pytest.raises(StoreCorrupt):
        replica.append_replicated(end, bytes(wrong) + bytes(2_000))
    assert replica.max_physical_offset == replica.received_offset == end
    replica.append_replicated(end, whole)
    assert read_bodies(replica) == read_bodies(master)
    master.close()
    replica.close()


def test_readers_of_a_replica_see_confirmed_messages_only(tmp_path: Path, master: Store, replica: Store) -> None:
    # Trap 3: queues are built up to the log's end, and read up to the high watermark, also after a restart.
    replica.confirmed.hold(0)
    append(master, make_record(b"0"), make_record(b"1"))
    half = master.max_physical_offset
    append(master, make_record(b"2", keys="k"))
    ship(master, replica)
    assert bodies(replica) == []
    assert replica.max_offset("orders", 0, written=True) == 3
    replica.confirmed.advance(half)
    assert bodies(replica) == [b"0", b"1"]
    assert replica.query("orders", "k", 0, 1 << 60, 9) == []
    replica.confirmed.advance(0)
    assert replica.confirmed.offset == half
    replica.close()
    with Store.open(tmp_path / "replica", LARGER) as again:
        again.confirmed.hold(again.last_high_watermark)
        assert bodies(again) == [b"0", b"1"]
        assert again.max_offset("orders", 0, written=True) == 3
        again.confirmed.advance(1 << 40)
        assert bodies(again) == [b"0", b"1", b"2"]
    master.close()


def test_partly_failed_write_stops_all_writes(master: Store, replica: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    append(master, make_record(b"0"))

    def fail(*_: object) -> None:
        raise RuntimeError("no queue")

    with monkeypatch.context() as broken:
        broken.setattr(ConsumeQueue, "put", fail)
        with pytest.raises(WriteUnknown):
            ship(master, replica)
    append(master, make_record(b"1"))
    with pytest.raises(StoreFailed):
        ship(master, replica)
    replica.close()
    with Store.open(replica.directory, LARGER) as again:
        again.follow()
        ship(master, again)
        assert read_bodies(again) == read_bodies(master)
    master.close()


@pytest.mark.parametrize("is_replica", [True, False])
def test_replica_after_power_loss_keeps_the_masters_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replica: bool
) -> None:
    # No consumer has read from the replica. Epochs of its own would reset all readers once it is master.
    machine = Machine(monkeypatch)
    with Store.open(tmp_path, SMALL) as store:
        append(store, make_record(b"a"), make_record(b"b"))
        epoch, end = store.epoch, store.max_physical_offset
    Store.open(tmp_path, SMALL, is_replica=True).close()  # left as by a killed process
    machine.lose_power(tmp_path, end // 2)
    with Store.open(tmp_path, SMALL, is_replica=is_replica) as store:
        assert store.max_physical_offset == end // 2
    kept = open_table(tmp_path, RecoveryEpochs(), writable=False)
    assert (kept.current == epoch) is is_replica
