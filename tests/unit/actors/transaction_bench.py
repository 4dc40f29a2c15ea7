"""Provide a broker core whose producer group `shop` sends transactions to the topic `orders`."""

from __future__ import annotations

from typing import Any

from raymq.actors.broker.core.appending.inbound_message import InboundMessage
from raymq.actors.broker.core.transactions.half_message import OP_QUEUE, HalfPosition
from raymq.actors.broker.core.transactions.transactional_message_service import EndOfTransaction
from raymq.actors.protocol import TransactionOutcome
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Record
from tests.unit.actors.bench import HOST, Bench

TOPIC, GROUP = "orders", "shop"


class TransactionBench(Bench):
    """A core with the topic `orders`, whose producer group is `shop`."""

    def prepare(self, body: bytes = b"half", queue_id: int = 0, **properties: str) -> HalfPosition:
        """Send a half and return its position."""
        draft = InboundMessage(
            topic=TOPIC,
            queue_id=queue_id,
            body=body,
            properties={names.TRAN_MSG: "true", names.PGROUP: GROUP, **properties},
            born_timestamp_ms=int(self.clock.now * 1000),
            born_host=HOST,
            sys_flag=0x4,
        )
        result = self.core.send_processor.accept(draft)
        return HalfPosition(result.queue_offset, int(result.message_id[-16:], 16))

    def end(self, half: HalfPosition, outcome: TransactionOutcome, group: str = GROUP, **others: Any) -> None:
        self.core.transactions.end(EndOfTransaction(half, group, outcome, **others))

    def give_up(self, body: bytes) -> Record:
        """Send a half, let its age pass, and return its record among the given-up ones."""
        self.prepare(body)
        self.clock.now += 73 * 3600
        self.ask()
        return self.core.transactions.given_up(0, 1_000)[0][-1]

    def open_offsets(self) -> list[int]:
        return [half.position.queue_offset for half in self.core.transactions.open_halves()]

    def ask(self) -> list[int]:
        """Ask the producers of all halves that are due; return the offsets of these halves."""
        due = list(self.core.transactions.due_checks({GROUP}, 1_000))
        for half, _ in due:
            self.core.transactions.asked(half)
        return [half.position.queue_offset for half, _ in due]

    def tear_off_last_record(self, queue: tuple[str, int] = OP_QUEUE) -> None:
        """Crash, and lose the last record of the log, which is in that queue, as a torn write does."""
        offset = self.store.max_offset(*queue) - 1
        place = int(self.store.entries(*queue, offset, 1)[0][0])
        self.store._flusher.stop()
        self.store._abandon()
        path = next(iter((self.directory / "commitlog").iterdir()))
        content = bytearray(path.read_bytes())
        content[place:] = bytes(len(content) - place)
        path.write_bytes(content)
        self.open()
