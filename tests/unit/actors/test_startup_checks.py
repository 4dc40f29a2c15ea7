"""Test that a start verifies what a record claims about another message.

A client that appends encoded records can write any property into them. It may harm its own messages, never those of
others.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.core.copies.record_copy import reencode
from raymq.actors.errors import StoreFull
from raymq.actors.naming import dlq_topic, retry_topic
from raymq.actors.protocol import RedriveStatus
from raymq.client import Message
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal.journal_frames import decode_frames, encode_frame
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Record, encode, encode_properties
from raymq.storage.store_paths import StorePaths
from raymq.storage.tables.delay_offsets import DelayOffsets
from tests.faulty_calls import FaultyCalls
from tests.unit.actors.bench import Bench
from tests.unit.actors.pop_bench import PopBench


def append_raw(bench: Bench, record: bytes, topic: str = "t") -> None:
    bench.core.append(topic, 0, memoryview(record), np.array([len(record)], np.int32))


def forge(bench: Bench, waiting: Record, **claims: str) -> None:
    """Append a copy of a waiting message with chosen properties."""
    append_raw(bench, reencode(waiting, "t", 0, {**waiting.properties, **claims}))


def deliver_all(bench: Bench) -> list[bytes]:
    while bench.core.deliver_due().delivered:
        pass
    return bench.bodies("t")


@pytest.mark.parametrize("claimed", range(1, 6))
def test_forged_delivery_skips_no_other_message(bench: Bench, claimed: int) -> None:
    """Guard against taking all earlier messages of the level's queue for delivered."""
    for number in range(6):
        bench.append(Message("t", b"%d" % number, delay_level=1), delayed=True)
    [mine] = bench.store.read(SCHEDULE_TOPIC, 0, claimed, 1).messages()
    forge(bench, mine, RAYMQ_DELIVERED_FROM=f"1:{claimed}")
    for _ in range(2):  # the result of a start holds for the next one, too
        bench.crash()
    bench.clock.advance(2)
    assert sorted(deliver_all(bench)) == [b"%d" % number for number in range(6)]
    for _ in range(2):
        bench.crash()
        assert len(deliver_all(bench)) == 6


@pytest.mark.parametrize("level", [1, 0])
def test_delivery_of_unknown_message_cannot_be_forged(bench: Bench, level: int) -> None:
    """Cover messages without unique key, which looked alike within a queue."""
    claims = {names.DELAY: "1"} if level else {names.TIMER_DELIVER_MS: str(int(bench.clock.now * 1000) + 1_000)}
    victim = encode("t", 0, b"others", encode_properties(claims), born_timestamp_ms=5, born_host=("10.0.0.1", 1))
    bench.core.append("t", 0, memoryview(victim), np.array([len(victim)], np.int32), delayed=True)
    bench.core.deliver_due()
    due = {} if level else {names.TIMER_OUT_MS: str(int(bench.clock.now * 1000) + 1_000)}
    forged = encode_properties({names.DELIVERED_FROM: f"{level}:0", **due})
    append_raw(bench, encode("t", 0, b"forged", forged, born_timestamp_ms=7, born_host=("10.0.0.2", 1)))
    bench.core.timers.log.close()
    bench.crash()
    bench.clock.advance(2)
    assert deliver_all(bench) == [b"forged", b"others"]


def test_forged_dead_letter_does_not_suppress_real_one(tmp_path: Path) -> None:
    """Guard against taking a dead letter that names a delivery for the message's own."""
    bench = PopBench(tmp_path)
    bench.core.ensure_group("g")
    bench.send(b"dies")
    [handle] = bench.receive(1, invisible=1.0, maximum=0)
    claims = encode_properties({names.DIED_IN: f"t:0:0:{handle.pop_time_ms}"})
    bench.core.topics.create(dlq_topic("g"), 1)
    forged = encode(dlq_topic("g"), 0, b"forged", claims, born_timestamp_ms=1, born_host=("10.0.0.2", 1))
    bench.core.append(dlq_topic("g"), 0, memoryview(forged), np.array([len(forged)], np.int32))
    bench.kill()
    bench.clock.advance(2)
    bench.pop.sweep()
    with bench.store.read(dlq_topic("g"), 0, 0, 10) as lease:
        assert [record.body for record in lease.messages()] == [b"forged", b"dies"]
    bench.close()


