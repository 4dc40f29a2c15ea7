"""Microseconds of an append of few records, with and without NumPy, and in two steps: `python bench_append.py`.

It shows what each way of `MessageWriter` wins that exists for speed only. Processor time of one thread, the least of
many rounds, without sockets.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from raymq.storage.config import StoreConfig
from raymq.storage.store import Store

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a program: the tests' folder is not installed

from tests.store_records import make_record

CONFIG: Final = StoreConfig(commitlog_file_bytes=1 << 28)
COUNTS: Final = (1, 2, 4, 8, 12, 16, 24, 32)
CALLS, ROUNDS = 500, 15


def least(work: Callable[[], object]) -> float:
    """Return the microseconds of a call in the best round."""
    times = []
    for _ in range(ROUNDS):
        begin = time.thread_time()
        for _ in range(CALLS):
            work()
        times.append(time.thread_time() - begin)
    return min(times) / CALLS * 1e6


def measure(store: Store) -> list[tuple[str, float]]:
    """Return what each way costs."""
    one = make_record(bytes(100), unique_key="A" * 32)
    writer, checker = store._writer, store._writer.checker
    store.append(one, np.array([len(one)], np.int32))  # the topic is known from now on
    single = store.check_one(one)

    def write_and_dispatch() -> None:
        store.write(single)
        store.dispatch()

    rows = [("check of one record", least(lambda: store.check_one(one)))]
    rows.append(("write, dispatch", least(write_and_dispatch)))
    for count in COUNTS:
        records, sizes = memoryview(one * count), np.full(count, len(one), np.int32)

        def few(records: memoryview = records, sizes: np.ndarray = sizes) -> object:
            return writer.append(records, checker._few(records, sizes, check_crc=True))

        def many(records: memoryview = records, sizes: np.ndarray = sizes) -> object:
            return writer.append(records, checker._many(records, sizes, check_crc=True))

        rows += [(f"{count} records, one by one", least(few)), (f"{count} records, NumPy", least(many))]
    return rows


def main() -> None:
    """Print one line for each way."""
    with tempfile.TemporaryDirectory() as folder, Store.open(folder, CONFIG) as store:
        for name, cost in measure(store):
            print(f"{name:28} {cost:7.1f} us")


if __name__ == "__main__":
    main()
