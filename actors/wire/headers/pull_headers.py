"""Headers of the pull family."""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.header import Header, Long, header

#: Bits of `sys_flag`: commit `commit_offset`; the request may be parked; the subscription is in the request.
COMMIT_OFFSET = 1
MAY_PARK = 2
HAS_SUBSCRIPTION = 4


@header(RequestCode.PULL_MESSAGE)
class PullMessage(Header):
    """Fields of the request that reads one queue from `queue_offset` on.

    The answer has at most `max_msg_nums` messages and `max_msg_bytes` bytes.
    """

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: Long
    max_msg_nums: int
    sys_flag: int = 0
    commit_offset: Long = 0
    suspend_timeout_millis: Long = 0
    subscription: str | None = None
    sub_version: Long = 0
    expression_type: str | None = None
    max_msg_bytes: int = 256 * 1024


@header(RequestCode.LITE_PULL_MESSAGE)
class LitePullMessage(PullMessage):
    """The same fields, sent by RocketMQ's lite pull consumer."""
