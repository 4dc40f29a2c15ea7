"""Test appends to a real broker's store: old data stay, new data have RocketMQ's layout."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.storage.log.checkpoint import Checkpoint
from raymq.storage.records import record as layout
from raymq.storage.records.java_hash import tags_code
from raymq.storage.records.record import encode
from raymq.storage.store import Store
from tests import golden_stores as golden
from tests import rocketmq_index
from tests.golden_stores import Answers
from tests.store_records import append, make_record

pytestmark = pytest.mark.usefixtures("batch_code")

ENTRY = struct.Struct(">qiq")
TARGETS = [("orders", 1), ("payments", 0), ("%RETRY%g_new", 0), ("new", 7), ("SCHEDULE_TOPIC_XXXX", 17)]


def log_bytes(directory: Path, begin: int, end: int) -> bytes:
    """Return a part of the log, put together from its files."""
    paths = sorted((directory / "commitlog").iterdir())
    first = int(paths[0].name)
    content = b"".join(path.read_bytes() for path in paths)
    return content[begin - first : end - first]


def append_messages(store: Store, count: int) -> list[tuple[str, int, int, int, str]]:
    """Append to old and new queues, singly and in batches.

    Returns:
        topic, queue, offset, place and key of each message.
    """
    done: list[tuple[str, int, int, int, str]] = []
    number = 0
    while number < count:
        batch = []
        for _ in range(1 if len(done) % 3 else 40):
            topic, queue_id = TARGETS[number % len(TARGETS)]
            key = f"raymq-{number}"
            body = b"%d " % number * (1 + number % 300)
            record = make_record(body, topic=topic, queue_id=queue_id, tags="标签", keys=key, unique_key=f"U{number}")
            batch.append((topic, queue_id, key, record))
            number += 1
        result = append(store, *[record for *_, record in batch])
        offsets, places = result.queue_offsets.tolist(), result.physical_offsets.tolist()
        done += [(t, q, o, p, k) for (t, q, k, _), o, p in zip(batch, offsets, places, strict=True)]
    return done


@pytest.mark.parametrize("name", golden.NAMES)
def test_appended_and_old_messages_survive_a_reopen(tmp_path: Path, name: str) -> None:
    directory = golden.unpack(name, tmp_path)
    expected, config = golden.answers(name), golden.config(name)
    begin, end = expected["min_physical_offset"], expected["max_physical_offset"]
    before = log_bytes(directory, begin, end)
    maxima = {(queue["topic"], queue["queue"]): queue["max"] for queue in expected["queues"]}
    untouched = {
        path: content
        for path, content in golden.fingerprints(directory).items()
        if path.startswith(("timer", "compaction", "abort.bak", "config/consumerFilter", "config/consumerOrder"))
    }
    with Store.open(directory, config) as store:
        done = append_messages(store, 600)
    # Dense: each queue continues at its maximum, and a new queue begins at 0.
    following = dict(maxima)
    for topic, queue_id, offset, _, _ in done:
        assert offset == following.get((topic, queue_id), 0)
        following[topic, queue_id] = offset + 1

    with Store.open(directory, config) as store:
        assert store.recovery.clean
        assert (store.recovery.truncated_bytes, store.recovery.corruption) == (0, [])
        for at, maximum in following.items():
            assert store.max_offset(*at) == maximum
        for queue in expected["queues"]:
            assert store.min_offset(queue["topic"], queue["queue"]) == queue["min"]
        for topic, queue_id, offset, place, key in done:
            record = store.read_at(place)
            assert (record.topic, record.queue_id, record.queue_offset, record.keys) == (topic, queue_id, offset, [key])
            assert [found.physical_offset for found in store.query(topic, key, 0, golden.FOREVER_MS, 9)] == [place]
        for message in expected["messages"]:
            assert store.read_at(message["physical_offset"]).message_id == message["message_id"]
            assert not message["unique_key"] or golden.is_found_by(store, message["unique_key"], message)
    assert log_bytes(directory, begin, end) == before
    unchanged = golden.fingerprints(directory)
    assert {path: unchanged[path] for path in untouched} == untouched


@pytest.mark.parametrize("name", golden.NAMES)
def test_appended_files_have_rocketmqs_layout(tmp_path: Path, name: str) -> None:
    directory = golden.unpack(name, tmp_path)
    expected, config = golden.answers(name), golden.config(name)
    # After a kill, index files that the checkpoint does not cover are rebuilt.
    clean = not expected["raw"]["abort"]
    old_index = {path.name for path in (directory / "index").iterdir()} if clean else set()
    with Store.open(directory, config) as store:
        done = append_messages(store, 1500)
        end, last_ms = store.max_physical_offset, store.read_at(done[-1][3]).store_timestamp_ms
    check_log(directory, config.commitlog_file_bytes, end)
    check_queues(directory, config.consume_queue_file_entries, expected, done)
    check_index(directory, config.index_slots, config.index_entries, old_index, done)
    # Only RocketMQ's files, where RocketMQ would refuse others.
    for folder in [directory / "commitlog", *(directory / "consumequeue").glob("*/*")]:
        assert all(len(path.name) == 20 and path.name.isdigit() for path in folder.iterdir())
    assert not (directory / "abort").exists()
    assert (directory / "lock").read_bytes() == b"lock"
    content = (directory / "checkpoint").read_bytes()
    assert len(content) == 4096
    assert not any(content[40:])
    checkpoint = Checkpoint.load(directory / "checkpoint")
    assert checkpoint.physical_ms == checkpoint.logic_ms == last_ms
    assert checkpoint.index_ms == last_ms
    assert checkpoint.confirm_offset == expected["raw"]["checkpoint"]["confirm_phy_offset"]


def check_log(directory: Path, file_bytes: int, end: int) -> None:
    """Check log files: one size, no gaps, a BLANK with the rest's length at each end."""
    paths = sorted((directory / "commitlog").iterdir())
    starts = [int(path.name) for path in paths]
    assert starts == list(range(starts[0], starts[0] + file_bytes * len(paths), file_bytes))
    assert len(paths) > 1
    for path, start in zip(paths, starts, strict=True):
        content = path.read_bytes()
        assert len(content) == file_bytes
        at = 0
        while start + at < end:
            size, magic = struct.unpack_from(">ii", content, at)
            if magic == layout.MAGIC_BLANK:
                assert size == file_bytes - at >= 8
                assert not any(content[at + 8 :])
                break
            assert magic in (layout.MAGIC_V1, layout.MAGIC_V2)
            at += size
        else:
            assert not any(content[at:])


