"""Kill actors at random (make soak): no acknowledged message is lost, and committed offsets never decrease."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from raymq import cluster
from raymq.client import Admin, MessageQueue, Producer, PushConsumer, RayMQError
from tests.chaos.actors import await_restart, kill
from tests.chaos.traffic import Traffic
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.soak, pytest.mark.timeout(1_800)]

NAMESPACE = "soak"
KILLS = int(os.environ.get("RAYMQ_SOAK_KILLS", "20"))
SEED = int(os.environ.get("RAYMQ_SOAK_SEED", str(int(time.time()))))


def test_random_kills_lose_no_acknowledged_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(SEED)
    committed: dict[MessageQueue, int] = {}
    with own_ray(), cluster.start(brokers=2, root=tmp_path, namespace=NAMESPACE) as mq:
        admin = Admin(mq)
        admin.create_topic("orders", queues=2)
        traffic = Traffic("orders", [Producer(mq, "direct"), Producer(mq, "shared", shared=True)])
        account = traffic.account
        consumers = [
            PushConsumer(mq, "group", {"orders": "*"}, traffic.listener, batch_size=8, threads=4) for _ in range(2)
        ]
        for consumer in consumers:
            consumer.start()
        traffic.start()
        for number in range(KILLS):
            actor = rng.choice(["broker-a", "broker-b", "broker-a", "broker-b", "name-server-0", "scheduler"])
            goal = len(account.acknowledged) + rng.randint(20, 400)
            poll_until(lambda at=goal: len(account.acknowledged) > at, 120, "traffic")  # type: ignore[misc]
            await_restart(actor, NAMESPACE, kill(actor, NAMESPACE))
            with capsys.disabled():
                print(f"\n  {number + 1}/{KILLS} {account.line(actor)}", end="", flush=True)
            _check_offsets_never_decrease(admin, committed)
        traffic.stop()
        poll_until(lambda: not account.lost, 120, "every acknowledged message arrives")
        with capsys.disabled():
            print(f"\n  seed {SEED}: {account.line('all')}", end="")
        assert account.ghosts == set()
        for consumer in consumers:
            consumer.shutdown()


def _check_offsets_never_decrease(admin: Admin, committed: dict[MessageQueue, int]) -> None:
    try:
        progress = admin.group_progress("group")
    except RayMQError:
        return  # no broker answered
    for queue, found in progress.items():
        if found.committed_offset is not None:
            assert found.committed_offset >= committed.get(queue, 0), f"the offset of {queue} went back"
            committed[queue] = found.committed_offset
