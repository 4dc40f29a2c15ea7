"""Test that a message whose listener kills its process becomes a dead letter, and that others are processed once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from raymq.client import Admin, Connection, GroupNotFound, Message, Producer
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.crash

PROGRAM = Path(__file__).with_name("killing_listener.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    made = Services(tmp_path / "store")
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("how", "threads", "wait_seconds"),
    [("exit", 20, 0.0), ("segv", 1, 0.0), pytest.param("exit", 20, 0.1, marks=pytest.mark.long)],
)
def test_message_that_kills_its_consumer_becomes_dead_letter(
    services: Services, tmp_path: Path, how: str, threads: int, wait_seconds: float
) -> None:
    done = tmp_path / "done"
    done.touch()
    bodies = [b"%02d" % number for number in range(20)]
    with Connection([services.name_server.address]) as mq:
        admin = Admin(mq)
        admin.create_topic("t", queues=2)
        with Producer(mq, "p") as producer:
            for number, body in enumerate(bodies):
                producer.send(Message("t", body))
                if number == 10:
                    producer.send(Message("t", b"culprit"))
        lives = 0
        process = None
        try:

            def is_over() -> bool:
                nonlocal process, lives
                if process is None or process.poll() is not None:
                    lives += 1
                    process = start_consumer(
                        services.name_server.address, how, str(threads), str(wait_seconds), str(done)
                    )
                with contextlib.suppress(GroupNotFound):
                    return bool(admin.dlq_list("g")) and len(set(done.read_bytes().split())) == len(bodies)
                return False

            poll_until(is_over, 60)
        finally:
            if process is not None:
                process.communicate(timeout=30)
        (dead,) = admin.dlq_list("g")
    assert (dead.body, dead.reason) == (b"culprit", "its consumer ended without an answer 3 times")
    assert lives == 4, "three of them died"
    counted = Counter(done.read_bytes().split())
    assert counted.keys() == set(bodies)
    # With several threads, a call may complete just before the process dies, unconfirmed by the broker.
    assert threads > 1 or set(counted.values()) == {1}


def start_consumer(name_server: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), name_server, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
