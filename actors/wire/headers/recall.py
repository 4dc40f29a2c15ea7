"""Headers of the commands that call messages back."""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.base import Header, header


@header(RequestCode.RECALL_MESSAGE)
class RecallMessage(Header):
    """RocketMQ's; it answers the unique key."""

    topic: str
    recall_handle: str
