"""Whoever looks for a home finds the same one, also while it is away."""

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


def other(broker: str) -> str:
    return {"broker-a": "broker-b", "broker-b": "broker-a"}[broker]


def test_a_home_is_found_again_and_all_brokers_know_it(services: Services, mq: Connection) -> None:
    home = mq.run(ensure_coordinator(mq, "series", "q/t"))
    with Connection([services.name_server.address]) as another:
        assert another.run(ensure_coordinator(another, "series", "q/t")) == home
    assert [broker.core.homes.find("series", "q/t") for broker in services.brokers.values()] == [home, home]


def test_a_home_that_is_away_is_known_and_nobody_makes_a_second_one(services: Services, mq: Connection) -> None:
    """The name server forgets a broker after seconds: the other ones must not."""
    home = mq.run(ensure_coordinator(mq, "series", "q/t"))
    services.crash_broker(home)
    poll_until(lambda: masters(mq) == {other(home)})
    assert mq.run(ensure_coordinator(mq, "series", "q/t")) == home
    with pytest.raises(BrokerUnavailable, match=home):
        mq.run(request_named_broker(mq, home, find_coordinator_command("series", "q/t"), 1.0))
    services.start_broker(home)
    poll_until(lambda: masters(mq) == {home, other(home)})
    answer = mq.run(request_named_broker(mq, home, find_coordinator_command("series", "q/t"), 5.0))
    assert answer.fields["home"] == home


def test_while_a_broker_does_not_answer_no_home_is_made(services: Services, mq: Connection) -> None:
    poll_until(lambda: all(each.core.homes._is_discovered for each in services.brokers.values()))
    handlers = services.brokers["broker-b"]._server.handlers
    silent = dict(handlers)
    silent[RequestCode.FIND_HOME] = lambda connection, _: connection.close()
    services.brokers["broker-b"]._server.handlers = silent
    with pytest.raises(BrokerUnavailable):
        mq.run(ensure_coordinator(mq, "series", "q/t", seconds=1.0))
    assert all(broker.core.homes.find("series", "q/t") is None for broker in services.brokers.values())
    services.brokers["broker-b"]._server.handlers = handlers
    assert mq.run(ensure_coordinator(mq, "series", "q/t")) in services.brokers


def test_many_who_look_at_once_find_one_home(services: Services, mq: Connection) -> None:
    async def look() -> list[str]:
        return list(await asyncio.gather(*(ensure_coordinator(mq, "stream", "agg") for _ in range(20))))

    assert len(set(mq.run(look()))) == 1


def test_a_broker_without_room_becomes_nobodys_home(services: Services, mq: Connection) -> None:
    services.brokers["broker-a"].store._writer._refuse_ratio = 1e-9
    services.brokers["broker-a"].store._writer._disk_checked_at = float("-inf")
    assert {mq.run(ensure_coordinator(mq, "series", str(number))) for number in range(8)} == {"broker-b"}
    assert mq.run(find_coordinator(mq, "series", "new")) == {"broker-a": False, "broker-b": True}
    with pytest.raises(BrokerUnavailable, match="room"):
        mq.run(ensure_coordinator(mq, "series", "new", among={"broker-a"}))


def test_a_kind_that_cannot_be_is_refused(services: Services, mq: Connection) -> None:
    with pytest.raises(InvalidInput):
        mq.run(ensure_coordinator(mq, "../x", "k"))


def test_homes_are_spread_and_stay_where_brokers_come() -> None:
    keys = [f"key-{number}" for number in range(3_000)]
    three = {key: rendezvous_choice(key, ["a", "b", "c"]) for key in keys}
    assert all(count > 800 for count in Counter(three.values()).values())
    four = {key: rendezvous_choice(key, ["d", "c", "b", "a"]) for key in keys}
    assert {four[key] for key in keys if four[key] != three[key]} == {"d"}
