"""What a user sends and receives.

`Message` is checked when it is made: every rule of names, sizes and characters raises `InvalidInput` with the rule.
`ReceivedMessage` is one delivery: the original's topic, id and properties, and this copy's place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from raymq.actors.naming import check_sendable
from raymq.actors.protocol import MessageQueue
from raymq.client.receipt import Receipt
from raymq.client.unique_key import new_unique_key
from raymq.storage import compression, properties
from raymq.storage.errors import InvalidInput
from raymq.storage.record import (
    MAX_PROPERTIES_BYTES,
    Record,
    encode,
    encode_properties,
)

MAX_BODY_BYTES = 4 * 1024 * 1024
#: Characters that RocketMQ's property string uses as separators, and NUL.
_FORBIDDEN = "\x00\x01\x02"
#: What a time in milliseconds can express.
_END_OF_TIME_SECONDS = float(1 << 52)


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send.

    Attributes:
        topic: where to; letters, digits and % | _ -, at most 127 characters.
        body: 1 byte to 4 MiB.
        tags: what subscriptions filter by; one tag, no blank-separated list.
        keys: what `Admin.query_by_key` finds it by; one string or several, none with a blank in it.
        properties: text to text; names of the system's own are refused.
        delay_level: 0 at once, 1..18 after that level's wait (higher ones clamp).
        deliver_at: not before this time, seconds since the epoch, at most 40 days ahead; a time that has passed is
            at once.
        unique_key: the id given by the producer. The same object sent twice is the same message.

    Raises:
        InvalidInput: a rule is broken; its `.field`, `.limit` and `.actual` say which.
        TypeError: a value of the wrong type.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: Iterable[str] = ()
    properties: Mapping[str, str] | None = None
    delay_level: int = 0
    deliver_at: float | None = None
    unique_key: str = field(default_factory=new_unique_key, kw_only=True)

    def __post_init__(self) -> None:
        check_sendable(self.topic)
        if not isinstance(self.body, bytes | bytearray | memoryview):
            raise TypeError(f"body must be bytes, not {type(self.body).__name__}")
        object.__setattr__(self, "body", bytes(self.body))
        if not 1 <= len(self.body) <= MAX_BODY_BYTES:
            raise InvalidInput("body", f"1..{MAX_BODY_BYTES} bytes", len(self.body))
        if self.tags is not None:
            _check_text("tags", self.tags)
            if not self.tags.strip() or "||" in self.tags:
                raise InvalidInput("tags", "one tag, not blank, without ||", self.tags)
        object.__setattr__(self, "keys", (self.keys,) if isinstance(self.keys, str) else tuple(self.keys))
        for key in self.keys:
            _check_text("keys", key)
            if not key or " " in key:
                raise InvalidInput("keys", "at least one character and no blank in a key", key)
        own = dict(self.properties or {})
        for name, value in own.items():
            _check_text("properties", name)
            _check_text("properties", value)
            if not name or name in properties.SYSTEM_PROPERTIES:
                raise InvalidInput("properties", "a name that is not empty and not one of the system's own", name)
        object.__setattr__(self, "properties", own)
        self._check_delay()
        if len(self.stored_properties()) > MAX_PROPERTIES_BYTES:
            limit = f"at most {MAX_PROPERTIES_BYTES} bytes, keys and tags included"
            raise InvalidInput("properties", limit, len(self.stored_properties()))

    def _check_delay(self) -> None:
        if not isinstance(self.delay_level, int) or isinstance(self.delay_level, bool):
            raise TypeError(f"delay_level must be int, not {type(self.delay_level).__name__}")
        if self.delay_level < 0:
            raise InvalidInput("delay_level", "at least 0", self.delay_level)
        if self.deliver_at is not None:
            if not isinstance(self.deliver_at, int | float) or isinstance(self.deliver_at, bool):
                raise TypeError(f"deliver_at must be a number, not {type(self.deliver_at).__name__}")
            if not 0 <= self.deliver_at < _END_OF_TIME_SECONDS:
                raise InvalidInput("deliver_at", "seconds since the epoch", self.deliver_at)
            if self.delay_level:
                raise InvalidInput("deliver_at", "not together with delay_level", self.deliver_at)

    @property
    def is_delayed(self) -> bool:
        """Whether it asks to wait first."""
        return self.delay_level > 0 or self.deliver_at is not None

    @property
    def due_ms(self) -> int | None:
        """`deliver_at` as the first millisecond that is not before it."""
        return None if self.deliver_at is None else math.ceil(self.deliver_at * 1000)

    def stored_properties(self) -> bytes:
        """The property string of its record."""
        stored = {properties.UNIQ_KEY: self.unique_key, **(self.properties or {})}
        if self.keys:
            stored[properties.KEYS] = properties.KEY_SEPARATOR.join(self.keys)
        if self.tags is not None:
            stored[properties.TAGS] = self.tags
        if self.delay_level:
            stored[properties.DELAY] = str(self.delay_level)
        if self.deliver_at is not None:
            stored[properties.TIMER_DELIVER_MS] = str(self.due_ms)
        return encode_properties(stored)

    def encode(self, born_timestamp_ms: int, born_host: bytes) -> bytes:
        """Its record, ready for a broker's store; the queue id is filled in when a queue is chosen."""
        return encode(
            self.topic, 0, self.body, self.stored_properties(), born_timestamp_ms=born_timestamp_ms, born_host=born_host
        )


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be str, not {type(value).__name__}")
    if any(character in value for character in _FORBIDDEN):
        raise InvalidInput(name, "none of the characters \\x00 \\x01 \\x02", value)


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """One delivery of a message. Times are seconds since the epoch.

    `topic`, `message_id`, `born_timestamp`, `keys`, `tags` and `properties` are the original's, however often it was
    retried; `queue`, `queue_offset`, `store_timestamp` and `reconsume_times` are those of this copy.
    """

    topic: str
    body: bytes
    tags: str | None
    keys: list[str]
    properties: dict[str, str]
    system_properties: dict[str, str]
    message_id: str
    unique_key: str | None
    queue: MessageQueue
    queue_offset: int
    physical_offset: int
    born_timestamp: float
    store_timestamp: float
    reconsume_times: int
    #: What acknowledges it, if a simple consumer received it.
    receipt: Receipt | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_record(cls, record: Record, broker: str, receipt: Receipt | None = None) -> ReceivedMessage:
        """The message in a record that `broker` served."""
        own: dict[str, str] = {}
        system: dict[str, str] = {}
        for name, value in record.properties.items():
            (system if name in properties.SYSTEM_PROPERTIES else own)[name] = value
        return cls(
            topic=system.get(properties.RETRY_TOPIC, record.topic),
            body=compression.decompress(record.body, record.sys_flag),
            tags=record.tags,
            keys=record.keys,
            properties=own,
            system_properties=system,
            message_id=system.get(properties.ORIGIN_MESSAGE_ID, record.message_id),
            unique_key=record.unique_key,
            queue=MessageQueue(record.topic, broker, record.queue_id),
            queue_offset=record.queue_offset,
            physical_offset=record.physical_offset,
            born_timestamp=record.born_timestamp_ms / 1000,
            store_timestamp=record.store_timestamp_ms / 1000,
            reconsume_times=record.reconsume_times,
            receipt=receipt,
        )
