"""Test that each duty that copies messages survives hostile messages and reports the outcome.

Faults 13.1 to 13.8: one message that could not be copied ended the duty, its sweep, or the broker's start.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raymq.actors.broker.core.appending import producer_state_journal
from raymq.actors.broker.core.copies.republisher import PURPOSES
from raymq.actors.broker.core.pop.pop_request import PopRequest
from raymq.actors.errors import NotFoundError, RayMQError
from raymq.actors.naming import TIMER_TOPIC
from raymq.actors.protocol import RedriveStatus
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.errors import StoreCorrupt
from raymq.storage.files.file_calls import replaced
from raymq.storage.log.index_file import EVER_MS
from raymq.storage.records.record import MAX_PROPERTIES_BYTES, Record, encode
from raymq.storage.tables.quarantined_messages import QuarantineEntry
from raymq.storage.timers.timer_entry import MIN_KEY
from tests import staged_rows
from tests.faulty_calls import UnsyncedCalls
from tests.staged_rows import body_of
from tests.unit.actors.bench import HOST, Bench
from tests.validation import check_invariants

FORGEABLE = (
    *("REAL_TOPIC", "REAL_QID", "DELAY", "TIMER_OUT_MS", "TIMER_DELIVER_MS", "RAYMQ_DELIVERED_FROM", "RAYMQ_SEQUENCE"),
    *("RAYMQ_DIED_IN", "RAYMQ_DLQ_REASON", "RAYMQ_REDRIVEN_FROM", "POP_CK", "1ST_POP_TIME", "RETRY_TOPIC", "UNIQ_KEY"),
    *("ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "TRAN_MSG", "KEYS", "TAGS", "RAYMQ_FAILURE"),
)
FORGED = (
    *("x", "abc", "-1", "1e9", "0x10", "2147483648", "9" * 20, "9" * 5_000, "١٢", "1:1", "9999:0", "0:0", "true"),
    *("t", "gone", "%RETRY%g", SCHEDULE_TOPIC, TIMER_TOPIC, "../../etc", "\ufffd", "f" * 48, "0" * 48),
)


@pytest.fixture(autouse=True)
def skip_fsync() -> Iterator[None]:
    with replaced(UnsyncedCalls()):
        yield


@dataclass(frozen=True)
class Hostile:
    """Describe what a hostile sender, or a failing disk, put into the store."""

    forged: dict[str, str]
    filled: bool
    undecodable: bytes
    reconsume_times: int
    flipped: tuple[float, int] | None

    def record(self, topic: str, queue_id: int, body: bytes, own: dict[str, str]) -> bytes:
        values = b"".join(b"%s\x01%s\x02" % (n.encode(), v.encode()) for n, v in {**own, **self.forged}.items())
        values += self.undecodable
        if self.filled and len(values) < MAX_PROPERTIES_BYTES - 3:
            values = b"p\x01" + b"y" * (MAX_PROPERTIES_BYTES - 3 - len(values)) + b"\x02" + values
        return encode(
            topic,
            queue_id,
            body,
            values[-MAX_PROPERTIES_BYTES:],
            born_timestamp_ms=1,
            born_host=HOST,
            reconsume_times=self.reconsume_times,
        )


hostile = st.builds(
    Hostile,
    forged=st.dictionaries(st.sampled_from(FORGEABLE), st.sampled_from(FORGED), max_size=4),
    filled=st.booleans(),
    undecodable=st.sampled_from([b"", b"q\x01\xff\xfe\x02", b"q\x01" + b"\xff" * 20_000 + b"\x02", b"q\x01a\x01b\x02"]),
    reconsume_times=st.sampled_from([0, 1, 16, -5, 2**31 - 1, -(2**31)]),
    flipped=st.none() | st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)),
)
SOUND = Hostile({}, False, b"", 0, None)


class Broker(Bench):
    """Run a bench with the group g, whose log accepts hostile and damaged records."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.core.topics.create("t", 2)
        self.core.ensure_group("g")

    def put(self, each: Hostile, topic: str, queue_id: int, body: bytes, own: dict[str, str]) -> tuple[int, int]:
        """Store a message; return its queue offset and physical offset."""
        record = each.record(topic, queue_id, body, own)
        stored = self.store.append(record, np.array([len(record)], np.int32))
        place = int(stored.physical_offsets[0])
        if each.flipped is not None:
            where, bit = each.flipped
            at = place + int(where * len(record))
            path = self.directory / "commitlog" / f"{at - at % (1 << 20):020d}"
            with path.open("r+b") as stream:
                stream.seek(at % (1 << 20))
                byte = stream.read(1)[0]
                stream.seek(at % (1 << 20))
                stream.write(bytes([byte ^ 1 << bit]))
        return int(stored.queue_offsets[0]), place

    def all_of(self, *topics: str) -> Iterator[Record]:
        """Yield the readable messages of topics."""
        for topic in topics:
            for queue_id in self.store.queues(topic):
                for offset in range(self.store.max_offset(topic, queue_id)):
                    try:
                        with self.store.read(topic, queue_id, offset, 1) as lease:
                            yield from lease.messages()
                    except StoreCorrupt:
                        pass

    def deliver(self) -> None:
        """Run all delivery passes of this moment and of the next hours."""
        for _ in range(40):
            self.clock.advance(1_000)
            while self.core.deliver_due().delivered:
                pass


