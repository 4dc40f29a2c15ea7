"""Test that a serving broker imports no more modules: an import would delay all its clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, sys, time
import numpy as np
from raymq.actors.broker.service import BrokerService
from raymq.actors.protocol import BrokerSpec
from raymq.storage.records.record import encode, encode_properties
from raymq.storage.tables.topic_config import TopicConfig

async def serve(directory):
    broker = (await BrokerService.start(BrokerSpec("b", "c", directory, "127.0.0.1", ()), "n")).leader
    before = set(sys.modules)
    broker.store.topic_configs.put(TopicConfig("t", 1, 1))
    now_ms = time.time_ns() // 1_000_000
    named = {"UNIQ_KEY": "u", "TIMER_DELIVER_MS": str(now_ms + 2_000)}
    record = encode("t", 0, b"x", encode_properties(named), born_timestamp_ms=now_ms, born_host=bytes(8))
    broker.core.append("t", 0, memoryview(record), np.array([len(record)], np.int32), delayed=True)
    deadline = time.monotonic() + 30
    while broker.core.bounds("t", 0)[1] == 0 and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert broker.core.bounds("t", 0)[1] == 1
    print(sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
    await broker.stop()

asyncio.run(serve(sys.argv[1]))
"""


def test_first_timed_message_imports_no_package(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "b")], capture_output=True, text=True, timeout=90, check=False
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "[]"), ended.stderr
