"""Kill, pause, slow or fill one broker in turn under load from eight producers.

No acknowledged message is lost, no send exceeds its timeout, the traffic leaves the broker and returns.
The measured times are printed (`make soak`).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from raymq.actors.sending.isolation import SynchronizedIsolation, TryOutcome
from raymq.actors.sending.sender import Sender
from raymq.client import Admin, Connection, Message, Producer, PullConsumer
from raymq.client.errors import SendError
from tests.broker_process import BrokerProcess
from tests.polling import poll_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

PRODUCERS = 8
BUDGET_SECONDS = 3.0
#: The tolerance of a measured time on a loaded machine.
SLACK_SECONDS = 0.5
#: How long a fault lasts.
FAULT_SECONDS = 6.0
#: The traffic has left the broker if no try is made for so long, until a window is over.
LEFT_SECONDS = 1.0


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


@dataclass(frozen=True)
class Try:
    """One try of a send: when it began and ended, where, how."""

    began: float
    ended: float
    broker: str
    outcome: TryOutcome


class RecordingIsolation(SynchronizedIsolation):
    """A producer's isolation that also records every try."""

    def __init__(self, inner: SynchronizedIsolation, tries: list[Try]) -> None:
        super().__init__(inner)
        self._tries = tries

    def report(self, broker: str, outcome: TryOutcome, latency_ms: float) -> None:
        now = time.monotonic()
        self._tries.append(Try(now - latency_ms / 1000, now, broker, outcome))
        super().report(broker, outcome, latency_ms)


