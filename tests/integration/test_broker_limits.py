"""Test the limits of a broker: code and count of each refusal, nothing stored, and recovery."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from raymq.actors.broker.core.appending.admission import AdmissionLimits
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.client import Admin, Connection, Message, MessageQueue, Producer
from raymq.client.errors import NotStored
from raymq.storage.errors import StoreFull
from tests.integration.conftest import Services
from tests.integration.foreign_client import ForeignClient
from tests.integration.test_foreign_send import message
from tests.validation import check_invariants

QUEUE = MessageQueue("t", "broker-a", 0)


def refusals(admin: Admin, broker: str = "broker-a") -> dict[str, int]:
    return next(info.refusals for info in admin.cluster_info().brokers if info.name == broker)


@pytest.mark.parametrize("limit", ["appends_under_way", "bytes_under_way"])
def test_appends_under_way_are_bounded(services: Services, mq: Connection, admin: Admin, limit: str) -> None:
    admission = services.brokers["broker-a"].core.admission
    admission.limits = replace(admission.limits, **{limit: 1})
    admission.enter(1)
    with Producer(mq, "p", timeout=1.0) as producer:
        with pytest.raises(NotStored) as caught:
            producer.send(Message("t", b"x"), queue=QUEUE, retries=0)
        assert [attempt.code for attempt in caught.value.attempts] == ["SYSTEM_BUSY"]
        assert refusals(admin) == {limit: 1}
        assert refusals(admin, "broker-b") == {}
        assert admin.topic_stats("t")[QUEUE].max_offset == 0
        assert producer.send(Message("t", b"x")).queue.broker == "broker-b"
        admission.leave(1)
        assert producer.send(Message("t", b"x"), queue=QUEUE).queue_offset == 0
    check_invariants(admission)


def test_producer_awaits_flow_control_within_timeout(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    admission = services.brokers["broker-a"].core.admission
    admission.limits = replace(admission.limits, appends_under_way=0)
    services.loop.loop.call_soon_threadsafe(
        services.loop.loop.call_later, 0.3, lambda: setattr(admission, "limits", AdmissionLimits())
    )
    with Producer(mq, "p", timeout=5.0) as producer:
        began = time.monotonic()
        producer.send(Message("t", b"x"), queue=QUEUE)
        assert 0.7 < time.monotonic() - began < 3.0


def test_append_over_maximum_age_is_refused(services: Services, mq: Connection, admin: Admin) -> None:
    services.brokers["broker-a"].core.admission.limits = AdmissionLimits()
    with Producer(mq, "p", timeout=5.0) as producer:
        producer.send(Message("t", b"x"), queue=QUEUE)
        before = refusals(admin).get("age", 0)  # on a busy machine a refusal may have been counted already
        services.loop.loop.call_soon_threadsafe(time.sleep, 1.0)
        with pytest.raises(NotStored) as caught:
            producer.send(Message("t", b"x"), queue=QUEUE, retries=0)
        (attempt,) = caught.value.attempts
        assert (attempt.code, attempt.broker) == ("SYSTEM_BUSY", "broker-a")
        assert "the limit is 0.2 s" in attempt.error
        assert refusals(admin) == {"age": before + 1}
        assert producer.send(Message("t", b"x"), queue=QUEUE).queue_offset == 1


def test_append_behind_stalled_append_is_refused(services: Services, mq: Connection, admin: Admin) -> None:
    core = services.brokers["broker-a"].core
    core.admission.limits = AdmissionLimits()
    real = core.store.append

    def stalled(*arguments: object, **options: object) -> object:
        core.store.append = real  # type: ignore[method-assign]
        time.sleep(1.2)
        return real(*arguments, **options)  # type: ignore[arg-type]

    with Producer(mq, "p", timeout=5.0) as producer:
        producer.send(Message("t", b"x"), queue=QUEUE)
        core.store.append = stalled  # type: ignore[method-assign, assignment]
        futures = [producer.send_async(Message("t", b"x"), queue=QUEUE, retries=0) for _ in range(5)]
        outcomes = [future.exception(10) for future in futures]
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert None in outcomes
    assert refused
    assert all("page cache busy" in str(outcome) and outcome.code == "SYSTEM_BUSY" for outcome in refused)  # type: ignore[attr-defined]
    assert refusals(admin) == {"page_cache": len(refused)}


def test_append_on_full_disk_is_refused(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise StoreFull("the disk is full")

    with monkeypatch.context() as patch, Producer(mq, "p", timeout=2.0, isolation=None) as producer:
        patch.setattr(services.brokers["broker-a"].store._writer, "check_ready", full)
        with pytest.raises(NotStored) as caught:
            producer.send(Message("t", b"x"), queue=QUEUE)
        assert [attempt.code for attempt in caught.value.attempts] == ["SERVICE_NOT_AVAILABLE"] * 3
        assert refusals(admin) == {"disk_full": 3}
        assert {producer.send(Message("t", b"x")).queue.broker for _ in range(6)} == {"broker-b"}
    with Producer(mq, "p") as producer:
        assert producer.send(Message("t", b"x"), queue=QUEUE).queue_offset == 0
    assert admin.topic_stats("t")[QUEUE].max_offset == 1


def test_sends_of_rocketmq_clients_are_bounded(services: Services, admin: Admin) -> None:
    broker = services.brokers["broker-a"]
    broker.core.admission.limits = replace(broker.core.admission.limits, appends_under_way=0)
    with ForeignClient(broker.address) as client:
        assert client.ask(message(topic="t")).code == ResponseCode.SYSTEM_BUSY
        table = client.json(Command(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
        assert table["refusedAppends_appends_under_way"] == "1"
    assert admin.topic_stats("t")[MessageQueue("t", "broker-a", 1)].max_offset == 0
