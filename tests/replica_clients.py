"""Clients of a broker group with replicas, and requests to its brokers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from raymq.actors.errors import (
    RayMQError,
)
from raymq.actors.protocol import MessageQueue, SendStatus
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.append_commands import append_command
from raymq.actors.wire.frame import Command
from raymq.client import Admin, Connection, Message, Producer, PullConsumer
from tests.polling import poll_until
from tests.replica_group import GROUP, ReplicaGroup
from tests.state_shipping import state_of
from tests.store_records import make_record
from tests.store_replication import log_content

#: The number of queues of the tests' topic.
QUEUES = 2
T = TypeVar("T")


class Clients:
    """Clients of a group, which find its master through the name server."""

    def __init__(self, group: ReplicaGroup) -> None:
        self.group = group
        self.mq = Connection([group.name_server], tls=group.client_tls)
        self.admin = Admin(self.mq)
        self.producer = Producer(self.mq, "producers")
        self.pull = PullConsumer(self.mq, "pullers")

    def send(self, *bodies: bytes, topic: str = "t", seconds: float = 30.0) -> None:
        """Send each message until it is acknowledged; some may be stored twice."""
        deadline = time.monotonic() + seconds
        for body in bodies:
            while True:
                try:
                    sent = self.producer.send(Message(topic, body, keys=body[:9].decode().replace(" ", "-")))
                except RayMQError:
                    if time.monotonic() > deadline:
                        raise
                    continue
                if sent.status is SendStatus.SEND_OK:
                    break
                assert time.monotonic() < deadline, sent

    def bodies(self, topic: str = "t") -> list[bytes]:
        """Return all readable bodies, in the order of the queues."""
        found: list[bytes] = []
        for queue in poll_until(lambda: self.found(lambda: self.pull.queues(topic)), 15):
            low, high = poll_until(lambda queue=queue: self.found(lambda: self.pull.offsets(queue)), 15)
            self.pull.seek(queue, low)
            seen = low
            while seen < high:
                messages = self.found(lambda queue=queue: self.pull.poll(queue, 100, 1.0)) or []
                seen += len(messages)
                found += [each.body for each in messages]
        return found

    def asked(self, call: Callable[[], T]) -> T:
        """Return the result of a call, repeated until a broker answers."""
        deadline = time.monotonic() + 20
        while True:
            try:
                return call()
            except RayMQError:
                if time.monotonic() > deadline:
                    raise

    @staticmethod
    def found(call: Callable[[], object]) -> object:
        """Return the result of a call, or None if no broker answers."""
        with contextlib.suppress(RayMQError):
            return call()
        return None


def numbered(begin: int, end: int, mark: str = "m") -> list[bytes]:
    return [b"%s%d" % (mark.encode(), number) for number in range(begin, end)]


def request_replica(group: ReplicaGroup, number: int, command: Command, timeout: float = 5.0) -> Command:
    return group.run(group.pool.request(group.addresses[number], command, timeout, patient=True))


def records(count: int, topic: str = "t", queue_id: int = 0, mark: bytes = b"r") -> Command:
    encoded = [make_record(b"%s%d" % (mark, number), topic=topic, queue_id=queue_id) for number in range(count)]
    return append_command(topic, queue_id, b"".join(encoded), np.array([len(each) for each in encoded], np.int32))


def can_commit(clients: Clients, queue_id: int) -> bool:
    return clients.found(lambda: clients.pull.commit(MessageQueue("t", GROUP, queue_id), 20) is None) is not None


def are_alike(group: ReplicaGroup) -> bool:
    """Return whether all replicas have the same log and the same state, byte for byte."""
    numbers = range(1, group.count + 1)
    if len({group.status(number).end for number in numbers}) > 1:
        return False
    states = [state_of(group.directory(number)) for number in numbers]
    logs = [b"".join(log_content(group.directory(number)).values()).rstrip(b"\0") for number in numbers]
    return all(state == states[0] for state in states) and all(log == logs[0] for log in logs)


def expire_beginning(group: ReplicaGroup, master: int = 1) -> None:
    """Let the master's log begin later, by expiring all files but the last."""
    keep = b"fileReservedTime=0.0000001\ndeleteWhen=*\n"
    request_replica(group, master, Command(RequestCode.UPDATE_BROKER_CONFIG, body=keep))

    def is_deleted() -> bool:
        request_replica(group, master, Command(RequestCode.DELETE_EXPIRED_COMMITLOG))
        return group.status(master).begin[0] > 0

    poll_until(is_deleted, 20)
