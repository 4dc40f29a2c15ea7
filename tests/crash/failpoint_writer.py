"""The program that test_failpoints.py kills: it performs every write of a store and prints what is complete.

    python failpoint_writer.py DIRECTORY FIRST ROUNDS

Each line of its output is a promise: "stored NUMBER QUEUE QUEUE_OFFSET PHYSICAL_OFFSET", "committed OFFSET",
"delayed OFFSET", "planned BATCH", "topic NAME", "gone NAME"; "expiring PHYSICAL_OFFSET" takes back those of records
before it.
The store's files are small, so that every step comes up in a few rounds.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.files.file_calls import replaced
from raymq.storage.journal import state_journal
from raymq.storage.records import native_kernels
from raymq.storage.records.record import encode, encode_properties
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import InFlightMessage
from raymq.storage.tables.topic_config import TopicConfig
from tests.faulty_calls import UnsyncedCalls
from tests.store_records import SMALL

CONFIG = replace(SMALL, flush_interval_ms=3_600_000, retention_hours=1e-9, delete_at_hour="*")


def print_line(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def record(number: int, topic: str = "t") -> bytes:
    properties = encode_properties({"UNIQ_KEY": f"U{number}", "TAGS": "x", "KEYS": f"k{number} k"})
    body = b"%d" % number
    return encode(topic, number % 2, body, properties, born_timestamp_ms=1, born_host=("1.2.3.4", 5))


def append(store: Store, first: int, count: int, say: Callable[[str], None]) -> int:
    records = [record(number) for number in range(first, first + count)]
    result = store.append(b"".join(records), np.array([len(r) for r in records], np.int32))
    for i in range(count):
        number = first + i
        say(f"stored {number} {number % 2} {result.queue_offsets[i]} {result.physical_offsets[i]}")
    return first + count


def main(directory: Path, number: int, rounds: int, say: Callable[[str], None] = print_line) -> None:
    for _ in range(rounds):
        with Store.open(directory, CONFIG) as store:
            for count in (1, 20, 3, 1, 40):
                number = append(store, number, count, say)
                consumed = store.max_offset("t", 0)
                store.consumer_offsets.commit("g", "t", 0, consumed)
                say(f"committed {consumed}")
                store.in_flight.deliver(("g", "t", 0), consumed, {consumed - 1: InFlightMessage(1, 2, 0, 16)})
                waiting = record(0, SCHEDULE_TOPIC)
                delayed = int(store.append(waiting, np.array([len(waiting)], np.int32)).queue_offsets[0]) + 1
                store.delay_offsets.commit(1, delayed, store.max_physical_offset)
                say(f"delayed {delayed}")
            store.flush()
            store.tables.stream_plans.put("s", "q", number, b"plan")
            say(f"planned {number}")
            name = f"topic{number}"
            store.topic_configs.put(TopicConfig(name, 1, 1))
            say(f"topic {name}")
            one = record(0, name)
            store.append(one, np.array([len(one)], np.int32))
            store.delete_topic(name)
            say(f"gone {name}")
            store._parts.journal.compact()
            store._save_checkpoint()
            newest = store.max_physical_offset
            say(f"expiring {newest - newest % CONFIG.commitlog_file_bytes}")
            store.delete_expired(asked=True)
            store.wait_for_removals()
            number = append(store, number, 2, say)


if __name__ == "__main__":
    state_journal._COMPACT_BYTES = 400  # type: ignore[misc]
    native_kernels.use(importlib.import_module("raymq_native") if sys.argv[4] == "compiled" else None)
    with replaced(UnsyncedCalls()):  # written bytes survive the process without a sync
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
