"""Headers of the sending family. A send comes with long names (10, 324) or with letters (310, 320, 325)."""

from __future__ import annotations

from dataclasses import dataclass, fields

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.headers.base import Header, Long, header, named


@dataclass(frozen=True, slots=True)
class MessageHeader(Header):
    """What is told of a message in the body; `properties` as a record has them."""

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
    """A message, or with `batch` a sequence of them."""

    max_reconsume_times: int | None = None
    batch: bool = False


@header(RequestCode.SEND_MESSAGE_V2)
class SendMessageV2(SendMessage):
    """The same with letters for names."""

    producer_group: str = named("a")
    topic: str = named("b")
    default_topic: str = named("c")
    default_topic_queue_nums: int = named("d")
    queue_id: int = named("e")
    sys_flag: int = named("f")
    born_timestamp: Long = named("g")
    flag: int = named("h")
    properties: str = named("i", default="")
    reconsume_times: int = named("j", default=0)
    unit_mode: bool = named("k", default=False)
    max_reconsume_times: int | None = named("l", default=None)
    batch: bool = named("m", default=False)


@header(RequestCode.SEND_BATCH_MESSAGE)
class SendBatchMessage(SendMessageV2):
    """Always a batch, whatever `batch` says."""


@header(RequestCode.SEND_REPLY_MESSAGE)
class SendReplyMessage(SendMessage):
    """The answer to a request of another client."""


@header(RequestCode.SEND_REPLY_MESSAGE_V2)
class SendReplyMessageV2(SendMessageV2):
    """The same with letters for names."""


@header(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
class PushReplyMessage(MessageHeader):
    """To the client that asked: the reply as its sender told it. Hosts are written as Java prints them."""

    born_host: str = ""
    store_host: str = ""
    store_timestamp: Long = 0

    @classmethod
    def of(cls, message: MessageHeader, **others: str | int) -> PushReplyMessage:
        """What is told of `message`, with `others` besides or instead."""
        told = {field.name: getattr(message, field.name) for field in fields(MessageHeader)}
        return cls(**told | others)


@header(RequestCode.CONSUMER_SEND_MSG_BACK)
class ConsumerSendMsgBack(Header):
    """The message at the physical offset `offset` failed; see `redelivery.retry` for `delay_level`.

    `failure` is ours: why it failed, "" where that is not said.
    """

    offset: Long
    group: str
    delay_level: int
    origin_msg_id: str = ""
    origin_topic: str = ""
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    failure: str = named("raymqFailure", default="")
