"""A push consumer in a process of its own that measures the delivery latency of messages.

A program: latency_consumer.py NAME_SERVER TOPIC COUNT. It prints "ready", and after so many messages the seconds of
each as JSON. A body begins with the time before it was sent, of a clock that the processes of a machine share.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
import time

from raymq.client import Connection, ConsumeResult, PushConsumer, ReceivedMessage

TIMEOUT = 60.0


def main() -> None:
    """Consume COUNT messages, then print their latencies."""
    name_server, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    seconds: list[float] = []
    done = threading.Event()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        now = time.perf_counter()
        seconds.extend(now - struct.unpack_from("d", message.body)[0] for message in messages)
        if len(seconds) >= count:
            done.set()
        return ConsumeResult.SUCCESS

    with Connection([name_server]) as mq, PushConsumer(mq, "listening", {topic: "*"}, listener):
        print("ready", flush=True)
        done.wait(TIMEOUT)
        print(json.dumps(seconds), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
