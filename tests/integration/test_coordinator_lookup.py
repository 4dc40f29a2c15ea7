"""Test that all lookups find the same coordinator, also while it is offline."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.coordinator_directory_commands import find_coordinator_command
from raymq.client import Connection
from raymq.client.bulk.coordinator_lookup import (
    ensure_coordinator,
    find_coordinator,
    rendezvous_choice,
    request_named_broker,
)
from raymq.client.errors import BrokerUnavailable, InvalidInput
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def masters(mq: Connection) -> set[str]:
    return set(mq.run(mq.routes.cluster()).masters)


def other_broker(broker: str) -> str:
    return {"broker-a": "broker-b", "broker-b": "broker-a"}[broker]


def test_all_brokers_know_the_coordinator(services: Services, mq: Connection) -> None:
    coordinator = mq.run(ensure_coordinator(mq, "series", "q/t"))
    with Connection([services.name_server.address]) as another:
        assert another.run(ensure_coordinator(another, "series", "q/t")) == coordinator
    assert [broker.core.coordinators.find("series", "q/t") for broker in services.brokers.values()] == [
        coordinator,
        coordinator,
    ]


def test_offline_coordinator_is_not_replaced(services: Services, mq: Connection) -> None:
    """The name server forgets an offline broker after seconds; the other brokers must remember it."""
    coordinator = mq.run(ensure_coordinator(mq, "series", "q/t"))
    services.crash_broker(coordinator)
    poll_until(lambda: masters(mq) == {other_broker(coordinator)})
    assert mq.run(ensure_coordinator(mq, "series", "q/t")) == coordinator
    with pytest.raises(BrokerUnavailable, match=coordinator):
        mq.run(request_named_broker(mq, coordinator, find_coordinator_command("series", "q/t"), 1.0))
    services.start_broker(coordinator)
    poll_until(lambda: masters(mq) == {coordinator, other_broker(coordinator)})
    answer = mq.run(request_named_broker(mq, coordinator, find_coordinator_command("series", "q/t"), 5.0))
    assert answer.fields["home"] == coordinator


def test_no_coordinator_is_chosen_while_a_broker_is_silent(services: Services, mq: Connection) -> None:
    poll_until(lambda: all(each.core.coordinators._is_discovered for each in services.brokers.values()))
    handlers = services.brokers["broker-b"]._server.handlers
    silent = dict(handlers)
    silent[RequestCode.FIND_COORDINATOR] = lambda connection, _: connection.close()
    services.brokers["broker-b"]._server.handlers = silent
    with pytest.raises(BrokerUnavailable):
        mq.run(ensure_coordinator(mq, "series", "q/t", seconds=1.0))
    assert all(broker.core.coordinators.find("series", "q/t") is None for broker in services.brokers.values())
    services.brokers["broker-b"]._server.handlers = handlers
    assert mq.run(ensure_coordinator(mq, "series", "q/t")) in services.brokers


def test_concurrent_lookups_find_one_coordinator(services: Services, mq: Connection) -> None:
    async def look() -> list[str]:
        return list(await asyncio.gather(*(ensure_coordinator(mq, "stream", "agg") for _ in range(20))))

    assert len(set(mq.run(look()))) == 1


def test_broker_with_full_disk_is_not_chosen(services: Services, mq: Connection) -> None:
    services.brokers["broker-a"].store._writer._refuse_ratio = 1e-9
    services.brokers["broker-a"].store._writer._disk_checked_at = float("-inf")
    assert {mq.run(ensure_coordinator(mq, "series", str(number))) for number in range(8)} == {"broker-b"}
    assert mq.run(find_coordinator(mq, "series", "new")) == {"broker-a": False, "broker-b": True}
    with pytest.raises(BrokerUnavailable, match="room"):
        mq.run(ensure_coordinator(mq, "series", "new", among={"broker-a"}))


def test_invalid_kind_is_refused(services: Services, mq: Connection) -> None:
    with pytest.raises(InvalidInput):
        mq.run(ensure_coordinator(mq, "../x", "k"))


def test_rendezvous_choice_is_even_and_stable() -> None:
    keys = [f"key-{number}" for number in range(3_000)]
    three = {key: rendezvous_choice(key, ["a", "b", "c"]) for key in keys}
    assert all(count > 800 for count in Counter(three.values()).values())
    four = {key: rendezvous_choice(key, ["d", "c", "b", "a"]) for key in keys}
    assert {four[key] for key in keys if four[key] != three[key]} == {"d"}
