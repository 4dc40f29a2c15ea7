"""What the commit of a staged write costs its broker, by its parts and by its rows: `python bench_staged_commit.py`.

Of the event loop the processor's time counts, in all and in its longest turn: what else the machine does is left out.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from raymq.actors.broker.acks import LocalAcks
from raymq.actors.broker.staged_commits import StagedCommits
from raymq.storage.files.file_calls import FileCalls, replaced
from raymq.storage.records.record import encode
from tests import staged_rows
from tests.unit.actors.bench import CONFIG, Bench

PARTS = (2_000, 5_000, 20_000)
ROWS_A_PART = 20
CHUNKS = (4, 70)
ROWS_A_CHUNK = 74_000


class NoSync(FileCalls):
    """Staging is not what is measured."""

    def fsync(self, fd: int) -> None:
        """Nothing."""

    def fdatasync(self, fd: int) -> None:
        """Nothing."""


def stage(bench: Bench, transaction: str, name: Callable[[int], tuple[str, int]], count: int, rows: int) -> None:
    """The same rows in each chunk, of which `name` tells the part and the number."""
    records = [
        encode("t", 0, b"%020d" % row, b"", born_timestamp_ms=1, born_host=("10.0.0.1", 5)) for row in range(rows)
    ]
    sizes, data = np.array([*map(len, records)], np.int32), b"".join(records)
    with replaced(NoSync()):
        for number in range(count):
            part, of_part = name(number)
            staged_rows.stage(bench.core.staging, transaction, part, of_part, ("t", 0), memoryview(data), sizes, "home")


async def commit(bench: Bench, transaction: str, parts: dict[str, int]) -> tuple[float, list[float]]:
    """Seconds that it takes, and the seconds of the processor in each turn of the loop."""
    loop, turns = asyncio.get_running_loop(), list[float]()
    run_once = loop._run_once

    def timed() -> None:
        begin = time.thread_time()
        run_once()
        turns.append(time.thread_time() - begin)

    loop._run_once = timed
    begin = time.perf_counter()
    await StagedCommits(bench.core, LocalAcks(bench.core.store)).commit(transaction, parts)
    return time.perf_counter() - begin, turns


def own_memory() -> float:
    """MiB of the process that no file has."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def most_memory(work: Callable[[], None]) -> float:
    """The highest `own_memory` during `work`."""
    most, over = own_memory(), threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.005):
            most = max(most, own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    over.set()
    watcher.join()
    return most


def main() -> None:
    """Print a line for each number of parts, and of rows."""
    config = replace(
        CONFIG,
        commitlog_file_bytes=1 << 28,
        consume_queue_file_entries=300_000,
        index_slots=500_000,
        index_entries=3_000_000,
    )
    for count in PARTS:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), config)
            bench.core.topics.create("t", 1)
            stage(bench, "tx", lambda number: (f"part{number}", 0), count, ROWS_A_PART)
            seconds, turns = asyncio.run(commit(bench, "tx", {f"part{number}": ROWS_A_PART for number in range(count)}))
            bench.store.close()
        print(
            f"{count:6} parts: {seconds:5.1f} s, of the loop {sum(turns):5.2f} s,"
            f" longest turn {max(turns) * 1000:4.1f} ms"
        )
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), config)
        bench.core.topics.create("t", 1)
        for count in CHUNKS:
            transaction, parts = f"tx{count}", {"p": ROWS_A_CHUNK * count}
            stage(bench, transaction, lambda number: ("p", number), count, ROWS_A_CHUNK)
            before = own_memory()
            most = most_memory(lambda name=transaction, parts=parts: asyncio.run(commit(bench, name, parts)))
            print(f"{ROWS_A_CHUNK * count:9,} rows: memory before {before:3.0f} MiB, at most {most:3.0f} MiB")
        bench.store.close()


if __name__ == "__main__":
    main()
