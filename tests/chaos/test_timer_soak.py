"""Many messages for a chosen time while a broker and the scheduler are killed (make soak): each once, none early."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from raymq import cluster
from raymq.client import Admin, Connection, Message, Producer, PullConsumer, ReceivedMessage
from tests.chaos.actors import await_restart, kill
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [pytest.mark.chaos, pytest.mark.soak, pytest.mark.timeout(900)]

NAMESPACE = "timer-soak"
MESSAGES = int(os.environ.get("RAYMQ_SOAK_TIMERS", "100000"))
WINDOW_SECONDS = 60.0
#: Time for sending them all before the first is due.
LEAD_SECONDS = float(os.environ.get("RAYMQ_SOAK_LEAD", "150"))
#: What is due so long after a kill counts as of a healthy cluster again.
RECOVERY_SECONDS = 10.0
#: The goals for the 99th percentile, told beside what was measured: it depends on the machine's load.
HEALTHY_GOAL_SECONDS = 0.2
KILLED_GOAL_SECONDS = 2.0
AT_ONCE = 500


def test_each_comes_once_and_none_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dice = random.Random(1)
    with own_ray(), cluster.start(brokers=2, root=tmp_path, namespace=NAMESPACE) as mq:
        Admin(mq).create_topic("t", queues=2)
        first_due = time.time() + LEAD_SECONDS
        send_all(
            Producer(mq, "soak", timeout=30.0), [first_due + dice.uniform(0, WINDOW_SECONDS) for _ in range(MESSAGES)]
        )
        assert time.time() < first_due, "the machine is too slow to send them in time: raise RAYMQ_SOAK_LEAD"
        kills: dict[str, float] = {}
        back: dict[str, float] = {}
        for share, actor in ((0.25, "broker-a"), (0.5, "scheduler"), (0.75, "broker-b")):
            at = first_due + share * WINDOW_SECONDS
            poll_until(lambda at=at: time.time() >= at, LEAD_SECONDS + WINDOW_SECONDS)  # type: ignore[misc]
            pid = kill(actor, NAMESPACE)
            kills[actor] = time.time()
            await_restart(actor, NAMESPACE, pid)
            back[actor] = time.time() - kills[actor]
        arrived = Counter[int]()
        deliveries: list[tuple[float, float]] = []
        for message in everything(mq, until=first_due + WINDOW_SECONDS + 60):
            number, due_ms = map(int, message.body.split())
            arrived[number] += 1
            deliveries.append((message.store_timestamp, due_ms / 1000))
            if len(arrived) == MESSAGES and time.time() > first_due + WINDOW_SECONDS + 2:
                break
    assert len(arrived) == MESSAGES
    assert set(arrived.values()) == {1}
    stored, due = np.array(deliveries).T
    lateness = stored - due
    after = {actor: (due >= at) & (due < at + RECOVERY_SECONDS) for actor, at in kills.items()}
    healthy = lateness[~np.any(list(after.values()), axis=0)]
    with capsys.disabled():
        for name, some, goal in (
            ("all", lateness, KILLED_GOAL_SECONDS),
            ("without kills", healthy, HEALTHY_GOAL_SECONDS),
        ):
            print(f"\n  {name}: {told(some)}; goal of p99 {goal} s", end="")
        for actor, which in after.items():
            print(f"\n  {RECOVERY_SECONDS:.0f} s from the kill of {actor}: {told(lateness[which])}", end="")
            print(f"; back after {back[actor]:.2f} s", end="")
    assert lateness.min() >= 0
    assert lateness.max() <= RECOVERY_SECONDS, "a kill had effects for longer than is taken for granted here"


def told(lateness: npt.NDArray[np.float64]) -> str:
    p50, p99 = np.percentile(lateness, [50, 99])
    return f"{len(lateness)} messages, lateness p50 {p50:.3f} s, p99 {p99:.3f} s, max {lateness.max():.3f} s"


def send_all(producer: Producer, dues: list[float]) -> None:
    for start in range(0, len(dues), AT_ONCE):
        futures = []
        for number, due in enumerate(dues[start : start + AT_ONCE], start):
            due_ms = int(due * 1000)
            futures.append(producer.send_async(Message("t", b"%d %d" % (number, due_ms), deliver_at=due_ms / 1000)))
        for future in futures:
            assert future.result(60).recall_handle


def everything(mq: Connection, until: float) -> Iterator[ReceivedMessage]:
    """What is in the topic's queues and what comes into them."""
    with PullConsumer(mq, "reader") as consumer:
        queues = consumer.queues("t")
        for queue in queues:
            consumer.seek(queue, 0)
        while time.time() < until:
            for queue in queues:
                yield from consumer.poll(queue, 2_000, timeout=0.2)
