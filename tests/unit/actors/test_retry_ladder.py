"""Test a message that always fails, from its first delivery to the dead letters, with a fake clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.client import Message
from raymq.storage.config import StoreConfig
from tests.unit.actors.bench import CONFIG, Bench

MINUTE, HOUR = 60.0, 3_600.0
#: The default waits before each of the 16 retries.
LADDER = [10.0, 30.0, *(n * MINUTE for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)), HOUR, 2 * HOUR]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, replace(CONFIG, delay_levels=StoreConfig().delay_levels))
    made.core.topics.create("t", 1)
    made.core.ensure_group("g")
    yield made
    made.store.close()


def fail_always(bench: Bench, maximum: int | None = None, level: int = 0) -> list[float]:
    """Send a message back until it is a dead letter; return the waits in seconds."""
    message = Message("t", b"bad", tags="tag", keys=["key"], properties={"name": "value"})
    place = int(bench.append(message).physical_offsets[0])
    waits = []
    while True:
        bench.core.redelivery.send_back("g", place, level, maximum)
        due_ms = bench.core.deliver_due().next_due_ms
        if due_ms is None:
            return waits
        began = bench.clock.now
        bench.clock.now = due_ms / 1000 - 0.001
        assert bench.core.deliver_due().delivered == 0, "not a millisecond early"
        bench.clock.now = due_ms / 1000
        assert bench.core.deliver_due().delivered == 1
        waits.append(round(bench.clock.now - began, 3))
        place = bench.records("%RETRY%g")[-1].physical_offset


def test_sixteen_retries_wait_by_ladder(bench: Bench) -> None:
    assert fail_always(bench) == LADDER
    assert sum(LADDER) == 4 * HOUR + 45 * MINUTE + 40
    assert [record.reconsume_times for record in bench.records("%RETRY%g")] == list(range(1, 17))


@pytest.mark.parametrize("maximum", [0, 1, 5, 20])
def test_failing_message_becomes_one_dead_letter_after_maximum(bench: Bench, maximum: int) -> None:
    waits = fail_always(bench, maximum)
    assert len(bench.records("t") + bench.records("%RETRY%g")) == maximum + 1
    assert waits == [*LADDER, *[2 * HOUR] * 4][:maximum], "more than sixteen stay at two hours"
    (dead,) = bench.records("%DLQ%g")
    (original,) = bench.records("t")
    assert dead.properties["RETRY_TOPIC"] == "t"
    assert dead.properties["ORIGIN_MESSAGE_ID"] == original.message_id
    assert (dead.body, dead.tags, dead.keys, dead.properties["name"]) == (b"bad", "tag", ["key"], "value")
    assert (dead.unique_key, dead.born_timestamp_ms) == (original.unique_key, original.born_timestamp_ms)
    assert "DELAY" not in dead.properties or dead.properties["DELAY"] == "0"


@pytest.mark.parametrize(("level", "seconds"), [(1, 1.0), (2, 5.0), (14, 10 * MINUTE), (18, 2 * HOUR), (99, 2 * HOUR)])
def test_explicit_level_is_wait_of_every_retry(bench: Bench, level: int, seconds: float) -> None:
    assert fail_always(bench, 3, level) == [seconds] * 3
    assert len(bench.records("%DLQ%g")) == 1


def test_level_minus_one_makes_dead_letter_at_once(bench: Bench) -> None:
    assert fail_always(bench, level=-1) == []
    (dead,) = bench.records("%DLQ%g")
    assert dead.properties["RAYMQ_DLQ_REASON"] == "the listener asked for it"


@pytest.mark.parametrize(("jump", "at_once"), [(-3 * HOUR, 0), (-1.0, 0), (3.0, 0), (10.0, 1), (5 * HOUR, 1)])
def test_clock_jump_neither_blocks_nor_repeats_retry(bench: Bench, jump: float, at_once: int) -> None:
    """Limit the wait after a clock set back to one whole delay from now."""
    place = int(bench.append(Message("t", b"bad")).physical_offsets[0])
    bench.core.redelivery.send_back("g", place, 3)
    bench.clock.advance(jump)
    assert bench.core.deliver_due().delivered == at_once
    bench.clock.advance(10)
    assert bench.core.deliver_due().delivered == 1 - at_once
