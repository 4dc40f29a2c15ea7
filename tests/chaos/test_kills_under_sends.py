"""SIGKILL the only broker or a master under 8 sending threads with defaults: no error, no loss, no duplicate."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from raymq import cluster
from raymq.actors.spare_process import SPARE_PROCESS
from raymq.client import Admin, Connection, Message, Producer, PullConsumer
from raymq.client.errors import RayMQError
from tests.polling import poll_until
from tests.ray_cluster import own_ray

pytestmark = [
    pytest.mark.ray,
    pytest.mark.chaos,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:2 replicas of each broker group share"),
]

THREADS = 8
EVERY_SECONDS = 8.0
TOPIC = "t"
#: With asynchronous replication a new master may lack messages.
CONFIG = {"replication": "sync"}


class Senders:
    """Threads that send one message after another until `stop`."""

    def __init__(self, producer: Producer) -> None:
        self.acknowledged: set[bytes] = set()
        self.errors: list[RayMQError] = []
        self.longest = 0.0
        self._producer = producer
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _send(self, thread: int) -> None:
        number = 0
        while not self._ended.wait(0.002):
            body = b"%d-%d" % (thread, (number := number + 1))
            began = time.monotonic()
            try:
                self._producer.send(Message(TOPIC, body))
                self.acknowledged.add(body)
            except RayMQError as error:
                self.errors.append(error)
            self.longest = max(self.longest, time.monotonic() - began)

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)


def kill_master(admin: Admin) -> None:
    """SIGKILL the process of the current master."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [each.pid for each in admin.cluster_info().brokers if each.role == "master" and each.pid]
        return bool(found)

    poll_until(is_there, 30, "there is a master")
    os.kill(found[0], signal.SIGKILL)


def read_all(mq: Connection) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    with PullConsumer(mq, "reader") as pull:
        for queue in pull.queues(TOPIC):
            pull.seek(queue, 0)
            while pull.position(queue) < pull.offsets(queue)[1]:
                found.update(message.body for message in pull.poll(queue, 1_000))
    return found


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("kills", [pytest.param(5, marks=pytest.mark.long), pytest.param(50, marks=pytest.mark.soak)])
def test_broker_kills_cause_no_send_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int, replicas: int, *, idempotent: bool
) -> None:
    monkeypatch.setenv(SPARE_PROCESS, "1")  # the default for users; the test suite runs without
    monkeypatch.setenv("RAY_preload_python_modules", "raymq.actors.broker_actor")
    with own_ray(), cluster.start(1, tmp_path / "data", "kills", replicas=replicas, config=CONFIG) as mq:
        admin = Admin(mq)
        admin.create_topic(TOPIC, queues=4)
        with Producer(mq, "p", idempotent=idempotent) as producer:
            senders = Senders(producer)
            try:
                poll_until(lambda: len(senders.acknowledged) > 50, 60)
                for _ in range(kills):
                    due = time.monotonic() + EVERY_SECONDS
                    kill_master(admin)
                    before = len(senders.acknowledged)
                    poll_until(lambda before=before: len(senders.acknowledged) > before + THREADS, 30)
                    time.sleep(max(0.0, due - time.monotonic()))
            finally:
                senders.stop()
        found = read_all(mq)
    doubled = sum(times > 1 for times in found.values())
    print(
        f"{kills} kills, {replicas} replicas, idempotent={idempotent}: {len(senders.acknowledged)} acknowledged, "
        f"{len(senders.errors)} errors, {doubled} doubled, longest send {senders.longest:.2f} s"
    )
    assert senders.errors == []
    assert not senders.acknowledged - set(found)
    if idempotent:
        assert doubled == 0
