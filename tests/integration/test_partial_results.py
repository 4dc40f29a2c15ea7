"""Test the results of a batch or table that fails half-way: one entry per message or part, in order."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from raymq.client import Connection, Message, MessageQueue, PartlyStored, Producer, PullConsumer, SendResult
from raymq.client.errors import NotStored, OutcomeUnknown, PermissionDenied, RayMQError, SendError
from raymq.client.results import PartResult
from raymq.storage.errors import StoreFull, WriteUnknown
from tests.integration.conftest import Services

pytestmark = pytest.mark.usefixtures("admin")

QUEUE = MessageQueue("t", "broker-a", 0)
BODIES = [b"%04d" % number + b"x" * 996 for number in range(40)]
#: Eight records of 1,000 bytes and a header fit into a part.
PART_BYTES = 9_200
PART = 8


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raymq.client.produce.message_encoder.PART_BYTES", PART_BYTES)


def fail_after(services: Services, monkeypatch: pytest.MonkeyPatch, parts: int, error: RayMQError) -> list[int]:
    """Let broker-a refuse all appends after `parts`; return the sizes of all appends."""
    core = services.brokers["broker-a"].core
    append, appends = core.append, list[int]()

    def refusing(topic: str, queue_id: int, records: Any, sizes: Any, **options: Any) -> Any:
        appends.append(len(sizes))
        if len(appends) > parts:
            raise error
        return append(topic, queue_id, records, sizes, **options)

    monkeypatch.setattr(core, "append", refusing)
    return appends


def send_batch(producer: Producer, **options: Any) -> Sequence[SendResult]:
    return producer.send_batch([Message("t", body) for body in BODIES], **options)


def asend_batch(producer: Producer, **options: Any) -> Sequence[SendResult]:
    return asyncio.run(producer.asend_batch([Message("t", body) for body in BODIES], **options))


def read_stored(mq: Connection) -> list[bytes]:
    with PullConsumer(mq, "reader") as pull:
        pull.seek(QUEUE, 0)
        found: list[bytes] = []
        while pull.position(QUEUE) < pull.offsets(QUEUE)[1]:
            found += [message.body for message in pull.poll(QUEUE, 1_000)]
        return found


BATCHES = pytest.mark.parametrize("send", [send_batch, asend_batch])


@BATCHES
@pytest.mark.usefixtures("small_parts")
def test_batch_failing_half_way_reports_stored_messages(
    services: Services, mq: Connection, monkeypatch: pytest.MonkeyPatch, send: Callable[..., Any]
) -> None:
    appends = fail_after(services, monkeypatch, 2, StoreFull("the disk is full"))
    with Producer(mq, "p", retries=0) as producer, pytest.raises(PartlyStored) as caught:
        send(producer, queue=QUEUE)
    error = pickle.loads(pickle.dumps(caught.value))
    for raised in (caught.value, error):
        assert len(raised.results) == len(BODIES)
        assert [entry.queue_offset for entry in raised.results[: 2 * PART]] == list(range(2 * PART))
        assert all(isinstance(entry, SendResult) for entry in raised.results[: 2 * PART])
        assert raised.not_stored == list(range(2 * PART, len(BODIES)))
        assert raised.unknown == []
        assert all([each.code for each in raised.results[at].attempts] for at in range(2 * PART, 3 * PART))
        assert all(raised.results[at].attempts == [] for at in range(3 * PART, len(BODIES)))
        assert f"{2 * PART} stored" in str(raised)
    assert appends == [PART] * 3, "nothing is sent behind what failed"
    assert read_stored(mq) == BODIES[: 2 * PART]


@BATCHES
@pytest.mark.usefixtures("small_parts")
def test_batch_with_unknown_part_raises_outcome_unknown(
    services: Services, mq: Connection, monkeypatch: pytest.MonkeyPatch, send: Callable[..., Any]
) -> None:
    fail_after(services, monkeypatch, 1, WriteUnknown("half way"))
    with Producer(mq, "p", retries=0) as producer, pytest.raises(OutcomeUnknown) as caught:
        send(producer, queue=QUEUE)
    kinds = [type(entry) for entry in caught.value.results]
    assert kinds == [SendResult] * PART + [OutcomeUnknown] * PART + [NotStored] * (len(BODIES) - 2 * PART)
    assert caught.value.unknown == list(range(PART, 2 * PART))


@BATCHES
@pytest.mark.parametrize("several", [False, True])
def test_batch_without_stored_part_raises_not_stored(
    services: Services, mq: Connection, monkeypatch: pytest.MonkeyPatch, send: Callable[..., Any], *, several: bool
) -> None:
    if several:
        monkeypatch.setattr("raymq.client.produce.message_encoder.PART_BYTES", PART_BYTES)
    fail_after(services, monkeypatch, 0, StoreFull("the disk is full"))
    with Producer(mq, "p", retries=0) as producer, pytest.raises(NotStored) as caught:
        send(producer, queue=QUEUE)
    assert [type(entry) for entry in caught.value.results] == [NotStored] * len(BODIES)
    assert caught.value.attempts


@pytest.mark.usefixtures("small_parts")
def test_refusal_of_all_parts_raises_original_error(
    services: Services, mq: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_after(services, monkeypatch, 0, PermissionDenied("t may not be written"))
    with Producer(mq, "p", retries=0) as producer, pytest.raises(PermissionDenied):
        send_batch(producer, queue=QUEUE)


@pytest.mark.usefixtures("small_parts")
def test_refusal_half_way_raises_partly_stored(
    services: Services, mq: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_after(services, monkeypatch, 1, PermissionDenied("t may not be written"))
    with Producer(mq, "p", retries=0) as producer, pytest.raises(PartlyStored, match="may not be written") as caught:
        send_batch(producer, queue=QUEUE)
    assert isinstance(caught.value.__cause__, PermissionDenied)
    assert [type(entry) for entry in caught.value.results] == [SendResult] * PART + [NotStored] * (len(BODIES) - PART)
    assert caught.value.results[PART].attempts[0].code == "NO_PERMISSION"


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(
    ("error", "kind"), [(StoreFull("full"), PartlyStored), (WriteUnknown("half way"), OutcomeUnknown)]
)
def test_table_failing_half_way_reports_stored_rows(
    services: Services,
    mq: Connection,
    monkeypatch: pytest.MonkeyPatch,
    error: RayMQError,
    kind: type[SendError],
    *,
    fixed: bool,
) -> None:
    services.stop_broker("broker-b")
    monkeypatch.setattr("raymq.client.produce.message_encoder._STEP_BYTES", PART_BYTES)
    fail_after(services, monkeypatch, 2, error)
    table = pa.table({"body": pa.array(BODIES, pa.binary())})
    with Producer(mq, "p", retries=0) as producer, pytest.raises(kind) as caught:
        producer.send_table("t", table, "body", queue=QUEUE if fixed else None)
    results = pickle.loads(pickle.dumps(caught.value)).results
    assert sum(entry.rows for entry in results) == len(BODIES)
    parts = [entry for entry in results if isinstance(entry, SendResult)]
    assert len(parts) == 2
    assert all(isinstance(part, PartResult) and part.unique_key and part.message_id for part in parts)
    first = 0
    with PullConsumer(mq, "reader") as pull:
        for entry in results:
            if isinstance(entry, SendResult):
                pull.seek(entry.queue, entry.queue_offset)
                message = pull.poll(entry.queue, 1, timeout=5.0)[0]
                assert (message.body, message.unique_key) == (BODIES[first], entry.unique_key)
            first += entry.rows
    assert isinstance(results[-1], NotStored)
    assert results[-1].attempts == []


def test_single_send_error_has_no_results(services: Services, mq: Connection) -> None:
    services.stop_broker("broker-a")
    with Producer(mq, "p", timeout=0.2) as producer, pytest.raises(NotStored) as caught:
        producer.send(Message("t", b"x"), queue=QUEUE)
    assert list(caught.value.results) == []
    assert caught.value.not_stored == []
