"""Test that RocketMQ's `mqadmin` (5.3.3) and `raymq` show the same figures of one cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raymq.client import Admin, Connection, Message, Producer, PullConsumer, PushConsumer
from raymq.cluster.cli import main_group
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.interop.conftest import mqadmin
from tests.polling import poll_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(java_suite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the name server of two brokers with messages, a group with a lag, and a member of another group."""
    services = Services(tmp_path_factory.mktemp("figures"))
    services.start()
    try:
        address = services.name_server.address
        taker = RecordingListener()
        with Connection([address]) as mq, Producer(mq, "p") as producer:
            Admin(mq).create_topic("orders", queues=2)
            producer.send_batch([Message("orders", b"%d" % number, tags="paid", keys=["k"]) for number in range(30)])
            producer.send_batch([Message("orders", b"%d" % number) for number in range(12)])
            with PullConsumer(mq, "billing") as pull:
                for queue in pull.queues("orders"):
                    pull.commit(queue, min(4, pull.offsets(queue)[1]))
            with PushConsumer(mq, "shipping", {"orders": "*"}, taker):
                poll_until(lambda: len(taker.taken) == 42)
                poll_until(
                    lambda: all(each.lag == 0 for each in Admin(mq).group_progress("shipping").values() if each.lag)
                )
                yield address
    finally:
        services.stop()


def raymq(server: str, *arguments: str) -> Any:
    done = CliRunner().invoke(main_group, ["--name-servers", server, *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def rows(text: str, first: str) -> list[list[str]]:
    """Return the words of the lines that begin with `first`."""
    return [line.split() for line in text.splitlines() if line.startswith(first)]


def test_topics_are_the_same(java_suite: Path, server: str) -> None:
    listed = {line.strip() for line in mqadmin(java_suite, "topicList", "-n", server).splitlines()}
    assert {row["topic"] for row in raymq(server, "topic", "list")} <= listed
    status = rows(mqadmin(java_suite, "topicStatus", "-n", server, "-t", "orders"), "broker-")
    theirs = {(broker, int(queue_id)): (int(low), int(high)) for broker, queue_id, low, high, *_ in status}
    ours = {
        (row["broker"], row["queue_id"]): (row["min_offset"], row["max_offset"])
        for row in raymq(server, "topic", "stats", "orders")
    }
    assert theirs == ours
    assert sum(high for _, high in ours.values()) == 42


@pytest.mark.parametrize("group", ["billing", "shipping"])
def test_progress_is_the_same(java_suite: Path, server: str, group: str) -> None:
    shown = rows(mqadmin(java_suite, "consumerProgress", "-n", server, "-g", group), "orders")
    theirs = {(row[1], int(row[2])): (int(row[3]), int(row[4])) for row in shown}
    ours = {
        (row["broker"], row["queue_id"]): (row["max_offset"], row["committed_offset"])
        for row in raymq(server, "group", "progress", group)
        if row["topic"] == "orders"
    }
    assert theirs == ours
    summary = next(each for each in raymq(server, "group", "list") if each["group"] == group)
    assert summary["lag"] == sum(high - committed for high, committed in theirs.values())


def test_members_are_the_same(java_suite: Path, server: str) -> None:
    shown = mqadmin(java_suite, "consumerConnection", "-n", server, "-g", "shipping")
    owners = {row["owner"] for row in raymq(server, "group", "progress", "shipping") if row["owner"]}
    assert len(owners) == 1
    assert owners.pop() in shown
    assert "orders" in shown


def test_message_is_the_same(java_suite: Path, server: str) -> None:
    (ours, *_) = raymq(server, "message", "query", "orders", "--key", "k")
    shown = mqadmin(java_suite, "queryMsgById", "-n", server, "-t", "orders", "-i", ours["message_id"])
    theirs = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in shown.splitlines())}
    assert theirs["Topic"] == "orders"
    assert theirs["Tags"] == f"[{ours['tags']}]"
    assert theirs["Keys"] == "[k]"
    assert (int(theirs["Queue ID"]), int(theirs["Queue Offset"])) == (ours["queue"]["queue_id"], ours["queue_offset"])
    assert int(theirs["Reconsume Times"]) == ours["reconsume_times"]
