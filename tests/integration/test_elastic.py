"""Test broker changes on Ray under the load of producers and consumers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raymq import cluster
from raymq.actors.wire.commands.admin_commands import create_topic_command
from raymq.client import (
    Admin,
    BrokerInfo,
    Connection,
    InvalidInput,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    RayMQError,
)
from raymq.cluster import Cluster, cluster_launch, ray_runtime
from raymq.cluster.cli import main_group
from tests.elastic_load import ContinuousLoad
from tests.integration import three_machines
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [
    pytest.mark.integration,
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore:.* replicas of each broker group share"),
]

NAMESPACE = "elastic"
CONFIG: dict[str, Any] = {"replication": "sync", "commitlog_file_bytes": 1 << 24, "index_slots": 1_000}
#: The limit on two busy cores; 5 s are promised on machines with spare capacity.
MAX_SECONDS = 20.0
H1, H2, H3 = three_machines.NAMES


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    with own_ray():
        yield


@pytest.fixture
def root(local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a root folder on a machine that counts as three hosts."""
    monkeypatch.setattr(ray_runtime, "hosts", three_machines.hosts)
    return tmp_path / "data"


def brokers(mq: Cluster) -> dict[str, BrokerInfo]:
    with Admin(mq) as admin:
        found = admin.cluster_info().brokers
    return {each.name if not each.replica else f"{each.name}.{each.replica}": each for each in found}


def masters(mq: Cluster) -> dict[str, int]:
    return {each.name: each.replica for each in brokers(mq).values() if each.role == "master"}


