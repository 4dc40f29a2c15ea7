"""Test that a change fails with an error if an offline broker did not get it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from raymq.client import Admin, Connection, Message, Producer, PullConsumer
from raymq.client.errors import BrokerUnavailable, TopicNotFound
from raymq.client.requests import fan_out
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def take_broker_offline(services: Services, mq: Connection, broker: str) -> None:
    services.stop_broker(broker)
    poll_until(lambda: broker not in mq.run(mq.routes.get("t", fresh=True)).addresses, 20)


def bring_broker_online(services: Services, mq: Connection, broker: str) -> None:
    services.start_broker(broker)
    poll_until(lambda: broker in mq.run(mq.routes.get("t", fresh=True)).addresses, 20)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda admin, dry_run: admin.skip("g", "t", dry_run=dry_run),
        lambda admin, dry_run: admin.reset_offset_by_time("g", "t", 0.0, dry_run=dry_run),
        lambda admin, dry_run: admin.update_topic("t", queues=3, dry_run=dry_run),
    ],
    ids=["skip", "reset", "update"],
)
def test_change_error_names_offline_broker(
    services: Services, mq: Connection, admin: Admin, change: Callable[[Admin, bool], object], dry_run: bool
) -> None:
    """The call used to succeed, and the broker came back unchanged: skipped messages were delivered."""
    with Producer(mq, "p") as producer, PullConsumer(mq, "g") as pull:
        for number in range(8):
            producer.send(Message("t", b"%d" % number))
        for queue in pull.queues("t"):
            pull.commit(queue, 1)
    take_broker_offline(services, mq, "broker-b")
    with pytest.raises(BrokerUnavailable) as caught:
        change(admin, dry_run)
    assert caught.value.broker == "broker-b"
    bring_broker_online(services, mq, "broker-b")
    change(admin, dry_run)


def test_topic_deletion_fails_while_broker_is_offline(services: Services, mq: Connection, admin: Admin) -> None:
    """Otherwise the topic would return with its messages."""
    take_broker_offline(services, mq, "broker-b")
    with pytest.raises(BrokerUnavailable) as caught:
        admin.delete_topic("t")
    assert caught.value.broker == "broker-b"
    with pytest.raises(BrokerUnavailable):
        admin.delete_topic("t")
    bring_broker_online(services, mq, "broker-b")
    admin.delete_topic("t")
    with pytest.raises(TopicNotFound):
        admin.delete_topic("t")
    assert "t" not in admin.topics()


def test_change_error_names_broker_lost_during_change(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = fan_out.request_each

    async def request_then_stop_broker(*arguments: Any) -> Any:
        answers = await original(*arguments)
        if "broker-b" in services.brokers:
            await asyncio.to_thread(take_broker_offline, services, mq, "broker-b")
        return answers

    monkeypatch.setattr(fan_out, "request_each", request_then_stop_broker)
    with pytest.raises(BrokerUnavailable, match="broker-b"):
        admin.update_topic("t", queues=3)
    assert services.brokers["broker-a"].core.topic("t").write_queues == 3