@dataclass
class Load:
    """Producers that each send one message after another until `stop`."""

    mq: Connection
    tries: list[Try] = field(default_factory=list)
    #: How long each send took with all its tries.
    seconds: list[float] = field(default_factory=list)
    acknowledged: list[bytes] = field(default_factory=list)
    errors: list[SendError] = field(default_factory=list)

    def start(self) -> None:
        self._stop = threading.Event()
        self._producers = [Producer(self.mq, "load", timeout=BUDGET_SECONDS) for _ in range(PRODUCERS)]
        for producer in self._producers:
            sender = producer._paths.sends
            assert isinstance(sender, Sender)
            assert isinstance(sender._picker.isolation, SynchronizedIsolation)
            sender._picker.isolation = RecordingIsolation(sender._picker.isolation, self.tries)
        self._threads = [threading.Thread(target=self._send, args=each) for each in enumerate(self._producers)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        for producer in self._producers:
            producer.close()

    def of(self, broker: str, begin: float, end: float = float("inf")) -> list[Try]:
        """Return the tries at `broker` that began in this interval, in order."""
        found = [each for each in list(self.tries) if each.broker == broker and begin <= each.began < end]
        return sorted(found, key=lambda each: each.began)

    def _send(self, number: int, producer: Producer) -> None:
        count = 0
        while not self._stop.wait(0.005):
            body = b"%d-%d" % (number, count)
            count += 1
            began = time.monotonic()
            try:
                producer.send(Message("t", body))
                self.acknowledged.append(body)
            except SendError as error:
                self.errors.append(error)
            self.seconds.append(time.monotonic() - began)


def read_all(mq: Connection) -> set[bytes]:
    found: set[bytes] = set()
    with PullConsumer(mq, "reader") as pull:
        for queue in pull.queues("t"):
            pull.seek(queue, 0)
            end = pull.offsets(queue)[1]
            while pull.position(queue) < end:
                found |= {message.body for message in pull.poll(queue, 1_000, timeout=5.0)}
    return found


def seconds_until_left(tries: list[Try], broken_at: float, until: float) -> float:
    """Return how long after `broken_at` the last try began before `LEFT_SECONDS` without tries."""
    at = broken_at
    for each in tries:
        if each.began - at >= LEFT_SECONDS:
            return at - broken_at
        at = each.began
    return at - broken_at if until - at >= LEFT_SECONDS else float("inf")


@dataclass(frozen=True)
class Fault:
    """A fault of a broker with its end, and its isolation window in seconds."""

    begin: Callable[[BrokerProcess], None]
    end: Callable[[BrokerProcess], None]
    window: float


FAULTS = {
    "killed": Fault(BrokerProcess.kill, BrokerProcess.start, 10.0),
    "paused": Fault(lambda bad: bad.signal(signal.SIGSTOP), lambda bad: bad.signal(signal.SIGCONT), 10.0),
    "200 ms away": Fault(lambda bad: bad.tell("slow 0.2"), lambda bad: bad.tell("slow 0"), 2.0),
    "700 ms away": Fault(lambda bad: bad.tell("slow 0.7"), lambda bad: bad.tell("slow 0"), 2.0),
    # One writer: eight producers wait for each other, and late requests are refused.
    "busy for 200 ms with each append": Fault(lambda bad: bad.tell("stall 0.2"), lambda bad: bad.tell("stall 0"), 10.0),
    "disk full": Fault(lambda bad: bad.tell("full"), lambda bad: bad.tell("free"), 10.0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_traffic_leaves_faulty_broker_and_returns(pair: Pair, name: str) -> None:
    fault = FAULTS[name]
    load = Load(pair.mq)
    load.start()
    try:
        poll_until(lambda: len(load.of("broker-a", 0.0)) > 100 and len(load.of("broker-b", 0.0)) > 100, 20)
        broken_at = time.monotonic()
        fault.begin(pair.bad)
        poll_until(lambda: time.monotonic() - broken_at > FAULT_SECONDS, 2 * FAULT_SECONDS)
        fault.end(pair.bad)
        healed_at = time.monotonic()

        def answers_again() -> float:
            """Return when a producer got a fast answer from the broker; 0.0 if not yet."""
            tries = load.of("broker-a", healed_at)
            return next((t.ended for t in tries if t.outcome is TryOutcome.ANSWERED and t.ended - t.began < 0.1), 0.0)

        back_at = poll_until(answers_again, fault.window + 10.0)
        share = poll_until(lambda: last_second_share(load), fault.window + 10.0)
    finally:
        load.stop()
    met, others = load.of("broker-a", broken_at, healed_at), load.of("broker-b", broken_at, healed_at)
    left = seconds_until_left(met, broken_at, healed_at)
    print(
        f"\n{name}: traffic left after {left:.2f} s, {len(met)} of {len(met) + len(others)} tries met the broker in "
        f"{healed_at - broken_at:.1f} s; back {back_at - healed_at:.2f} s after the end, then with {share:.0%}; "
        f"{len(load.acknowledged)} acknowledged, {len(load.errors)} failed, longest send {max(load.seconds):.2f} s"
    )
    assert left <= fault.window
    assert len(met) < len(others) / 10
    assert back_at - healed_at <= fault.window + SLACK_SECONDS
    assert max(load.seconds) <= BUDGET_SECONDS + SLACK_SECONDS
    assert not load.errors
    assert set(load.acknowledged) <= read_all(pair.mq)


def last_second_share(load: Load) -> float:
    """Return the share of broker-a in the last second's tries once it is at least a third; else 0."""
    since = time.monotonic() - 1.0
    mine, others = len(load.of("broker-a", since)), len(load.of("broker-b", since))
    share = mine / max(1, mine + others)
    return share if share > 1 / 3 else 0.0


def test_batch_part_is_stored_whole_or_not_at_all(pair: Pair) -> None:
    """Batches of three parts go to two brokers, of which one is killed repeatedly within a batch."""
    stop = threading.Event()
    acknowledged: list[bytes] = []
    failed = 0

    def send() -> None:
        nonlocal failed
        with Producer(pair.mq, "batches", timeout=BUDGET_SECONDS) as producer:
            number = 0
            while not stop.is_set():
                names = [b"%d-%d" % (number, index) for index in range(100)]
                number += 1
                try:
                    producer.send_batch([Message("t", name.ljust(100_000, b".")) for name in names])
                    acknowledged.extend(names)
                except SendError:
                    failed += 1

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for kill in range(5):
            before = len(acknowledged)
            poll_until(lambda before=before: len(acknowledged) > before, 30)  # type: ignore[misc]
            time.sleep(0.01 * kill)  # at another place in the batch each time
            pair.bad.kill()
            pair.bad.start()
    finally:
        stop.set()
        sender.join(30)
    parts = 0
    stored: set[bytes] = set()
    with PullConsumer(pair.mq, "reader") as pull:
        for queue in pull.queues("t"):
            pull.seek(queue, 0)
            end = pull.offsets(queue)[1]
            names: list[tuple[int, int]] = []
            while len(names) < end:
                for message in pull.poll(queue, 100, timeout=5.0):
                    name = message.body.rstrip(b".")
                    stored.add(name)
                    batch, _, index = name.partition(b"-")
                    names.append((int(batch), int(index)))
            # 41 messages of 100,000 bytes fit into a part.
            while names:
                batch_number, first = names[0]
                length = min(41, 100 - first)
                assert first % 41 == 0
                assert names[:length] == [(batch_number, first + index) for index in range(length)]
                del names[:length]
                parts += 1
    print(f"\n{len(acknowledged) // 100} batches acknowledged, {failed} failed, {parts} parts stored, each whole")
    assert set(acknowledged) <= stored
