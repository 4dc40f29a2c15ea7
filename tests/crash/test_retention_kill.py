"""SIGKILL during deletion: the log has no gap, and the next run deletes the rest."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from raymq.storage.failpoints import NAMES, VARIABLE
from raymq.storage.store import Store
from tests import fork_server
from tests.store_records import SMALL, append, make_record

pytestmark = pytest.mark.crash

COUNT = 600
HOUR_MS = 3_600_000
CONFIG = replace(SMALL, delete_at_hour="*")
START_MS = 1_000 * HOUR_MS
#: At this time the first 400 records, one stored every second, have expired.
LATER_MS = START_MS + 72 * HOUR_MS + 400_000


def fill(directory: Path) -> None:
    """Store COUNT records in two queues, one a second."""
    now_ms = START_MS
    with Store.open(directory, CONFIG, now_ms=lambda: now_ms) as store:
        for number in range(COUNT):
            append(store, make_record(b"%d" % number, queue_id=number % 2, keys=f"k{number}"))
            now_ms += 1000


def delete(directory: Path) -> None:
    """Delete until nothing more has expired."""
    with Store.open(directory, CONFIG, now_ms=lambda: LATER_MS) as store:
        for _ in range(20):
            store.delete_expired()
            assert store.wait_for_removals(60)


def check_store(directory: Path) -> int:
    """Check that everything from the minimum on is readable in every way; return the first record's number."""
    with Store.open(directory, CONFIG, now_ms=lambda: LATER_MS) as store:
        assert (store.recovery.truncated_bytes, store.recovery.corruption) == (0, [])
        numbers = [int(record.body) for record in store.walk(0)]
        assert numbers == list(range(numbers[0], COUNT))
        for queue_id in (0, 1):
            minimum = store.min_offset("orders", queue_id)
            assert minimum == (numbers[0] + 1 - queue_id) // 2
            assert store.max_offset("orders", queue_id) == COUNT // 2
            for offset in range(minimum, COUNT // 2):
                with store.read("orders", queue_id, offset, 1) as lease:
                    assert [int(record.body) for record in lease.messages()] == [2 * offset + queue_id]
        for number in range(0, COUNT, 7):
            found = [int(record.body) for record in store.query("orders", f"k{number}", 0, 1 << 60, 9)]
            assert found == ([number] if number >= numbers[0] else [])
        return numbers[0]


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("failpoint", [name for name in NAMES if name.startswith("retention.")])
@pytest.mark.parametrize("time", [1, 2, 5, 14])
def test_killed_deletion_leaves_log_without_gap(tmp_path: Path, failpoint: str, time: int) -> None:
    fill(tmp_path)
    program = (
        f"from pathlib import Path; from tests.crash.test_retention_kill import delete; delete(Path({str(tmp_path)!r}))"
    )
    environment = {**os.environ, VARIABLE: f"{failpoint}:{time}"}
    done = fork_server.run(["-c", program], env=environment, timeout=120)
    # log files are detached in one or two runs; every file reaches each of the other failpoints
    assert done.returncode in ((-signal.SIGKILL,) if failpoint != "retention.before_detach" or time == 1 else (0, -9))
    assert check_store(tmp_path) < 400
    delete(tmp_path)
    first = check_store(tmp_path)
    assert 350 < first <= 400
    assert check_store(tmp_path) == first
