"""Test `raymq bench`: what it prints and what it leaves behind. Its figures are not checked."""

from __future__ import annotations

import pytest

from raymq.client import Admin, Connection, Message, Producer
from tests.integration.shell import Shell

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("options", [[], ["--batch", "10"], ["--linger", "0.005"], ["--threads", "2"]])
def test_bench_produce(shell: Shell, admin: Admin, options: list[str]) -> None:
    found = shell.json("bench", "produce", "--seconds", "0.3", "--size", "100", *options)
    assert found["messages"] > 0
    assert found["bytes"] == 100 * found["messages"]
    assert found["failed"] == {}
    assert (
        0 < found["latency"]["p50"] <= found["latency"]["p99"] <= found["latency"]["p99.9"] <= found["latency"]["max"]
    )
    assert found["messages_per_second"] > 0
    assert found["topic"] not in admin.topics()


def test_bench_consume(shell: Shell, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raymq.cluster.cli_bench._STORED_MESSAGES", 200)
    found = shell.json("bench", "consume", "--seconds", "0.3", "--size", "100", "--threads", "2", "--batch", "50")
    assert found["messages"] > 0
    assert found["latency"]["max"] > 0
    assert (admin.topics(), admin.groups()) == (["t"], [])


def test_bench_with_a_topic_keeps_it(shell: Shell, mq: Connection, admin: Admin) -> None:
    sent = shell.json("bench", "produce", "--topic", "t", "--seconds", "0.2")["messages"]
    stored = sum(each.max_offset for each in admin.topic_stats("t").values())
    assert stored == sent
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"x"))
    assert "latency p99.9" in shell.shown("bench", "consume", "--topic", "t", "--seconds", "0.2")
    assert sum(each.max_offset for each in admin.topic_stats("t").values()) == stored + 1
    assert admin.groups() == []


def test_bench_refuses_wrong_usage(shell: Shell) -> None:
    assert shell.exit_code("bench", "produce", "--batch", "2", "--linger", "1") == 2
    assert shell.exit_code("bench", "produce", "--topic", "none-such", "--seconds", "0.2") == 1
    assert shell.exit_code("bench", "consume", "--topic", "none-such", "--seconds", "0.2") == 1
