"""Headers of the pop family, and the receipt handle that identifies a delivery."""

from __future__ import annotations

from typing import NamedTuple, Self

from raymq.actors.errors import ProtocolError
from raymq.actors.naming import RETRY_PREFIX
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.header import Header, Long, header, wire_field

#: Value of `queue_id`: all queues of the topic.
ANY_QUEUE = -1
#: Values of `init_mode`: a new group starts at the oldest message, or after the newest.
FROM_MIN, FROM_MAX = 0, 1
#: Value of `revive_qid`: the delivery was popped in order. RayMQ has no revive queues, so other deliveries have 0.
ORDERED_REVIVE_QUEUE = 999


@header(RequestCode.POP_MESSAGE)
class PopMessage(Header):
    """Fields of the request that delivers messages for `invisible_time` ms.

    If there is no message it waits up to `poll_time` ms for the first one.

    Ours: `max_reconsume_times`, after how many retries a message of this pop becomes a dead letter, by default as the
    group is configured; `member`, the client id that pops; `ahead`: the messages are prefetched and not processed yet,
    so that the delivery does not count before SETTLE_DELIVERIES says so; `begun`: processing begins at once, as if
    SETTLE_DELIVERIES had said so.
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
    max_reconsume_times: int | None = wire_field("raymqMaxReconsumeTimes", default=None)
    member: str | None = wire_field("raymqMember", default=None)
    ahead: bool = wire_field("raymqAhead", default=False)
    begun: bool = wire_field("raymqBegun", default=False)


@header(RequestCode.NOTIFICATION)
class Notification(Header):
    """Fields of the request that waits until a pop would find a message.

    It waits up to `poll_time` ms; ours: `member`, as in a pop.
    """

    consumer_group: str
    topic: str
    queue_id: int
    poll_time: Long
    born_time: Long
    order: bool = False
    attempt_id: str | None = None
    member: str | None = wire_field("raymqMember", default=None)


@header(RequestCode.ACK_MESSAGE)
class AckMessage(Header):
    """Fields of the request that acknowledges the message of a handle."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: Long


@header(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
class ChangeInvisibleTime(Header):
    """Fields of the request that makes a delivery last `invisible_time` ms from now.

    The delivery gets another handle. `undelivered` is ours: no consumer has received the message, so that this delivery
    does not count.
    """

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: Long
    invisible_time: Long
    undelivered: bool | None = wire_field("raymqUndelivered", default=None)


def retry_mark(topic: str) -> str:
    """Return the mark of a topic in handles: "1" for a retry topic, else "0"."""
    return "1" if topic.startswith(RETRY_PREFIX) else "0"


class ReceiptHandle(NamedTuple):
    """The identity of one delivery of one message: eight words on the wire.

    RocketMQ's proxy appends a ninth one, the physical offset, which is ignored.

    `start_offset` is the lowest offset of its pop in that queue; the bits of batch acknowledgements count from it.
    `retry` is the result of `retry_mark`.
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
        """Parse a handle from its text on the wire; raise ProtocolError if it is invalid."""
        try:
            start, pop_time, invisible, revive, retry, broker, queue_id, offset, *more = text.split(" ")
            if len(more) > 1 or any(not word.isdecimal() for word in more):
                raise ValueError
            numbers = [int(word) for word in (start, pop_time, invisible, revive, queue_id, offset)]
            if not all(-(1 << 63) <= number < 1 << 63 for number in numbers):
                raise ValueError
            first, at_ms, for_ms, revive_queue, queue, place = numbers
            return cls(first, at_ms, for_ms, revive_queue, retry, broker, queue, place)
        except ValueError:
            raise ProtocolError(f"{text!r} is not a receipt handle") from None

    def __str__(self) -> str:
        return " ".join(map(str, self))
