"""Test that reads rebuild damaged queue entries from the log, where an open does not check them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from raymq.storage.errors import StoreCorrupt
from raymq.storage.log import queue_repair
from raymq.storage.records.java_hash import tags_code
from raymq.storage.store import Store
from tests.store_records import SMALL, append, bodies, flip_byte, log_file, make_record

pytestmark = pytest.mark.crash

COUNT = 100
ENTRY = struct.Struct(">qiq")
#: In the second of seven queue files, and far before the log file that an open scans.
VICTIM = 20


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Make two queues whose messages alternate in the log, and close the store."""
    with Store.open(tmp_path / "s", SMALL) as store:
        for i in range(COUNT):
            for queue_id in (0, 1):
                append(store, make_record(b"%02d" % i, queue_id=queue_id, tags=f"t{i % 3}"))
    return tmp_path / "s"


def write_entry(directory: Path, offset: int, content: bytes) -> None:
    start = offset // 16 * 16 * ENTRY.size
    with (directory / "consumequeue" / "orders" / "0" / f"{start:020d}").open("r+b") as stream:
        stream.seek(offset * ENTRY.size - start)
        stream.write(content)


def all_entries(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((directory / "consumequeue" / "orders" / "0").iterdir()))


def damaged_entries(directory: Path) -> dict[str, bytes]:
    """Return damaged forms of an entry: zeros, noise, another message's of this queue, and of the other queue."""
    with Store.open(directory, SMALL) as store:
        positions, sizes, codes = (column.tolist() for column in store.entries("orders", 0, VICTIM, 2))
        others, _, _ = store.entries("orders", 1, VICTIM, 1)
    return {
        "zeros": bytes(ENTRY.size),
        "outside of the log": ENTRY.pack(1 << 50, sizes[0], codes[0]),
        "negative": ENTRY.pack(-5, -7, 0),
        "within a record": ENTRY.pack(positions[0] + 3, sizes[0], codes[0]),
        "another size": ENTRY.pack(positions[0], sizes[0] + 1, codes[0]),
        "the next message": ENTRY.pack(positions[1], sizes[1], codes[1]),
        "the other queue's message": ENTRY.pack(int(others[0]), sizes[0], codes[0]),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "zeros",
        "outside of the log",
        "negative",
        "within a record",
        "another size",
        "the next message",
        "the other queue's message",
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_damaged_entry_is_rebuilt_by_read(directory: Path, kind: str, read_only: bool) -> None:
    before = all_entries(directory)
    write_entry(directory, VICTIM, damaged_entries(directory)[kind])
    with Store.open(directory, SMALL, read_only=read_only) as store:
        assert store.offset_at_time("orders", 0, 1 << 60) == COUNT
        assert bodies(store) == [b"%02d" % i for i in range(COUNT)]
    assert (all_entries(directory) == before) is not read_only


def test_gap_over_two_files_at_queue_start_is_rebuilt(directory: Path) -> None:
    before = all_entries(directory)
    for offset in range(20):
        write_entry(directory, offset, bytes(ENTRY.size))
    with Store.open(directory, SMALL) as store:
        assert bodies(store) == [b"%02d" % i for i in range(COUNT)]
    assert all_entries(directory) == before


@pytest.mark.parametrize("hole", [range(40, 41), range(30, 60), range(49, 52)])
def test_gap_keeps_earlier_messages_visible(directory: Path, hole: range) -> None:
    for offset in hole:
        write_entry(directory, offset, bytes(ENTRY.size))
    with Store.open(directory, SMALL) as store:
        positions = store.entries("orders", 1, 0, COUNT)[0].tolist()
        queue = store._dispatcher.get("orders", 0)
        for offset in range(1, COUNT):  # a message of queue 0 precedes the message of queue 1 with the same offset
            queue.trim(positions[offset - 1])
            assert queue.min_offset == offset or {offset, queue.min_offset} <= {*hole, hole.stop}


def test_filtered_read_rebuilds_entries_it_reaches(directory: Path) -> None:
    write_entry(directory, VICTIM, ENTRY.pack(1 << 50, 99, tags_code("t0")))
    with Store.open(directory, SMALL) as store:
        found, offset = [], 0
        while offset < COUNT:
            with store.read("orders", 0, offset, 8, tags_codes={tags_code("t2")}) as lease:
                found += [int(record.body) for record in lease.messages()]
                offset = lease.next_offset
        assert found == [i for i in range(COUNT) if i % 3 == 2 and i != VICTIM]  # its code says t0, which is not read
        assert bodies(store)[VICTIM] == b"20"


def test_rebuilt_entries_exclude_deleted_topic(directory: Path) -> None:
    with Store.open(directory, SMALL) as store:
        store.delete_topic("orders")
        for i in range(COUNT):
            append(store, make_record(b"new %d" % i))
    write_entry(directory, 0, bytes(ENTRY.size))
    with Store.open(directory, SMALL) as store:
        assert bodies(store) == [b"new %d" % i for i in range(COUNT)]


def test_damaged_message_raises_and_keeps_queue_entries(directory: Path) -> None:
    with Store.open(directory, SMALL) as store:
        position = int(store.entries("orders", 0, VICTIM, 1)[0][0])
    flip_byte(log_file(directory, position // 4096 * 4096), position % 4096 + 88)
    before = all_entries(directory)
    with Store.open(directory, SMALL) as store:
        for _ in range(2):
            with pytest.raises(StoreCorrupt, match="CRC") as caught:
                store.read("orders", 0, VICTIM)
            assert caught.value.file == str(log_file(directory, position // 4096 * 4096))
        assert bodies_from(store, VICTIM + 1) == [b"%02d" % i for i in range(VICTIM + 1, COUNT)]
    assert all_entries(directory) == before


def bodies_from(store: Store, offset: int) -> list[bytes]:
    found: list[bytes] = []
    while offset < COUNT:
        with store.read("orders", 0, offset) as lease:
            found += [record.body for record in lease.messages()]
            offset = lease.next_offset
    return found


def test_damaged_entry_and_message_hide_no_other_message(directory: Path) -> None:
    with Store.open(directory, SMALL) as store:
        position = int(store.entries("orders", 0, VICTIM, 1)[0][0])
    flip_byte(log_file(directory, position // 4096 * 4096), position % 4096 + 4)
    write_entry(directory, VICTIM, bytes(ENTRY.size))
    with Store.open(directory, SMALL) as store:
        for _ in range(2):
            with pytest.raises(StoreCorrupt):
                store.read("orders", 0, VICTIM)
        assert bodies_from(store, VICTIM + 1) == [b"%02d" % i for i in range(VICTIM + 1, COUNT)]


def test_too_long_repair_raises_with_remedy(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_repair, "_MAX_BYTES", 100)
    write_entry(directory, VICTIM, bytes(ENTRY.size))
    folder = directory / "consumequeue" / "orders" / "0"
    with Store.open(directory, SMALL) as store, pytest.raises(StoreCorrupt, match="and start it again") as caught:
        store.read("orders", 0, VICTIM)
    assert Path(caught.value.file).parent == folder
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    with Store.open(directory, SMALL) as store:
        assert bodies(store) == [b"%02d" % i for i in range(COUNT)]
