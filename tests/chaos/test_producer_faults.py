"""A broker that is killed, stands still, is slow or has a full disk, in turn under load from eight producers.

Nothing acknowledged is lost, no send takes longer than its budget, the traffic leaves the broker and comes back.
The times that were seen are printed (`make soak`).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from raymq.client import Admin, Connection, Message, Producer, PullConsumer
from raymq.client.errors import SendError
from tests.broker_process import BrokerProcess
from tests.polling import poll_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

PRODUCERS = 8
BUDGET_SECONDS = 3.0
#: What a loaded machine may add to a time that is measured from outside.
SLACK_SECONDS = 1.5
#: The window of a failure in the latency strategy.
WINDOW_SECONDS = 10.0


@dataclass
class Pair:
    """Two brokers in processes of their own."""

    good: BrokerProcess
    bad: BrokerProcess
    mq: Connection


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    good = BrokerProcess("broker-b", tmp_path)
    bad = BrokerProcess("broker-a", tmp_path, good.name_server)
    with Connection([good.name_server]) as mq:
        Admin(mq).create_topic("t", queues=4)
        yield Pair(good, bad, mq)
    bad.stop()
    good.stop()


@dataclass
class Load:
    """Producers that send one message after the other until `stop`."""

    mq: Connection
    #: When, how long, and the broker that took it (None: it failed), of every send.
    sends: list[tuple[float, float, str | None]] = field(default_factory=list)
    acknowledged: list[bytes] = field(default_factory=list)
    errors: list[SendError] = field(default_factory=list)

    def start(self) -> None:
        self._stop = threading.Event()
        self._producer = Producer(self.mq, "load", timeout=BUDGET_SECONDS)
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(PRODUCERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        self._producer.close()

    def last_on(self, broker: str, since: float) -> float | None:
        """When `broker` last took a message after `since`."""
        return max((at for at, _, taken_by in list(self.sends) if taken_by == broker and at > since), default=None)

    def _send(self, worker: int) -> None:
        number = 0
        while not self._stop.wait(0.005):
            body = b"%d-%d" % (worker, number)
            number += 1
            began = time.monotonic()
            try:
                broker = self._producer.send(Message("t", body)).queue.broker
                self.acknowledged.append(body)
            except SendError as error:
                broker = None
                self.errors.append(error)
            self.sends.append((time.monotonic(), time.monotonic() - began, broker))


def everything(mq: Connection) -> set[bytes]:
    found: set[bytes] = set()
    with PullConsumer(mq, "reader") as pull:
        for queue in pull.queues("t"):
            pull.seek(queue, 0)
            end = pull.offsets(queue)[1]
            while pull.position(queue) < end:
                found |= {message.body for message in pull.poll(queue, 1_000, timeout=5.0)}
    return found


FAULTS: dict[str, tuple[Callable[[BrokerProcess], None], Callable[[BrokerProcess], None], bool]] = {
    "killed": (BrokerProcess.kill, BrokerProcess.start, True),
    "paused": (lambda bad: bad.signal(signal.SIGSTOP), lambda bad: bad.signal(signal.SIGCONT), True),
    "slowed by 700 ms": (lambda bad: bad.tell("slow 0.7"), lambda bad: bad.tell("slow 0"), True),
    # Below the first window of the table, 550 ms: such a broker keeps its traffic.
    "slowed by 200 ms": (lambda bad: bad.tell("slow 0.2"), lambda bad: bad.tell("slow 0"), False),
    "disk full": (lambda bad: bad.tell("full"), lambda bad: bad.tell("free"), True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broker_that_is(pair: Pair, fault: str) -> None:
    begin, end, leaves = FAULTS[fault]
    load = Load(pair.mq)
    load.start()
    try:
        poll_until(lambda: {"broker-a", "broker-b"} <= {broker for _, _, broker in list(load.sends)}, 20)
        broken_at = time.monotonic()
        begin(pair.bad)
        poll_until(lambda: time.monotonic() - broken_at > WINDOW_SECONDS / 2, WINDOW_SECONDS)
        left_after = (load.last_on("broker-a", broken_at) or broken_at) - broken_at
        during = [broker for at, _, broker in list(load.sends) if at > broken_at + WINDOW_SECONDS / 4]
        end(pair.bad)
        healed_at = time.monotonic()
        back_at = poll_until(lambda: load.last_on("broker-a", healed_at), 2 * WINDOW_SECONDS + SLACK_SECONDS)
    finally:
        load.stop()
    longest = max(seconds for _, seconds, _ in load.sends)
    print(
        f"\n{fault}: {len(load.acknowledged)} acknowledged, {len(load.errors)} failed, longest send {longest:.2f} s; "
        f"traffic left after {left_after:.2f} s, was back {back_at - healed_at:.2f} s after the end"
    )
    assert longest < BUDGET_SECONDS + SLACK_SECONDS
    assert "broker-b" in during
    assert not leaves or during.count("broker-a") < len(during) / 10
    assert not load.errors
    assert set(load.acknowledged) <= everything(pair.mq)
