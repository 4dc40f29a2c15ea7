"""Test the broker core over a real store: topics, appends, delays, retries, staged writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.core.copies.record_copy import reencode
from raymq.actors.broker.core.delay.schedule_message_service import DELIVERED_FROM
from raymq.actors.broker.core.reading.fetch_session import FetchSession
from raymq.actors.errors import InvalidInput, PermissionDenied, QueueNotFound, TopicExists, TopicNotFound
from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.protocol import RedriveStatus
from raymq.client import Message
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.errors import StoreFull
from raymq.storage.records.record import decode
from raymq.storage.tables.staged_records import FINISHED_MARK_SECONDS
from raymq.storage.tables.topic_config import TopicConfig
from tests import staged_rows
from tests.staged_rows import chunks_of, open_transactions
from tests.unit.actors.bench import Bench, encoded


def test_topic_is_created_once_and_survives_crash(bench: Bench) -> None:
    assert not bench.core.topics.create("t", 2, exclusive=True)
    with pytest.raises(TopicExists, match="2 queues"):
        bench.core.topics.create("t", 3, exclusive=True)
    bench.crash()
    assert bench.core.topics.all()["t"].write_queues == 2


@pytest.mark.parametrize(
    ("topic", "queue_id", "error"),
    [
        ("none", 0, TopicNotFound),
        ("t", 2, QueueNotFound),
        ("t", -1, QueueNotFound),
        ("../t", 0, InvalidInput),
        ("SCHEDULE_TOPIC_XXXX", 0, InvalidInput),
    ],
)
def test_refused_append_writes_nothing(bench: Bench, topic: str, queue_id: int, error: type[Exception]) -> None:
    records, sizes = encoded(Message("t", b"x"))
    before = bench.store.max_physical_offset
    with pytest.raises(error):
        bench.core.append(topic, queue_id, memoryview(records), sizes)
    assert bench.store.max_physical_offset == before


def test_records_of_other_queue_raise_invalid_input(bench: Bench) -> None:
    records, sizes = encoded(Message("t", b"x"), queue_id=1)
    with pytest.raises(InvalidInput, match="records"):
        bench.core.append("t", 0, memoryview(records), sizes)
    many, sizes = encoded(*[Message("t", b"x") for _ in range(50)], queue_id=1)
    with pytest.raises(InvalidInput, match="records"):
        bench.core.append("t", 0, memoryview(many), sizes)
    assert bench.store.max_physical_offset == 0


def test_topic_without_permission_denies_append_and_fetch(bench: Bench) -> None:
    bench.append(Message("t", b"x"))
    bench.store.topic_configs.put(TopicConfig("t", 2, 2, 0))
    with pytest.raises(PermissionDenied):
        bench.append(Message("t", b"x"))
    part = FetchSession(bench.core, [FetchSpec("t", 0, 0)], 10, 1000).read_available()[0]
    assert isinstance(part.error, PermissionDenied)


def test_delayed_message_arrives_after_its_level(bench: Bench) -> None:
    placed = bench.append(Message("t", b"late", delay_level=2), delayed=True)
    assert (placed.topic, placed.queue_ids.tolist()) == ("SCHEDULE_TOPIC_XXXX", [1])
    report = bench.core.schedule.deliver_due()
    assert (report.delivered, report.next_due_ms) == (0, int((bench.clock.now + 5) * 1000))
    bench.clock.advance(4.999)
    assert bench.core.schedule.deliver_due().delivered == 0
    bench.clock.advance(0.001)
    bench.arrivals.clear()
    assert bench.core.schedule.deliver_due().delivered == 1
    assert bench.bodies("t") == [b"late"]
    assert bench.arrivals == [("t", 0)]
    assert bench.core.schedule.deliver_due().next_due_ms is None


def test_message_of_removed_delay_level_is_delivered(bench: Bench) -> None:
    bench.append(Message("t", b"late", delay_level=4), delayed=True)
    bench.store.close()
    bench.config = replace(bench.config, delay_levels="1s 5s")
    bench.open()
    bench.clock.advance(30)
    assert bench.core.schedule.deliver_due().delivered == 1
    assert bench.bodies("t") == [b"late"]


def test_delay_level_above_table_uses_last_level(bench: Bench) -> None:
    assert bench.append(Message("t", b"x", delay_level=99), delayed=True).queue_ids.tolist() == [3]


def test_delivery_lateness_is_reported(bench: Bench) -> None:
    bench.append(Message("t", b"x", delay_level=1), delayed=True)
    bench.clock.advance(3.5)
    assert bench.core.schedule.deliver_due().lateness_ms == 2_500


def test_clock_set_back_does_not_extend_delay(bench: Bench) -> None:
    bench.append(Message("t", b"x", delay_level=1), delayed=True)
    bench.clock.advance(-3_600)
    assert bench.core.schedule.deliver_due().delivered == 0
    bench.clock.advance(1)
    assert bench.core.schedule.deliver_due().delivered == 1


def test_delivery_progress_survives_crash(bench: Bench) -> None:
    for number in range(3):
        bench.append(Message("t", b"%d" % number, delay_level=1), delayed=True)
    bench.clock.advance(2)
    bench.core.schedule.deliver_due()
    bench.crash()
    assert bench.core.schedule.deliver_due().delivered == 0
    assert bench.bodies("t") == [b"0", b"1", b"2"]


def test_crash_before_progress_commit_duplicates_no_delivery(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        bench.append(Message("t", b"%d" % number, delay_level=1 + number % 2), delayed=True)
    bench.clock.advance(2)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.store.delay_offsets, "commit", dies)
    with pytest.raises(KeyboardInterrupt):
        bench.core.schedule.deliver_due()
    bench.crash()
    bench.clock.advance(10)
    bench.core.schedule.deliver_due()
    assert sorted(map(int, bench.bodies("t"))) == list(range(30))
    bench.crash()
    assert bench.core.schedule.deliver_due().delivered == 0


@pytest.mark.parametrize("forged", ["1:29", "2:9", "1:999", "0:5", "9:0"])
def test_forged_delivery_property_is_ignored(bench: Bench, forged: str) -> None:
    for number in range(30):
        bench.append(Message("t", b"%d" % number, delay_level=1), delayed=True)
    record = decode(encoded(Message("t", b"forged"))[0])
    made = reencode(record, "t", 0, {**record.properties, DELIVERED_FROM: forged})
    bench.core.append("t", 0, memoryview(made), np.array([len(made)], np.int32))
    bench.crash()
    bench.clock.advance(2)
    assert bench.core.schedule.deliver_due().delivered == 30


def test_message_of_deleted_topic_does_not_block_delivery(bench: Bench) -> None:
    bench.append(Message("t", b"x", delay_level=1), delayed=True)
    bench.core.topics.delete("t")
    bench.clock.advance(2)
    assert bench.core.schedule.deliver_due().delivered == 1
    assert bench.core.schedule.deliver_due().delivered == 0


def test_staged_records_appear_once_after_commit(bench: Bench) -> None:
    records, sizes = encoded(*[Message("t", b"%d" % n) for n in range(20)])
    for part in ("won", "lost"):
        staged_rows.stage(bench.core.staging, "tx-1", part, 0, ("t", 0), memoryview(records), sizes)
    bench.crash()
    assert bench.bodies("t") == []
    assert list(staged_rows.commit(bench.core.staging, "tx-1", ["won"])) == [20]
    assert list(staged_rows.commit(bench.core.staging, "tx-1", ["won"])) == []
    staged_rows.close(bench.core.staging, "tx-1")
    bench.crash()
    assert list(staged_rows.commit(bench.core.staging, "tx-1", ["won"])) == []
    assert bench.bodies("t") == [b"%d" % n for n in range(20)]


def test_interrupted_commit_finishes_without_duplicates(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [encoded(*[Message("t", b"%d" % (chunk * 20 + n)) for n in range(20)]) for chunk in range(3)]
    for number, (records, sizes) in enumerate(chunks):
        staged_rows.stage(bench.core.staging, "tx-1", "p", number, ("t", 0), memoryview(records), sizes)
    table = bench.store.tables.staged
    finish = table.finish

    def dies(transaction: str, key: tuple[str, int], log_end: int) -> None:
        if key == ("p", 1):
            raise KeyboardInterrupt
        finish(transaction, key, log_end)

    monkeypatch.setattr(table, "finish", dies)
    with pytest.raises(KeyboardInterrupt):
        list(staged_rows.commit(bench.core.staging, "tx-1", ["p"]))
    bench.crash()
    assert bench.bodies("t") == []
    assert sum(staged_rows.commit(bench.core.staging, "tx-1", ["p"])) == 20
    assert bench.bodies("t") == []
    staged_rows.close(bench.core.staging, "tx-1")
    assert bench.bodies("t") == [b"%d" % n for n in range(60)]


def test_marks_of_finished_staged_writes_expire(bench: Bench) -> None:
    """Check that marks refuse late staging until they expire, and that open writes stay.

    An open write stays until its coordinator broker has decided.
    """
    records, sizes = encoded(Message("t", b"x"))
    staging, table = bench.core.staging, bench.store.tables.staged
    for name in ("open", "given-up", "done"):
        staged_rows.stage(staging, name, "p", 0, ("t", 0), memoryview(records), sizes, "home")
    staged_rows.abort(staging, "given-up")
    assert sum(staged_rows.commit(staging, "done", ["p"])) == 1
    staged_rows.close(staging, "done")
    assert open_transactions(bench.store) == {"open"}
    assert not chunks_of(bench.store, "done")
    assert not chunks_of(bench.store, "given-up")
    for name in ("given-up", "done"):
        with pytest.raises(InvalidInput, match="decided"):
            staged_rows.stage(staging, name, "p", 1, ("t", 0), memoryview(records), sizes, "home")
    staging.sweep()
    assert len(table.transactions()) == 3
    bench.elapsed.advance(FINISHED_MARK_SECONDS + 1)
    for gone in ("given-up", "done"):  # removable after its coordinator is notified
        staging.sweep()
        assert not staging.table.is_here(gone)
        staging.in_doubt.mark_notified("done")
    assert [each.name for each in table.transactions()] == ["open"]
    assert sum(staged_rows.commit(staging, "open", ["p"])) == 1


def test_staging_on_full_disk_raises_store_full(tmp_path: Path) -> None:
    """Check that staging obeys the disk limit of appends (fault 13.18)."""
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    bench.config = replace(bench.config, disk_refuse_ratio=0.000001)
    bench.crash()
    records, sizes = encoded(Message("t", b"x"))
    with pytest.raises(StoreFull):
        staged_rows.stage(bench.core.staging, "tx-1", "p", 0, ("t", 0), memoryview(records), sizes)
    assert not bench.core.staging.table.is_here("tx-1")
    bench.store.close()


def test_aborted_staged_write_is_removed(bench: Bench) -> None:
    records, sizes = encoded(Message("t", b"x"))
    staged_rows.stage(bench.core.staging, "tx-1", "p", 0, ("t", 0), memoryview(records), sizes)
    staged_rows.abort(bench.core.staging, "tx-1")
    assert list(staged_rows.commit(bench.core.staging, "tx-1", ["p"])) == []
    assert bench.bodies("t") == []
    for name in ("../x", "", "a/b", "x" * 65):
        with pytest.raises(InvalidInput):
            staged_rows.stage(bench.core.staging, name, "p", 0, ("t", 0), memoryview(records), sizes)
        with pytest.raises(InvalidInput):
            staged_rows.stage(bench.core.staging, "tx", name, 0, ("t", 0), memoryview(records), sizes)


@pytest.mark.parametrize("count", [1, 5, 40])
def test_waiting_messages_survive_smaller_size_limit(tmp_path: Path, count: int) -> None:
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    bench.core.ensure_group("g")
    body = bytes(100)
    bench.append(*(Message("t", body, delay_level=1) for _ in range(count)), delayed=True)
    bench.append(*(Message("t", body, deliver_at=bench.clock.now + 2) for _ in range(count)), delayed=True)
    failed = bench.append(Message("t", body))
    bench.config = replace(bench.config, max_message_bytes=99)
    bench.crash()
    with pytest.raises(InvalidInput, match="a body of 1 to 99 bytes"):
        bench.append(Message("t", body))
    bench.clock.now += 3
    bench.core.deliver_due()
    assert bench.bodies("t") == [body] * (2 * count + 1)
    place = int(failed.physical_offsets[0])
    bench.core.redelivery.send_back("g", place, 0, None)
    bench.clock.now += 31
    bench.core.deliver_due()
    assert bench.bodies("%RETRY%g") == [body]
    bench.core.redelivery.send_back("g", place, -1, None)
    assert bench.bodies("%DLQ%g") == [body]
    assert run_steps(bench.core.dead_letters.redrive_steps("g", [0], force=False, dry_run=False)) == [
        RedriveStatus.REDRIVEN
    ]
    bench.store.close()
