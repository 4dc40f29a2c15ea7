"""Test rates and routes of topics, and the option --watch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer, TopicNotFound
from tests.integration.conftest import Services
from tests.integration.shell import Shell

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)


def test_topic_rates(shell: Shell, mq: Connection, admin: Admin) -> None:
    with Producer(mq, "p") as producer:
        for _ in range(60):
            producer.send(Message("t", b"x" * 100), queue=QUEUE)
    with PullConsumer(mq, "g") as pull:
        pull.seek(QUEUE, "earliest")
        pull.poll(QUEUE, 60, 5.0)
        pull.commit(QUEUE, 60)
    first, second = shell.json("topic", "stats", "t", "--rates")
    assert (first["broker"], first["messages_per_second"]) == ("broker-a", 1.0)
    assert first["bytes_per_second"] > 100
    assert first["delivered_per_second"].keys() == {"g"}
    assert (second["broker"], second["messages_per_second"]) == ("broker-b", 0.0)
    assert "1.0" in shell.shown("topic", "stats", "t", "--rates")
    with pytest.raises(TopicNotFound):
        admin.topic_rates("none-such")


def test_topic_route(shell: Shell, admin: Admin, services: Services) -> None:
    first, second = shell.json("topic", "route", "t")
    assert first == {
        "broker": "broker-a",
        "address": services.brokers["broker-a"].address,
        "read_queues": 2,
        "write_queues": 2,
        "permission": 6,
        "replicas": [],
    }
    assert second["broker"] == "broker-b"
    assert "broker-b" in shell.shown("topic", "route", "t")
    assert shell.exit_code("topic", "route", "none-such") == 1


@pytest.mark.parametrize(
    "command", [["topic", "stats", "t"], ["group", "list"], ["group", "progress", "g"], ["cluster", "status"]]
)
def test_watch_prints_a_value_per_line(
    shell: Shell, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    with PullConsumer(mq, "g") as pull:
        pull.commit(QUEUE, 0)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) % 3 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr("raymq.cluster.watch.time", type("Clock", (), {"sleep": staticmethod(sleep)}))
    lines = [json.loads(line) for line in shell.shown(*command, "--watch=0.5", "--json").splitlines()]
    assert len(lines) == 3
    assert type(lines[0]) is type(shell.json(*command))
    assert shell.shown(*command, "--watch").count("broker-a") >= (0 if command[1] == "list" else 3)
    assert slept == [0.5] * 3 + [2.0] * 3
    assert shell.exit_code(*command, "--watch=0") == 2


def test_watch_ends_with_ctrl_c(mq: Connection, admin: Admin) -> None:
    program = [sys.executable, "-c", "from raymq.cluster.command import main; main()"]
    program += ["--name-servers", ";".join(mq.name_servers), "topic", "stats", "t", "--watch=0.1", "--json"]
    pipe: Any = subprocess.PIPE
    with subprocess.Popen(program, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(json.loads(process.stdout.readline())) == 4
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
