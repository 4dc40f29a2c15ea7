"""Change log files at random: a store opens or names the damage, and serves no record with a wrong CRC."""

from __future__ import annotations

import random
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.errors import NotFoundError, StoreCorrupt
from raymq.storage.store import Store
from raymq.storage.verify import verify
from tests.store_records import SMALL, append, bodies, make_record

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("batch_code")]


#: Several queue files, and many log files.
ENTRIES = replace(SMALL, commitlog_file_bytes=16_384, consume_queue_file_entries=700)


@pytest.fixture(scope="module")
def valid_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fuzz") / "whole"
    random_ = random.Random(7)
    with Store.open(directory, SMALL) as store:
        for number in range(40):
            records = [
                make_record(
                    random_.randbytes(random_.choice((1, 30, 300))),
                    topic=random_.choice(("orders", "%RETRY%" + "g" * 150)),
                    queue_id=random_.randrange(3),
                    keys=f"k{number}",
                    born_host=random_.choice((("10.0.0.1", 5), ("::1", 5))),
                )
                for _ in range(random_.choice((1, 4)))
            ]
            append(store, *records)
    return directory


def flip_bits(content: bytearray, random_: random.Random) -> None:
    for _ in range(random_.choice((1, 1, 3, 30))):
        content[random_.randrange(len(content))] ^= 1 << random_.randrange(8)


def write_number(content: bytearray, random_: random.Random) -> None:
    number = random_.choice((0, 1, -1, 91, 94, 4096, 0x7FFFFFFF, -0x80000000, random_.randrange(-(1 << 31), 1 << 31)))
    struct.pack_into(">i", content, random_.randrange(len(content) - 4), number)


def write_long(content: bytearray, random_: random.Random) -> None:
    number = random_.choice((0, -1, 1 << 40, (1 << 63) - 1, -(1 << 63), random_.randrange(9000)))
    struct.pack_into(">q", content, random_.randrange(len(content) - 8), number)


def clear_bytes(content: bytearray, random_: random.Random) -> None:
    begin = random_.randrange(len(content))
    end = min(len(content), begin + random_.choice((1, 4, 100, 512, 4096)))
    content[begin:end] = bytes(end - begin)


def copy_a_piece(content: bytearray, random_: random.Random) -> None:
    length = random_.randrange(1, 600)
    source, target = random_.randrange(len(content) - length), random_.randrange(len(content) - length)
    content[target : target + length] = content[source : source + length]


def put_noise(content: bytearray, random_: random.Random) -> None:
    begin = random_.randrange(len(content))
    end = min(len(content), begin + random_.randrange(1, 600))
    content[begin:end] = random_.randbytes(end - begin)


def change_a_field(content: bytearray, random_: random.Random) -> None:
    """Change a byte of a record header, where each byte has a meaning."""
    starts = [at - 4 for at in range(4, len(content) - 100) if content[at : at + 3] == b"\xda\xa3\x20"]
    if starts:
        content[random_.choice(starts) + random_.randrange(92)] = random_.randrange(256)


MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [
    flip_bits,
    write_number,
    write_long,
    clear_bytes,
    copy_a_piece,
    put_noise,
    change_a_field,
    change_a_field,
]


def mutate(directory: Path, random_: random.Random) -> None:
    for _ in range(random_.choice((1, 1, 2, 5))):
        path = random_.choice(sorted((directory / "commitlog").iterdir()))
        content = bytearray(path.read_bytes())
        if len(content) > 700:
            random_.choice(MUTATIONS)(content, random_)
        if random_.random() < 0.05:
            del content[random_.randrange(len(content) + 1) :]
        path.write_bytes(content)
    if random_.random() < 0.5:
        (directory / "abort").write_bytes(b"1")
    for name in ("raymq", "consumequeue", "index"):
        if random_.random() < 0.3:
            shutil.rmtree(directory / name, ignore_errors=True)


