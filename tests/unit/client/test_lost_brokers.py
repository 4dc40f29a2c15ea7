"""Test which brokers a cluster's state lists as unreachable, and until when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from raymq.actors.errors import BrokerUnavailable, MessageNotFound
from raymq.actors.protocol import BrokerInfo
from raymq.actors.wire.frame import Command
from raymq.client.admin.broker_removal import registered_once
from raymq.client.admin.cluster_info import with_lost


def info(name: str, address: str, replica: int = 0, epoch: int = 1, replicas: list[int] | None = None) -> BrokerInfo:
    """Return a running broker's entry."""
    role = "replica" if replica else "master"
    return BrokerInfo(name, replica, role, "running", epoch, address, 7, "", "", 0.1, replicas=replicas)


def away(name: str, address: str, replica: int = 0) -> BrokerInfo:
    """Return the entry of a broker that does not answer at an address."""
    return BrokerInfo(name, replica, "replica" if replica else "master", "unreachable", 0, address, 0, "", "", 0.0)


A, B = info("a", "h:1"), info("b", "h:2")
MASTER, REPLICA = info("a", "h:1", replicas=[0, 1]), info("a", "h:2", 1, replicas=[0, 1])


@pytest.mark.parametrize(
    ("answers", "names", "expected"),
    [
        pytest.param([A, B], {"a", "b"}, [A, B], id="all are there"),
        pytest.param([A], {"a", "b"}, [A, away("b", "")], id="address not known"),
        pytest.param([A, away("b", "h:2")], {"a", "b"}, [A, away("b", "h:2")], id="address known"),
        pytest.param([A, away("b", "h:2")], {"a"}, [A], id="forgotten"),
        pytest.param([A, away("b", "h:2")], None, [A, away("b", "h:2")], id="names not known"),
        pytest.param([A, B, away("b", "h:9")], {"a", "b"}, [A, B], id="back at another address"),
        pytest.param([MASTER], {"a"}, [MASTER, away("a", "", 1)], id="lost replica"),
        pytest.param([MASTER, away("a", "h:2", 1)], {"a"}, [MASTER, away("a", "h:2", 1)], id="replica away"),
        pytest.param([MASTER, REPLICA], {"a"}, [MASTER, REPLICA], id="all replicas"),
        pytest.param(
            [info("a", "h:1", epoch=2, replicas=[0]), away("a", "h:2", 1)],
            {"a"},
            [info("a", "h:1", epoch=2, replicas=[0])],
            id="removed replica",
        ),
        pytest.param(
            [info("a", "h:1", replicas=[0]), info("a", "h:2", 1, epoch=2, replicas=[0, 1])],
            {"a"},
            [info("a", "h:1", replicas=[0]), info("a", "h:2", 1, epoch=2, replicas=[0, 1])],
            id="the newest epoch counts",
        ),
    ],
)
def test_lost_brokers_are_listed(
    answers: list[BrokerInfo], names: Collection[str] | None, expected: list[BrokerInfo]
) -> None:
    assert with_lost(answers, names) == expected


AWAY, NOTHING = BrokerUnavailable("h:9", "it does not answer"), MessageNotFound("no names")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([["a", "b"], ["a"]], {"a", "b"}),
        ([["a"], AWAY], {"a"}),
        ([["a"], NOTHING], {"a"}),
        ([AWAY, NOTHING], None),
        ([[]], set()),
    ],
)
def test_names_of_all_name_servers_are_merged(answers: list[Any], expected: set[str] | None) -> None:
    async def request(name_server: int, command: Command, seconds: float) -> Command:
        answer = answers[name_server]
        if isinstance(answer, Exception):
            raise answer
        return command.response(0, body=json.dumps({"table": dict.fromkeys(answer, "known")}).encode())

    mq: Any = SimpleNamespace(name_servers=range(len(answers)), pool=SimpleNamespace(request=request))
    assert asyncio.run(registered_once(mq)) == expected
