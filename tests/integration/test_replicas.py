"""Test a broker group with two replicas on a real Ray: elections and client failover."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raymq import cluster
from raymq.actors import actor_calls
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.admin_commands import read_status, status_command
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.query_headers import GetMaxOffset
from raymq.client import (
    Admin,
    BrokerInfo,
    ConsumeFrom,
    ConsumeResult,
    ElectionFailed,
    InvalidInput,
    Message,
    OutcomeUnknown,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from raymq.client.actor_transport import invoke
from raymq.cluster import Cluster, cluster_launch
from raymq.cluster.cli import main_group
from tests.integration.foreign_client import ForeignClient
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [
    pytest.mark.integration,
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore:2 replicas of each broker group share"),
]

NAMESPACE = "replicated"
CONFIG: dict[str, Any] = {"replication": "sync", "commitlog_file_bytes": 1 << 24, "index_slots": 1_000}


def start(root: Path) -> Cluster:
    return cluster.start(1, root, NAMESPACE, replicas=2, config=CONFIG)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with own_ray():
        yield tmp_path / "data"


def brokers(mq: Cluster) -> list[BrokerInfo]:
    with Admin(mq) as admin:
        return admin.cluster_info().brokers


def master_of(mq: Cluster) -> BrokerInfo | None:
    found = [each for each in brokers(mq) if each.role == "master" and each.state == "running"]
    return found[0] if len(found) == 1 else None


def all_in_sync(mq: Cluster) -> bool:
    found = brokers(mq)
    masters = [each for each in found if each.role == "master"]
    is_whole = [(each.replica, each.state) for each in found] == [(0, "running"), (1, "running")]
    return is_whole and len(masters) == 1 and masters[0].in_sync == [0, 1]


def run_command(mq: Cluster, *arguments: str) -> Any:
    done = CliRunner().invoke(main_group, ["--name-servers", mq.name_servers[0], *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def actor_of(broker: BrokerInfo) -> str:
    return broker.name if broker.replica == 0 else f"{broker.name}.{broker.replica}"


class Sending(threading.Thread):
    """Send messages one after the other and record the acknowledged ones."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(daemon=True)
        self._producer = producer
        self.acknowledged: list[bytes] = []
        self.unknown: list[bytes] = []
        self.longest_pause = 0.0
        self._stopping = threading.Event()

    def run(self) -> None:
        number, at = 0, time.monotonic()
        while not self._stopping.is_set():
            number += 1
            body = b"%s %d" % (self._producer.group.encode(), number)
            while True:
                try:
                    self._producer.send(Message("t", body), timeout=60.0)
                except OutcomeUnknown:
                    self.unknown.append(body)
                    continue
                break
            self.acknowledged.append(body)
            now = time.monotonic()
            self.longest_pause, at = max(self.longest_pause, now - at), now
            self._stopping.wait(0.01)

    def stop(self) -> None:
        self._stopping.set()
        self.join(60.0)


@pytest.mark.long
def test_all_client_types_find_new_master(root: Path) -> None:
    """Kill the master's process and keep its actor from restarting."""
    with start(root) as mq, Admin(mq) as admin:
        admin.create_topic("t", queues=2)
        pushed: list[bytes] = []

        def take(messages: list[ReceivedMessage]) -> ConsumeResult:
            pushed.extend(message.body for message in messages)
            return ConsumeResult.SUCCESS

        push = PushConsumer(mq, "push", {"t": "*"}, take, consume_from=ConsumeFrom.FIRST)
        with Producer(mq, "own") as own, Producer(mq, "shared", shared=True) as shared, push:
            push.start()
            pull, pop = PullConsumer(mq, "pull"), SimpleConsumer(mq, "pop", {"t": "*"})
            pulled: list[bytes] = []
            popped: list[bytes] = []
            sending = [Sending(own), Sending(shared)]
            for each in sending:
                each.start()

            def look() -> None:
                for queue in pull.queues("t"):
                    pulled.extend(message.body for message in pull.poll(queue, 100, 0.1))
                popped.extend(message.body for message in pop.receive(32, 30.0, 0.2) if pop.ack(message))

            def all_have(count: int) -> bool:
                look()
                return min(len(set(each)) for each in (pushed, pulled, popped)) >= count

            for queue in pull.queues("t"):
                pull.seek(queue, "earliest")
            poll_until(lambda: all_have(20), 60)
            before = master_of(mq)
            assert before is not None
            cluster_launch.kill(NAMESPACE, [actor_of(before)])
            had = [len(each.acknowledged) for each in sending]
            poll_until(lambda: all(len(e.acknowledged) > n + 20 for e, n in zip(sending, had, strict=True)), 60)
            for each in sending:
                each.stop()
            acknowledged = {body for each in sending for body in each.acknowledged}
            assert not any(each.is_alive() for each in sending)
            poll_until(lambda: (look(), acknowledged <= set(pushed) & set(pulled) & set(popped))[1], 60)
            after = master_of(mq)
            assert after is not None
            assert (after.name, after.replica) == (before.name, 1 - before.replica)
            assert after.epoch > before.epoch
            pull.close()
            pop.close()
        # A send looks for the next master within its timeout and does not wait for the former one.
        assert all(each.longest_pause < 15.0 for each in sending), [each.longest_pause for each in sending]


