"""Test the output and the exit codes of the `raymq` command on a cluster reached by addresses."""

from __future__ import annotations

import time

import pytest
from click.testing import CliRunner

from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer, SimpleConsumer
from raymq.cluster.cli import main_group
from tests.integration.shell import Shell

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)


def test_group_commands(shell: Shell, mq: Connection, admin: Admin) -> None:
    assert shell.json("group", "list") == []
    with Producer(mq, "p") as producer:
        for _ in range(3):
            producer.send(Message("t", b"x"), queue=QUEUE)
    with PullConsumer(mq, "g") as consumer:
        consumer.commit(QUEUE, 1)
    assert shell.json("group", "list") == [{"group": "g", "members": 0, "lag": 2}]

    def lag() -> int:
        rows = shell.json("group", "progress", "g")
        return next(
            row["lag"] for row in rows if (row["topic"], row["broker"], row["queue_id"]) == ("t", "broker-a", 0)
        )

    target = {"topic": "t", "broker": "broker-a", "queue_id": 0}
    assert lag() == 2
    assert {**target, "offset": 3, "reset": False} in shell.json("group", "skip", "g", "t", "--dry-run")
    assert lag() == 2
    assert {**target, "offset": 3, "reset": True} in shell.json("group", "skip", "g", "t")
    assert lag() == 0
    assert {**target, "offset": 0, "reset": False} in shell.json("group", "reset", "g", "t", "--to", "0", "--dry-run")
    assert lag() == 0
    assert {**target, "offset": 0, "reset": True} in shell.json("group", "reset", "g", "t", "--to", "2013-01-01T00:00")
    assert lag() == 3
    assert {row["offset"] for row in shell.json("group", "reset", "g", "t", "--to", str(time.time() + 99))} == {3, 0}
    assert "broker-a" in shell.shown("group", "progress", "g")
    assert shell.exit_code("group", "reset", "g", "t", "--to", "soon") == 2
    assert shell.exit_code("group", "reset", "g", "t") == 2


def test_group_progress_shows_missing_topic(shell: Shell, mq: Connection) -> None:
    with SimpleConsumer(mq, "waiting", {"orders": "*"}):
        row = next(row for row in shell.json("group", "progress", "waiting") if row["topic"] == "orders")
        assert (row["missing"], row["broker"], row["lag"]) == (True, None, None)
        assert "(does not exist)" in shell.shown("group", "progress", "waiting")


def test_topic_update_command(shell: Shell, admin: Admin) -> None:
    assert shell.json("topic", "update", "t", "--queues", "3", "--dry-run") == {
        "topic": "t",
        "queues": 3,
        "updated": False,
    }
    assert len(admin.topic_stats("t")) == 4
    done = shell.json("topic", "update", "t", "--queues", "3", "--ordered", "--permission", "rw")
    assert done == {"topic": "t", "queues": 3, "permission": 6, "ordered": True, "updated": True}
    assert len(shell.json("topic", "stats", "t")) == 6
    assert shell.json("topic", "create", "t", "--queues", "3", "--ordered")["topic"] == "t"
    assert shell.exit_code("topic", "update", "t") == 2


def test_cluster_status_command(shell: Shell, admin: Admin) -> None:
    status = shell.json("cluster", "status")
    assert status.keys() == {"brokers", "name_servers", "scheduler"}
    assert [broker["name"] for broker in status["brokers"]] == ["broker-a", "broker-b"]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_script(name: str) -> None:
    done = CliRunner().invoke(main_group, ["completion", name])
    assert done.exit_code == 0
    assert "_RAYMQ_COMPLETE" in done.stdout
