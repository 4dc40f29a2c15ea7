"""A broker's core in a process of its own that sends itself timed messages and delivers them, until it is killed.

Arguments: its directory, the first message's number, and how it ends. It prints "sent NUMBER" when all messages before
that number are stored. With "drain" it sends nothing, delivers all waiting messages, and closes in order; with a number
it kills itself after so many deliveries, before it has noted the last one.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import numpy as np

from raymq.actors.broker.core.broker import BrokerCore
from raymq.client import Message
from raymq.storage.config import StoreConfig
from raymq.storage.store import Store
from raymq.storage.tables.topic_config import TopicConfig
from raymq.storage.timers.timer_entry import Entries, EntryKind

HOST = bytes([127, 0, 0, 1, 0, 0, 0, 0])
CONFIG = StoreConfig(commitlog_file_bytes=1 << 20, index_slots=100, index_entries=10_000, disk_refuse_ratio=1.0)


def die_before_note(core: BrokerCore, passes: int) -> None:
    """Kill this process in pass number `passes`, between the copies and the note of them."""
    note = core.timers.log.append

    def noting(entries: Entries) -> None:
        nonlocal passes
        passes -= bool((entries["kind"] == EntryKind.DELIVERED).any())
        if passes == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        note(entries)

    core.timers.log.append = noting  # type: ignore[method-assign]


def main(directory: str, first: int, end: str) -> None:
    """Serve until the process is killed, or drain."""
    drain = end == "drain"
    dice = random.Random(first)
    store = Store.open(directory, CONFIG)
    core = BrokerCore("broker-a", store)
    store.topic_configs.put(TopicConfig("t", 1, 1))
    if not drain:
        die_before_note(core, int(end))
    number = first
    os.write(1, b"ready\n")
    while True:
        report = core.deliver_due()
        if drain:
            if report.next_due_ms is None and not report.delivered:
                break
            time.sleep(0.001)
            continue
        records = []
        for _ in range(dice.choice([1, 5, 30])):
            due = time.time() + dice.uniform(0.005, 0.3)
            body = b"%d %d" % (number, int(due * 1000))
            records.append(Message("t", body, deliver_at=int(due * 1000) / 1000).encode(1, HOST))
            number += 1
        sizes = np.array([len(record) for record in records], np.int32)
        core.append("t", 0, memoryview(b"".join(records)), sizes, delayed=True)
        os.write(1, b"sent %d\n" % number)
        if dice.random() < 0.1 and (write := core.timers.checkpoint()) is not None:
            write()
    core.timers.close()
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
