"""Change brokers repeatedly under load (make soak): no acknowledged message is lost, and no client pauses long."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from raymq import cluster
from raymq.client import Admin, BrokerChange, Operation
from raymq.cluster import Cluster, cluster_layout, ray_runtime
from tests.elastic_load import ContinuousLoad
from tests.integration import three_machines
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [
    pytest.mark.ray,
    *(pytest.mark.chaos, pytest.mark.soak, pytest.mark.timeout(5_400)),
    pytest.mark.filterwarnings("ignore:.* replicas of each broker group share"),
]

NAMESPACE = "elastic-soak"
TURNS = int(os.environ.get("RAYMQ_SOAK_TURNS", "10"))
#: The longest allowed pause of a client; a machine with other work needs more.
MAX_SECONDS = float(os.environ.get("RAYMQ_SOAK_PAUSE", "5"))
CHANGE_SECONDS = 300.0
CONFIG = {"replication": "sync", "commitlog_file_bytes": 1 << 24, "index_slots": 1_000}


def master_and_other_replica(mq: Cluster) -> tuple[int, int]:
    """Return the master of broker-a, and another replica of it."""
    with Admin(mq) as admin:
        replicas = [each for each in admin.cluster_info().brokers if each.name == "broker-a"]
    (master,) = (each.replica for each in replicas if each.role == "master")
    return master, next(each.replica for each in replicas if each.replica != master)


def free_machine(root: Path) -> str:
    """Return a machine without a replica of broker-a."""
    taken = {
        machine
        for name, machine in cluster_layout.load(root).machines.items()
        if cluster_layout.group_name(name) == "broker-a"
    }
    return min(set(three_machines.NAMES) - taken)


def is_written(load: ContinuousLoad, broker: str) -> bool:
    """Check whether messages are sent to the broker."""
    return any(queue.broker == broker for queue in load.written_queues)


def test_broker_changes_pause_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_runtime, "hosts", three_machines.hosts)
    worst: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with own_ray(), cluster.start(1, tmp_path, NAMESPACE, replicas=2, config=CONFIG) as mq, Admin(mq) as admin:
        admin.create_topic("t", queues=2)
        with ContinuousLoad(mq, "t") as load:

            def change(what: str, begin: Callable[[], Operation[BrokerChange]], retired: str = "") -> BrokerChange:
                load.await_progress()
                load.reset_pauses()
                if retired:
                    load.exclude_broker(retired)
                began = time.monotonic()
                done = begin().wait(CHANGE_SECONDS)
                load.await_progress()
                worst[what].append((load.longest_pause, load.longest_wait))
                with capsys.disabled():
                    print(f"\n  {what}: {time.monotonic() - began:.1f} s; {load.line('so far')}", end="", flush=True)
                return done

            for _ in range(TURNS):
                change("restart", admin.restart)
                change("add a replica", partial(admin.add_broker, replica_of="broker-a"))
                _, other = master_and_other_replica(mq)
                change("remove", partial(admin.remove_broker, f"broker-a.{other}"))
                master, _ = master_and_other_replica(mq)
                change("move the master", partial(admin.move, "broker-a", master, free_machine(tmp_path)))
                (group, *_) = change("add a group", admin.add_broker).brokers
                poll_until(partial(is_written, load, group), 60)
                change("drain", partial(admin.drain, group, remove=True), retired=group)
            load.finish()
        with capsys.disabled():
            for what, pauses in worst.items():
                queue, consumer = (max(each) for each in zip(*pauses, strict=True))
                print(
                    f"\n  {len(pauses)} x {what}: a queue was not written for {queue:.2f} s, "
                    f"a consumer waited for {consumer:.2f} s",
                    end="",
                )
        assert max(max(each) for pauses in worst.values() for each in pauses) <= MAX_SECONDS