def run_command(*arguments: str) -> Any:
    done = CliRunner().invoke(main_group, ["--namespace", NAMESPACE, "--address", "auto", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.long
def test_rolling_restart_of_replicas_under_load(root: Path) -> None:
    with cluster.start(1, root, NAMESPACE, replicas=2, config=CONFIG) as mq, Admin(mq) as admin:
        admin.create_topic("t", queues=2)
        before = brokers(mq)
        (master,) = masters(mq).values()
        names = ["broker-a" if master else "broker-a.1", "broker-a.1" if master else "broker-a"]
        plan = run_command("broker", "restart", "--rolling", "--dry-run")
        steps = [f"restarts {names[0]}", f"hands broker-a over to {names[0]}", f"restarts {names[1]}"]
        assert (plan["dry_run"], plan["steps"]) == (True, steps)
        assert {each.pid for each in brokers(mq).values()} == {each.pid for each in before.values()}
        with ContinuousLoad(mq, "t") as load:
            operation = admin.restart()
            change = operation.wait(120)
            assert (change.brokers, change.steps, operation.state) == (names, steps, "done")
            load.await_progress()
            load.finish()
        print(load.line("restart"))
        after = brokers(mq)
        assert {each.pid for each in before.values()}.isdisjoint(each.pid for each in after.values())
        assert max(load.longest_pause, load.longest_wait) < MAX_SECONDS
        assert masters(mq) == {"broker-a": 1 - master}


@pytest.mark.soak
def test_rolling_restart_without_replicas_under_load(root: Path) -> None:
    with cluster.start(2, root, NAMESPACE, config=CONFIG | {"replication": "async"}) as mq, Admin(mq) as admin:
        admin.create_topic("t", queues=2)
        before = brokers(mq)
        with ContinuousLoad(mq, "t") as load:
            run_command("broker", "restart", "--rolling", "broker-b")
            middle = brokers(mq)
            assert middle["broker-a"].pid == before["broker-a"].pid
            assert middle["broker-b"].pid != before["broker-b"].pid
            assert admin.restart().wait(120).brokers == ["broker-a", "broker-b"]
            load.await_progress()
            load.finish()
        print(load.line("restart"))
        poll_until(lambda: len(brokers(mq)) == 2)
        assert {each.pid for each in middle.values()}.isdisjoint(each.pid for each in brokers(mq).values())
        assert max(load.longest_pause, load.longest_wait) < MAX_SECONDS
        with (
            cluster.connect(name_servers=mq.name_servers) as sockets_only,
            pytest.raises(InvalidInput, match="reaches the cluster's Ray"),
        ):
            Admin(sockets_only).restart()
        with pytest.raises(InvalidInput, match="rolling"):
            admin.restart(rolling=False)


def layout(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "raymq-cluster.json").read_text())
    return found


def in_sync(mq: Cluster) -> list[int] | None:
    """Return the in-sync replicas according to the master of the only group."""
    return next((each.in_sync for each in brokers(mq).values() if each.role == "master"), None)


@pytest.mark.soak
def test_replicas_are_added_moved_and_removed_under_load(root: Path) -> None:
    with cluster.start(1, root, NAMESPACE, replicas=2, config=CONFIG) as mq, Admin(mq) as admin:
        admin.create_topic("t", queues=2)
        poll_until(lambda: in_sync(mq) == [0, 1], 30)
        assert layout(root)["brokers"] == {"broker-a": H1, "broker-a.1": H2}
        with ContinuousLoad(mq, "t") as load:
            added = admin.add_broker(replica_of="broker-a").wait(120)
            assert (added.brokers, added.kept) == (["broker-a.2"], [])
            assert layout(root)["brokers"]["broker-a.2"] == H3
            assert in_sync(mq) == [0, 1, 2]
            load.await_progress()
            (master,) = masters(mq).values()
            host = H2 if master == 0 else H1
            plan = run_command("broker", "move", "broker-a", "--replica", str(master), "--to", host, "--dry-run")
            assert any(step.startswith("hands broker-a over to broker-a.3") for step in plan["steps"])
            assert "broker-a.3" not in cluster_launch.names(NAMESPACE)
            moved = run_command("broker", "move", "broker-a", "--replica", str(master), "--to", host)
            former = "broker-a" if master == 0 else "broker-a.1"
            assert moved["kept"] == [f"{H1 if master == 0 else H2}:{root / former}"]
            assert (root / former).is_dir()
            assert masters(mq) == {"broker-a": 3}
            load.await_progress()
            run_command("broker", "remove", "broker-a.2")
            left = [1 - master, 3]
            poll_until(lambda: in_sync(mq) == left, 30)
            assert sorted(each.replica for each in brokers(mq).values()) == left
            load.await_progress()
            load.finish()
        print(load.line("add, move, remove"))
        assert max(load.longest_pause, load.longest_wait) < MAX_SECONDS
        cluster.start(
            1, root, NAMESPACE, replicas=2, config=CONFIG
        ).close()  # it joins and does not restore removed brokers
        names = [name for name in cluster_launch.names(NAMESPACE) if name.startswith("broker-")]
        assert sorted(names) == sorted(f"broker-a.{each}" if each else "broker-a" for each in left)
        assert layout(root).get("underWay") == {}
        count = sum(each.max_offset for each in admin.topic_stats("t").values())
        mq.stop()
    with cluster.start(1, root, NAMESPACE, replicas=2, config=CONFIG) as mq, Admin(mq) as admin:
        assert sorted(each.replica for each in brokers(mq).values()) == left
        assert sum(each.max_offset for each in admin.topic_stats("t").values()) == count
        with pytest.raises(InvalidInput, match="one of"):
            admin.move("broker-a", 7, H3).wait(30)


@pytest.mark.soak
def test_killed_move_resumes_on_repeated_command(root: Path) -> None:
    with cluster.start(1, root, NAMESPACE, replicas=2, config=CONFIG) as mq, Admin(mq) as admin:
        admin.create_topic("t", queues=2)
        poll_until(lambda: in_sync(mq) == [0, 1], 30)
        (master,) = masters(mq).values()
        arguments = ["broker", "move", "broker-a", "--replica", str(master), "--to", H3]
        address = str(ray_runtime.address())
        with ContinuousLoad(mq, "t") as load:
            for step in ("saves", "starts", "hands", "ends"):
                kill_at_step(step, address, *arguments)
            run_command(*arguments)
            load.await_progress()
            load.finish()
        print(load.line("a move that was killed"))
        assert max(load.longest_pause, load.longest_wait) < MAX_SECONDS
        assert sorted(each.replica for each in brokers(mq).values()) == [1 - master, 2]
        assert (masters(mq), layout(root)["underWay"]) == ({"broker-a": 2}, {})


def kill_at_step(step: str, address: str, *arguments: str) -> None:
    """Run the command in a separate process, and kill it as soon as it reports the start of a step."""
    command = [sys.executable, "-m", "tests.integration.three_machines", "--namespace", NAMESPACE]
    with subprocess.Popen([*command, "--address", address, *arguments], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(step):
                process.kill()
                return
    raise AssertionError(f"it never came to {step!r}")


@pytest.mark.long
def test_broker_group_is_added_and_another_drained_under_load(root: Path) -> None:
    config = CONFIG | {"replication": "async", "delay_levels": "1s 5s 10s 30s"}
    with cluster.start(2, root, NAMESPACE, config=config) as mq, Admin(mq) as admin:
        admin.create_topic("t", queues=2)
        admin.create_topic("other", queues=1)
        admin.create_topic("in-order", queues=1, ordered=True)
        with ContinuousLoad(mq, "t") as load, Producer(mq, "p") as producer:
            plan = run_command("broker", "add", "--to", H3, "--dry-run")
            assert plan["steps"][-2:] == ["creates topics on broker-c: other, t", "saves: broker-c is complete"]
            assert admin.add_broker(host=H3).wait(120).brokers == ["broker-c"]
            assert layout(root)["brokers"]["broker-c"] == H3
            assert {queue.broker for queue in admin.topic_stats("in-order")} == {"broker-a", "broker-b"}
            poll_until(lambda: any(queue.broker == "broker-c" for queue in load.written_queues), 60)
            load.await_progress()
            with cluster.connect(name_servers=mq.name_servers) as alone_mq:
                create_topic_on_one_broker(alone_mq, brokers(mq)["broker-b"].address, "only-there")
            with pytest.raises(InvalidInput, match="only broker-b has only-there"):
                admin.drain("broker-b", remove=True).wait(30)
            admin.create_topic("only-there", queues=1)
            queue = MessageQueue("t", "broker-b", 0)
            delayed = producer.send(Message("t", b"1000000", delay_level=2), queue=queue)
            timer = producer.send(Message("t", b"1000001", deliver_at=time.time() + 6), queue=queue)
            load.account.acknowledged |= {1_000_000, 1_000_001}
            assert {delayed.queue.broker, timer.queue.broker} == {"broker-b"}
            load.exclude_broker("broker-b")
            operation = admin.drain("broker-b", remove=True)
            poll_until(lambda: "delayed messages" in operation.progress, 60)
            with pytest.raises(RayMQError, match="may not be written"):
                producer.send(Message("t", b"1000002"), queue=queue)
            cluster.start(2, root, NAMESPACE, config=config).close()
            done = operation.wait(120)
            assert done.kept == [f"{H2}:{root / 'broker-b'}"]
            assert (root / "broker-b").is_dir()
            assert sorted(brokers(mq)) == ["broker-a", "broker-c"]
            load.await_progress()
            load.finish()
        print(load.line("add a group, drain another one"))
        assert max(load.longest_pause, load.longest_wait) < MAX_SECONDS
        cluster.start(2, root, NAMESPACE, config=config).close()
        assert sorted(brokers(mq)) == ["broker-a", "broker-c"]
        count = {queue: each.max_offset for queue, each in admin.topic_stats("t").items()}
        mq.stop()
    with cluster.start(2, root, NAMESPACE, config=config) as mq, Admin(mq) as admin:
        assert {queue: each.max_offset for queue, each in admin.topic_stats("t").items()} == count
        assert sorted(brokers(mq)) == ["broker-a", "broker-c"]
        with pytest.raises(InvalidInput, match="no broker ever had"):
            admin.add_broker("broker-b").wait(30)


def create_topic_on_one_broker(mq: Connection, address: str, topic: str) -> None:
    """Create a topic on one broker only, as RocketMQ's clients may."""
    mq.run(mq.pool.request(address, create_topic_command(topic, 1, ordered=False), 10.0))


def test_drain_waits_for_lagging_group_and_can_be_cancelled(root: Path) -> None:
    with cluster.start(2, root, NAMESPACE, config=CONFIG | {"replication": "async"}) as mq, Admin(mq) as admin:
        admin.create_topic("t", queues=1)
        queue = MessageQueue("t", "broker-b", 0)
        with Producer(mq, "p") as producer, PullConsumer(mq, "etl") as pull:
            for number in range(5):
                producer.send(Message("t", b"%d" % number), queue=queue)
            pull.commit(queue, 2)
            operation = admin.drain("broker-b")
            poll_until(lambda: operation.progress == "waits: broker-b has 3 messages of t for group etl", 60)
            operation.cancel()
            with pytest.raises(InvalidInput, match="another broker group takes messages"):
                admin.drain("broker-a", dry_run=True).wait(30)
            (left, *_) = run_command("broker", "drain", "broker-b", "--dry-run")["steps"]
            assert left == "broker-b has 3 messages of t for group etl"
            assert {producer.send(Message("t", b"x")).queue.broker for _ in range(4)} == {"broker-a"}
            run_command("broker", "drain", "broker-b", "--without-group", "etl")
            assert producer.send(Message("t", b"x")).queue.broker == "broker-a"
            run_command("broker", "drain", "broker-b", "--cancel")
            producer.send(Message("t", b"again"), queue=queue, timeout=30.0, retries=20)
            assert layout(root).get("underWay", {}) == {}
            assert sorted(brokers(mq)) == ["broker-a", "broker-b"]
