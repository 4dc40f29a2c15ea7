"""Fuzz a broker over kills of its process and power losses, in any order and within any operation.

The broker's core runs on the disk of tests/crash/power_loss.py. A machine boots, and runs the broker often several
times: closed or killed, between two operations or within one. Then the machine loses power. After each start the
content is compared with a model: what clients have seen, and which part of it was flushed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raymq.actors.broker.core.pop.pop_request import PopRequest
from raymq.actors.errors import SequenceGap
from raymq.actors.protocol import RecallStatus
from raymq.actors.recall_handle import RecallHandle
from raymq.client import Message
from raymq.storage import checkpointer, emergency_cleaner, store_parts
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.journal import state_journal
from raymq.storage.records.producer_sequence import ProducerSequence, stamp
from raymq.storage.records.record import decode
from tests import staged_rows
from tests.fuzz.checked_machine import CheckedMachine, name_of
from tests.fuzz.seeds import seeded, try_each
from tests.fuzz.simulated_machine import BOOT, GROUP, HOUR, POPPERS, TOPICS, Sent
from tests.fuzz.small_steps import delay_in_small_steps
from tests.unit.actors.bench import encoded
from tests.validation import check_invariants

PRODUCER = "00000000000000ab"


class PowerFuzz(CheckedMachine):
    """One broker and its clients."""

    # -- works ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        works: list[Callable[[], None]] = [
            self.send, self.send, self.send_delayed, self.send_delayed, self.set_timer, self.set_timer, self.recall,
            self.send_numbered, self.stage, self.commit_staged, self.commit_half,
            self.pass_time, self.pass_time, self.pass_long, self.read, self.read, self.pop, self.pop,
            self.save_producers, self.flush, self.checkpoint, self.checkpoint_timers, self.sync_state,
            self.delete_topic, self.let_go, self.grow, self.check_keys, self.save_settings,
        ]  # fmt: skip
        work = self._random.choice(works)
        self.log.append(work.__name__)
        work()
        self._look()
        check_invariants(self.core.pop)
        check_invariants(self.core.producers)

    def _new(self, most: int = 6, *, topic: str = "t", prefix: str = "") -> list[bytes]:
        kind, count = (prefix + topic).encode(), self._random.randint(1, most)
        names = [b"%s%06d" % (kind, next(self._numbers)) for _ in range(count)]
        for name in names:
            self.known.sent[name] = Sent()
        return names

    def _message(self, topic: str, name: bytes, **settings: object) -> Message:
        padding = b"x" * self._random.choice((1, 1, 300, 700))
        return Message(topic, name + b" " + padding, keys=[name.decode()], **settings)  # type: ignore[arg-type]

    def _stored(self, *names: bytes) -> None:
        for name in names:
            self.known.sent[name].alive = True

    def send(self) -> None:
        topic = self._random.choice(("t", "t", "v"))
        queue_id = self._random.randrange(2) if topic == "t" else 0
        names = self._new(topic=topic)
        records, sizes = encoded(*(self._message(topic, name) for name in names), queue_id=queue_id)
        placed = self.core.append(topic, queue_id, memoryview(records), sizes)
        self._stored(*names)
        if not self.store.read_barrier.is_blocked((topic, queue_id)):
            self._look()
            for name, offset in zip(names, placed.queue_offsets.tolist(), strict=True):
                assert self.known.places[name] == (topic, queue_id, offset)

    def send_delayed(self) -> None:
        level = self._random.randint(1, 5)
        names = self._new(3)
        queue_id = self._random.randrange(3)
        table = self.store.delay_level_history
        for name in names:
            self.known.sent[name].due_ms = self._now_ms() + table.delay_ms(min(level, table.levels) - 1)
        messages = [self._message("t", name, delay_level=level) for name in names]
        records, sizes = encoded(*messages, queue_id=queue_id)
        self.core.append("t", queue_id, memoryview(records), sizes, delayed=True)
        self._stored(*names)

    def set_timer(self) -> None:
        names = self._new(3)
        queue_id = self._random.randrange(3)
        messages = []
        for name in names:
            at = self.clock.now + self._random.choice((1, 20, 3_000, 8_000, 50 * HOUR))
            message = self._message("t", name, deliver_at=at)
            assert message.due_ms is not None
            sent = self.known.sent[name]
            sent.due_ms = message.due_ms
            sent.handle = RecallHandle("t", "broker-a", message.due_ms, message.unique_key)
            messages.append(message)
        records, sizes = encoded(*messages, queue_id=queue_id)
        self.core.append("t", queue_id, memoryview(records), sizes, delayed=True)
        self._stored(*names)

    def recall(self) -> None:
        names = [name for name, sent in self.known.sent.items() if sent.handle is not None]
        if not names:
            return
        name = self._random.choice(names[-12:])
        sent = self.known.sent[name]
        assert sent.handle is not None
        self.known.maybe_withdrawn.add(name)
        status = run_steps(self.core.recalls.recall_steps(sent.handle))
        self._look()
        self.log.append(f"{name!r} {status.name}")
        if status is RecallStatus.WITHDRAWN:
            assert name not in self.known.places, f"{name!r} is withdrawn, and had come"
            self.known.withdrawn.add(name)
        elif status is RecallStatus.DELIVERED:
            hidden = self.store.read_barrier.is_active
            assert hidden or name in self.known.places, f"{name!r} is delivered, and has not come"
        else:
            place = self.known.places.get(name)
            there = place is not None and place[2] >= self.known.low.get(place[:2], 0)
            assert not there, f"{name!r} has come and is unknown"
            assert place is not None or not sent.alive or self.store.read_barrier.is_active, (
                f"{name!r} waits and is unknown"
            )

    def send_numbered(self) -> None:
        known = self.known
        if self.clock.now - known.numbered_at > 3_000:  # the broker forgets producers that are silent for an hour
            known.epoch, known.next, known.unanswered = known.epoch + 1, 0, None
        known.numbered_at = self.clock.now
        in_doubt = known.unanswered
        names = in_doubt or self._new(self._random.choice((4, 4, 30)), prefix="n")
        known.unanswered = names
        try:
            self._append_numbered(names)
        except SequenceGap:
            known.epoch, known.next, known.unanswered = known.epoch + 1, 0, None
            return
        self._stored(*names)
        if self._random.random() < 0.3:
            return
        known.unanswered = None
        known.next += len(names)

    def _append_numbered(self, names: list[bytes]) -> None:
        records, sizes = encoded(*(self._message("t", name) for name in names), queue_id=1)
        stamped = bytearray(records)
        sequence = ProducerSequence(PRODUCER, self.known.epoch, self.known.next, len(names))
        sizes = stamp(stamped, sizes, sequence)
        tries = [self.core.append("t", 1, memoryview(bytes(stamped)), sizes, sequenced=True) for _ in range(2)]
        assert tries[0].queue_offsets.tolist() == tries[1].queue_offsets.tolist()
        self._look()
        for name, offset in zip(names, tries[0].queue_offsets.tolist(), strict=True):
            if offset >= self.known.low.get(("t", 1), 0) and not self.store.read_barrier.is_blocked(("t", 1)):
                assert self.known.places[name] == ("t", 1, offset)

    def stage(self) -> None:
        name = f"tx{next(self._numbers)}"
        queue_id = self._random.randrange(3)
        all_names: list[bytes] = []
        for number in range(self._random.randint(1, 3)):
            names = self._new(4, prefix="s")
            records, sizes = encoded(*(self._message("t", each) for each in names), queue_id=queue_id)
            staged_rows.stage(self.core.staging, name, "p", number, ("t", queue_id), memoryview(records), sizes)
            all_names += names
        self.known.staged[name] = ("t", queue_id), all_names

    def commit_staged(self) -> None:
        if not self.known.staged:
            return
        name = self._random.choice(list(self.known.staged))
        for _ in staged_rows.commit(self.core.staging, name, ["p"]):
            self._look()
        self.flush()
        staged_rows.close(self.core.staging, name)
        if self._random.random() < 0.7:
            names = self.known.staged[name][1]
            del self.known.staged[name]
            self._look()
            self._stored(*names)
            for each in names:
                assert each in self.known.places or self.store.read_barrier.is_active
                self.known.sent[each].durable = True

    def commit_half(self) -> None:
        if not self.known.staged:
            return
        for _ in staged_rows.commit(self.core.staging, self._random.choice(list(self.known.staged)), ["p"]):
            self._look()
            if self._random.random() < 0.3:
                return

    def pass_time(self) -> None:
        self.clock.advance(self._random.choice((0.5, 2, 30, 1_000)))
        self._deliver()

    def pass_long(self) -> None:
        if self._random.random() < 0.3:
            self.clock.advance(self._random.choice((1, 10, 40)) * HOUR)
            self._deliver()

    def _deliver(self) -> None:
        for _ in range(60):
            report = self.core.deliver_due()
            self._look()
            if not report.delivered and (report.next_due_ms is None or report.next_due_ms > self._now_ms()):
                return

    def read(self) -> None:
        topic = self._random.choice(("t", "t", "v"))
        for queue_id in range(TOPICS[topic]):
            key = topic, queue_id
            low, high = self.core.bounds(topic, queue_id)
            group_offset = self.core.offsets.get(GROUP, topic, queue_id) or 0
            assert group_offset == self.known.committed.get(key, 0)
            offset = max(low, group_offset)
            if offset < high:
                with self.store.read(topic, queue_id, offset, self._random.randint(1, 20)) as lease:
                    names = [name_of(record) for record in lease.messages()]
                    following = lease.next_offset
                consumed = self.known.consumed.setdefault(key, {})
                consumed.update(enumerate(names, offset))
                if self._random.random() < 0.9:
                    self.known.perhaps_committed[key] = following
                    self.core.offsets.commit(GROUP, topic, queue_id, following)
                    self.known.committed[key] = following

    def pop(self, *, share: float = 0.6) -> int:
        popped = self.core.pop.receive(PopRequest(POPPERS, "t", range(3), 8, 1 << 20, 5_000, 1_000_000))
        count = 0
        for part in popped.queues:
            for piece in part.taken.pieces:
                at = 0
                while at < len(piece):
                    record = decode(piece, at)
                    at += record.size
                    count += 1
                    name = name_of(record)
                    self.known.popped.add(name)
                    assert name not in self.known.pop_done, f"{name!r} was acknowledged and is popped again"
                    if self._random.random() < share:
                        place = (POPPERS, "t", part.queue_id, popped.pop_time_ms)
                        if self.core.pop.acknowledge(*place, [record.queue_offset]):
                            self.known.pop_done.add(name)
                            self.log.append(f"{name!r} done")
        return count

    def flush(self) -> None:
        self._look()
        before = self._state_of_log()
        self.store.flush()
        self._flushed(before)

    def sync_state(self) -> None:
        self.store.sync_state()
        self._progress_durable()

    def checkpoint(self) -> None:
        self._look()
        self.store._save_checkpoint()
        self._all_durable()
        self._progress_durable()

    def checkpoint_timers(self) -> None:
        write = self.core.timers.checkpoint()
        if write is not None:
            write()

    def save_producers(self) -> None:
        for write in self._producers.save():
            write()

    def save_settings(self) -> None:
        self.store.begin_export()()

    def delete_topic(self) -> None:
        if self._random.random() < 0.5:
            return
        known, key = self.known, ("v", 0)
        sure = self._random.random() < 0.7
        known.loose = True
        names = [name for name, sent in known.sent.items() if name.startswith(b"v")]
        for name in names:
            known.sent[name].void = True
        self.core.topics.delete("v")
        for table in (known.seen, known.consumed):
            for name in table.pop(key, {}).values():
                known.places.pop(name, None)
        for numbers in (known.committed, known.perhaps_committed, known.low):
            numbers.pop(key, None)
        if sure:
            self.store.sync_state()
            known.loose = False
            for name in names:
                known.sent[name].gone = True
            known.sure_seen.pop(key, None)
            known.sure_committed.pop(key, None)
        self.core.topics.create("v", TOPICS["v"])

    def let_go(self) -> None:
        """Run retention until nothing more is removed."""
        if self.store.read_barrier.is_active:
            return  # hidden messages would be removed before any reader saw them
        self.flush()
        self.known.letting_go = True
        while True:
            stepped = self.core.rescue.step()
            deleted = self.core.delete_expired(asked=True)
            self._lows()
            if not stepped and not deleted.log_files and self.store.flushed_offset >= self.store.max_physical_offset:
                self.known.letting_go = False
                return
            self.flush()

    def grow(self) -> None:
        names = self._new(4)
        for name in names:
            message = Message("t", name + b" " + 8_000 * b"y", keys=[name.decode()])
            records, sizes = encoded(message, queue_id=0)
            self.core.append("t", 0, memoryview(records), sizes)
            self._stored(name)

    def _settle(self) -> None:
        known = self.known
        for _ in range(4):
            self.clock.advance(60 * HOUR)
            self._deliver()
        for name, (_, names) in list(known.staged.items()):
            for _ in staged_rows.commit(self.core.staging, name, ["p"]):
                pass
            self.store.flush()
            staged_rows.close(self.core.staging, name)
            self._stored(*names)
        known.staged.clear()
        self._look()
        while self.pop(share=1.0) or self._wait_for_lent():
            pass

    def _wait_for_lent(self) -> bool:
        self.clock.advance(6)
        return bool(self.store.in_flight.queues)

    def _check_end(self) -> None:
        known = self.known
        self._look(anew=True)
        due = {name for name, sent in known.sent.items() if sent.alive and not sent.void}
        lost = due - set(known.places) - known.maybe_withdrawn
        assert not lost, f"lost: {sorted(lost)[:8]}"
        # Expired messages that returned because a power loss undid their removal were passed over then.
        there = {name for name, (t, q, o) in known.places.items() if t == "t" and o >= known.low.get((t, q), 0)}
        not_popped = there - known.popped
        assert not not_popped, f"not popped: {sorted(not_popped)[:8]}"


@pytest.fixture(autouse=True)
def use_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use many small steps, and simulate boots."""
    delay_in_small_steps(monkeypatch)
    monkeypatch.setattr(state_journal, "_COMPACT_BYTES", 800)
    for module in (store_parts, checkpointer, emergency_cleaner):
        monkeypatch.setattr(module, "boot_id", lambda: f"boot {BOOT[0]}")


@seeded(few=2, many=200)
def test_flushed_data_survives_kills_and_power_losses(tmp_path: Path, seeds: range) -> None:
    try_each(seeds, tmp_path, PowerFuzz)
