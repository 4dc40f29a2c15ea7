"""Test what a store has after a power loss; see power_loss.py."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from raymq.storage import checkpointer as checkpointing_module
from raymq.storage.files.file_calls import replaced
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig
from tests.crash.power_loss import Disk
from tests.faulty_calls import UnsyncedCalls
from tests.store_records import SMALL, append, make_record, write_entries

pytestmark = pytest.mark.crash

#: Several records per page, pages per file, and files per store; the background thread never wakes up.
CONFIG = replace(
    SMALL,
    commitlog_file_bytes=16384,
    consume_queue_file_entries=64,
    index_slots=300,
    index_entries=200,
    flush_interval_ms=3_600_000,
)


@dataclass
class Expected:
    """What a client expects of the store."""

    records: list[tuple[int, int, int]] = field(default_factory=list)
    """Queue, queue offset, physical offset of each append; the number is the position in this list."""
    durable: int = 0
    """The number of records when a flush last returned."""
    committed: int = 0
    """The consumer's offset at the newest checkpoint."""
    settled: set[str] = field(default_factory=set)
    """Topics whose settings were saved."""


@pytest.fixture
def another_boot(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    boots = [0]
    monkeypatch.setattr(checkpointing_module, "boot_id", lambda: f"boot {boots[0]}")
    return boots


def record(number: int, random_: random.Random) -> bytes:
    # Some bodies and properties are longer than a page, so that one of their pages may be missing.
    body = b"%d:" % number + bytes([65 + number % 26]) * random_.choice((1, 20, 700))
    keys = " ".join([f"k{number}"] + ["x" * 60] * random_.choice((0, 0, 0, 25)))
    # A zero byte that was sent must not be taken for a missing page.
    tags = None if "x" in keys else random_.choice((None, "a\0b"))
    return make_record(body, topic="t", queue_id=number % 3, keys=keys, unique_key=f"u{number}", tags=tags)


def number_of(body: bytes) -> int:
    return int(body.split(b":")[0])


def check_store(directory: Path, written: Expected) -> int:
    """Check the store after a power loss, and return its number of records.

    They are a prefix of what was written, with all that was flushed, each record once and readable in every way.
    """
    with Store.open(directory, CONFIG) as store:
        assert store.recovery.corruption == []
        found = list(store.walk(store.min_physical_offset))
        numbers = [number_of(found_.body) for found_ in found]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= written.durable
        per_queue: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for number, each in enumerate(found):
            assert number >= len(written.records) or written.records[number] == (
                each.queue_id,
                each.queue_offset,
                each.physical_offset,
            )
            assert each.properties.pop("TAGS", "a\0b") == "a\0b"
            assert not any("\0" in text for pair in each.properties.items() for text in pair)
            per_queue[each.queue_id].append(number)
        for queue_id, expected in per_queue.items():
            if not expected and queue_id not in store.queues("t"):
                continue
            assert store.max_offset("t", queue_id) == len(expected)
            read: list[int] = []
            while len(read) < len(expected):
                with store.read("t", queue_id, len(read), 50) as lease:
                    read += [number_of(each.body) for each in lease.messages()]
            assert read == expected
        for number in numbers:
            for key in (f"u{number}", f"k{number}"):
                assert [number_of(r.body) for r in store.query("t", key, 0, 1 << 60, 5)] == [number], (key, numbers[-1])
        assert (store.consumer_offsets.get("g", "t", 0) or 0) >= written.committed
        assert written.settled <= set(store.topic_configs.all())
    return len(numbers)


def work_on_store(store: Store, written: Expected, random_: random.Random, *, sync: bool) -> None:
    """Do some random work on a store."""
    for _ in range(random_.choice((1, 4, 12))):
        first = len(written.records)
        count = random_.choice((1, 1, 3, 14, 40))
        result = append(store, *(record(first + i, random_) for i in range(count)))
        for i in range(count):
            place = ((first + i) % 3, int(result.queue_offsets[i]), int(result.physical_offsets[i]))
            written.records.append(place)
        if sync:
            store.flush()
            written.durable = len(written.records)
    store.consumer_offsets.commit("g", "t", 0, store.max_offset("t", 0) if 0 in store.queues("t") else 0)
    if random_.random() < 0.3:
        name = f"topic{len(written.settled)}"
        store.topic_configs.put(TopicConfig(name, 1, 1))
        written.settled.add(name)
    if random_.random() < 0.4:
        committed = store.consumer_offsets.get("g", "t", 0)
        store._save_checkpoint()
        written.durable = len(written.records)
        written.committed = committed or 0


def run_lives(tmp_path: Path, boots: list[int], seed: int, *, sync: bool, steps: int) -> int:
    """Run three lives of one store, each ended by a power loss; return how many losses were checked."""
    random_ = random.Random(seed)
    written = Expected()
    live_in = tmp_path / "0"
    live_in.mkdir()
    looked = 0

    def look() -> None:
        """Check that the store would survive a power loss at this moment."""
        nonlocal looked
        looked += 1
        place = tmp_path / "look"
        disk.after_power_loss(place, random_, random_.choice((0.0, 0.3, 0.7, 1.0)))
        boots[0] += 1
        with replaced(UnsyncedCalls()):
            check_store(place, written)
        boots[0] -= 1
        shutil.rmtree(place)

    def sometimes() -> None:
        if random_.random() < 0.12:
            look()

    for life in range(3):
        disk = Disk(live_in)
        disk.remember_all()
        boots[0] += 1
        with replaced(disk):
            disk.before_sync = sometimes
            store = Store.open(live_in, CONFIG)
            written.durable = len(written.records)
            for _ in range(steps):
                work_on_store(store, written, random_, sync=sync)
                sometimes()
            look()
            disk.before_sync = None
            live_in = tmp_path / str(life + 1)
            disk.after_power_loss(live_in, random_, random_.random())
            store._flusher.stop()
            store._abandon()
        disk.close()
        copy = tmp_path / "copy"
        shutil.copytree(live_in, copy)
        boots[0] += 1
        del written.records[check_store(copy, written) :]
        shutil.rmtree(copy)
    return looked


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.long
def test_flushed_records_survive_power_loss(tmp_path: Path, another_boot: list[int], seed: int, sync: bool) -> None:
    assert run_lives(tmp_path, another_boot, seed, sync=sync, steps=3) > 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("first", range(100, 130, 10))
def test_flushed_records_survive_many_power_losses(
    tmp_path: Path, another_boot: list[int], first: int, sync: bool
) -> None:
    for seed in range(first, first + 10):
        (tmp_path / str(seed)).mkdir()
        run_lives(tmp_path / str(seed), another_boot, seed, sync=sync, steps=6)
        shutil.rmtree(tmp_path / str(seed))


def test_queue_entries_after_a_gap_are_not_restored(tmp_path: Path, another_boot: list[int]) -> None:
    """Their records are lost and their pages are not: the queue must not find its end among these later."""
    config = replace(CONFIG, consume_queue_file_entries=1000, commitlog_file_bytes=1 << 20)
    store = Store.open(tmp_path / "s", config)
    append(store, *(make_record(b"%d" % number) for number in range(10)))
    store._save_checkpoint()
    known = store.max_physical_offset
    append(store, *(make_record(b"%d" % number) for number in range(10, 600)))
    write_entries(store)
    shutil.copytree(tmp_path / "s", tmp_path / "lost")
    store.close()
    queue_file = tmp_path / "lost" / "consumequeue" / "orders" / "0" / ("0" * 20)
    log = tmp_path / "lost" / "commitlog" / ("0" * 20)
    for path, begin, end in ((queue_file, 200, 6000), (queue_file, 8000, 20_000), (log, known, 1 << 20)):
        content = bytearray(path.read_bytes())
        content[begin:end] = bytes(end - begin)
        path.write_bytes(content)
    another_boot[0] += 1
    for expected in (10, 260, 510):  # a binary search reads an entry after 260, and none after 10
        with Store.open(tmp_path / "lost", config) as store:
            assert store.recovery.corruption == []
            assert store.max_offset("orders", 0) == expected
            append(store, *(make_record() for _ in range(250)))


def test_queue_entries_of_a_lost_log_are_dropped(tmp_path: Path, another_boot: list[int]) -> None:
    """The log and the queue's first file are lost, its second file is not: unwritten messages have no entry."""
    store = Store.open(tmp_path / "s", CONFIG)
    append(store, *(make_record(b"%d" % number) for number in range(70)))
    write_entries(store)
    shutil.copytree(tmp_path / "s", tmp_path / "lost")
    store.close()
    first_file = tmp_path / "lost" / "consumequeue" / "orders" / "0" / ("0" * 20)
    for path in (first_file, *(tmp_path / "lost" / "commitlog").iterdir()):
        path.write_bytes(bytes(path.stat().st_size))
    another_boot[0] += 1
    with Store.open(tmp_path / "lost", CONFIG) as store:
        assert store.max_physical_offset == 0
        assert store.max_offset("orders", 0) == 0
