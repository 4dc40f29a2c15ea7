"""Deliver many timed messages while a broker and the scheduler are killed (make soak): each once, none early.

It takes twice the time of sending them and 65 s more: about 3 min on a machine that sends 2,000 a second. Progress is
printed, and a run that misses messages prints which ones, and where.
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
#: Time for sending all messages before the first is due; 0: twice the estimate from the first ones.
LEAD_SECONDS = float(os.environ.get("RAYMQ_SOAK_LEAD", "0"))
#: Messages that are due so long after a kill count as those of a healthy cluster.
RECOVERY_SECONDS = 10.0
#: All messages must have arrived so long after the last is due.
END_SECONDS = 30.0
#: The goals for the 99th percentile, printed with the measurement: it depends on the machine's load.
HEALTHY_GOAL_SECONDS = 0.2
KILLED_GOAL_SECONDS = 2.0
AT_ONCE = 500


class Arrivals:
    """The messages of the topic that were read so far."""

    def __init__(self, mq: Connection) -> None:
        self._consumer = PullConsumer(mq, "reader")
        self._queues = self._consumer.queues("t")
        for queue in self._queues:
            self._consumer.seek(queue, 0)
        self.times = Counter[int]()
        #: The store time and due time of each message.
        self.deliveries: list[tuple[float, float]] = []

    def read(self) -> int:
        """Read to the ends of the queues; return the number of messages so far."""
        for queue in self._queues:
            while messages := self._consumer.poll(queue, 5_000, timeout=0.1):
                for message in messages:
                    number, due_ms = map(int, message.body.split())
                    self.times[number] += 1
                    self.deliveries.append((message.store_timestamp, due_ms / 1000))
        return len(self.times)


def test_timed_messages_come_once_and_on_time_over_actor_kills(
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
            pytest.fail(f"{error}\n{missing_by_broker(arrivals, brokers)}\n{cluster_state(admin)}")
        tell("all have come")
        await_time(last_due + 2)  # duplicates would come with the next passes
        arrivals.read()
    assert set(arrivals.times.values()) == {1}
    stored, due = np.array(arrivals.deliveries).T
    lateness = stored - due
    after = {actor: (due >= at) & (due < at + RECOVERY_SECONDS) for actor, at in kills.items()}
    healthy = lateness[~np.any(list(after.values()), axis=0)]
    tell(f"all: {lateness_text(lateness)}; goal of p99 {KILLED_GOAL_SECONDS} s")
    tell(f"without kills: {lateness_text(healthy)}; goal of p99 {HEALTHY_GOAL_SECONDS} s")
    for actor, which in after.items():
        tell(f"due within {RECOVERY_SECONDS:.0f} s of the kill of {actor}: {lateness_text(lateness[which])}")
    assert lateness.min() >= 0
    assert lateness.max() <= RECOVERY_SECONDS, "a kill had effects for longer than is taken for granted here"


def lateness_text(lateness: npt.NDArray[np.float64]) -> str:
    p50, p99 = np.percentile(lateness, [50, 99])
    return f"{len(lateness)} messages, lateness p50 {p50:.3f} s, p99 {p99:.3f} s, max {lateness.max():.3f} s"


def send_all(mq: Connection, admin: Admin, tell: Callable[[str], None]) -> tuple[float, list[str]]:
    """Send all messages; return when the first is due, and each message's broker."""
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
    """Return the seconds per message among many."""
    admin.create_topic("first", queues=2)
    began = time.monotonic()
    for _ in range(4):
        for future in [producer.send_async(Message("first", b"m")) for _ in range(AT_ONCE)]:
            future.result(60)
    return (time.monotonic() - began) / (4 * AT_ONCE)


def await_time(at: float) -> None:
    poll_until(lambda: time.time() >= at, at - time.time() + 5, "the clock goes on")


def missing_by_broker(arrivals: Arrivals, brokers: list[str]) -> str:
    """Return the missing messages by the broker that stored them."""
    gone = [number for number in range(MESSAGES) if number not in arrivals.times]
    by_broker = {broker: [number for number in gone if brokers[number] == broker] for broker in sorted(set(brokers))}
    return "\n".join(f"missing of {broker}: {len(some)}, first {some[:10]}" for broker, some in by_broker.items())


def cluster_state(admin: Admin) -> str:
    """Return the waiting and delivered messages, and the cluster's state."""
    lines = []
    for topic in (TIMER_TOPIC, "t"):
        try:
            stats = admin.topic_stats(topic)
            lines += [f"{queue}: {had.min_offset}..{had.max_offset}" for queue, had in sorted(stats.items())]
        except RayMQError as error:
            lines.append(f"{topic}: {error}")
    return "\n".join([*lines, *map(str, admin.cluster_info().brokers), str(admin.cluster_info().scheduler)])
