"""Headers of the pop family, and the handle that names a delivery."""

from __future__ import annotations

from typing import NamedTuple, Self

from raymq.actors.errors import ProtocolError
from raymq.actors.naming import RETRY_PREFIX
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.base import Header, Long, header, named

#: Of `queue_id`: all queues of the topic.
ANY_QUEUE = -1
#: Of `init_mode`: a group that begins starts at the oldest message, or behind the newest.
FROM_MIN, FROM_MAX = 0, 1
#: Of `revive_qid`: the delivery was popped in order. Otherwise there is no such queue here, and it is 0.
ORDERED_REVIVE_QUEUE = 999


@header(RequestCode.POP_MESSAGE)
class PopMessage(Header):
    """Lend messages for `invisible_time` ms, wait for the first one up to `poll_time` ms.

    Ours: `max_reconsume_times`, at how many a message of this pop becomes a dead letter, without it the group says;
    `member`, the client id that pops; `ahead`: no call begins yet with what is lent, so that the delivery does not
    count before SETTLE_DELIVERIES says so; `begun`: a call begins with it at once, as if SETTLE_DELIVERIES had said so.
    """

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int
    invisible_time: Long
    poll_time: Long
    born_time: Long
    init_mode: int
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None
    max_reconsume_times: int | None = named("raymqMaxReconsumeTimes", default=None)
    member: str | None = named("raymqMember", default=None)
    ahead: bool = named("raymqAhead", default=False)
    begun: bool = named("raymqBegun", default=False)


@header(RequestCode.NOTIFICATION)
class Notification(Header):
    """Wait until a pop would find something, up to `poll_time` ms; ours: `member`, as that of a pop."""

    consumer_group: str
    topic: str
    queue_id: int
    poll_time: Long
    born_time: Long
    order: bool = False
    attempt_id: str | None = None
    member: str | None = named("raymqMember", default=None)


@header(RequestCode.ACK_MESSAGE)
class AckMessage(Header):
    """The message of a handle is done."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: Long


@header(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
class ChangeInvisibleTime(Header):
    """The delivery of a handle lasts `invisible_time` ms from now on, and gets another handle.

    `undelivered` is ours: nobody has seen the message, so that this delivery does not count.
    """

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: Long
    invisible_time: Long
    undelivered: bool | None = named("raymqUndelivered", default=None)


def retry_mark(topic: str) -> str:
    """How handles mark a topic."""
    return "1" if topic.startswith(RETRY_PREFIX) else "0"


class Handle(NamedTuple):
    """Which delivery of which message: eight words on the wire.

    `start_offset` is the lowest of its pop in that queue: batch acknowledgements count from there. `retry` is as
    `retry_mark` says.
    """

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    retry: str
    broker: str
    queue_id: int
    offset: int

    @classmethod
    def read(cls, text: str) -> Self:
        """From the wire; ProtocolError if it is none."""
        try:
            start, pop_time, invisible, revive, retry, broker, queue_id, offset = text.split(" ")
            numbers = [int(word) for word in (start, pop_time, invisible, revive, queue_id, offset)]
            if not all(-(1 << 63) <= number < 1 << 63 for number in numbers):
                raise ValueError
            first, at_ms, for_ms, revive_queue, queue, place = numbers
            return cls(first, at_ms, for_ms, revive_queue, retry, broker, queue, place)
        except ValueError:
            raise ProtocolError(f"{text!r} is no receipt handle") from None

    def __str__(self) -> str:
        return " ".join(map(str, self))
