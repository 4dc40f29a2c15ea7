"""Changes of a store's state: commits, deliveries and topics per second, and a start after a kill.

    python bench_state.py [--quick] [--json] [--directory D]

A process commits 1 M offsets (100 queues of 10 groups), delivers and acknowledges 200,000 popped messages in batches of
32, creates 5,000 topics, and is killed. Then the directory is opened and closed: how long the start takes, and how many
bytes its state has after the kill and after the clean stop. It uses the store alone, and works in older trees too:
tests/bench/compare.py runs it in two trees in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from raymq.storage.config import StoreConfig
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import InFlightMessage
from raymq.storage.tables.topic_config import TopicConfig

CONFIG = StoreConfig(commitlog_file_bytes=1 << 20, consume_queue_file_entries=1000, index_slots=100, index_entries=100)
BATCH = 32


def per_second(count: int, work: Callable[[int], None]) -> float:
    """Return how often per second `work` is done, given the number of the call."""
    began = time.perf_counter()
    for number in range(count):
        work(number)
    return count / (time.perf_counter() - began)


def change(directory: Path, scale: int) -> dict[str, float]:
    """Change the state of a new store and leave it as a kill does; return rates."""
    store = Store.open(directory, CONFIG)
    offsets, in_flight, topics = store.consumer_offsets, store.in_flight, store.topic_configs

    def commit(number: int) -> None:
        offsets.commit(f"group-{number % 10}", "orders", number // 10 % 100, number)

    def pop(number: int) -> None:
        first = number * BATCH
        queue = ("poppers", "orders", number % 4)
        lent = {
            each: InFlightMessage(1_700_000_000_000, 1_700_000_060_000, 0, 16) for each in range(first, first + BATCH)
        }
        in_flight.deliver(queue, first + BATCH, lent)
        for offset in lent:
            in_flight.acknowledge(queue, [offset])

    rates = {
        "commits_per_second": per_second(1_000_000 // scale, commit),
        "acknowledgements_per_second": BATCH * per_second(200_000 // BATCH // scale, pop),
        "topics_per_second": per_second(
            5_000 // scale, lambda number: topics.put_soon(TopicConfig(f"topic-{number}", 4, 4))
        ),
    }
    print(json.dumps(rates), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return rates


def state_bytes(directory: Path) -> int:
    """Return how many bytes the files of the state have, without the disk reserve."""
    found = [path for top in ("config", "raymq") for path in (directory / top).rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in found if path.name != "ballast")


def measure(directory: Path, scale: int) -> dict[str, float]:
    """Run the changes in a process that is killed, then open and close the store."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        change(directory, scale)
    os.close(writing)
    with os.fdopen(reading) as answers:
        found: dict[str, float] = json.loads(answers.readline())
    os.waitpid(child, 0)
    found["bytes_after_kill"] = state_bytes(directory)
    began = time.perf_counter()
    store = Store.open(directory, CONFIG)
    found["start_seconds"] = time.perf_counter() - began
    store.close()
    found["bytes_after_stop"] = state_bytes(directory)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth of everything")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--directory", type=Path, help="where the store is made (default: among temporary files)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.directory))
    try:
        found = measure(folder / "store", 20 if arguments.quick else 1)
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        json.dump(found, sys.stdout)
        return
    for name, value in found.items():
        print(f"{name.replace('_', ' '):32} {value:14,.2f}")


if __name__ == "__main__":
    main()
