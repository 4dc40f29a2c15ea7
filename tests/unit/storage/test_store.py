"""Test the store: append, read, find, close and open again."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raymq.storage.errors import (
    InvalidInput,
    MessageExpired,
    MessageNotFound,
    OffsetOutOfRange,
    QueueNotFound,
    StoreError,
    StoreFailed,
    StoreFull,
)
from raymq.storage.records.java_hash import tags_code
from raymq.storage.records.record import MAGIC_BLANK, encode, encode_properties
from raymq.storage.store import Store
from raymq.storage.verify import verify
from tests.store_records import SMALL, append, bodies, flip_byte, log_file, make_record, write_entries

pytestmark = pytest.mark.usefixtures("batch_code")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path, SMALL) as opened:
        yield opened


def test_one_record_is_stamped_and_found(store: Store) -> None:
    sent = make_record(b"hello", tags="red", keys="k1 k2", unique_key="U1")
    result = append(store, sent)
    assert (result.queue_offsets.tolist(), result.physical_offsets.tolist()) == ([0], [0])

    record = store.read_at(0)
    assert (record.queue_offset, record.physical_offset, record.body) == (0, 0, b"hello")
    assert record.store_timestamp_ms == result.store_timestamp_ms > 0
    assert record.store_host == SMALL.store_host
    with store.read("orders", 0, 0) as lease:
        assert bytes(lease.records[:4]) == sent[:4]
        assert lease.messages() == [record]
        assert (lease.sizes.tolist(), lease.queue_offsets.tolist(), lease.next_offset) == ([len(sent)], [0], 1)
    physical_offsets, sizes, tags_codes = store.entries("orders", 0, 0, 10)
    assert (physical_offsets.tolist(), sizes.tolist(), tags_codes.tolist()) == ([0], [len(sent)], [tags_code("red")])


@pytest.mark.parametrize("count", [1, 5, 12, 13, 60])
def test_batch_over_several_queues_keeps_the_order_in_each(store: Store, count: int) -> None:
    sent = [
        make_record(b"%d" % i, topic=("a", "longer")[i % 3 == 0], queue_id=i % 2, tags=f"t{i}", keys=f"k{i}")
        for i in range(count)
    ]
    buffer = b"".join(sent)
    before = bytes(buffer)
    result = append(store, *sent)
    assert buffer == before
    for i in range(count):
        record = store.read_at(int(result.physical_offsets[i]))
        assert (record.body, record.queue_offset) == (b"%d" % i, result.queue_offsets[i])
        assert store.query(record.topic, f"k{i}", 0, 1 << 60, 9) == [record]
    for topic in store.topics():
        for queue_id in store.queues(topic):
            found = [int(body) for body in bodies(store, topic, queue_id)]
            assert found == [i for i in range(count) if (i % 3 == 0) == (topic == "longer") and i % 2 == queue_id]
            assert store.max_offset(topic, queue_id) == len(found)


def test_log_files_roll_behind_a_blank(store: Store, tmp_path: Path) -> None:
    record = make_record(b"x" * 400)
    for _ in range(20):
        append(store, record)
    files = sorted((tmp_path / "commitlog").iterdir())
    assert [int(path.name) for path in files] == [4096 * k for k in range(len(files))]
    assert all(path.stat().st_size == 4096 for path in files)
    at = 4096 // len(record) * len(record)
    assert files[0].read_bytes()[at : at + 8] == struct.pack(">ii", 4096 - at, MAGIC_BLANK)
    assert len(bodies(store)) == 20
    assert [record.queue_offset for record in store.walk(0)] == list(range(20))
    store._save_checkpoint()
    assert [p.stat().st_size for p in (tmp_path / "consumequeue" / "orders" / "0").iterdir()] == [320, 320]


def test_batch_larger_than_a_file_is_stored(store: Store) -> None:
    append(store, *[make_record(b"x" * 100 + b"%d" % i) for i in range(100)])
    assert bodies(store) == [b"x" * 100 + b"%d" % i for i in range(100)]


@given(data=st.data())
@settings(max_examples=15)
def test_any_batches_are_stored_and_reopened(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("store")
    expected: dict[tuple[str, int], list[bytes]] = {}
    with Store.open(directory, SMALL) as store:
        for _ in range(data.draw(st.integers(1, 5))):
            chosen = data.draw(
                st.lists(
                    st.tuples(st.sampled_from(["a", "bb", "t" * 127]), st.integers(0, 2), st.binary(min_size=1)),
                    min_size=1,
                    max_size=40,
                )
            )
            append(store, *[make_record(body, topic=topic, queue_id=queue) for topic, queue, body in chosen])
            for topic, queue_id, body in chosen:
                expected.setdefault((topic, queue_id), []).append(body)
    with Store.open(directory, SMALL) as store:
        assert store.recovery.clean
        assert store.recovery.truncated_bytes == 0
        for (topic, queue_id), sent in expected.items():
            assert bodies(store, topic, queue_id) == sent
    shutil.rmtree(directory)


def test_written_record_is_readable_before_its_dispatch(store: Store) -> None:
    for n in range(3):
        queue_offset, physical_offset = store.write(store.check_one(make_record(b"%d" % n, tags="red", keys=f"k{n}")))
        assert queue_offset == n == store.read_at(physical_offset).queue_offset
        assert n == 0 or store.max_offset("orders", 0) == n
        if n < 2:  # the next append does it otherwise
            assert store.dispatch()
    append(store, make_record(b"3"))
    assert not store.dispatch()
    assert bodies(store) == [b"0", b"1", b"2", b"3"]
    assert [record.body for record in store.query("orders", "k2", 0, 1 << 60, 9)] == [b"2"]


def test_single_records_and_batches_share_files(store: Store) -> None:
    sent: list[bytes] = []
    for n in range(200):
        if n % 7 == 3:
            batch = [make_record(b"%d.%d" % (n, k), keys=f"b{n}") for k in range(n % 40 + 1)]
            append(store, *batch)
            sent += [b"%d.%d" % (n, k) for k in range(n % 40 + 1)]
        else:
            store.write(store.check_one(make_record(b"%d" % n, keys=f"k{n}")))
            store.dispatch()
            sent.append(b"%d" % n)
    assert bodies(store) == sent
    for n in range(200):
        found = [record.body for record in store.query("orders", f"k{n}", 0, 1 << 60, 99)]
        assert found == ([] if n % 7 == 3 else [b"%d" % n])


def damage_record(record: bytes, at: int, value: bytes) -> bytes:
    return record[:at] + value + record[at + len(value) :]


GOOD = make_record(b"good")
BAD = {
    "size": damage_record(GOOD, 0, struct.pack(">i", len(GOOD) + 1)),
    "magic": damage_record(GOOD, 4, b"\1\2\3\4"),
    "crc": damage_record(GOOD, 8, b"\1\2\3\4"),
    "queue id": damage_record(GOOD, 12, b"\xff\xff\xff\xff"),
    "body length": damage_record(GOOD, 84, b"\0\1\0\0"),
    "topic length": damage_record(GOOD, 92, b"\xff"),
    "empty topic": damage_record(GOOD, 92, b"\0"),
    "topic name": make_record(topic="../x"),
    "long topic": make_record(topic="t" * 128),
    "body": make_record(b""),
    "store host": damage_record(GOOD, 36, b"\0\0\0\x20"),
    "prepared": damage_record(GOOD, 36, b"\0\0\0\x04"),
    "larger than a file": make_record(b"x" * 4096),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("others", [0, 3, 30])
def test_batch_with_a_bad_record_is_refused_unchanged(store: Store, tmp_path: Path, name: str, others: int) -> None:
    append(store, GOOD)
    before = log_file(tmp_path).read_bytes(), store.max_physical_offset
    with pytest.raises(InvalidInput):
        append(store, *[GOOD] * others, BAD[name], *[GOOD] * others)
    assert (log_file(tmp_path).read_bytes(), store.max_physical_offset) == before
    assert store.max_offset("orders", 0) == 1
    assert store.topics() == ["orders"]
    append(store, GOOD)
    assert len(bodies(store)) == 2


def test_sizes_that_do_not_match_are_refused(store: Store) -> None:
    for sizes in ([], [len(GOOD) - 1], [len(GOOD), len(GOOD)], [0], [-1]):
        with pytest.raises(InvalidInput):
            store.append(GOOD, np.array(sizes, np.int32))
    assert store.max_physical_offset == 0


def test_body_and_properties_limits_are_enforced(tmp_path: Path) -> None:
    with Store.open(tmp_path, replace(SMALL, max_message_bytes=10, commitlog_file_bytes=1 << 20)) as store:
        append(store, make_record(b"x" * 10))
        for count in (1, 20):
            with pytest.raises(InvalidInput, match=r"a body of 1 to 10 bytes; got 11 .*raise max_message_bytes"):
                append(store, *[make_record(b"x" * 11)] * count)
        long_properties = encode_properties({"a": "b" * 32764})
        append(store, encode("t", 0, b"b", long_properties, born_timestamp_ms=0, born_host=("1.2.3.4", 5)))


def test_read_at_and_beyond_the_queue_bounds(store: Store) -> None:
    append(store, *[GOOD] * 3)
    with store.read("orders", 0, 3) as lease:
        assert len(lease) == 0
        assert lease.next_offset == 3
        assert bytes(lease.records) == b""
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRange) as caught:
            store.read("orders", 0, offset)
        assert (caught.value.offset, caught.value.min_offset, caught.value.max_offset) == (offset, 0, 3)
    for topic, queue_id in (("orders", 1), ("nothing", 0)):
        with pytest.raises(QueueNotFound):
            store.read(topic, queue_id, 0)


def test_read_is_limited_by_bytes_and_count(store: Store) -> None:
    append(store, *[GOOD] * 20)
    assert len(store.read("orders", 0, 5, 7)) == 7
    assert len(store.read("orders", 0, 5, max_bytes=1)) == 1
    assert len(store.read("orders", 0, 5, max_bytes=3 * len(GOOD) + 1)) == 3
    assert store.read("orders", 0, 5, 7).next_offset == 12


def test_read_filters_by_tags(store: Store) -> None:
    append(store, *[make_record(b"%d" % i, tags=("red", "blue", "green")[i % 3]) for i in range(30)])
    wanted = {tags_code("red"), tags_code("green")}
    lease = store.read("orders", 0, 1, 5, tags_codes=wanted)
    assert [int(record.body) for record in lease.messages()] == [2, 3, 5, 6, 8]
    assert lease.queue_offsets.tolist() == [2, 3, 5, 6, 8]
    assert lease.next_offset == 9
    lease = store.read("orders", 0, 0, 5, tags_codes={12345})
    assert (len(lease), lease.next_offset) == (0, 30)


def test_offset_at_time_is_the_first_message_not_before(tmp_path: Path) -> None:
    clock = [1000]
    with Store.open(tmp_path, SMALL, now_ms=lambda: clock[0]) as store:
        for now in (1000, 1000, 2000, 3000, 3000, 1500):
            clock[0] = now
            append(store, GOOD)
        stored = [record.store_timestamp_ms for record in store.walk(0)]
        assert stored == [1000, 1000, 2000, 3000, 3000, 3000]
        found = [store.offset_at_time("orders", 0, at) for at in (0, 1000, 1001, 2000, 2500, 3000, 3001)]
        assert found == [0, 0, 2, 2, 3, 3, 6]


def test_read_at_raises_for_missing_and_expired_places(store: Store) -> None:
    append(store, GOOD, GOOD)
    assert store.read_at(len(GOOD)).queue_offset == 1
    for place in (1, 2 * len(GOOD), 1 << 40):
        with pytest.raises(MessageNotFound):
            store.read_at(place)
    with pytest.raises(MessageExpired):
        store.read_at(-1)


def test_query_returns_the_newest_messages_of_a_key(store: Store) -> None:
    for i in range(60):
        append(store, make_record(b"%d" % i, keys=f"all {('Aa', 'BB')[i % 2]} all", unique_key=f"U{i}"))
    everything = store.query("orders", "all", 0, 1 << 60, 1000)
    assert [int(record.body) for record in everything] == list(range(59, -1, -1))
    assert [int(r.body) for r in store.query("orders", "BB", 0, 1 << 60, 3)] == [59, 57, 55]
    assert [int(r.body) for r in store.query("orders", "U7", 0, 1 << 60, 3)] == [7]
    assert store.query("other", "all", 0, 1 << 60, 3) == []
    assert store.query("orders", "all", 0, everything[-1].store_timestamp_ms - 1, 3) == []


def test_schedule_topic_entry_has_the_due_time(store: Store) -> None:
    for count in (1, 20):
        sent = [make_record(topic="SCHEDULE_TOPIC_XXXX", queue_id=2, tags="x")] * count
        result = append(store, *sent)
        codes = store.entries("SCHEDULE_TOPIC_XXXX", 2, int(result.queue_offsets[0]), count)[2]
        assert codes.tolist() == [result.store_timestamp_ms + 10_000] * count


def test_lease_is_valid_after_the_store_is_closed(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store:
        append(store, make_record(b"kept"))
        lease = store.read("orders", 0, 0)
    assert lease.messages()[0].body == b"kept"
    lease.release()
    with pytest.raises(ValueError, match="released"):
        _ = lease.records


def test_reopened_store_continues(tmp_path: Path) -> None:
    for round_ in range(3):
        with Store.open(tmp_path, SMALL) as store:
            assert store.recovery.clean
            append(store, *[make_record(b"%d" % (round_ * 30 + i), keys="k") for i in range(30)])
            store.consumer_offsets.commit("g", "orders", 0, round_)
    with Store.open(tmp_path) as store:  # The directory knows its sizes.
        assert store.config.commitlog_file_bytes == 4096
        assert [int(body) for body in bodies(store)] == list(range(90))
        assert len(store.query("orders", "k", 0, 1 << 60, 1000)) == 90
        assert store.consumer_offsets.get("g", "orders", 0) == 2
        assert (tmp_path / "abort").read_text() == str(os.getpid())
    assert not (tmp_path / "abort").exists()
    assert (tmp_path / "checkpoint").stat().st_size == 4096


def test_read_only_store_changes_no_file(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store:
        append(store, *[GOOD] * 40)
        write_entries(store)  # otherwise the store's thread writes them at some moment

        def contents() -> dict[Path, bytes]:
            return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

        before = contents()
        with Store.open(tmp_path, read_only=True) as other:
            assert len(bodies(other)) == 40
            with pytest.raises(StoreError):
                append(other, GOOD)
            with pytest.raises(StoreError):
                other.consumer_offsets.commit("g", "t", 0, 1)
        assert contents() == before
    with pytest.raises(InvalidInput):
        Store.open(tmp_path / "nowhere", read_only=True)


def test_deleted_topic_is_gone_and_can_be_recreated(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store:
        append(store, GOOD, make_record(topic="other"))
        store.delete_topic("orders")
        assert store.topics() == ["other"]
        with pytest.raises(QueueNotFound):
            store.read("orders", 0, 0)
        append(store, make_record(b"new"))
        assert bodies(store) == [b"new"]
        store.delete_topic("../commitlog")
        assert log_file(tmp_path).exists()
    shutil.rmtree(tmp_path / "consumequeue")
    with Store.open(tmp_path, SMALL) as store:
        assert bodies(store) == [b"new"]


def test_full_disk_refuses_appends(tmp_path: Path) -> None:
    with Store.open(tmp_path, replace(SMALL, disk_refuse_ratio=0.000001)) as store, pytest.raises(StoreFull):
        append(store, GOOD)


def test_failed_sync_refuses_all_later_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path, replace(SMALL, flush_interval_ms=600_000))
    append(store, GOOD)

    def fail(_fd: int, _path: Path) -> None:
        raise StoreFailed("Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("raymq.storage.files.fileutil.fdatasync", fail)
        with pytest.raises(StoreFailed):
            store.flush()
    for attempt in (lambda: append(store, GOOD), store.flush):
        with pytest.raises(StoreFailed):
            attempt()
    store.close()
    assert (tmp_path / "abort").exists()
    with Store.open(tmp_path, SMALL) as again:
        assert not again.recovery.clean
        append(again, GOOD)
        assert len(bodies(again)) == 2


def test_full_disk_does_not_fail_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path, SMALL) as store:

        def full(_fd: int, _start: int, _length: int, _path: Path) -> None:
            raise StoreFull("no room")

        with monkeypatch.context() as patched:
            patched.setattr("raymq.storage.files.fileutil.allocate", full)
            for count in (1, 20):
                with pytest.raises(StoreFull):
                    append(store, *[GOOD] * count)
        append(store, GOOD)
        assert len(bodies(store)) == 1


def test_flush_moves_the_flushed_offset(tmp_path: Path) -> None:
    with Store.open(tmp_path, replace(SMALL, flush_interval_ms=600_000)) as store:
        append(store, GOOD)
        assert store.flushed_offset == 0
        store.flush()
        assert store.flushed_offset == store.max_physical_offset == len(GOOD)


def test_verify_reports_bad_records(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL) as store:
        append(store, *[GOOD] * 80)
        live = verify(tmp_path)
        assert (live.records, live.bad) == (80, [])
    flip_byte(log_file(tmp_path), 5 * len(GOOD) + 90)
    flip_byte(log_file(tmp_path, 4096), 4)
    report = verify(tmp_path)
    assert report.records == 78
    assert report.bad_records == 2
    assert report.bad == [(str(log_file(tmp_path)), 5 * len(GOOD)), (str(log_file(tmp_path, 4096)), 0)]
    with pytest.raises(InvalidInput):
        verify(tmp_path / "nowhere")
