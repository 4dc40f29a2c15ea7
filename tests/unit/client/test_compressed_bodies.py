"""Test that a client's memory for decompressed message bodies is bounded.

Fault 13.21: 8 MiB of compressed messages could become gigabytes in one fetch.
"""

from __future__ import annotations

import signal
import threading
import tracemalloc
import zlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.commands.fetch_commands import Fetched
from raymq.client.lazy_record import MAX_CACHE_BYTES, OVERHEAD_BYTES, BodyCache, body_cache
from raymq.client.message import ReceivedMessage
from raymq.client.message_decoder import decode_message, decode_messages
from raymq.client.pull.pull_consumer import _table
from raymq.storage.records.record import encode, encode_properties
from raymq.storage.records.record_table import MAX_TABLE_BYTES, tables_from_records

QUEUE = MessageQueue("t", "broker-a", 0)
#: The body of each message, 16 MiB.
BOMB = bytes(16 << 20)
COUNT = 40


def deflated(data: bytes) -> bytes:
    return zlib.compress(data, 9)


def arrow_compressor(codec: str) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(data)
        return bytes(sink.getvalue())

    return compress


KINDS = {"zlib": (0x301, deflated), "lz4": (0x101, arrow_compressor("lz4")), "zstd": (0x201, arrow_compressor("zstd"))}


def fetched_part(bodies: list[bytes], sys_flag: int) -> Fetched:
    records = [
        encode(
            "t", 0, body, encode_properties({"n": str(n)}), sys_flag=sys_flag, born_timestamp_ms=1, born_host=bytes(8)
        )
        for n, body in enumerate(bodies)
    ]
    sizes = np.array(list(map(len, records)), np.int32)
    offsets = np.arange(100, 100 + len(bodies), dtype=np.int64)
    return Fetched(0, 100 + len(bodies), 0, 100 + len(bodies), memoryview(b"".join(records)), sizes, offsets, None)


@pytest.fixture(params=list(KINDS))
def bombs(request: pytest.FixtureRequest) -> Fetched:
    sys_flag, compress = KINDS[request.param]
    part = fetched_part([compress(BOMB)] * COUNT, sys_flag)
    assert len(part.records) < 8 << 20, "all in one answer of a broker"
    return part


@pytest.mark.long
def test_decompressed_bodies_stay_within_the_body_cache(bombs: Fetched) -> None:
    messages = decode_messages(bombs, QUEUE)
    tracemalloc.start()
    try:
        for _ in range(2):
            assert all(message.body == BOMB for message in messages)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MAX_CACHE_BYTES + 3 * len(BOMB)
    assert body_cache.bytes <= MAX_CACHE_BYTES
    assert messages[-1].body is messages[-1].body, "the last one is kept"


def test_retried_message_drops_its_decompressed_body(bombs: Fetched) -> None:
    message = decode_message(bombs.records, 0, QUEUE)
    text = message.body
    again = message.with_failure().with_failure()
    assert again.reconsume_times == message.reconsume_times + 2
    assert again.properties == message.properties
    assert again.body == text
    plain = decode_message(fetched_part([b"plain"], 0).records, 0, QUEUE)
    assert plain.with_failure().body == b"plain"
    held: ReceivedMessage = again
    assert "body" not in {name for name in ("body",) if _has_slot(held, name)}, "made when it is looked at"


def _has_slot(message: ReceivedMessage, name: str) -> bool:
    try:
        ReceivedMessage.__dict__[name].__get__(message)
    except AttributeError:
        return False
    return True


def test_tables_are_split_at_the_size_limit(bombs: Fetched) -> None:
    rows, before = [], pa.total_allocated_bytes()
    most = 0
    for table in tables_from_records(bombs.records, bombs.sizes, broker="b"):
        assert table.column("body").nbytes <= MAX_TABLE_BYTES + 1_000
        rows += table.column("properties").to_pylist()
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == [[("n", str(n))] for n in range(COUNT)]
    assert most < 3 * MAX_TABLE_BYTES
    first = next(tables_from_records(bombs.records, bombs.sizes, broker="b"))
    assert first.column("body")[0].as_py() == BOMB


def test_next_offset_follows_the_rows_of_a_split_table(bombs: Fetched) -> None:
    table, following = _table(bombs, QUEUE)
    assert table.num_rows == MAX_TABLE_BYTES // len(BOMB)
    assert following == 100 + table.num_rows


