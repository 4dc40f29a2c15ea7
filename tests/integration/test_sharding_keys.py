"""A sharding key stays with its queue while that one's broker is away: elsewhere it would overtake itself."""

from __future__ import annotations

import time

import pytest

from raymq.client import Admin, Connection, Message, MessageQueue, NotStored, Producer
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

KEYS = [f"key-{number}" for number in range(12)]


@pytest.mark.parametrize("linger", [0.0, 0.005])
def test_a_sharding_key_waits_for_its_broker_and_moves_nowhere(
    mq: Connection, services: Services, admin: Admin, linger: float
) -> None:
    with Producer(mq, "p", linger=linger, timeout=1.0) as producer:

        def send(key: str) -> MessageQueue:
            return producer.send_async(Message("t", b"x"), sharding_key=key).result(10).queue

        homes = {key: send(key) for key in KEYS}
        assert {queue.broker for queue in homes.values()} == {"broker-a", "broker-b"}
        services.stop_broker("broker-b")

        def away() -> bool:
            mq.run(mq.routes.get("t", fresh=True))
            route = mq.routes.known("t")
            return route is not None and "broker-b" not in route.addresses

        poll_until(away, 30, "the broker has left the routes")
        for key in KEYS:
            if homes[key].broker == "broker-a":
                assert send(key) == homes[key]
            else:
                with pytest.raises(NotStored) as caught:
                    send(key)
                assert {attempt.broker for attempt in caught.value.attempts} <= {None, "broker-b"}
                assert "broker-b" in str(caught.value)
        services.start_broker("broker-b")
        deadline = time.monotonic() + 30
        for key in KEYS:
            while True:
                try:
                    assert send(key) == homes[key]
                    break
                except NotStored:
                    assert time.monotonic() < deadline