def check_queues(
    directory: Path, file_entries: int, expected: Answers, done: list[tuple[str, int, int, int, str]]
) -> None:
    """Check queue files: full size, names, entries, and zeros behind the last entry."""
    counts: dict[tuple[str, int], int] = {(q["topic"], q["queue"]): q["max"] for q in expected["queues"]}
    for topic, queue_id, offset, place, _ in done:
        folder = directory / "consumequeue" / topic / str(queue_id)
        first = offset // file_entries * file_entries
        content = (folder / f"{first * 20:020d}").read_bytes()
        assert len(content) == file_entries * 20
        entry = ENTRY.unpack_from(content, (offset - first) * 20)
        raw = log_bytes(directory, place, place + entry[1])
        record = layout.decode(raw)
        code = tags_code("标签")
        if topic == "SCHEDULE_TOPIC_XXXX":
            code = record.store_timestamp_ms + 2 * 3_600_000
        assert entry == (place, record.size, code)
        assert (record.queue_offset, record.physical_offset) == (offset, place)
        counts[topic, queue_id] = offset + 1
    for (topic, queue_id), count in counts.items():
        paths = sorted((directory / "consumequeue" / topic / str(queue_id)).iterdir())
        # The last file holds the last entry, or would hold the next one if all files are full.
        assert int(paths[-1].name) // 20 // file_entries in (count // file_entries, (count - 1) // file_entries)
        rest = paths[-1].read_bytes()[count * 20 - int(paths[-1].name) :]
        assert not any(rest)


def check_index(
    directory: Path, slots: int, entries: int, old: set[str], done: list[tuple[str, int, int, int, str]]
) -> None:
    """Check index files: headers, `entries - 1` entries, and RocketMQ's search for every key."""
    folder = directory / "index"
    paths = rocketmq_index.index_files(folder)
    assert old <= {path.name for path in paths}
    assert len(paths) > len(old)
    for path in paths:
        content = path.read_bytes()
        assert len(content) == 40 + 4 * slots + 20 * entries
        begin_ms, end_ms, begin, end, used, count = rocketmq_index.HEADER.unpack_from(content)
        table = struct.unpack_from(f">{slots}i", content, 40)
        assert used == len([number for number in table if number])
        assert max(table) == count - 1 < entries
        assert count == entries or path == paths[-1]
        at = 40 + 4 * slots
        assert not any(content[at : at + 20])
        found = [rocketmq_index.ENTRY.unpack_from(content, at + 20 * number) for number in range(1, count)]
        assert (found[0][1], found[-1][1]) == (begin, end) or path != paths[-1]
        places = [place for _, place, _, _ in found]
        assert places == sorted(places)
        assert found[-1][2] <= (end_ms - begin_ms) // 1000
        assert not any(content[at + 20 * count :])
    for topic, _, _, place, key in done[::5]:
        assert rocketmq_index.find(folder, slots, topic, key, 0, golden.FOREVER_MS) == [place]


@pytest.mark.parametrize("name", golden.NAMES)
def test_reencoded_records_equal_rocketmqs_bytes(tmp_path: Path, name: str) -> None:
    # RayMQ's codec and store get the input of the real broker.
    source = golden.unpack(name, tmp_path)
    expected = golden.answers(name)
    clock = [0]
    config = replace(golden.config(name), commitlog_file_bytes=1 << 22)
    with (
        Store.open(source, golden.config(name), read_only=True) as theirs,
        Store.open(tmp_path / "ours", config, now_ms=lambda: clock[0]) as ours,
    ):
        for message in expected["messages"]:
            raw = theirs.raw_at(message["physical_offset"])
            _, _, _, properties_at, end = layout.locate(raw, 0, len(raw), True)
            born = message["born_host"].rpartition(":")
            record = encode(
                message["topic"],
                message["queue"],
                theirs.read_at(message["physical_offset"]).body,
                raw[properties_at:end],
                flag=message["flag"],
                sys_flag=message["sys_flag"],
                born_timestamp_ms=message["born_timestamp"],
                born_host=(born[0].strip("[]"), int(born[2])),
                reconsume_times=message["reconsume_times"],
                prepared_transaction_offset=message["prepared_transaction_offset"],
            )
            clock[0] = message["store_timestamp"]
            result = ours.append(record, np.array([len(record)], np.int32))
            stored = bytearray(ours.raw_at(int(result.physical_offsets[0])))
            stored[layout.OFFSET_QUEUE_OFFSET : layout.OFFSET_SYS_FLAG] = struct.pack(
                ">qq", message["queue_offset"], message["physical_offset"]
            )
            assert bytes(stored) == raw
            code = ours.entries(message["topic"], message["queue"], int(result.queue_offsets[0]), 1)[2]
            assert code.tolist() == [message["tags_code"]]
