"""Request runtime figures from the brokers of a cluster by its sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

from raymq.actors.errors import RayMQError
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.response_validation import read_json_answer
from raymq.client import Connection
from raymq.client.results import ClusterInfo
from raymq.cluster.doctor.check_result import CheckResult
from raymq.cluster.doctor.host_checks import check_clock_offset

_REQUEST_SECONDS: Final = 2.0
_CLOCK: Final = "currentTimeMillis"


def fetch_runtime_figures(mq: Connection, info: ClusterInfo) -> tuple[dict[str, Mapping[str, str]], list[CheckResult]]:
    """Return the runtime figures of brokers by address, and the checks of their clocks.

    Brokers that do not answer are left out.
    """
    figures: dict[str, Mapping[str, str]] = {}
    clocks: list[CheckResult] = []
    for broker in info.brokers:
        if broker.state != "unreachable":
            begun = time.time()
            try:
                found = _figures(mq, broker.address)
            except RayMQError:
                continue
            figures[broker.address] = found
            clocks += _clock(broker.name, found, begun, time.time())
    return figures, clocks


def _figures(mq: Connection, address: str) -> dict[str, str]:
    request = mq.pool.request(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO), _REQUEST_SECONDS)
    table = read_json_answer(mq.run(request)).get("table")
    return {str(name): str(value) for name, value in table.items()} if isinstance(table, dict) else {}


def _clock(name: str, figures: Mapping[str, str], begun: float, ended: float) -> Iterator[CheckResult]:
    if figures.get(_CLOCK, "").isdecimal():
        yield check_clock_offset(name, int(figures[_CLOCK]) / 1000 - (begun + ended) / 2, (ended - begun) / 2 + 1e-3)
