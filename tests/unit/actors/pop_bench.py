"""Provide a broker core for pop tests, with a fake clock and kills."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.pop.pop_request import PopRequest
from raymq.actors.filter.tag_expression import MATCH_ALL, MessageFilter
from raymq.actors.protocol import SettleAction, Settlement, SettleOutcome
from raymq.storage.errors import QueueNotFound
from raymq.storage.records.record import Record, decode
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import ExpiryReason
from raymq.storage.tables.topic_config import TopicConfig
from tests.store_records import SMALL, append, make_record
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants


@dataclass(frozen=True)
class Handle:
    """Represent one delivery, as a consumer holds it."""

    queue_id: int
    offset: int
    pop_time_ms: int
    body: bytes
    reconsume_times: int


class PopBench:
    """Run topic t of `queues` queues with group g; each call checks the invariants."""

    def __init__(self, directory: Path, queues: int = 1) -> None:
        self.directory = directory
        self.clock = FakeClock(1_700_000_000.0)
        self.queues = queues
        self.open()
        self.store.topic_configs.put(TopicConfig("t", queues, queues))

    def open(self) -> None:
        self.store = Store.open(self.directory, SMALL, now_ms=lambda: int(self.clock.now * 1000))
        self.core = BrokerCore("broker-a", self.store, clock=self.clock)
        self.pop = self.core.pop
        self.ready: list[tuple[str, str, int]] = []
        self.suspects: list[int] = []
        self.delay_ms = 0
        self.pop.on_ready = lambda *queue: self.ready.append(queue)

    def kill(self) -> None:
        """Simulate SIGKILL, and reopen what it leaves."""
        self.store._flusher.stop()
        self.store._abandon()
        self.open()

    def close(self) -> None:
        check_invariants(self.pop)
        self.store.close()

    def send(self, *bodies: bytes, queue_id: int = 0, tags: str | None = None) -> None:
        append(self.store, *(make_record(body, topic="t", queue_id=queue_id, tags=tags) for body in bodies))

    def receive(
        self,
        count: int = 32,
        invisible: float = 30.0,
        *,
        maximum: int = 16,
        queue_id: int | None = None,
        group: str = "g",
        max_bytes: int = 1 << 20,
        wanted: MessageFilter = MATCH_ALL,
        from_end: bool = False,
        ordered: bool = False,
        attempt_id: str | None = None,
        topic: str = "t",
        ahead: bool = False,
        ending: ExpiryReason = ExpiryReason.TRIED,
    ) -> list[Handle]:
        popped = self.pop.receive(
            PopRequest(
                group=group,
                topic=topic,
                queue_ids=range(self.queues) if queue_id is None else range(queue_id, queue_id + 1),
                max_messages=count,
                max_bytes=max_bytes,
                invisible_ms=int(invisible * 1000),
                max_reconsume_times=maximum,
                wanted=wanted,
                from_end=from_end,
                ordered=ordered,
                attempt_id=attempt_id,
                ending=ExpiryReason.UNSEEN if ahead else ending,
            )
        )
        check_invariants(self.pop)
        self.suspects = [offset for part in popped.queues for offset in part.taken.suspects]
        found = []
        for part in popped.queues:
            records: list[Record] = []
            for piece in part.taken.pieces:
                at = 0
                while at < len(piece):
                    records.append(decode(piece, at))
                    at += records[-1].size
            assert [record.queue_offset for record in records] == part.taken.offsets
            assert [record.reconsume_times for record in records] == part.taken.reconsume_times
            found += [
                Handle(part.queue_id, r.queue_offset, popped.pop_time_ms, r.body, r.reconsume_times) for r in records
            ]
        return found

    def ack(self, *handles: Handle, group: str = "g") -> list[bool]:
        done = [
            self.pop.acknowledge(group, "t", handle.queue_id, handle.pop_time_ms, [handle.offset]) == 1
            for handle in handles
        ]
        check_invariants(self.pop)
        return done

    def change(self, handle: Handle, seconds: float, *, undelivered: bool = False) -> Handle | None:
        milliseconds = int(seconds * 1000)
        renewed = self.pop.change_invisible(
            "g", "t", handle.queue_id, handle.offset, handle.pop_time_ms, milliseconds, undelivered=undelivered
        )
        check_invariants(self.pop)
        if renewed is None:
            return None
        return Handle(handle.queue_id, handle.offset, renewed, handle.body, handle.reconsume_times)

    def settle(
        self, handle: Handle, action: SettleAction, argument: float = 0, reason: str = "", topic: str = "t"
    ) -> SettleOutcome:
        """Settle one delivery; `argument` is in seconds, or a delay level."""
        number = int(argument) if action is SettleAction.RETRY else int(argument * 1000)
        wanted = Settlement(topic, handle.queue_id, handle.offset, handle.pop_time_ms, action, number, reason)
        ((outcome, self.delay_ms),) = self.pop.settle("g", [wanted])
        check_invariants(self.pop)
        return outcome

    def committed(self, queue_id: int = 0, group: str = "g") -> int | None:
        return self.store.consumer_offsets.get(group, "t", queue_id)

    def dead_letters(self) -> list[Record]:
        try:
            with self.store.read("%DLQ%g", 0, 0, 100) as lease:
                return lease.messages()
        except QueueNotFound:
            return []


def bodies(handles: list[Handle]) -> list[bytes]:
    return [handle.body for handle in handles]
