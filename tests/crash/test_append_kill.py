"""Kill processes that append, and open one directory by two processes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from raymq.storage.errors import StoreLocked
from raymq.storage.store import Store
from tests import fork_server
from tests.fork_server import Program
from tests.store_records import SMALL, append, make_record

pytestmark = pytest.mark.crash

#: Appends to two queues, one record or a batch at a time, commits an offset, and prints each completed step.
WRITER = """
import os, sys
import numpy as np
from raymq.storage.config import StoreConfig
from raymq.storage.records.record import encode, encode_properties
from raymq.storage.store import Store

store = Store.open(sys.argv[1])
number = int(sys.argv[2])
os.write(1, b"ready\\n")
while True:
    records = []
    for _ in range((1, 3, 40)[number % 3]):
        properties = encode_properties({"UNIQ_KEY": f"U{number}", "TAGS": "t"})
        queue_id = number % 2
        body = b"%d" % number
        records.append(encode("t", queue_id, body, properties, born_timestamp_ms=1, born_host=("1.2.3.4", 5)))
        number += 1
    result = store.append(b"".join(records), np.array([len(r) for r in records], np.int32))
    store.consumer_offsets.commit("g", "t", 0, store.max_offset("t", 0))
    for position, offset in zip(result.physical_offsets.tolist(), result.queue_offsets.tolist()):
        os.write(1, b"%d %d %d\\n" % (number - len(records), position, offset))
    os.write(1, b"done %d\\n" % number)
"""

ROUNDS = 6


def write_until_killed(directory: Path, first: int, acknowledgements: int) -> int:
    """Run the writer and kill it after some appends; return its last acknowledged number."""
    child = Program(["-c", WRITER, str(directory), str(first)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    done = first
    seen = 0
    try:
        for line in child.stdout:
            if line.startswith(b"done"):
                done = int(line.split()[1])
                seen += 1
                if seen == acknowledgements:
                    child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    return done


def test_acknowledged_appends_survive_kill_once_and_in_order(tmp_path: Path) -> None:
    with Store.open(tmp_path, SMALL):
        pass
    first = 0
    for round_ in range(ROUNDS):
        done = write_until_killed(tmp_path, first, 5 + 17 * round_)
        with Store.open(tmp_path, SMALL) as store:
            assert not store.recovery.clean
            assert store.recovery.corruption == []
            stored = [int(record.body) for record in store.walk(0)]
            # A record without acknowledgement may be stored as the last one; the next round continues after it.
            assert stored == list(range(len(stored)))
            assert len(stored) >= done
            for queue_id in (0, 1):
                offset, queue_bodies = 0, []
                while offset < store.max_offset("t", queue_id):
                    with store.read("t", queue_id, offset, 100) as lease:
                        records = lease.messages()
                    assert [record.queue_offset for record in records] == list(range(offset, offset + len(records)))
                    queue_bodies += [int(record.body) for record in records]
                    offset = lease.next_offset
                assert queue_bodies == list(range(queue_id, len(stored), 2))
            for number in range(first, len(stored)):
                assert [int(record.body) for record in store.query("t", f"U{number}", 0, 1 << 60, 9)] == [number]
            committed = store.consumer_offsets.get("g", "t", 0)
            assert committed is not None
            assert (done + 1) // 2 <= committed <= (len(stored) + 1) // 2
            first = len(stored)


def test_second_process_is_refused_with_pid_of_owner(tmp_path: Path) -> None:
    script = """
import sys
from raymq.storage.errors import StoreLocked
from raymq.storage.store import Store
try:
    Store.open(sys.argv[1])
except StoreLocked as error:
    print(error.pid)
"""

    def attempt() -> str:
        done = fork_server.run(["-c", script, str(tmp_path)], stdout=subprocess.PIPE, check=True, timeout=60, text=True)
        return str(done.stdout)

    with Store.open(tmp_path, SMALL) as store:
        assert attempt() == f"{os.getpid()}\n"
        with pytest.raises(StoreLocked) as caught:
            Store.open(tmp_path, SMALL)
        assert caught.value.pid == os.getpid()
        # The refused attempt of this process did not release the store's lock.
        assert attempt() == f"{os.getpid()}\n"
        append(store, make_record())
    assert attempt() == ""
