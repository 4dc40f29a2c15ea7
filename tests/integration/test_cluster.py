"""Test a cluster on Ray: start, join, connect, stop and restart it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from click.testing import CliRunner

from raymq import cluster
from raymq.client import (
    Admin,
    BrokerUnavailable,
    InvalidInput,
    Message,
    MessageNotFound,
    Producer,
    PullConsumer,
    RayMQError,
    SendResult,
    StoreLocked,
)
from raymq.client.produce import shared_producer
from raymq.cluster import Cluster, cluster_launch
from raymq.cluster.cli import main_group
from raymq.storage.store import Store
from tests.certificates import certificates
from tests.chaos.actors import await_restart, kill, pid_of
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [pytest.mark.integration, pytest.mark.ray]

NAMESPACE = "test-cluster"


@pytest.fixture(scope="module", autouse=True)
def with_ray() -> Iterator[None]:
    with own_ray():
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def mq(root: Path) -> Iterator[Cluster]:
    with cluster.start(brokers=2, root=root, namespace=NAMESPACE) as started:
        Admin(started).create_topic("t", queues=1)
        yield started


@pytest.mark.long
def test_start_joins_running_cluster(mq: Cluster, root: Path) -> None:
    again = cluster.start(brokers=2, root=root, namespace=NAMESPACE)
    assert again.name_servers == mq.name_servers
    again.close()
    changes = {"brokers": {"brokers": 3}, "root": {"root": root / "other"}, "flush": {"config": {"flush": "sync"}}}
    for field, change in changes.items():
        with pytest.raises(InvalidInput, match=NAMESPACE) as caught:
            cluster.start(**{"brokers": 2, "root": root, "namespace": NAMESPACE, **change})  # type: ignore[arg-type]
        assert caught.value.field == field


def test_actor_calls_replace_unreachable_sockets(mq: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = {int(broker.address.rpartition(":")[2]) for broker in Admin(mq).cluster_info().brokers}
    with cluster.connect(namespace=NAMESPACE) as barred:
        connect = barred.loop.create_connection

        async def create_connection(factory: Any, host: str, port: int, **options: Any) -> Any:
            if port in ports:
                raise OSError(errno.EHOSTUNREACH, "no route to host")
            return await connect(factory, host, port, **options)

        monkeypatch.setattr(barred.loop, "create_connection", create_connection)
        Admin(barred).create_topic("by-call", queues=1)
        sent = Producer(barred, "p", timeout=20.0).send(Message("by-call", bytes(1 << 20), keys="k"))
        with PullConsumer(barred, "g") as consumer:
            consumer.seek(sent.queue, "earliest")
            (received,) = consumer.poll(sent.queue, 10, timeout=20.0)
            assert (received.message_id, len(received.body)) == (sent.message_id, 1 << 20)
            began = time.monotonic()
            assert consumer.poll(sent.queue, 10, timeout=2.0) == []
            assert time.monotonic() - began < 10.0
        with pytest.raises(MessageNotFound):
            Admin(barred).query_by_unique_key("by-call", "F" * 32)
        assert {
            int(address.rpartition(":")[2]) for address, peer in barred.pool._peers.items() if peer.is_unreachable
        } == ports


def test_tls_cluster_is_joined_with_its_certificates(tmp_path: Path) -> None:
    own, client = certificates(tmp_path)
    config = {f"tls_{name}": value for name, value in dataclasses.asdict(own).items()}
    with cluster.start(brokers=1, root=tmp_path / "data", namespace="tls", config=config) as started:
        Admin(started).create_topic("t", queues=1)
        with cluster.connect(namespace="tls") as joined:
            Producer(joined, "p").send(Message("t", b"x"))
            Producer(joined, "p", shared=True).send(Message("t", b"y"), timeout=30.0)
        with cluster.connect(name_servers=started.name_servers, tls=client) as by_address:
            assert [s.max_offset for s in Admin(by_address).topic_stats("t").values()] == [2]
        options = ["--name-servers", started.name_servers[0], "--tls-ca-file", str(own.ca_file)]
        listed = CliRunner().invoke(main_group, [*options, "topic", "list", "--json"])
        assert json.loads(listed.stdout) == [{"topic": "t"}]
        with cluster.connect(name_servers=started.name_servers) as plain, pytest.raises(BrokerUnavailable):
            Admin(plain).topics()
    with pytest.raises(InvalidInput, match="tls"):
        cluster.start(root=tmp_path / "none", namespace="none", config={**config, "tls_key_file": "missing"})


@pytest.mark.parametrize(
    "arguments",
    [
        {"brokers": 0},
        {"namespace": "a/b"},
        {"replicas": 0},
        {"replicas": 17},
        {"replicas": True},
        {"config": {"min_in_sync": 2}},
        {"replicas": 2, "config": {"min_in_sync": 3}},
        {"port": 70_000},
        {"name_servers": 0},
        {"config": {"x": 1}},
    ],
)
def test_invalid_arguments_leave_no_files(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        cluster.start(**{"root": tmp_path, "namespace": "never", **arguments})
    assert list(tmp_path.iterdir()) == []


def test_cluster_info_shows_actor_processes(mq: Cluster) -> None:
    info = Admin(mq).cluster_info()
    assert [broker.name for broker in info.brokers] == ["broker-a", "broker-b"]
    for broker in info.brokers:
        assert broker.pid == pid_of(broker.name, NAMESPACE)
        assert psutil.Process(broker.pid).cmdline()[0].startswith("ray::Broker")
        assert broker.address.startswith("127."), "an embedded cluster listens on loopback only"
    assert info.name_servers[0].pid == pid_of("name-server-0", NAMESPACE)
    poll_until(lambda: Admin(mq).cluster_info().scheduler.pid == pid_of("scheduler", NAMESPACE), 10)


def test_running_broker_locks_its_directory(mq: Cluster, root: Path) -> None:
    with pytest.raises(StoreLocked) as caught:
        Store.open(root / "broker-a")
    assert caught.value.pid == pid_of("broker-a", NAMESPACE)


def test_connections_by_namespace_pickle_and_address(mq: Cluster) -> None:
    @ray.remote(num_cpus=0)
    def by_namespace() -> SendResult:
        with cluster.connect(namespace=NAMESPACE) as inner, Producer(inner, "task") as producer:
            return producer.send(Message("t", b"by namespace"))

    @ray.remote(num_cpus=0)
    def by_pickle(connection: Cluster) -> SendResult:
        with Producer(connection, "task") as producer:
            return producer.send(Message("t", b"by pickle"))

    results: list[SendResult] = ray.get([by_namespace.remote(), by_pickle.remote(mq)], timeout=60)
    with cluster.connect(name_servers=";".join(mq.name_servers)) as by_address:
        assert not by_address.reaches_ray
        results.append(Producer(by_address, "p").send(Message("t", b"by address")))
        with pytest.raises(InvalidInput):
            Producer(by_address, "p", shared=True)
        with pytest.raises(InvalidInput):
            by_address.stop()
        bodies = [Admin(by_address).query_by_id(result.message_id).body for result in results]
    assert bodies == [b"by namespace", b"by pickle", b"by address"]
    with pytest.raises(BrokerUnavailable):
        cluster.connect(namespace="nobody-here")


def test_shared_producer_actor_restarts_after_kill(mq: Cluster) -> None:
    first, second = (Producer(mq, "shared", shared=True) for _ in range(2))
    sent = [first.send(Message("t", b"x")), *second.send_batch([Message("t", b"x") for _ in range(100)])]
    pid = kill("producer:shared", NAMESPACE)
    # A try that finds the actor dead is followed by one that finds its successor.
    sent.append(first.send(Message("t", b"x"), timeout=30.0, retries=20))
    await_restart("producer:shared", NAMESPACE, pid)
    admin = Admin(mq)
    assert {admin.query_by_id(result.message_id).unique_key for result in sent} == {r.unique_key for r in sent}


def test_idle_shared_producer_ends_and_restarts(mq: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 14.14: each group name ever used kept a process as long as the cluster ran."""
    monkeypatch.setattr(shared_producer, "IDLE_SECONDS", 1.0)
    producer = Producer(mq, "once", shared=True)
    producer.send(Message("t", b"x"))
    pid = pid_of("producer:once", NAMESPACE)
    poll_until(lambda: "producer:once" not in cluster_launch.names(NAMESPACE), 30)
    poll_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 30)
    assert producer.send(Message("t", b"y"), timeout=20.0).status.name == "SEND_OK"
    assert pid_of("producer:once", NAMESPACE) != pid


