"""Run a member of a consumer group in a separate process, for kills and memory measurements.

As a program: `member_process.py NAME_SERVERS GROUP TOPIC`. It prints "ready", then a line for each delivery before the
listener returns its result: number (the body), the queue's topic, broker and id, queue offset, times reconsumed,
and "ok" or "retry". Every tenth number fails at its first delivery. It ends cleanly when its standard input is closed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from raymq.client import Connection, ConsumeResult, MessageQueue, PushConsumer, ReceivedMessage, Retry
from tests.fork_server import Program


@dataclass(frozen=True, slots=True)
class Delivered:
    """One line of a member, and the monotonic time at which it was read."""

    at: float
    member: int
    number: int
    queue: MessageQueue
    offset: int
    reconsume_times: int
    success: bool

    @property
    def place(self) -> tuple[MessageQueue, int]:
        """Return which copy of the message this was."""
        return self.queue, self.offset


class MemberProcess:
    """A member process; `on_delivery` is called on a thread with each delivery."""

    def __init__(self, name_servers: str, group: str, topic: str, on_delivery: Callable[[Delivered], None]) -> None:
        arguments = [__file__, name_servers, group, topic]
        self._process = Program(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._on_delivery = on_delivery
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Send SIGKILL, and wait until all printed deliveries are reported."""
        self._process.kill()
        self._process.wait(30)
        self._reader.join(30)

    def stop(self) -> None:
        """Let the member leave its group and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        self._reader.join(30)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                return  # cut off by a kill
            number, topic, broker, queue_id, offset, times, outcome = line.split()
            queue = MessageQueue(topic, broker, int(queue_id))
            now = time.monotonic()
            self._on_delivery(Delivered(now, self.pid, int(number), queue, int(offset), int(times), outcome == "ok"))


def listener(messages: list[ReceivedMessage]) -> list[ConsumeResult | Retry]:
    results: list[ConsumeResult | Retry] = []
    lines = []
    for message in messages:
        fails = int(message.body) % 10 == 0 and not message.reconsume_times
        results.append(Retry(1) if fails else ConsumeResult.SUCCESS)
        place = f"{message.queue.topic} {message.queue.broker} {message.queue.queue_id} {message.queue_offset}"
        lines.append(f"{message.body.decode()} {place} {message.reconsume_times} {'retry' if fails else 'ok'}\n")
    sys.stdout.write("".join(lines))
    sys.stdout.flush()
    return results


if __name__ == "__main__":
    name_servers, group, topic = sys.argv[1:]
    with Connection(name_servers.split(";")) as mq:
        consumer = PushConsumer(mq, group, {topic: "*"}, listener, threads=1, batch_size=8)
        consumer.pause()  # no delivery may be printed before the line that the test waits for
        with consumer:
            print("ready", flush=True)
            consumer.resume()
            sys.stdin.read()
