"""Test how a producer handles batch answers with too few positions, or with two ranges of positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raymq.actors.broker.core.appending.idempotence import StoredBatch
from raymq.actors.errors import WriteUnknown
from raymq.actors.protocol import RecordPositions
from raymq.client import Connection, Message, MessageQueue, Producer, PullConsumer
from raymq.client.errors import OutcomeUnknown
from raymq.storage.records import producer_sequence
from tests.integration.conftest import Services
from tests.store_records import make_record

QUEUE = MessageQueue("t", "broker-a", 0)
BODIES = [b"%d" % number for number in range(10)]
#: Their offsets if three of them were stored, then a message of another producer, then the others.
BOTH_PLACES = [0, 1, 2, *range(4, 11)]


def send_batch(producer: Producer) -> list[int]:
    results = producer.send_batch([Message("t", body) for body in BODIES], queue=QUEUE)
    assert len(results) == len(BODIES)
    return [result.queue_offset for result in results]


def send_table(producer: Producer) -> list[int]:
    result = producer.send_table("t", pa.table({"body": pa.array(BODIES, pa.binary())}), "body", queue=QUEUE)
    assert {queue for queue, _, _ in result.parts} == {QUEUE}
    return [offset for _, first, rows in result.parts for offset in range(first, first + rows)]


def send_lingering(producer: Producer) -> list[int]:
    futures = [producer.send_async(Message("t", body), queue=QUEUE) for body in BODIES]
    return [future.result(30).queue_offset for future in futures]


WAYS = pytest.mark.parametrize(
    ("send", "lingering"),
    [(send_batch, 0.0), (send_table, 0.0), (send_lingering, 0.2)],
    ids=["batch", "table", "linger"],
)


@WAYS
@pytest.mark.usefixtures("admin")
def test_retry_of_truncated_batch_returns_both_offset_ranges(
    services: Services,
    mq: Connection,
    monkeypatch: pytest.MonkeyPatch,
    send: Callable[[Producer], list[int]],
    lingering: float,
) -> None:
    """As after a power loss: three of ten records are left, and another producer appended next."""
    core = services.brokers["broker-a"].core
    whole = core.append

    def cut(topic: str, queue_id: int, records: memoryview, sizes: Any, **options: bool) -> RecordPositions:
        if len(sizes) < len(BODIES):
            return whole(topic, queue_id, records, sizes, **options)
        monkeypatch.undo()
        sequence = producer_sequence.read(records)
        left = core.append(topic, queue_id, records[: int(sizes[:3].sum())], sizes[:3])
        place = StoredBatch(topic, queue_id, int(left.queue_offsets[0]), 3)
        core.producers.replay((sequence.producer, topic, queue_id), sequence, place, core.clock())
        other = make_record(b"somebody else's", topic=topic, queue_id=queue_id)
        core.append(topic, queue_id, memoryview(other), np.array([len(other)], np.int32))
        raise WriteUnknown("the power was lost")

    monkeypatch.setattr(core, "append", cut)
    with Producer(mq, "p", idempotent=True, timeout=30.0, linger=lingering) as producer:
        assert send(producer) == BOTH_PLACES
    with PullConsumer(mq, "reader") as pull:
        pull.seek(QUEUE, 0)
        found: list[bytes] = []
        while len(found) < 11:
            found += [message.body for message in pull.poll(QUEUE, 100, timeout=5.0)]
    assert found == [*BODIES[:3], b"somebody else's", *BODIES[3:]]


@WAYS
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.usefixtures("admin")
def test_answer_with_too_few_positions_raises_outcome_unknown(
    services: Services,
    mq: Connection,
    monkeypatch: pytest.MonkeyPatch,
    send: Callable[[Producer], list[int]],
    lingering: float,
    idempotent: bool,
) -> None:
    core = services.brokers["broker-a"].core
    whole = core.append

    def too_few(*arguments: Any, **options: Any) -> RecordPositions:
        placed = whole(*arguments, **options)
        return RecordPositions(
            placed.topic, placed.queue_ids[:3], placed.queue_offsets[:3], placed.physical_offsets[:3]
        )

    monkeypatch.setattr(core, "append", too_few)
    with Producer(mq, "p", idempotent=idempotent, timeout=5.0, retries=1, linger=lingering) as producer:
        for _ in range(2):  # the first send may use the event loop, the second one its own socket
            with pytest.raises(OutcomeUnknown):
                send(producer)
        monkeypatch.undo()
        assert len(send(producer)) == len(BODIES)
