"""Microseconds a message of the Arrow codec beside a plain loop over the scalar one: `python bench_record_table.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from raymq.storage.records import record
from raymq.storage.records.record_table import records_from_table, table_from_records
from raymq.storage.records.unique_key_generator import UniqueKeyGenerator

COUNT = 50_000
ROUNDS = 5


def best(work: Callable[[], Any]) -> float:
    """The best round's microseconds a message; the first rounds pay for fresh memory."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times) / COUNT * 1e6


def main() -> None:
    """Print one line for each direction and body size."""
    source = UniqueKeyGenerator()
    print(f"{COUNT} messages, best of {ROUNDS}; us a message")
    for size in (100, 1024):
        bodies = [bytes([n % 251]) * size for n in range(COUNT)]
        keys = [str(n) for n in range(COUNT)]
        table = pa.table({"body": bodies, "key": keys})
        uniques = source.take(COUNT).to_pylist()

        def plain_encode(bodies: list[bytes] = bodies, keys: list[str] = keys, uniques: list[str] = uniques) -> bytes:
            made = []
            for body, key, unique in zip(bodies, keys, uniques, strict=True):
                properties = record.encode_properties({"KEYS": key, "UNIQ_KEY": unique})
                made.append(
                    record.encode("orders", 0, body, properties, born_timestamp_ms=1, born_host=b"\x7f\0\0\x01\0\0\0\0")
                )
            return b"".join(made)

        def arrow_encode(table: pa.Table = table) -> tuple[memoryview, Any]:
            return records_from_table(
                table, topic="orders", queue_id=0, body="body", keys="key", unique_keys=source, born_timestamp_ms=1
            )

        records, sizes = arrow_encode()
        starts = (np.cumsum(sizes) - sizes).tolist()

        def plain_decode(records: memoryview = records, starts: list[int] = starts) -> list[record.Record]:
            return [record.decode(records, start) for start in starts]

        def arrow_decode(records: memoryview = records, sizes: Any = sizes) -> pa.Table:
            return table_from_records(records, sizes, broker="broker-a")

        print(f"encode {size:5} B   loop {best(plain_encode):6.2f}   arrow {best(arrow_encode):6.2f}")
        print(f"decode {size:5} B   loop {best(plain_decode):6.2f}   arrow {best(arrow_decode):6.2f}")


if __name__ == "__main__":
    main()
