"""Many messages for a chosen time while a broker and the scheduler are killed (make soak): each once, none early.

It takes as long as sending them takes, twice, and 65 s more: about 3 min on a machine that sends 2,000 a second. What
is done is told as it is done, and a run that does not get everything says what is missing, and where.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from raymq import cluster
from raymq.actors.naming import TIMER_TOPIC
from raymq.client import Admin, Connection, Message, Producer, PullConsumer, RayMQError
from tests.chaos.actors import await_restart, kill, pid_of
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.soak, pytest.mark.timeout(900)]

NAMESPACE = "timer-soak"
MESSAGES = int(os.environ.get("RAYMQ_SOAK_TIMERS", "100000"))
WINDOW_SECONDS = 60.0
#: Time for sending them all before the first is due; 0: twice what the first ones let expect.
LEAD_SECONDS = float(os.environ.get("RAYMQ_SOAK_LEAD", "0"))
#: What is due so long after a kill counts as of a healthy cluster again.
RECOVERY_SECONDS = 10.0
#: All have to be there so long after the last is due.
END_SECONDS = 30.0
#: The goals for the 99th percentile, told beside what was measured: it depends on the machine's load.
HEALTHY_GOAL_SECONDS = 0.2
KILLED_GOAL_SECONDS = 2.0
AT_ONCE = 500


class Arrivals:
    """What is in the topic, read up to now."""

    def __init__(self, mq: Connection) -> None:
        self._consumer = PullConsumer(mq, "reader")
        self._queues = self._consumer.queues("t")
        for queue in self._queues:
            self._consumer.seek(queue, 0)
        self.times = Counter[int]()
        #: Of each: when it was stored, and when it was due.
        self.deliveries: list[tuple[float, float]] = []

    def read(self) -> int:
        """Read on to the ends of the queues; how many messages have come."""
        for queue in self._queues:
            while messages := self._consumer.poll(queue, 5_000, timeout=0.1):
                for message in messages:
                    number, due_ms = map(int, message.body.split())
                    self.times[number] += 1
                    self.deliveries.append((message.store_timestamp, due_ms / 1000))
        return len(self.times)


def test_each_comes_once_and_none_early(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()

    def tell(what: str) -> None:
        with capsys.disabled():
            print(f"\n  {time.monotonic() - began:6.1f} s  {what}", end="", flush=True)

    # Installed packages are compiled: a worker that compiles the sources at each start is half a second slower.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    with own_ray(), cluster.start(brokers=2, root=tmp_path, namespace=NAMESPACE) as mq:
        admin = Admin(mq)
        admin.create_topic("t", queues=2)
        nice = psutil.Process(pid_of("broker-a", NAMESPACE)).nice()
        tell(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, brokers at niceness {nice}")
        first_due, brokers = send_all(mq, admin, tell)
        kills: dict[str, float] = {}
        back: dict[str, float] = {}
        for share, actor in ((0.25, "broker-a"), (0.5, "scheduler"), (0.75, "broker-b")):
            await_time(first_due + share * WINDOW_SECONDS)
            pid = kill(actor, NAMESPACE)
            kills[actor] = time.time()
            await_restart(actor, NAMESPACE, pid)
            back[actor] = time.time() - kills[actor]
            tell(f"killed {actor} at {kills[actor] - first_due:.1f} s of the window; back after {back[actor]:.2f} s")
        arrivals = Arrivals(mq)
        last_due = first_due + WINDOW_SECONDS
        try:
            poll_until(lambda: arrivals.read() == MESSAGES, last_due + END_SECONDS - time.time(), "all have come")
        except (AssertionError, RayMQError) as error:
            pytest.fail(f"{error}\n{missing(arrivals, brokers)}\n{state(admin)}")
        tell("all have come")
        await_time(last_due + 2)  # what comes twice comes with the next passes
        arrivals.read()
    assert set(arrivals.times.values()) == {1}
    stored, due = np.array(arrivals.deliveries).T
    lateness = stored - due
    after = {actor: (due >= at) & (due < at + RECOVERY_SECONDS) for actor, at in kills.items()}
    healthy = lateness[~np.any(list(after.values()), axis=0)]
    tell(f"all: {told(lateness)}; goal of p99 {KILLED_GOAL_SECONDS} s")
    tell(f"without kills: {told(healthy)}; goal of p99 {HEALTHY_GOAL_SECONDS} s")
    for actor, which in after.items():
        tell(f"due within {RECOVERY_SECONDS:.0f} s of the kill of {actor}: {told(lateness[which])}")
    assert lateness.min() >= 0
    assert lateness.max() <= RECOVERY_SECONDS, "a kill had effects for longer than is taken for granted here"


def told(lateness: npt.NDArray[np.float64]) -> str:
    p50, p99 = np.percentile(lateness, [50, 99])
    return f"{len(lateness)} messages, lateness p50 {p50:.3f} s, p99 {p99:.3f} s, max {lateness.max():.3f} s"


def send_all(mq: Connection, admin: Admin, tell: Callable[[str], None]) -> tuple[float, list[str]]:
    """Send all; when the first is due, and the broker that took each."""
    dice = random.Random(1)
    producer = Producer(mq, "soak", timeout=30.0)
    lead = LEAD_SECONDS or 5 + 2 * MESSAGES * seconds_a_message(producer, admin)
    first_due = time.time() + lead
    tell(f"the first of {MESSAGES} is due in {lead:.0f} s, the last {WINDOW_SECONDS:.0f} s later")
    brokers: list[str] = []
    for start in range(0, MESSAGES, AT_ONCE):
        futures = []
        for number in range(start, min(MESSAGES, start + AT_ONCE)):
            due_ms = int((first_due + dice.uniform(0, WINDOW_SECONDS)) * 1000)
            futures.append(producer.send_async(Message("t", b"%d %d" % (number, due_ms), deliver_at=due_ms / 1000)))
        for future in futures:
            result = future.result(60)
            assert result.recall_handle
            brokers.append(result.queue.broker)
    tell(f"all were sent {first_due - time.time():.1f} s before the first is due")
    assert time.time() < first_due, "the machine is too slow to send them in time: set RAYMQ_SOAK_LEAD"
    return first_due, brokers


def seconds_a_message(producer: Producer, admin: Admin) -> float:
    """How long one takes among many."""
    admin.create_topic("first", queues=2)
    began = time.monotonic()
    for _ in range(4):
        for future in [producer.send_async(Message("first", b"m")) for _ in range(AT_ONCE)]:
            future.result(60)
    return (time.monotonic() - began) / (4 * AT_ONCE)


def await_time(at: float) -> None:
    poll_until(lambda: time.time() >= at, at - time.time() + 5, "the clock goes on")


def missing(arrivals: Arrivals, brokers: list[str]) -> str:
    """Which have not come, by the broker that took them."""
    gone = [number for number in range(MESSAGES) if number not in arrivals.times]
    by_broker = {broker: [number for number in gone if brokers[number] == broker] for broker in sorted(set(brokers))}
    return "\n".join(f"missing of {broker}: {len(some)}, first {some[:10]}" for broker, some in by_broker.items())


def state(admin: Admin) -> str:
    """What waits, what was delivered, and how the cluster does."""
    lines = []
    for topic in (TIMER_TOPIC, "t"):
        try:
            stats = admin.topic_stats(topic)
            lines += [f"{queue}: {had.min_offset}..{had.max_offset}" for queue, had in sorted(stats.items())]
        except RayMQError as error:
            lines.append(f"{topic}: {error}")
    return "\n".join([*lines, *map(str, admin.cluster_info().brokers), str(admin.cluster_info().scheduler)])
