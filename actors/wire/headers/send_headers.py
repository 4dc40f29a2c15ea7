"""Headers of the send family.

A send request has long field names (codes 10, 324) or single letters (310, 320, 325).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.header import Header, Long, header, wire_field


@dataclass(frozen=True, slots=True)
class MessageHeader(Header):
    """The fields that describe the message in the body.

    `properties` has the encoding of a record's properties.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: Long
    flag: int
    properties: str = ""
    reconsume_times: int = 0
    unit_mode: bool = False


@header(RequestCode.SEND_MESSAGE)
class SendMessage(MessageHeader):
    """Fields of a send of one message, or with `batch` of a sequence of messages."""

    max_reconsume_times: int | None = None
    batch: bool = False


@header(RequestCode.SEND_MESSAGE_V2)
class SendMessageV2(SendMessage):
    """The same fields with single letters as names."""

    producer_group: str = wire_field("a")
    topic: str = wire_field("b")
    default_topic: str = wire_field("c")
    default_topic_queue_nums: int = wire_field("d")
    queue_id: int = wire_field("e")
    sys_flag: int = wire_field("f")
    born_timestamp: Long = wire_field("g")
    flag: int = wire_field("h")
    properties: str = wire_field("i", default="")
    reconsume_times: int = wire_field("j", default=0)
    unit_mode: bool = wire_field("k", default=False)
    max_reconsume_times: int | None = wire_field("l", default=None)
    batch: bool = wire_field("m", default=False)


@header(RequestCode.SEND_BATCH_MESSAGE)
class SendBatchMessage(SendMessageV2):
    """Fields of a batch send; the value of `batch` is ignored."""


@header(RequestCode.SEND_REPLY_MESSAGE)
class SendReplyMessage(SendMessage):
    """Fields of the reply to a request of another client."""


@header(RequestCode.SEND_REPLY_MESSAGE_V2)
class SendReplyMessageV2(SendMessageV2):
    """The same fields with single letters as names."""


@header(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
class PushReplyMessage(MessageHeader):
    """Fields of a broker's request that passes a reply to the requesting client.

    They are as the reply's sender sent them. Hosts are written as Java prints them.
    """

    born_host: str = ""
    store_host: str = ""
    store_timestamp: Long = 0

    @classmethod
    def of(cls, message: MessageHeader, **others: str | int) -> PushReplyMessage:
        """Return the fields of `message`, with `others` added or replaced."""
        values = {field.name: getattr(message, field.name) for field in fields(MessageHeader)}
        return cls(**values | others)


@header(RequestCode.CONSUMER_SEND_MSG_BACK)
class ConsumerSendMsgBack(Header):
    """Fields of the report that a consumer failed on the message at physical offset `offset`.

    `redelivery.retry` describes `delay_level`. `failure` is ours: the reason, "" if it is not given.
    """

    offset: Long
    group: str
    delay_level: int
    origin_msg_id: str = ""
    origin_topic: str = ""
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    failure: str = wire_field("raymqFailure", default="")