def run_and_restart(run: Callable[[Broker, dict[bytes, tuple[int, int]]], None]) -> None:
    """Run a duty, then check that its broker restarts after kill and stop."""
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder))
        places: dict[bytes, tuple[int, int]] = {}
        run(broker, places)
        notes = broker.core.set_aside.notes()
        broker.crash()
        producer_state_journal.replay(broker.core.producers, broker.store, 0)
        broker.deliver()
        broker.core.pop.sweep()
        assert set(notes) <= set(broker.core.set_aside.notes())
        broker.core.timers.close()
        broker.store.close()
        broker.open()
        broker.deliver()
        broker.store.close()


def mixed(several: list[Hostile]) -> list[tuple[bytes, Hostile]]:
    """Alternate hostile and sound messages; return them with their bodies."""
    return [
        pair
        for number, each in enumerate(several)
        for pair in ((b"hostile-%d" % number, each), (b"sound-%d" % number, SOUND))
    ]


def check(broker: Broker, several: list[Hostile], places: dict[bytes, tuple[int, int]], *topics: str) -> None:
    """Check that sound messages arrived once, and hostile ones arrived or are set aside."""
    came = [record.body for record in broker.all_of(*topics)]
    notes = broker.core.set_aside.notes()
    for body, each in mixed(several):
        if each is SOUND:
            assert came.count(body) == 1, f"{body!r} came {came.count(body)} times"
        elif body not in came:
            assert any(is_of(note, places[body]) for note in notes), f"{body!r} is lost without a word"


def is_of(note: QuarantineEntry, place: tuple[int, int]) -> bool:
    return note.offset == place[0] or note.physical_offset == place[1]


RUNS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@RUNS
@given(st.lists(hostile, min_size=1, max_size=6))
@pytest.mark.long
def test_delay_levels_survive_hostile_messages(several: list[Hostile]) -> None:
    def run(broker: Broker, places: dict[bytes, tuple[int, int]]) -> None:
        for number, (body, each) in enumerate(mixed(several)):
            queue_id = number // 2 % 2
            own = {"REAL_TOPIC": "t", "REAL_QID": "1", "DELAY": str(queue_id + 1)}
            places[body] = broker.put(each, SCHEDULE_TOPIC, queue_id, body, own)
        broker.deliver()
        check(broker, several, places, "t", "%RETRY%g")

    run_and_restart(run)


@RUNS
@given(st.lists(hostile, min_size=1, max_size=6))
@pytest.mark.long
def test_timers_survive_hostile_messages(several: list[Hostile]) -> None:
    def run(broker: Broker, places: dict[bytes, tuple[int, int]]) -> None:
        due_ms = int(broker.clock.now * 1000) + 1_000
        for body, each in mixed(several):
            own = {"REAL_TOPIC": "t", "REAL_QID": "1", "TIMER_OUT_MS": str(due_ms), "UNIQ_KEY": body.decode()}
            if each.forged.get("RAYMQ_DELIVERED_FROM") == "0:0":  # only the broker itself writes this value there
                each = replace(each, forged={})  # noqa: PLW2901
            places[body] = broker.put(each, TIMER_TOPIC, 0, body, own)
        broker.deliver()
        waits, _ = broker.core.timers.log.waiting((0, MIN_KEY), EVER_MS, 1_000)
        waiting = set(waits["queue_offset"].tolist())
        unknown = {body for body, place in places.items() if place[0] in waiting and body.startswith(b"hostile")}
        came = [record.body for record in broker.all_of("t", "%RETRY%g")]
        notes = broker.core.set_aside.notes()
        for body, each in mixed(several):
            if each is SOUND:
                assert came.count(body) == 1
            elif body not in came and body not in unknown:  # a bit of its time was flipped
                assert any(is_of(note, places[body]) for note in notes), f"{body!r} is lost without a word"

    run_and_restart(run)


