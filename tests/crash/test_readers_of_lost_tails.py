"""A master that lacks what readers have seen tells them so: they get every message that is acknowledged afterwards.

Messages that are lost have places, which are given to other messages. Who was told the lost ones would take these for
read, and skip them.
"""

from __future__ import annotations

import contextlib

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.headers.pull_headers import HAS_SUBSCRIPTION, PullMessage
from raymq.client import ConsumeFrom, ConsumeResult, Message, OffsetOutOfRange, PullConsumer, PushConsumer, RayMQError
from tests.integration.foreign import Foreign
from tests.polling import poll_until
from tests.replica_clients import Clients, numbered
from tests.replica_group import GROUP, ReplicaGroup

pytestmark = [pytest.mark.crash, pytest.mark.timeout(150)]

QUEUE = MessageQueue("t", GROUP, 0)
LOST, AFTER = numbered(10, 30, "lost"), numbered(0, 60, "after")
#: What is there before a reader asks that names no epoch.
EARLY = numbered(0, 5, "early")


class Pulling:
    """A reader that goes on where it is sent to."""

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
            return False  # nobody is there to answer
        return set(wanted) <= set(self.seen)


def asked_from(address: str, offset: int) -> int:
    """Where a client of another language is sent that pulls from there."""
    pull = PullMessage(
        consumer_group="foreign",
        topic="t",
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=HAS_SUBSCRIPTION,
        subscription="*",
    )
    with Foreign(address) as client:
        answer = client.ask(pull.command())
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    return int(answer.fields["nextBeginOffset"])


@pytest.mark.long
@pytest.mark.parametrize("successor", [2, 3])
@pytest.mark.parametrize("group", [{"replicas": 3}], indirect=True)
def test_readers_that_were_further_than_an_unclean_master_get_all_that_comes_afterwards(
    group: ReplicaGroup, successor: int
) -> None:
    """Also where the unclean master was lost in turn, and its own successor is elected as usual."""
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
        pulling = Pulling(clients)
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
        if successor == 2:  # one who comes only behind another election is not known to have been further
            assert asked_from(group.addresses[2], 30) == 10, "a client of another language is sent to the cut"
        clients.send(*AFTER)
        poll_until(lambda: pulling.has(AFTER), 30, "all that came afterwards was pulled")
        poll_until(lambda: set(AFTER) <= set(pushed), 30, "all that came afterwards was read")
        assert pulling.was_sent_back == 1
        consumer.shutdown()
