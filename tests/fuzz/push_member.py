"""Run a push consumer whose listener takes random times and fails at random.

    push_member.py OPTIONS

OPTIONS are JSON, see `MemberOptions`. It ends cleanly with SIGTERM. Its file has a line of JSON for each step of each
message: when (monotonic seconds), "begun", "done" or "failed", the broker, the queue's id, the offset and the body.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raymq.client import Connection, ConsumeResult, PushConsumer, ReceivedMessage, Retry
from raymq.client.errors import RayMQError

GROUP = "g"
TOPIC = "t"


@dataclass(frozen=True)
class MemberOptions:
    """The options of one member.

    Attributes:
        name_server: its address.
        file: its output file.
        seed: the seed of its listener.
        consumer: further arguments of `PushConsumer`.
        slow: the share of slow calls, 0 to 1; the others take up to 3 ms.
        slowest: the longest slow call, in seconds.
        fails: the share of failing messages.
        patience: the timeout of `shutdown`, in seconds.
    """

    name_server: str
    file: str
    seed: int
    consumer: dict[str, Any]
    slow: float
    slowest: float
    fails: float
    patience: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Member:
    """Consume until SIGTERM."""

    def __init__(self, options: MemberOptions) -> None:
        self._options = options
        self._random = random.Random(options.seed)
        self._file = os.open(options.file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._ended = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._ended.set())

    def run(self) -> None:
        options = self._options
        with Connection([options.name_server]) as mq:
            consumer = PushConsumer(mq, GROUP, {TOPIC: "*"}, self._consume, **options.consumer)
            while not self._ended.is_set():
                try:
                    consumer.start()
                    break
                except RayMQError:  # the broker is down
                    self._ended.wait(0.1)
            while not self._ended.wait(0.5):  # a signal to a stopped process wakes no wait
                pass
            consumer.shutdown(options.patience)

    def _consume(self, messages: Sequence[ReceivedMessage]) -> list[ConsumeResult | Retry] | ConsumeResult:
        options, draw = self._options, self._random
        self._tell("begun", messages)
        if draw.random() < options.slow:
            time.sleep(draw.uniform(0.05, options.slowest))
        else:
            time.sleep(draw.uniform(0, 0.003))
        failed = [draw.random() < options.fails for _ in messages]
        if options.consumer["ordered"] and any(failed):
            self._tell("failed", messages)
            if draw.random() < 0.5:
                raise ValueError("it fails")
            return ConsumeResult.RECONSUME_LATER
        for message, fails in zip(messages, failed, strict=True):
            self._tell("failed" if fails else "done", [message])
        return [Retry(1) if fails else ConsumeResult.SUCCESS for fails in failed]

    def _tell(self, what: str, messages: Sequence[ReceivedMessage]) -> None:
        now = time.monotonic()
        rows = [(now, what, *queue_key(each), each.queue_offset, each.body.decode()) for each in messages]
        os.write(self._file, b"".join(json.dumps(row).encode() + b"\n" for row in rows))


def queue_key(message: ReceivedMessage) -> tuple[str, str, int]:
    """Return the message's topic, broker and queue id."""
    return message.queue.topic, message.queue.broker, message.queue.queue_id


if __name__ == "__main__":
    Member(MemberOptions(**json.loads(sys.argv[1]))).run()