def put_all(broker: Broker, places: dict[bytes, tuple[int, int]], several: list[Hostile], topic: str) -> None:
    for body, each in mixed(several):
        places[body] = broker.put(each, topic, 0, body, {"UNIQ_KEY": "k"})


@RUNS
@given(st.lists(hostile, min_size=1, max_size=6), st.sampled_from([0, 1, -1]))
def test_retries_and_dead_letters_survive_hostile_messages(several: list[Hostile], level: int) -> None:
    def run(broker: Broker, places: dict[bytes, tuple[int, int]]) -> None:
        put_all(broker, places, several, "t")
        for body, each in mixed(several):
            try:
                broker.core.redelivery.send_back("g", places[body][1], level)
            except (NotFoundError, StoreCorrupt):
                assert each is not SOUND
        broker.deliver()
        check(broker, several, places, "%RETRY%g", "%DLQ%g")

    run_and_restart(run)


@RUNS
@given(st.lists(hostile, min_size=1, max_size=6))
@pytest.mark.long
def test_redrive_survives_hostile_messages(several: list[Hostile]) -> None:
    def run(broker: Broker, places: dict[bytes, tuple[int, int]]) -> None:
        put_all(broker, places, several, "%DLQ%g")
        bodies = [body for body, _ in mixed(several)]
        values = run_steps(broker.core.dead_letters.redrive_steps("g", range(len(bodies)), force=False, dry_run=False))
        of_sound = [word for word, body in zip(values, bodies, strict=True) if body.startswith(b"sound")]
        assert of_sound == [RedriveStatus.REDRIVEN] * len(several)
        check(broker, several, places, "%RETRY%g")
        again = run_steps(broker.core.dead_letters.redrive_steps("g", range(len(bodies)), force=False, dry_run=False))
        assert RedriveStatus.REDRIVEN not in again

    run_and_restart(run)


@RUNS
@given(st.lists(hostile, min_size=1, max_size=6), st.booleans())
def test_pop_and_sweep_survive_hostile_messages(several: list[Hostile], taken_before: bool) -> None:
    def run(broker: Broker, places: dict[bytes, tuple[int, int]]) -> None:
        request = PopRequest("g", "t", range(2), 1_000, 1 << 23, 1_000, 0)
        later: list[tuple[bytes, Hostile]] = []
        for body, each in mixed(several):
            if taken_before and each.flipped is not None:
                later.append((body, each))
                places[body] = broker.put(replace(each, flipped=None), "t", 0, body, {})
            else:
                places[body] = broker.put(each, "t", 0, body, {})
        given: set[int] = set()
        for _ in range(2 * len(several)):  # a damaged record ends a read
            given.update(offset for queue in broker.core.pop.receive(request).queues for offset in queue.taken.offsets)
        assert {offset for _, (offset, _) in sound(places)} <= given
        for body, each in later:
            flip_stored(broker, places[body][1], each)
        for _ in range(4):
            broker.clock.advance(2)
            broker.core.pop.sweep()
            check_invariants(broker.core.pop)
            broker.core.pop.receive(request)
        check(broker, several, places, "%DLQ%g")

    run_and_restart(run)


def sound(places: dict[bytes, tuple[int, int]]) -> list[tuple[bytes, tuple[int, int]]]:
    return [(body, place) for body, place in places.items() if body.startswith(b"sound")]


def flip_stored(broker: Broker, place: int, each: Hostile) -> None:
    """Flip a bit in a stored body."""
    assert each.flipped is not None
    path = broker.directory / "commitlog" / f"{place - place % (1 << 20):020d}"
    with path.open("r+b") as stream:
        stream.seek(place % (1 << 20) + 88)
        byte = stream.read(1)[0]
        stream.seek(place % (1 << 20) + 88)
        stream.write(bytes([byte ^ 1 << each.flipped[1]]))


