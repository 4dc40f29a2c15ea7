"""Headers of the commands that recall delayed messages."""

from __future__ import annotations

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.header import Header, header


@header(RequestCode.RECALL_MESSAGE)
class RecallMessage(Header):
    """Fields of RocketMQ's recall request; the answer has the message's unique key."""

    topic: str
    recall_handle: str
