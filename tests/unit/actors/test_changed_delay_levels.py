"""Test that delayed messages keep their delivery times when the delay level table changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.core.appending.staged_delays import delay_chunk_steps
from raymq.actors.broker.core.copies.record_copy import reencode
from raymq.client import Message
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.records.record import decode
from raymq.storage.store import Store
from tests import staged_rows
from tests.unit.actors.bench import CONFIG, Bench, encoded

OLD = "1m 2m 3m 4m"
TABLES = ["1m", "1m 2m 3m 4m 5m 6m", "4m 3m 2m 1m", "1s 2s 3s 4s", "1h 2h 3h 4h", "1h 1s"]
MINUTE = 60.0


class Broker(Bench):
    """Run a broker whose delay levels may change between its starts."""

    def restart(self, table: str, how: str) -> None:
        """Restart with another table after a clean stop or kill, maybe without queues."""
        self.config = replace(self.config, delay_levels=table)
        if how != "killed":
            self.core.timers.close()
            self.store.close()
            if how == "without its queues":
                shutil.rmtree(self.directory / "consumequeue")
            self.open()
        else:
            self.core.timers.log.close()
            self.crash()

    def send(self, body: str, level: int) -> None:
        self.append(Message("t", body.encode(), delay_level=level), delayed=True)

    def deliver_all(self) -> list[str]:
        """Deliver everything due; return all messages delivered so far."""
        report = self.core.deliver_due()
        while report.delivered or (report.next_due_ms or 1 << 62) <= self.clock.now * 1000:
            report = self.core.deliver_due()
        return sorted(body.decode() for body in self.bodies("t"))


def assert_delivery_times(broker: Broker, times: dict[str, float]) -> None:
    """Check that each message arrives exactly at its time, in seconds from now."""
    begin = broker.clock.now
    for due in sorted(set(times.values())):
        broker.clock.advance(begin + due - 0.001 - broker.clock.now)
        assert broker.deliver_all() == sorted(body for body, at in times.items() if at < due)
        broker.clock.advance(0.001)
        assert broker.deliver_all() == sorted(body for body, at in times.items() if at <= due)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path, replace(CONFIG, delay_levels=OLD))
    made.core.topics.create("t", 1)
    yield made
    made.core.timers.log.close()
    made.store._flusher.stop()
    made.store._abandon()


@pytest.mark.parametrize("how", ["stopped", "killed", "without its queues"])
@pytest.mark.parametrize("table", TABLES)
def test_messages_keep_delivery_times_after_table_change(broker: Broker, table: str, how: str) -> None:
    """Check that old entries follow their old table, and do not delay new messages."""
    for level in range(1, 5):
        broker.send(f"old {level}", level)
    broker.clock.advance(20.0)
    broker.restart(table, how)
    new_s = broker.store.config.delays_ms
    for level in range(1, len(new_s) + 1):
        broker.send(f"new {level}", level)
    times = {f"old {level}": level * MINUTE - 20.0 for level in range(1, 5)}
    assert_delivery_times(broker, times | {f"new {level}": delay / 1000 for level, delay in enumerate(new_s, 1)})


def test_several_table_changes_keep_delivery_times(broker: Broker) -> None:
    broker.send("first", 4)
    broker.restart("1h", "stopped")
    broker.send("second", 1)
    broker.restart("1s 5s", "killed")
    broker.send("third", 2)
    broker.restart(OLD, "without its queues")
    broker.send("fourth", 1)
    assert_delivery_times(broker, {"third": 5.0, "fourth": 60.0, "first": 240.0, "second": 3600.0})


def test_crash_while_moving_to_timers_duplicates_no_message(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        broker.send(f"{number:02}", 4)
    broker.restart("1s", "stopped")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(broker.store.delay_offsets, "commit", dies)
    broker.restart("1s 2s 3s 1s", "stopped")
    monkeypatch.setattr(broker.store.delay_offsets, "commit", dies)
    with pytest.raises(KeyboardInterrupt):
        broker.core.deliver_due()
    monkeypatch.undo()
    broker.restart("1s 2s 3s 1s", "killed")
    assert broker.core.schedule.first_log_position() is None, "all of them wait for their time"
    assert_delivery_times(broker, {f"{number:02}": 240.0 for number in range(30)})
    broker.restart(OLD, "killed")
    assert broker.core.deliver_due().delivered == 0


def test_moved_message_with_recall_properties_is_delivered(broker: Broker) -> None:
    record = decode(encoded(Message("t", b"x", delay_level=4))[0])
    made = reencode(record, "t", 0, {**record.properties, "TIMER_DEL_UNIQKEY": "t_x", "TIMER_OUT_MS": "7"})
    broker.core.append("t", 0, memoryview(made), np.array([len(made)], np.int32), delayed=True)
    broker.restart("1s 2s 3s 1s", "stopped")
    assert_delivery_times(broker, {"x": 240.0})


def test_moved_message_keeps_its_properties(broker: Broker) -> None:
    broker.append(Message("t", b"x", tags="a", keys=["k"], delay_level=4, properties={"mine": "1"}), delayed=True)
    broker.restart("1s 2s 3s 1s", "stopped")
    broker.clock.advance(4 * MINUTE)
    broker.deliver_all()
    [record] = broker.records("t")
    assert (record.tags, record.properties["KEYS"], record.properties["mine"]) == ("a", "k", "1")
    assert (record.queue_id, record.properties["DELAY"]) == (0, "4")


def test_lost_levels_still_deliver_all(broker: Broker, tmp_path: Path) -> None:
    for level in range(1, 5):
        broker.send(f"old {level}", level)
    broker.core.timers.close()
    broker.store.close()
    shutil.rmtree(tmp_path / "raymq" / "state")
    broker.config = replace(broker.config, delay_levels="10s 20s")
    broker.open()
    broker.clock.advance(4 * MINUTE)
    assert broker.deliver_all() == [f"old {level}" for level in range(1, 5)]


def test_read_only_store_saves_no_levels(broker: Broker, tmp_path: Path) -> None:
    def read() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "raymq" / "state").iterdir()}

    before = read()
    with Store.open(tmp_path, replace(CONFIG, delay_levels="7s"), read_only=True) as store:
        assert store.delay_level_history.levels == 1
    assert read() == before


def test_staged_rows_of_removed_delay_level_are_delivered(
    tmp_path: Path,
) -> None:
    """Guard against a delay queue created after the start that is never served."""
    broker = Broker(tmp_path / "broker-a", replace(CONFIG, delay_levels=OLD))
    broker.core.topics.create("t", 1)
    core = broker.core
    records, sizes = encoded(Message("t", b"a", delay_level=4))
    chunk = run_steps(delay_chunk_steps(core.schedule, core.timers, ("t", 0), memoryview(records), sizes))
    staged_rows.stage(core.staging, "write", "part", 0, *chunk, coordinator="broker-a")
    broker.restart("1m", "closed")
    for _ in staged_rows.commit(broker.core.staging, "write", ["part"], 1):
        pass
    broker.store.flush()
    staged_rows.close(broker.core.staging, "write")
    assert_delivery_times(broker, {"a": MINUTE})
    broker.store.close()