@RUNS
@given(st.lists(hostile, min_size=1, max_size=6), st.booleans())
@pytest.mark.long
def test_staged_write_survives_hostile_messages(several: list[Hostile], damaged: bool) -> None:
    def run(broker: Broker, places: dict[bytes, tuple[int, int]]) -> None:
        records = [each.record("t", 0, body, {"UNIQ_KEY": body.decode()}) for body, each in mixed(several)]
        sizes = np.array([len(record) for record in records], np.int32)
        staged_rows.stage(broker.core.staging, "tx", "part", 0, ("t", 0), memoryview(b"".join(records)), sizes)
        if damaged:  # a body is damaged after staging
            body = body_of(broker.store, "tx", "part", 0)
            body[bytes(body).find(b"hostile-0")] ^= 1
        added = sum(staged_rows.commit(broker.core.staging, "tx", ["part"]))
        staged_rows.close(broker.core.staging, "tx")
        came = [record.body for record in broker.all_of("t")]
        assert added == len(records) - damaged
        assert came == [body for body, _ in mixed(several)][damaged:]
        assert [note.duty for note in broker.core.set_aside.notes()] == ["stagedWrite"] * damaged

    run_and_restart(run)


def test_set_aside_message_is_reported_once_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(tmp_path)
    caplog.set_level(logging.ERROR)
    broker.put(SOUND, SCHEDULE_TOPIC, 0, b"lost", {"REAL_TOPIC": "gone"})
    broker.deliver()
    (note,) = broker.core.set_aside.notes()
    assert (note.duty, note.owner, note.topic, note.offset) == ("delayLevel", "1", SCHEDULE_TOPIC, 0)
    assert note.message_id in caplog.text
    assert "its topic 'gone' does not exist any more" in caplog.text
    assert broker.core.set_aside.counts["delayLevel"] == 1
    assert set(broker.core.set_aside.counts) <= set(PURPOSES)
    place = broker.put(SOUND, "t", 0, b"x", {})[1]
    broker.store.group_configs.delete("g")
    for _ in range(3):
        with pytest.raises(RayMQError):
            broker.core.redelivery.send_back("g", place, 0)
    assert broker.core.set_aside.counts["retry"] == 1
    broker.store.close()


@pytest.mark.parametrize(
    "damage", [lambda c: bytes(len(c)), lambda c: c[:3] + bytes(len(c) - 3), lambda c: b"\xff" * len(c)]
)
def test_unreadable_staged_chunk_is_reported_and_skipped(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """Cover a decided commit whose tasks are gone, so that no task can stage again."""
    broker = Broker(tmp_path)
    record = SOUND.record("t", 0, b"sound", {"UNIQ_KEY": "k"})
    sizes = np.array([len(record)], np.int32)
    for number in range(3):
        staged_rows.stage(broker.core.staging, "tx", "part", number, ("t", 0), memoryview(record), sizes)
    body = body_of(broker.store, "tx", "part", 1)
    body[:] = damage(bytes(body))
    assert list(staged_rows.commit(broker.core.staging, "tx", ["part"], 3)) == [1, 0, 1]
    staged_rows.close(broker.core.staging, "tx")
    assert len(list(broker.all_of("t"))) == 2
    assert any("chunk 1 of part part" in note.owner for note in broker.core.set_aside.notes())
    broker.store.close()


def test_staged_rows_of_deleted_topic_are_set_aside(tmp_path: Path) -> None:
    """Also cover a topic of the same name that was created since."""
    for again in (False, True):
        broker = Broker(tmp_path / str(again))
        broker.core.topics.create("old", 1)
        record = SOUND.record("old", 0, b"sound", {"UNIQ_KEY": "k"})
        broker.put(SOUND, "old", 0, b"there", {})
        sizes = np.array([len(record)], np.int32)
        staged_rows.stage(broker.core.staging, "tx", "part", 0, ("old", 0), memoryview(record), sizes)
        broker.core.topics.delete("old")
        if again:
            broker.core.topics.create("old", 1)
        assert list(staged_rows.commit(broker.core.staging, "tx", ["part"], 1)) == [0]
        staged_rows.close(broker.core.staging, "tx")
        assert [record.body for record in broker.all_of("old")] == []
        assert "deleted" in broker.core.set_aside.notes()[0].reason
        broker.store.close()


def test_damaged_last_message_does_not_hide_its_topic(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.put(replace(SOUND, flipped=(0.5, 0)), "t", 0, b"x" * 500, {})
    found = broker.core.range("t", 0)
    assert (found.min_offset, found.max_offset, found.last_store_timestamp_ms) == (0, 1, 0)
    broker.store.close()