@pytest.mark.parametrize("most", [1, 5, 6, 11, 12, 100])
def test_split_tables_keep_all_mixed_rows_once_and_in_order(most: int) -> None:
    texts = [b"a" * n for n in (1, 5, 2, 9, 1, 1, 3, 7)]
    records, sizes = [], []
    for number, text in enumerate(texts):
        part = fetched_part([text if number % 3 else deflated(text)], 0 if number % 3 else 0x1)
        records.append(bytes(part.records))
        sizes.append(len(records[-1]))
    tables = list(tables_from_records(b"".join(records), np.array(sizes, np.int32), broker="b", most_bytes=most))
    assert [body for table in tables for body in table.column("body").to_pylist()] == texts
    assert all(table.num_rows for table in tables)
    assert len(tables) == 1 or most < 100


def test_uncompressed_records_become_one_table() -> None:
    part = fetched_part([b"x" * 1_000] * 50, 0)
    (table,) = tables_from_records(part.records, part.sizes, broker="b", most_bytes=10)
    assert table.num_rows == 50
    assert list(tables_from_records(b"", np.array([], np.int32), broker="b")) == []


def test_body_cache_evicts_the_oldest_and_ignores_freed_holders() -> None:
    class Holder:
        def __init__(self) -> None:
            self.forgot = False

        def forget(self) -> None:
            self.forgot = True

    kept = BodyCache(10_000)
    holders = [Holder() for _ in range(4)]
    for holder in holders[:2]:
        kept.keep(holder, 4_000 - OVERHEAD_BYTES)
    assert not any(holder.forgot for holder in holders)
    del holders[0]
    kept.keep(holders[1], 4_000 - OVERHEAD_BYTES)
    assert [holder.forgot for holder in holders] == [False, False, False]
    assert kept.bytes == 8_000
    kept.keep(holders[2], 10_000 - OVERHEAD_BYTES)
    assert [holder.forgot for holder in holders] == [True, True, False]
    kept.keep(holders[0], 11_000 - OVERHEAD_BYTES)
    assert holders[0].forgot, "given, and not kept"
    assert kept.bytes == 0


class Holder:
    """An owner of a cached body; `is_kept` is true until `forget` is called."""

    def __init__(self, on_forget: Callable[[], None] = lambda: None) -> None:
        self.is_kept = True
        self._on_forget = on_forget

    def forget(self) -> None:
        self.is_kept = False
        self._on_forget()


def test_empty_bodies_count_with_their_cache_overhead() -> None:
    kept = BodyCache(OVERHEAD_BYTES * 10)
    holders = [Holder() for _ in range(25)]
    for holder in holders:
        kept.keep(holder, 0)
    assert [holder.is_kept for holder in holders] == [False] * 15 + [True] * 10
    assert kept.bytes == OVERHEAD_BYTES * 10
    assert len(kept._holders) == 10


def test_interrupted_body_cache_update_does_not_block_later_ones() -> None:
    kept = BodyCache(OVERHEAD_BYTES * 3)
    holders = [Holder(lambda: signal.raise_signal(signal.SIGINT)), *(Holder() for _ in range(5))]
    for holder in holders[:3]:
        kept.keep(holder, 0)
    with pytest.raises(KeyboardInterrupt):
        kept.keep(holders[3], 0)
    for holder in holders[4:]:
        kept.keep(holder, 0)
    assert [holder.is_kept for holder in holders] == [False, False, False, True, True, True]
    assert kept.bytes == OVERHEAD_BYTES * 3


def test_nested_body_cache_update_does_not_deadlock() -> None:
    """A signal handler may look at a body while its thread updates the cache."""
    kept = BodyCache(OVERHEAD_BYTES * 3)
    in_between = Holder()
    first = Holder(lambda: kept.keep(in_between, 0))
    holders = [first, *(Holder() for _ in range(3))]

    def look_at_all() -> None:
        for holder in holders:
            kept.keep(holder, 0)

    thread = threading.Thread(target=look_at_all, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert [holder.is_kept for holder in [*holders, in_between]] == [False, False, True, True, True]
    assert kept.bytes == OVERHEAD_BYTES * 3
