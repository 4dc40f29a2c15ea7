"""Kill a broker while consumers hold messages. Each single write: tests/unit/actors/test_pop.py."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.client import Admin, Connection, Message, MessageQueue, Producer, ReceivedMessage, SimpleConsumer
from tests.fork_server import Program
from tests.polling import poll_until

pytestmark = pytest.mark.crash

PROGRAM = Path(__file__).with_name("pop_broker.py")
INVISIBLE_SECONDS = 8.0


class Brokers:
    """Broker processes, one after another, on the same directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> str:
        pipe = subprocess.PIPE
        self.process = Program([str(PROGRAM), str(self._directory)], stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.communicate()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    yield made
    made.kill()


def receive(consumer: SimpleConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []

    def enough() -> bool:
        found.extend(consumer.receive(count - len(found), INVISIBLE_SECONDS, 10.0))
        return len(found) >= count

    poll_until(enough, 20, f"{count} messages")
    return found


def test_only_unacknowledged_messages_are_redelivered_after_kill(brokers: Brokers) -> None:
    with Connection([brokers.start()]) as mq:
        Admin(mq).create_topic("t", queues=1)
        Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(30)])
        with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
            begun = time.monotonic()
            first = receive(consumer, 30)
            assert consumer.ack(first[::2])
            assert not consumer.ack(first[0])
            brokers.kill()
            brokers.start()
            left = begun + INVISIBLE_SECONDS - time.monotonic()
            assert left > 0, "the restart took too long to see anything"
            second = receive(consumer, 15)
            assert time.monotonic() >= begun + INVISIBLE_SECONDS
            assert [message.body for message in second] == [message.body for message in first[1::2]]
            assert {message.reconsume_times for message in second} == {1}
            assert consumer.ack(second[:-1])
            brokers.kill()
            brokers.start()
            progress = Admin(mq).group_progress("g")[MessageQueue("t", "broker-a", 0)]
            assert progress.committed_offset == 29
