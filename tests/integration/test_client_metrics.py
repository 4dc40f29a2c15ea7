"""Test the metrics of real clients in prometheus_client's default registry and in Ray's."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future

import prometheus_client
import pytest
import ray

from raymq.client import (
    Admin,
    ConsumeResult,
    Message,
    NotStored,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    SimpleConsumer,
)
from raymq.client.connection import Connection
from raymq.client.metrics_exporter import EXPORTER
from tests.forked_child import run_in_child
from tests.integration.conftest import Services
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def value(name: str, **labels: str) -> float | None:
    return prometheus_client.REGISTRY.get_sample_value(name, labels)


def sends(group: str, outcome: str = "ok") -> float:
    labels = {"client": "producer", "group": group, "topic": "t", "outcome": outcome}
    return value("raymq_client_sends_total", **labels) or 0.0


def sent_messages(group: str, outcome: str = "ok") -> float:
    labels = {"client": "producer", "group": group, "topic": "t", "outcome": outcome}
    return value("raymq_client_sent_messages_total", **labels) or 0.0


def listener(name: str, group: str, topic: str = "t") -> float:
    return value(f"raymq_client_listener_{name}_total", client="push_consumer", group=group, topic=topic) or 0.0


def test_registry_shows_every_kind_of_send(mq: Connection, admin: Admin) -> None:
    assert admin is not None
    message = Message("t", b"body")
    with Producer(mq, "metrics-sends") as producer:
        producer.send(message)
        producer.send_async(message).result(10)
        producer.send_batch([message] * 5)
        with producer.transaction(message):
            pass
        producer.send_oneway(message)
        poll_until(lambda: sends("metrics-sends") == 5, 10)
    assert sent_messages("metrics-sends") == 9
    tags = {"client": "producer", "group": "metrics-sends", "topic": "t"}
    assert value("raymq_client_send_seconds_count", **tags) == 5
    assert value("raymq_client_send_seconds_bucket", **tags, le="+Inf") == 5
    assert (value("raymq_client_send_seconds_sum", **tags) or 0) > 0


def test_registry_shows_failed_sends_and_retries(services: Services, mq: Connection, admin: Admin) -> None:
    assert admin is not None
    with Producer(mq, "metrics-failures", timeout=1.0, retries=1) as producer:
        producer.send(Message("t", b"body"))
        for name in services.names:
            services.stop_broker(name)
        with pytest.raises(NotStored):
            producer.send(Message("t", b"body"))
        assert value("raymq_client_isolated_brokers", client="producer", group="metrics-failures")
        for name in services.names:
            services.start_broker(name)
    assert (sends("metrics-failures"), sends("metrics-failures", "not_stored")) == (1, 1)
    retries = value("raymq_client_send_retries_total", client="producer", group="metrics-failures", topic="t")
    assert (retries or 0) > 0
    assert value("raymq_client_isolated_brokers", client="producer", group="metrics-failures") is None


def test_registry_shows_buffered_messages(mq: Connection, admin: Admin) -> None:
    assert admin is not None
    tags = {"client": "producer", "group": "metrics-linger"}
    with Producer(mq, "metrics-linger", linger=5.0) as producer:
        gathered: list[Future[SendResult]] = [producer.send_async(Message("t", b"body")) for _ in range(7)]
        assert value("raymq_client_buffered_messages", **tags) == 7
        assert producer.flush()
        assert value("raymq_client_buffered_messages", **tags) == 0
        assert all(each.done() for each in gathered)
        assert sent_messages("metrics-linger") == 7
        assert sends("metrics-linger") < 7


@pytest.mark.parametrize("mode", ["queue", "pop"])
def test_registry_shows_listener_calls(mode: str, mq: Connection, admin: Admin) -> None:
    assert admin is not None
    group = f"metrics-{mode}"

    def fail_first(messages: list[ReceivedMessage]) -> ConsumeResult:
        time.sleep(0.01)
        return ConsumeResult.SUCCESS if messages[0].reconsume_times else ConsumeResult.RECONSUME_LATER

    with Producer(mq, group) as producer, PushConsumer(mq, group, {"t": "*"}, fail_first, mode=mode):
        producer.send(Message("t", b"body"))
        retry = f"%RETRY%{group}"
        poll_until(lambda: listener("messages", group) + listener("messages", group, retry) == 2, 30)
    assert listener("failures", group) == 1
    assert listener("calls", group) + listener("calls", group, retry) == 2
    assert listener("seconds", group) + listener("seconds", group, retry) >= 0.02


def test_registry_shows_lost_leases(mq: Connection, admin: Admin) -> None:
    assert admin is not None
    with Producer(mq, "metrics-leases") as producer, SimpleConsumer(mq, "metrics-leases", {"t": "*"}) as consumer:
        producer.send(Message("t", b"body"))
        (message,) = consumer.receive(invisible_duration=0.05)
        (again,) = consumer.receive(await_duration=30.0)
        assert not consumer.ack(message)
        assert consumer.ack(again)
    tags = {"client": "simple_consumer", "group": "metrics-leases", "topic": "t"}
    assert value("raymq_client_lease_losses_total", **tags) == 1


def test_metrics_leave_the_registry_with_the_last_connection(services: Services, admin: Admin, mq: Connection) -> None:
    """The counts go on where they were, when another connection is opened."""
    for total in (1, 2):
        with Connection([services.name_server.address]) as other, Producer(other, "metrics-last") as producer:
            producer.send(Message("t", b"body"))
            if total == 2:
                admin.close()
                mq.close()
        if total == 1:
            assert sends("metrics-last") == 1
    assert value("raymq_client_sends_total", client="producer", group="metrics-last", topic="t", outcome="ok") is None
    with Connection([services.name_server.address]) as other, Producer(other, "metrics-last") as producer:
        producer.send(Message("t", b"body"))
        poll_until(lambda: sends("metrics-last") == 3, 10)


def test_forked_child_counts_its_own_sends(mq: Connection, admin: Admin) -> None:
    assert admin is not None
    with Producer(mq, "metrics-fork") as producer:
        producer.send(Message("t", b"body"))

        def send_in_child() -> str:
            producer.send(Message("t", b"body"))
            producer.send(Message("t", b"body"))
            return f"{sends('metrics-fork'):.0f}"

        assert run_in_child(send_in_child) == "2"
        assert sends("metrics-fork") == 1


@pytest.fixture
def in_ray() -> Iterator[None]:
    with own_ray(2):
        yield


@pytest.mark.ray
@pytest.mark.usefixtures("in_ray")
def test_ray_exports_metrics_of_drivers_and_workers(services: Services, mq: Connection, admin: Admin) -> None:
    assert admin is not None
    name_server = services.name_server.address

    @ray.remote(num_cpus=0.1)
    class Worker:
        def __init__(self) -> None:
            self._mq = Connection([name_server])
            self._producer = Producer(self._mq, "metrics-worker")

        def send(self) -> int:
            return self._producer.send(Message("t", b"body")).queue_offset

    with Producer(mq, "metrics-driver") as producer:
        producer.send(Message("t", b"body"))
        EXPORTER.publish()  # it would do so within 5 s
        assert sends("metrics-driver") == 0, "in a process of Ray the registry of prometheus_client is left alone"
        worker = Worker.remote()  # type: ignore[attr-defined]
        ray.get(worker.send.remote())
        groups = {'group="metrics-driver"', 'group="metrics-worker"'}
        poll_until(lambda: groups == {group for group in groups if group in exported("raymq_client_sends")}, 60)
        assert "raymq_client_buffered_messages" in exported("raymq_client_buffered_messages")


def exported(name: str) -> str:
    """Return the lines of a metric that the nodes of Ray export."""
    lines: list[str] = []
    for node in ray.nodes():
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines += [line for line in answer.read().decode().splitlines() if line.startswith(f"ray_{name}")]
    return "\n".join(lines)
