"""Kill a broker repeatedly while timed messages become due: each is delivered once, and none early."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from raymq.storage.store import Store
from tests import fork_server
from tests.crash import timer_broker
from tests.fork_server import Program

pytestmark = pytest.mark.crash

#: The pass in which the broker dies between the copies and the note of them, and the maximum number of output lines
#: after which it is killed.
LIVES = [(3, 1_000), (1_000, 60), (10, 1_000)]


def serve_until_killed(directory: Path, first: int, passes: int, lines: int) -> int:
    """Run the broker until it dies; return the number after its last acknowledged message."""
    command = [timer_broker.__file__, str(directory), str(first), str(passes)]
    sent = first
    with Program(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(b"sent"):
                sent = int(line.split()[1])
                lines -= 1
                if lines == 0:
                    child.send_signal(signal.SIGKILL)
    return sent


def test_timed_messages_come_once_and_on_time_over_kills(tmp_path: Path) -> None:
    acknowledged: set[int] = set()
    first = 0
    for passes, lines in LIVES:
        sent = serve_until_killed(tmp_path, first, passes, lines)
        acknowledged.update(range(first, sent))
        first = sent + 1_000  # messages that were stored without acknowledgement keep their own numbers
    command = [timer_broker.__file__, str(tmp_path), str(first), "drain"]
    fork_server.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)
    with Store.open(tmp_path, timer_broker.CONFIG) as store:
        assert store.recovery.clean
        arrived: list[int] = []
        for record in store.walk(0):
            if record.topic == "t":
                number, due_ms = map(int, record.body.split())
                arrived.append(number)
                assert record.store_timestamp_ms >= due_ms
    assert len(set(arrived)) == len(arrived)
    assert acknowledged <= set(arrived)
    assert len(set(arrived) - acknowledged) <= 30 * len(LIVES)
