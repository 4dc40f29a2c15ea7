"""Test that a master behind its readers resets them, so that they get every message acknowledged later.

The offsets of lost messages are reused. A reader of the lost ones would take the new ones for read, and skip them.
"""

from __future__ import annotations

import contextlib

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.headers.pull_headers import HAS_SUBSCRIPTION, PullMessage
from raymq.client import ConsumeFrom, ConsumeResult, Message, OffsetOutOfRange, PullConsumer, PushConsumer, RayMQError
from tests.integration.foreign_client import ForeignClient
from tests.polling import poll_until
from tests.replica_clients import Clients, numbered
from tests.replica_group import GROUP, ReplicaGroup

pytestmark = [pytest.mark.crash, pytest.mark.timeout(150)]

QUEUE = MessageQueue("t", GROUP, 0)
LOST, AFTER = numbered(10, 30, "lost"), numbered(0, 60, "after")
#: Messages before the first read that names no epoch.
EARLY = numbered(0, 5, "early")


class ResettingReader:
    """A reader that seeks to where an error sends it."""

    def __init__(self, clients: Clients) -> None:
        self._pull = PullConsumer(clients.mq, "further")
        self._pull.seek(QUEUE, 0)
        self.seen: list[bytes] = []
        self.was_sent_back = 0

    def has(self, wanted: list[bytes]) -> bool:
        try:
            self.seen += [each.body for each in self._pull.poll(QUEUE, 100, 0.5)]
        except OffsetOutOfRange as error:
            self.was_sent_back += 1
            self._pull.seek(QUEUE, error.max_offset)
        except RayMQError:
            return False  # no broker answers
        return set(wanted) <= set(self.seen)


def pull_offset_after_reset(address: str, offset: int) -> int:
    """Return the offset to which a client in another language is sent that pulls from `offset`."""
    pull = PullMessage(
        consumer_group="foreign",
        topic="t",
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=HAS_SUBSCRIPTION,
        subscription="*",
    )
    with ForeignClient(address) as client:
        answer = client.ask(pull.command())
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    return int(answer.fields["nextBeginOffset"])


@pytest.mark.long
@pytest.mark.parametrize("successor", [2, 3])
@pytest.mark.parametrize("group", [{"replicas": 3}], indirect=True)
def test_readers_ahead_of_unclean_master_get_later_messages(group: ReplicaGroup, successor: int) -> None:
    """Check it also where the unclean master is lost in turn, and its successor is elected as usual."""
    group.begin()
    clients = Clients(group)
    pushed: list[bytes] = []

    def listener(messages: list[Message]) -> ConsumeResult:
        pushed.extend(each.body for each in messages)
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(clients.mq, "pushed", {"t": "*"}, listener, consume_from=ConsumeFrom.FIRST)
    with contextlib.closing(clients.mq):
        clients.admin.create_topic("t", queues=1)
        consumer.start()
        pulling = ResettingReader(clients)
        clients.send(*numbered(0, 10))
        group.kill(2, 3)
        group.await_in_sync(1, timeout=60)
        clients.send(*LOST)
        poll_until(lambda: pulling.has(LOST) and set(LOST) <= set(pushed), 30, "all were read")

        group.kill(1)
        group.wipe(1)
        group.start(2, 3)
        group.await_claimed(2, 3)
        group.elect(2, unclean=True)
        group.await_in_sync(2, 3)
        if successor == 3:
            group.kill(2)
            group.elect(3)
        clients.send(*EARLY)
        if successor == 2:  # after another election the group does not know that this client was ahead
            assert pull_offset_after_reset(group.addresses[2], 30) == 10, (
                "a client of another language is sent to the cut"
            )
        clients.send(*AFTER)
        poll_until(lambda: pulling.has(AFTER), 30, "all that came afterwards was pulled")
        poll_until(lambda: set(AFTER) <= set(pushed), 30, "all that came afterwards was read")
        assert pulling.was_sent_back == 1
        consumer.shutdown()
