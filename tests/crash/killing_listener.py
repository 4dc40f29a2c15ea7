"""Consumer program whose listener kills its own process on one message.

`killing_listener.py NAME_SERVERS HOW THREADS WAIT_SECONDS FILE`: HOW is exit or segv, and FILE gets a line for each
processed message, after WAIT_SECONDS. The program ends when its standard input is closed.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

from raymq.client import Connection, ConsumeResult, PushConsumer, ReceivedMessage


def main(name_servers: str, how: str, threads: str, wait_seconds: str, path: str) -> None:
    """Consume topic t as group g until the standard input ends, or the listener kills the process."""
    done = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        for message in messages:
            if message.body == b"culprit":
                if how == "exit":
                    os._exit(3)
                ctypes.string_at(0)
            time.sleep(float(wait_seconds))
            os.write(done, message.body + b"\n")
        return ConsumeResult.SUCCESS

    with (
        Connection([name_servers]) as mq,
        PushConsumer(mq, "g", {"t": "*"}, listener, mode="pop", lease=1.0, max_reconsume_times=2, threads=int(threads)),
    ):
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
