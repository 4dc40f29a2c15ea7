"""Cut the power of all machines of a group with `flush: sync` and `replication: sync`: no acknowledged message is lost.

The machines' disks have what was synced, and a random part of the rest (`power_loss`).
"""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
from pathlib import Path

import pytest

from raymq.actors.errors import RayMQError
from raymq.actors.protocol import MessageQueue, SendStatus
from raymq.client import Message
from tests.polling import poll_until
from tests.replica_clients import QUEUES, Clients
from tests.replica_group import GROUP, ReplicaGroup

pytestmark = [pytest.mark.crash, pytest.mark.soak, pytest.mark.timeout(300)]

LOSSES = 3


class Load:
    """Send messages and commit offsets until `end`; record what was acknowledged."""

    def __init__(self, clients: Clients, mark: str) -> None:
        self.sent: set[bytes] = set()
        self.committed = 0
        self._clients, self._mark = clients, mark
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            body = f"{self._mark} {number}".encode()
            with contextlib.suppress(RayMQError):
                if self._clients.producer.send(Message("t", body)).status is SendStatus.SEND_OK:
                    self.sent.add(body)
            if number % 5 == 0:
                with contextlib.suppress(RayMQError):
                    self._clients.pull.commit(MessageQueue("t", GROUP, 0), number // 5)
                    self.committed = number // 5

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def lose_power(group: ReplicaGroup, chance: random.Random) -> None:
    """Cut the power of all brokers at once, and leave each directory as the next boot finds it."""
    numbers = list(group.up)
    after = {number: group.folder / f"after-{number}" for number in numbers}
    for number in numbers:
        group.write_line(
            number, f"lose power {after[number]} {chance.random() * 1e9:.0f} {chance.choice((0, 0.3, 0.7, 1))}"
        )
    for number in numbers:
        group.await_crash(number)
        shutil.rmtree(group.directory(number))
        after[number].rename(group.directory(number))


@pytest.mark.parametrize(
    "group", [{"store": {"flush": "sync"}}, {"store": {"flush": "sync"}, "replicas": 3}], indirect=True
)
def test_acknowledged_messages_survive_group_power_loss(group: ReplicaGroup) -> None:
    chance = random.Random(group.count)
    group.found()
    group.start(boot="boot-0")
    group.await_claimed(*range(1, group.count + 1))
    group.elect()
    group.await_in_sync(*range(1, group.count + 1))
    clients = Clients(group)
    acknowledged: set[bytes] = set()
    with contextlib.closing(clients.mq):
        clients.admin.create_topic("t", queues=QUEUES)
        for life in range(1, LOSSES + 1):
            load = Load(clients, f"life-{life}")
            try:
                poll_until(lambda load=load: len(load.sent) > 60, 60)
                lose_power(group, chance)
            finally:
                load.end()
            acknowledged |= load.sent
            group.start(boot=f"boot-{life}")
            group.await_claimed(*range(1, group.count + 1))
            group.elect()
            assert acknowledged <= set(clients.bodies())
            queue = MessageQueue("t", GROUP, 0)
            assert (clients.asked(lambda queue=queue: clients.pull.committed(queue)) or 0) >= load.committed
            group.await_in_sync(*range(1, group.count + 1))
    assert not any(Path(group.folder).glob("after-*"))
