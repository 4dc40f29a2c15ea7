"""Test that clients with known routes do not wait for hanging name servers, and notice their return."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raymq.actors import route_cache
from raymq.actors.errors import BrokerUnavailable, Timeout
from raymq.actors.name_server_health import NameServerHealth
from raymq.actors.route_cache import RouteCache
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from tests.unit.actors.clock import FakeClock
from tests.unit.actors.test_route_answers import BROKER, QUEUES, body

VIEW = b'{"brokerAddrTable":{},"clusterAddrTable":{}}'


@pytest.mark.parametrize(
    ("seconds", "timeout", "hangs"), [(3.0, 3.0, True), (0.5, 3.0, True), (0.1, 3.0, False), (0.05, 0.05, True)]
)
def test_slow_failure_counts_as_hanging_and_refusal_does_not(seconds: float, timeout: float, hangs: bool) -> None:
    silence = NameServerHealth(FakeClock(0.0))
    silence.unanswered(seconds, timeout)
    assert silence.is_hanging is hangs


def test_hanging_server_is_probed_at_growing_intervals() -> None:
    clock = FakeClock(0.0)
    silence = NameServerHealth(clock)
    waits = []
    for _ in range(8):
        silence.unanswered(3.0, 3.0)
        begun = clock()
        while not silence.is_probe_due:
            clock.advance(0.1)
        waits.append(clock() - begun)
    assert 0.7 < waits[0] < 1.4
    assert max(waits) < 5.2
    assert waits[-1] > 3.9
    silence.answered()
    assert not silence.is_hanging
    assert not silence.is_probe_due
    silence.unanswered(3.0, 3.0)
    clock.advance(1.3)
    assert silence.is_probe_due, "it begins anew"


class NameServer:
    """Stand in for a name server that answers, hangs or refuses."""

    def __init__(self) -> None:
        self.requested_codes: list[int] = []
        self.hangs = self.refuses = False

    async def request(self, address: str, command: Command, timeout: float, **_: Any) -> Command:
        self.requested_codes.append(command.code)
        if self.refuses:
            raise BrokerUnavailable(address, "cannot connect")
        if self.hangs:
            await asyncio.sleep(timeout)
            raise Timeout(address, "no answer")
        is_view = command.code == RequestCode.GET_BROKER_CLUSTER_INFO
        return Command(ResponseCode.SUCCESS, body=VIEW if is_view else body([QUEUES], [BROKER]))

    def retry_now(self, address: str) -> None:
        """Do nothing: the product calls it on news of the server."""


def test_known_routes_are_served_while_name_servers_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, server = FakeClock(1000.0), NameServer()
    monkeypatch.setattr(route_cache, "boottime", clock)

    async def look() -> None:
        routes = RouteCache(server, ["ns:1"])  # type: ignore[arg-type]
        topics = [f"t{number}" for number in range(15)]
        known = await routes.get_all(topics)
        server.hangs = True
        assert await routes.get("t0", fresh=True, timeout=0.01) is known["t0"], "the first one has to find out"
        server.requested_codes.clear()
        for _ in range(3):
            assert await routes.get_all(topics, fresh=True) == known
            assert routes.known("t3") is known["t3"]
        assert server.requested_codes == [], "it was silent so short ago"
        clock.advance(2.0)
        server.hangs = False
        assert await routes.get_all(topics, fresh=True) == known
        await asyncio.sleep(0)
        assert server.requested_codes == [RequestCode.GET_BROKER_CLUSTER_INFO], "one asks, for all"
        await asyncio.sleep(0)
        assert await routes.get("t0", fresh=True) is not known["t0"]

    asyncio.run(look())


def test_routes_are_requested_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    server = NameServer()
    server.hangs = True
    monkeypatch.setattr(route_cache, "_NAME_SERVER_SECONDS", 0.01)

    async def look() -> None:
        routes = RouteCache(server, ["ns:1"])  # type: ignore[arg-type]
        asking = asyncio.ensure_future(routes.get_all(f"t{number}" for number in range(15)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(server.requested_codes) == 15
        asking.cancel()

    asyncio.run(look())


def test_refusing_name_server_is_asked_every_time() -> None:
    server = NameServer()

    async def look() -> None:
        routes = RouteCache(server, ["ns:1"])  # type: ignore[arg-type]
        known = await routes.get("t")
        server.refuses = True
        for _ in range(3):
            assert await routes.get("t", fresh=True) is known
        assert len(server.requested_codes) == 4
        server.refuses = False
        assert await routes.get("t", fresh=True) is not known

    asyncio.run(look())
