"""A commit of staged rows that is repeated stores each row once, also rows that say nothing by which they differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raymq.storage.records.record import encode
from tests.unit.actors.bench import Bench


def row(body: bytes, key: str | None) -> bytes:
    properties = b"" if key is None else f"UNIQ_KEY\x01{key}\x02".encode()
    return encode("t", 0, body, properties, born_timestamp_ms=1, born_host=("10.0.0.1", 5))


@pytest.mark.parametrize("key", [None, "same"])
@pytest.mark.parametrize("stored", [0, 4, 10])
def test_rows_without_keys_of_their_own_are_neither_lost_nor_doubled(
    tmp_path: Path, key: str | None, stored: int
) -> None:
    bench = Bench(tmp_path)
    bench.core.topics.create("t", 1)
    rows = [row(b"%d" % (number // 2), key) for number in range(10)]  # each twice
    sizes = np.array([len(each) for each in rows], np.int32)
    bench.core.staging.stage("write", "part", 0, ("t", 0), memoryview(b"".join(rows)), sizes)
    chunk = bench.core.staging._files.chunks("write", "part")[0]
    bench.core.staging._files.declare(chunk, bench.store.max_physical_offset)
    # The commit stopped behind so many rows, and somebody else's message came, which looks like them.
    others = [row(b"somebody else's", key), *rows[:stored]]
    bench.core.append("t", 0, memoryview(b"".join(others)), np.array([len(each) for each in others], np.int32))
    bench.crash()
    assert list(bench.core.staging.commit("write", ["part"])) == [10 - stored]
    assert sorted(bench.bodies("t")) == sorted([b"somebody else's", *(b"%d" % (number // 2) for number in range(10))])
    bench.store.close()