def use_store(directory: Path, random_: random.Random) -> None:
    """Open, read everything in every way, append, close."""
    with Store.open(directory, SMALL) as store:
        for topic in store.topics():
            for queue_id in store.queues(topic):
                low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
                assert 0 <= low <= high < 1000
                offset = low
                while offset < high:
                    try:
                        with store.read(topic, queue_id, offset, random_.choice((1, 7, 100))) as lease:
                            for record in lease.messages():
                                raw = store.raw_at(record.physical_offset)
                                length = struct.unpack_from(">i", raw, body_at(raw) - 4)[0]
                                body = raw[body_at(raw) : body_at(raw) + length]
                                assert zlib.crc32(body) & 0x7FFFFFFF == struct.unpack_from(">i", raw, 8)[0]
                                assert (record.topic, record.queue_id) == (topic, queue_id)
                            assert lease.next_offset > offset
                            offset = lease.next_offset
                    except StoreCorrupt:
                        offset += 1
                store.offset_at_time(topic, queue_id, random_.randrange(1 << 42))
        for number in range(0, 40, 7):
            store.query("orders", f"k{number}", 0, 1 << 62, 10)
        position = store.min_physical_offset
        while position < store.max_physical_offset:
            try:
                for record in store.walk(position):
                    position = record.physical_offset + record.size
                break
            except (StoreCorrupt, NotFoundError):
                position += 64
        before = store.max_offset("orders", 0) if 0 in store.queues("orders") else 0
        assert append(store, make_record(b"more")).queue_offsets.tolist() == [before]
        with store.read("orders", 0, before) as lease:
            assert [record.body for record in lease.messages()] == [b"more"]


def body_at(raw: bytes) -> int:
    flags = struct.unpack_from(">i", raw, 36)[0]
    return 88 + 12 * bool(flags & 0x10) + 12 * bool(flags & 0x20)


def run_mutations(whole: Path, tmp_path: Path, seeds: range) -> None:
    refused = 0
    for seed in seeds:
        random_ = random.Random(seed)
        directory = tmp_path / "s"
        shutil.copytree(whole, directory)
        mutate(directory, random_)
        verify(directory)
        try:
            use_store(directory, random_)
            use_store(directory, random_)
        except StoreCorrupt as error:
            assert error.file  # noqa: PT017 - only some seeds are refused
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        shutil.rmtree(directory)
    assert refused < len(seeds) / 4


@pytest.mark.parametrize("first", [0, 100, 200])
@pytest.mark.long
def test_store_with_mutated_log_serves_only_valid_records(valid_store: Path, tmp_path: Path, first: int) -> None:
    run_mutations(valid_store, tmp_path, range(first, first + 100))


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(300, 10_300, 1000))
def test_ten_thousand_mutated_logs_serve_only_valid_records(valid_store: Path, tmp_path: Path, first: int) -> None:
    run_mutations(valid_store, tmp_path, range(first, first + 1000))


@pytest.fixture(scope="module")
def many_messages_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store 2,000 messages of one queue, over many log files and some queue files, and 300 of another topic."""
    directory = tmp_path_factory.mktemp("entries") / "whole"
    with Store.open(directory, ENTRIES) as store:
        for number in range(0, 2_000, 50):
            append(store, *(make_record(b"%d" % each) for each in range(number, number + 50)))
        append(store, *(make_record(b"%d" % each, topic="other") for each in range(300)))
    return directory


@pytest.mark.parametrize("first", range(0, 120, 30))
@pytest.mark.long
def test_damaged_queue_entries_lose_no_logged_message(many_messages_store: Path, tmp_path: Path, first: int) -> None:
    """Guard against fault 13.12: random bytes over queue entries, with the log intact."""
    for seed in range(first, first + 30):
        random_ = random.Random(seed)
        directory = tmp_path / str(seed)
        shutil.copytree(many_messages_store, directory)
        path = random_.choice(sorted((directory / "consumequeue" / "orders" / "0").iterdir()))
        content = bytearray(path.read_bytes())
        used = min(len(content), 2_000 * 20 - int(path.name))
        for _ in range(random_.choice((1, 2, 10))):
            begin = random_.choice((0, used - 20, 20 * random_.randrange(used // 20), random_.randrange(used)))
            end = min(used, begin + random_.choice((1, 8, 12, 20, 200, 5_000)))
            content[begin:end] = random_.randbytes(end - begin)
        path.write_bytes(content)
        if random_.random() < 0.3:
            (directory / "abort").write_bytes(b"1")
        with Store.open(directory, ENTRIES) as store:
            assert bodies(store) == [b"%d" % number for number in range(2_000)], seed
            assert len(bodies(store, "other")) == 300
        shutil.rmtree(directory)