def test_status_and_elections_of_replicated_cluster(root: Path) -> None:
    with start(root) as mq, Admin(mq) as admin, Producer(mq, "p") as producer:
        admin.create_topic("t", queues=1)
        for number in range(20):
            producer.send(Message("t", b"%d" % number))
        poll_until(lambda: all_in_sync(mq), 30)
        found = brokers(mq)
        assert [(each.name, each.replica) for each in found] == [("broker-a", 0), ("broker-a", 1)]
        assert [each.store for each in found] == [str(root / "broker-a"), str(root / "broker-a.1")]
        assert sorted(each.role for each in found) == ["master", "replica"]
        assert {each.epoch for each in found} == {1}
        assert len({each.pid for each in found}) == 2
        master = master_of(mq)
        assert master is not None
        assert (master.confirmed_offset, master.lag_bytes) == (master.end_offset, 0)
        status = run_command(mq, "cluster", "status")
        assert [each["in_sync"] for each in status["brokers"] if each["role"] == "master"] == [[0, 1]]
        assert [each["replica"] for each in run_command(mq, "broker", "list")] == [0, 1]
        other = 1 - master.replica
        with ForeignClient(found[other].address) as tool:
            figures = tool.json(Command(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
            assert (figures["brokerActive"], figures["commitLogMaxOffset"]) == ("false", str(master.end_offset))
            assert tool.refused(GetMaxOffset("t", 0)) == ResponseCode.SERVICE_NOT_AVAILABLE, "it may lack some"
        for each in found:
            by_actor = mq.run(invoke(NAMESPACE, "broker-a", each.address, "session", status_command(), 10.0))
            assert read_status(by_actor).replica == each.replica, "the second door leads to who listens there"
        start(root).close()  # joins the running cluster
        said = run_command(mq, "broker", "elect", "broker-a", "--replica", str(other), "--dry-run")
        assert (said["replica"], said["epoch"], said["changed"]) == (master.replica, 1, False)
        said = run_command(mq, "broker", "elect", "broker-a", "--replica", str(other))
        assert (said["replica"], said["changed"], said["warning"]) == (other, True, "")
        producer.send(Message("t", b"after"), timeout=30.0)
        poll_until(lambda: (now := master_of(mq)) is not None and now.replica == other, 30)
        poll_until(lambda: all_in_sync(mq), 30)
        back = admin.elect("broker-a", master.replica)
        assert back.wait(30.0).replica == master.replica
        assert back.state == "done"
        assert admin.elect("broker-a").wait(30.0).changed is False
        with pytest.raises(InvalidInput):
            admin.elect("broker-a", 7).wait(30.0)
        with pytest.raises(InvalidInput):
            admin.elect("broker-a", -1)
        cluster_launch.kill(NAMESPACE, [actor_of(found[other])])
        with pytest.raises(ElectionFailed):
            admin.elect("broker-a", other).wait(30.0)
        assert admin.topic_stats("t").popitem()[1].max_offset == 21


def test_killed_master_rejoins_and_restart_loses_nothing(root: Path) -> None:
    with start(root) as mq, Admin(mq) as admin, Producer(mq, "p") as producer:
        admin.create_topic("t", queues=1)
        for number in range(50):
            producer.send(Message("t", b"%d" % number))
        poll_until(lambda: all_in_sync(mq), 30)
        killed = master_of(mq)
        assert killed is not None
        os.kill(killed.pid, signal.SIGKILL)
        producer.send(Message("t", b"after the kill"), timeout=30.0, retries=10)
        poll_until(lambda: all_in_sync(mq), 60)
        assert {each.pid for each in brokers(mq)}.isdisjoint({killed.pid})
        addresses = {each.replica: each.address for each in brokers(mq)}
        epoch = max(each.epoch for each in brokers(mq))
        mq.stop()
        assert cluster_launch.names(NAMESPACE) == []
    with start(root) as mq, Admin(mq) as admin:
        assert {each.replica: each.address for each in brokers(mq)} == addresses
        again = master_of(mq)
        assert again is not None
        assert again.epoch > epoch
        (stats,) = admin.topic_stats("t").values()
        assert stats.max_offset >= 51
        coordinator = actor_calls.find("coordinator", NAMESPACE)
        status = actor_calls.call("coordinator", coordinator, "status", 5.0, 5.0, timeout=30.0)
        assert (status["groups"], status["troubles"]) == (["broker-a"], {})
    with pytest.raises(InvalidInput, match="2, as the groups in this root have"):
        cluster.start(1, root, "fewer", config=CONFIG)