def test_shared_producer_numbers_idempotent_sends(mq: Cluster) -> None:
    numbered, plain = (Producer(mq, "shared", shared=True, idempotent=idempotent) for idempotent in (True, False))
    admin = Admin(mq)
    for producer, expected in ((numbered, True), (plain, False), (numbered, True)):
        found = admin.query_by_id(producer.send(Message("t", b"x")).message_id)
        assert ("RAYMQ_SEQUENCE" in found.system_properties) is expected


def test_program_exit_without_close_prints_nothing(mq: Cluster) -> None:
    program = f"""
from raymq.client import Connection, ConsumeResult, Message, Producer, PushConsumer
mq = Connection({mq.name_servers!r})
producer = Producer(mq, "ending")
producer.send(Message("t", b"x"))
consumer = PushConsumer(mq, "ending", {{"t": "*"}}, lambda messages: ConsumeResult.SUCCESS)
consumer.start()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_commands_on_running_cluster(mq: Cluster, root: Path) -> None:
    def call(*arguments: str, code: int = 0) -> Any:
        found = CliRunner().invoke(main_group, ["--name-servers", ";".join(mq.name_servers), *arguments, "--json"])
        assert found.exit_code == code, found.output
        return json.loads(found.stdout) if found.exit_code == 0 or found.stdout else None

    assert call("topic", "create", "cli", "--queues", "2")["topic"] == "cli"
    assert {"topic": "cli"} in call("topic", "list")
    sent = call("message", "send", "cli", "--body", "hello", "--key", "k", "--tag", "x")
    assert sent["status"] == "SEND_OK"
    message = call("message", "get", sent["message_id"])
    assert (message["body"], message["keys"], message["tags"]) == ("hello", ["k"], "x")
    assert [found["message_id"] for found in call("message", "query", "cli", "--key", "k")] == [sent["message_id"]]
    stats = call("topic", "stats", "cli")
    assert sum(queue["max_offset"] for queue in stats) == 1
    assert {queue["broker"] for queue in stats} == {"broker-a", "broker-b"}
    status = call("cluster", "status")
    assert len(status["brokers"]) == 2
    assert set(status) == {"brokers", "name_servers", "scheduler"}
    assert call("topic", "delete", "cli", "--dry-run") == {"topic": "cli", "messages": 1, "deleted": False}
    assert {"topic": "cli"} in call("topic", "list")
    assert call("topic", "delete", "cli", "--yes")["deleted"]
    assert {"topic": "cli"} not in call("topic", "list")
    found = CliRunner().invoke(main_group, ["store", "verify", str(root / "broker-a"), "--json"])
    assert json.loads(found.stdout)["bad"] == []


def test_binary_body_is_printed_as_base64(mq: Cluster) -> None:
    sent = Producer(mq, "p").send(Message("t", b"\xff\x00"))
    arguments = ["--name-servers", mq.name_servers[0], "message", "get", sent.message_id, "--json"]
    shown = json.loads(CliRunner().invoke(main_group, arguments).stdout)
    assert shown["body_base64"] == "/wA="
    assert "body" not in shown


@pytest.mark.long
def test_command_exit_codes(mq: Cluster) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from raymq.cluster.cli import main; main()"]
        servers = ["--name-servers", mq.name_servers[0]]
        return subprocess.run([*command, *servers, *arguments], capture_output=True, text=True, timeout=60, check=False)

    refused = run("topic", "stats", "no-such-topic")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: ")
    assert len(refused.stderr.splitlines()) == 1
    assert run("topic", "stats").returncode == 2
    assert run("topic", "delete", "t").returncode == 1
    assert run("nonsense").returncode == 2


def is_running(pid: int) -> bool:
    """Return whether a process runs; an ended one is a zombie until its raylet collects its status."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_restarted_cluster_keeps_messages_and_addresses(tmp_path: Path) -> None:
    first = cluster.start(brokers=2, root=tmp_path, namespace="again")
    Admin(first).create_topic("kept", queues=1)
    sent = Producer(first, "p").send(Message("kept", b"kept"))
    pids = [broker.pid for broker in Admin(first).cluster_info().brokers]
    assert all((tmp_path / name / "abort").exists() for name in ("broker-a", "broker-b"))
    first.stop()
    assert not any(map(is_running, pids))
    assert [entry for entry in ray.util.list_named_actors(all_namespaces=True) if entry["namespace"] == "again"] == []
    assert not any((tmp_path / name / "abort").exists() for name in ("broker-a", "broker-b"))
    second = cluster.start(brokers=2, root=tmp_path, namespace="again")
    assert second.name_servers == first.name_servers
    assert Admin(second).query_by_id(sent.message_id).body == b"kept"
    with PullConsumer(second, "g") as pull:
        assert [message.body for message in pull.poll(sent.queue)] == [b"kept"]
    pids = [broker.pid for broker in Admin(second).cluster_info().brokers]
    asyncio.run(second.astop())
    assert not any(map(is_running, pids))
    assert not any((tmp_path / name / "abort").exists() for name in ("broker-a", "broker-b"))


def test_shared_producer_sends_wait_concurrently(mq: Cluster) -> None:
    """Each send waited on a thread of a small pool, so the tenth began after the first had timed out."""
    producer = Producer(mq, "beside", shared=True, timeout=3.0, retries=0)
    producer.send(Message("t", b"x"), timeout=30.0)  # its actor starts first
    pids = [broker.pid for broker in Admin(mq).cluster_info().brokers]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        sends = [producer.send_async(Message("t", b"x")) for _ in range(60)]
        for send in sends:
            with contextlib.suppress(RayMQError):
                send.result(60)
        assert time.monotonic() - began < 15, "one budget and a margin, not ten budgets one after the other"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def is_back() -> bool:
        with contextlib.suppress(RayMQError):
            producer.send(Message("t", b"x"), timeout=10.0)
            return True
        return False

    poll_until(is_back, 30)
