"""One side of `live_sides`: a broker and a client of some tree, for as long as standard input lasts. Run as a program.

    live_side.py TREE [METRICS]

TREE is the folder whose code is measured; the interpreter is its environment's. Two processors are used where there
are two: the client is on the first one and the broker on the second. It prints "ready" and then answers each line
"KIND SIZE COUNT": so many sends one after the other, of bodies of so many bytes, by the producer of that kind, `send`
or `idempotent send`. The answer is what a send took, the median in microseconds. METRICS says where the broker
publishes metrics, see `BrokerSpec`; without it, nowhere.

It uses only what trees of long ago have, too.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from raymq.client import Admin, Connection, Message, Producer
from tests.broker_process import BrokerProcess


def main() -> None:
    """Answer until the input ends."""
    with tempfile.TemporaryDirectory() as directory:
        metrics = {"metrics": sys.argv[2]} if len(sys.argv) > 2 else {}
        broker = BrokerProcess("broker-a", Path(directory), is_forked=False, **metrics)
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(broker.pid, processors[-1:])
        with Connection([broker.name_server]) as mq:
            os.sched_setaffinity(0, processors[:1])
            Admin(mq).create_topic("t", queues=4)
            producers = {
                "send": Producer(mq, group="plain"),
                "idempotent send": Producer(mq, group="i", idempotent=True),
            }
            print("ready", flush=True)
            for line in sys.stdin:
                kind, size, count = line.strip().rsplit(" ", 2)
                print(median_us(producers[kind], os.urandom(int(size)), int(count)), flush=True)
        broker.stop()


def median_us(producer: Producer, body: bytes, count: int) -> float:
    """What a send takes that nothing else is beside."""
    taken = []
    for _ in range(count):
        began = time.perf_counter_ns()
        producer.send(Message("t", body))
        taken.append(time.perf_counter_ns() - began)
    return statistics.median(taken) / 1000


if __name__ == "__main__":
    main()
