"""Test that timed messages are delivered once in spite of kills, damaged files and full disks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.core.copies.record_copy import reencode
from raymq.actors.errors import StoreFull
from raymq.actors.naming import TIMER_TOPIC
from raymq.actors.protocol import RecallStatus
from raymq.storage.records.record import OFFSET_BODY
from raymq.storage.timers import timer_log
from raymq.storage.timers.timer_log import TimerLog
from tests.store_records import flip_byte
from tests.unit.actors.timer_bench import HOUR, TimerBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TimerBench]:
    with closing(TimerBench(tmp_path)) as made:
        yield made


@pytest.mark.parametrize("checkpoint", [False, True])
def test_timed_message_is_delivered_once_across_kills(bench: TimerBench, checkpoint: bool) -> None:
    bench.send(b"a", after=1.0)
    bench.send(b"b", after=2.0)
    if checkpoint:
        bench.checkpoint()
    bench.clock.advance(1)
    assert bench.deliver() == [b"a"]
    bench.kill()
    assert bench.deliver() == []
    bench.clock.advance(1)
    assert bench.deliver() == [b"b"]
    for _ in range(2):
        bench.kill()
        assert bench.deliver() == []
    bench.restart()
    bench.clock.advance(2 * HOUR)
    assert bench.deliver() == []


@pytest.mark.parametrize("damage", ["state", "run", "journal and state"])
def test_timed_message_is_delivered_once_after_file_damage(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Rebuild waiting, delivered and recalled messages from the log."""
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 10)
    bench.send(*(b"early %02d" % n for n in range(20)), after=1.0)
    bench.deliver()
    bench.checkpoint()
    bench.clock.advance(1)
    assert len(bench.deliver()) == 20
    bench.send(*(b"late %02d" % n for n in range(20)), after=10.0)
    bench.deliver()
    bench.checkpoint()
    bench.close()
    folder = bench.directory / "raymq" / "timers"
    if damage == "run":
        for path in folder.glob("run.*"):
            flip_byte(path, 50)
    else:
        (folder / "state.json").write_text("x")
    if damage == "journal and state":
        for path in folder.glob("journal.*"):
            path.write_bytes(b"x" * 100)
    bench.open()
    assert bench.deliver() == []
    bench.kill()
    bench.clock.advance(10)
    assert bench.deliver() == [b"late %02d" % n for n in range(20)]
    bench.restart()
    assert bench.deliver() == []
    assert len(bench.delivered()) == 40


def test_kill_between_delivery_and_timer_log_repeats_nothing(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send(*(b"%02d" % n for n in range(30)), after=1.0)
    bench.deliver()
    bench.checkpoint()
    bench.clock.advance(1)
    with monkeypatch.context() as patched:
        patched.setattr(TimerLog, "append", lambda *_: (_ for _ in ()).throw(StoreFull("no room")))
        with pytest.raises(StoreFull):
            bench.core.deliver_due()
        assert len(bench.delivered()) == 30
        with pytest.raises(StoreFull):  # nothing more is delivered until it can be recorded
            bench.core.deliver_due()
    bench.kill()
    assert bench.deliver() == []
    bench.kill()
    assert bench.deliver() == []
    assert len(bench.delivered()) == 30


def test_damaged_original_causes_no_second_delivery(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the originals of copies together, or one by one if that fails."""
    bench.send(*(b"%02d" % n for n in range(30)), after=1.0)
    bench.deliver()
    bench.checkpoint()
    place = int(bench.store.entries(TIMER_TOPIC, 0, 7, 1)[0][0])
    bench.clock.advance(1)
    with monkeypatch.context() as patched:
        patched.setattr(TimerLog, "append", lambda *_: (_ for _ in ()).throw(StoreFull("no room")))
        with pytest.raises(StoreFull):
            bench.core.deliver_due()
    log = bench.directory / "commitlog" / f"{0:020d}"
    with log.open("r+b") as stream:
        stream.seek(place + OFFSET_BODY)
        stream.write(b"x")
    bench.kill()
    assert bench.deliver() == []
    assert len(bench.delivered()) == 30


@pytest.mark.parametrize("told", [{"RAYMQ_DELIVERED_FROM": "0:1"}, {"TIMER_OUT_MS": "9" * 30}, {"UNIQ_KEY": "another"}])
def test_forged_copy_does_not_suppress_delivery(bench: TimerBench, told: dict[str, str]) -> None:
    bench.send(b"m", after=5.0)
    [waiting] = bench.store.read(TIMER_TOPIC, 0, 0).messages()
    forged = reencode(waiting, "t", 0, {**waiting.properties, "RAYMQ_DELIVERED_FROM": "0:0", **told})
    bench.core.append("t", 0, memoryview(forged), np.array([len(forged)], np.int32))
    bench.kill()
    bench.clock.advance(5)
    assert bench.deliver() == [b"m"]


def test_full_disk_between_delivery_and_timer_log(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.send(b"a", after=1.0)
    bench.deliver()
    bench.clock.advance(1)
    with monkeypatch.context() as patched:
        patched.setattr(TimerLog, "append", lambda *_: (_ for _ in ()).throw(StoreFull("no room")))
        with pytest.raises(StoreFull):
            bench.core.deliver_due()
    bench.clock.advance(2 * HOUR)
    assert bench.deliver() == []
    assert len(bench.delivered()) == 1


def test_timer_log_is_rebuilt_after_loss(bench: TimerBench) -> None:
    bench.send(b"a", after=1.0)
    [gone] = bench.send(b"gone", after=3.0)
    bench.send(b"b", after=3 * HOUR)
    assert bench.recall(gone) is RecallStatus.WITHDRAWN
    bench.clock.advance(1)
    assert bench.deliver() == [b"a"]
    bench.close()
    for path in (bench.directory / "raymq" / "timers").iterdir():
        path.unlink()
    bench.open()
    assert bench.recall(gone) is RecallStatus.WITHDRAWN
    bench.clock.advance(4 * HOUR)
    assert bench.deliver() == [b"b"]


def test_damaged_delivered_record_repeats_nothing(bench: TimerBench) -> None:
    bench.send(*(b"%02d" % n for n in range(20)), after=1.0)
    bench.send(b"later", after=2.0)
    bench.clock.advance(1)
    assert len(bench.deliver()) == 20
    place = bench.delivered()[5].physical_offset
    log = bench.directory / "commitlog" / f"{0:020d}"
    with log.open("r+b") as stream:
        stream.seek(place + OFFSET_BODY)
        stream.write(b"X")
    bench.kill()
    bench.clock.advance(1)
    before = bench.store.max_offset("t", 0)
    assert bench.core.deliver_due().delivered == 1
    assert bench.store.max_offset("t", 0) == before + 1
