"""A change that a broker was not told of, since it is away, is told by an error: it comes back as it was."""

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


def leave(services: Services, mq: Connection, broker: str) -> None:
    services.stop_broker(broker)
    poll_until(lambda: broker not in mq.run(mq.routes.get("t", fresh=True)).addresses, 20)


def come_back(services: Services, mq: Connection, broker: str) -> None:
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
def test_a_change_says_which_brokers_it_has_not_told(
    services: Services, mq: Connection, admin: Admin, change: Callable[[Admin, bool], object], dry_run: bool
) -> None:
    """It returned, and the broker came back as it was: what was skipped was delivered."""
    with Producer(mq, "p") as producer, PullConsumer(mq, "g") as pull:
        for number in range(8):
            producer.send(Message("t", b"%d" % number))
        for queue in pull.queues("t"):
            pull.commit(queue, 1)
    leave(services, mq, "broker-b")
    with pytest.raises(BrokerUnavailable) as told:
        change(admin, dry_run)
    assert told.value.broker == "broker-b"
    come_back(services, mq, "broker-b")
    change(admin, dry_run)


def test_a_topic_is_not_called_deleted_while_a_broker_that_has_it_is_away(
    services: Services, mq: Connection, admin: Admin
) -> None:
    """It came back with its messages."""
    leave(services, mq, "broker-b")
    with pytest.raises(BrokerUnavailable) as told:
        admin.delete_topic("t")
    assert told.value.broker == "broker-b"
    with pytest.raises(BrokerUnavailable):
        admin.delete_topic("t")
    come_back(services, mq, "broker-b")
    admin.delete_topic("t")
    with pytest.raises(TopicNotFound):
        admin.delete_topic("t")
    assert "t" not in admin.topics()


def test_a_broker_that_leaves_amid_a_change_is_told_as_one_that_is_away(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = fan_out.request_each

    async def asked_before_it_leaves(*arguments: Any) -> Any:
        answers = await ask(*arguments)
        if "broker-b" in services.brokers:
            await asyncio.to_thread(leave, services, mq, "broker-b")
        return answers

    monkeypatch.setattr(fan_out, "request_each", asked_before_it_leaves)
    with pytest.raises(BrokerUnavailable, match="broker-b"):
        admin.update_topic("t", queues=3)
    assert services.brokers["broker-a"].core.topic("t").write_queues == 3
