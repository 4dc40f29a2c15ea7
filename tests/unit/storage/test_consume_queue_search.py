"""Test binary searches in a queue: results equal a plain loop's, with few reads."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raymq.storage.log.consume_queue import ENTRY, FILLER_SIZE, ConsumeQueue, make_entries
from raymq.storage.store import Store
from tests.store_records import SMALL, append, make_record

#: Kinds of entries: a message, a filler, zeros, a damaged size.
KINDS = st.sampled_from("mmmmffffff0-")


def queue_of(kinds: str) -> ConsumeQueue:
    """Build a queue in memory of 100-byte messages, each 150 bytes behind the last."""
    queue = ConsumeQueue(Path(tempfile.gettempdir(), "raymq-no-such-queue"), 1 << 20, writable=False)
    places = 150 * np.cumsum([kind == "m" for kind in kinds], dtype=np.int64)
    sizes = {"m": 100, "f": FILLER_SIZE, "0": 0, "-": -7}
    entries = np.zeros(len(kinds), ENTRY)
    entries["size"] = [sizes[kind] for kind in kinds]
    entries["physical_offset"] = np.where(entries["size"] == 100, places, 0)
    queue.put(0, entries)
    return queue


def end_by_a_loop(queue: ConsumeQueue, log_end: int) -> int:
    """Return the end offset before the first message that ends behind `log_end`."""
    reached = 0
    for offset in range(queue.max_offset):
        place, size, _ = queue.entry(offset)
        if not 0 < size < FILLER_SIZE:
            continue
        if place + size > log_end:
            return reached
        reached = offset + 1
    return queue.max_offset


@settings(max_examples=400, deadline=None)
@given(st.lists(KINDS, max_size=60).map("".join), st.integers(0, 60), st.data())
def test_end_offset_at_equals_a_loops_result(kinds: str, messages: int, data: st.DataObject) -> None:
    # Fillers behind the last message before `log_end` may count either way; messages behind it never count.
    queue, log_end = queue_of(kinds), 150 * messages + 100
    expected = end_by_a_loop(queue, log_end)
    following = queue.first_message(expected, queue.max_offset)
    least = data.draw(st.integers(0, expected))
    assert expected <= queue.end_offset_at(log_end, least) <= following
    if following < queue.max_offset:
        assert queue.entry(following)[0] + 100 > log_end


@settings(max_examples=200, deadline=None)
@given(st.lists(KINDS, max_size=60).map("".join), st.integers(0, 60), st.integers(0, 60))
def test_first_message_in_a_range_is_found(kinds: str, begin: int, length: int) -> None:
    queue, end = queue_of(kinds), min(len(kinds), begin + length)
    found = [offset for offset in range(begin, end) if kinds[offset] == "m"]
    assert queue.first_message(min(begin, end), end) == (found[0] if found else end)


@pytest.mark.parametrize("at", [0, 1, 99_999])
def test_long_run_of_fillers_is_skipped_with_few_reads(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    # The run used to be scanned entry by entry, backwards, on the event loop.
    kinds = ["f"] * 100_000
    kinds[at] = "m"
    queue = queue_of("".join(kinds))
    looks = 0
    for name in ("entry", "entries"):
        whole = getattr(queue, name)

        def looking(*arguments: int, _whole=whole):  # type: ignore[no-untyped-def]
            nonlocal looks
            looks += 1
            return _whole(*arguments)

        monkeypatch.setattr(queue, name, looking)
    assert at < queue.end_offset_at(1 << 40) <= 100_000
    assert queue.end_offset_at(0) <= at
    assert queue.first_message(0, 100_000) == at
    assert looks < 250


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from("mmff"), min_size=1, max_size=30).map("".join), st.integers(-1, 31))
def test_offset_at_time_equals_a_loops_result(kinds: str, second: int) -> None:
    # Message n is stored at n seconds; a lost message's entry is a filler, and counts with the message behind it.
    now_ms = [0]
    with tempfile.TemporaryDirectory() as directory, Store.open(directory, SMALL, now_ms=lambda: now_ms[0]) as store:
        for number in range(len(kinds)):
            now_ms[0] = number * 1000
            append(store, make_record())
        queue = store._dispatcher.get("orders", 0)
        filler = np.array((0, FILLER_SIZE, 0), ENTRY)
        for offset, kind in enumerate(kinds):
            if kind == "f":
                queue.put(offset, np.full(1, filler, ENTRY))
        keys = [next((n for n in range(at, len(kinds)) if kinds[n] == "m"), 1 << 40) for at in range(len(kinds))]
        lower = sum(key < second for key in keys)
        upper = max(0, sum(key <= second for key in keys) - 1)
        assert store.offset_at_time("orders", 0, second * 1000) == lower
        assert store.offset_at_time("orders", 0, second * 1000, boundary="upper") == upper


@pytest.mark.parametrize("nothing", ["fillers", "zeros"])
def test_minimum_offset_skips_no_message_behind_empty_entries(tmp_path: Path, nothing: str) -> None:
    # No file with remaining messages is removed with the empty entries.
    count, log_min = 40_000, 10_500 * 100
    entries = make_entries(np.arange(count) * 100, np.full(count, 100), np.zeros(count))
    entries["physical_offset"][15_000:38_000] = 0
    entries["size"][15_000:38_000] = FILLER_SIZE if nothing == "fillers" else 0
    queue = ConsumeQueue(tmp_path, 1_000, writable=True)
    queue.put(0, entries)
    queue.write()
    assert [path.name for path, _ in queue.detach_before(log_min)] == [f"{n * 20_000:020d}" for n in range(10)]
    assert queue.min_offset == 10_500
    queue.trim(38_500 * 100)
    assert queue.min_offset == 38_500
    queue.close()
