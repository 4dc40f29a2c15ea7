"""What is asked of a cluster by its sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

from raymq.actors.errors import RayMQError
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.told import told_in
from raymq.client import Connection
from raymq.client.results import ClusterInfo
from raymq.cluster.doctor.finding import Finding
from raymq.cluster.doctor.machine import clock_offset

_ASK_SECONDS: Final = 2.0
_CLOCK: Final = "currentTimeMillis"


def figures_of(mq: Connection, info: ClusterInfo) -> tuple[dict[str, Mapping[str, str]], list[Finding]]:
    """The runtime figures of the brokers that answer, by address; and what their clocks say."""
    figures: dict[str, Mapping[str, str]] = {}
    clocks: list[Finding] = []
    for broker in info.brokers:
        if broker.state != "unreachable":
            begun = time.time()
            try:
                told = _figures(mq, broker.address)
            except RayMQError:
                continue
            figures[broker.address] = told
            clocks += _clock(broker.name, told, begun, time.time())
    return figures, clocks


def _figures(mq: Connection, address: str) -> dict[str, str]:
    asked = mq.pool.request(address, Command(RequestCode.GET_BROKER_RUNTIME_INFO), _ASK_SECONDS)
    table = told_in(mq.run(asked)).get("table")
    return {str(name): str(value) for name, value in table.items()} if isinstance(table, dict) else {}


def _clock(name: str, told: Mapping[str, str], begun: float, ended: float) -> Iterator[Finding]:
    if told.get(_CLOCK, "").isdecimal():
        yield clock_offset(name, int(told[_CLOCK]) / 1000 - (begun + ended) / 2, (ended - begun) / 2 + 1e-3)