def test_forged_redrive_does_not_block_real_one(bench: Bench) -> None:
    bench.core.ensure_group("g")
    bench.append(Message("t", b"dead"))
    bench.core.redelivery.send_to_dlq("g", bench.records("t")[0], "test")
    [dead] = bench.records(dlq_topic("g"))
    claims = encode_properties({names.REDRIVEN_FROM: dead.message_id})
    topic = retry_topic("g")
    append_raw(bench, encode(topic, 0, b"x", claims, born_timestamp_ms=1, born_host=("10.0.0.2", 1)), topic)
    for outcome in (RedriveStatus.REDRIVEN, RedriveStatus.ALREADY):
        assert run_steps(bench.core.dead_letters.redrive_steps("g", [0], force=False, dry_run=False)) == [outcome]
    append_raw(bench, encode(topic, 0, b"x", claims, born_timestamp_ms=1, born_host=("10.0.0.2", 1)), topic)
    bench.crash()
    assert run_steps(bench.core.dead_letters.redrive_steps("g", [0], force=False, dry_run=False)) == [
        RedriveStatus.ALREADY
    ]
    assert bench.bodies(topic) == [b"x", b"dead", b"x"]


@pytest.mark.parametrize("how", ["gone", "empty table", "killed"])
@pytest.mark.parametrize("delivered", ["none", "some", "all"])
def test_lost_delay_level_table_repeats_and_skips_nothing(bench: Bench, how: str, delivered: str) -> None:
    """Guard against repeated deliveries after a clean stop without the table, as in a directory of RocketMQ's."""
    for number in range(30):
        bench.append(Message("t", b"%02d" % number, delay_level=1 + number % 2), delayed=True)
    bench.clock.advance({"none": 0, "some": 2, "all": 6}[delivered])
    count = len(deliver_all(bench))
    assert count == {"none": 0, "some": 15, "all": 30}[delivered]
    if how == "killed":
        bench.store.begin_export()()
        bench.store._flusher.stop()
        bench.store._abandon()
    else:
        bench.core.timers.close()
        bench.store.close()
    shutil.rmtree(StorePaths(bench.directory).state_journal)
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        if how == "gone":
            (bench.directory / "config" / name).unlink(missing_ok=True)
        else:
            (bench.directory / "config" / name).write_text("{}")
    bench.open()
    assert len(deliver_all(bench)) == count
    bench.crash()
    bench.clock.advance(10)
    assert sorted(deliver_all(bench)) == [b"%02d" % number for number in range(30)]
    bench.crash()
    assert len(deliver_all(bench)) == 30


@pytest.mark.parametrize("how", ["damaged", "never written"])
def test_missing_position_of_one_delay_level_is_recovered(bench: Bench, how: str) -> None:
    """Guard against scanning all levels from the newest commit of any level."""
    for number in range(10):
        bench.append(Message("t", b"%d" % number, delay_level=2), delayed=True)
    bench.clock.advance(6)
    assert len(deliver_all(bench)) == 10
    bench.store.flush()
    bench.append(Message("t", b"of level 1", delay_level=1), delayed=True)
    bench.clock.advance(2)
    assert len(deliver_all(bench)) == 11
    bench.store._flusher.stop()
    bench.store._abandon()
    lose_positions(bench.directory, level=2, leave_hole=how == "damaged")
    bench.open()
    assert len(deliver_all(bench)) == 11
    bench.crash()
    assert len(deliver_all(bench)) == 11


def lose_positions(directory: Path, level: int, *, leave_hole: bool) -> None:
    """Remove the events of one delay level from the only journal of a store directory.

    Args:
        leave_hole: the other events keep their numbers, as after damage.
    """
    (journal,) = StorePaths(directory).state_journal.glob("*")
    kept, lost = [], 0
    for number, log_end, table, *fields in decode_frames(journal.read_bytes()).entries:
        if table == DelayOffsets.NUMBER and fields[0] == level:
            lost += 1
        else:
            kept.append(encode_frame((number - (0 if leave_hole else lost), log_end, table, *fields)))
    assert lost
    journal.write_bytes(b"".join(kept))


@pytest.mark.parametrize("how", ["goes on", "killed", "stopped"])
def test_delivery_with_full_journal_is_not_repeated(bench: Bench, how: str) -> None:
    """Guard against repeating copies whose level position could not be journaled."""
    for number in range(10):
        bench.append(Message("t", b"%d" % number, delay_level=1), delayed=True)
    bench.clock.advance(2)
    with replaced(FaultyCalls("write", 1, errno.ENOSPC, lasting=True)):
        for _ in range(3):
            with pytest.raises(StoreFull):
                bench.core.schedule.deliver_due()
    assert len(bench.bodies("t")) == 10
    if how == "killed":
        bench.crash()
    elif how == "stopped":
        bench.core.timers.close()
        bench.store.close()
        bench.open()
    assert deliver_all(bench) == [b"%d" % number for number in range(10)]
