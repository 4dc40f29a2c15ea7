"""The messages that a user sends and receives.

`Message` is checked when it is created: a value that breaks a rule of names, sizes and characters raises `InvalidInput`
with the rule. `ReceivedMessage` is one delivery: the original's topic, id and properties, and the position of this
copy.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import repeat
from operator import attrgetter, index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from raymq.actors.naming import check_sendable, check_topic
from raymq.actors.protocol import MessageQueue
from raymq.client import arguments
from raymq.client.lazy_record import CompressedBody, RecordSource
from raymq.client.receipt import Receipt
from raymq.client.timestamps import checked_due_time
from raymq.storage.errors import InvalidInput
from raymq.storage.records import message_limits, native_kernels
from raymq.storage.records import property_names as properties
from raymq.storage.records.record import SYS_FLAG_COMPRESSED, Record, decode, encode_properties
from raymq.storage.records.record_template import record_template
from raymq.storage.records.unique_key_generator import KEY_CHARACTERS, PAIR_BYTES, process_unique_keys

#: Characters that RocketMQ's property string uses as separators, and NUL.
_find_forbidden = re.compile("[\x00\x01\x02]").search
_ENCODE: Final = ': encode the text, as "...".encode() does'
#: The number of bytes of a body that `repr` shows.
_SHOWN_BYTES: Final = 32
_set = object.__setattr__
_unique_keys: Final = process_unique_keys()


class PlainMessageFields:
    """The fields of a `Message`, without compiled code."""

    #: The unique key: its text, or the number that stands for it in this process, or None before it is assigned.
    _key: str | int | None = None
    #: The encoded properties of the record after the unique key.
    own_properties: bytes = b""
    #: Whether it has a delay level or a delivery time.
    is_delayed: bool = False


def _number_messages(messages: list[Any], first: int) -> Sequence[str | int]:
    """Do `key_numbers` for messages with plain fields."""
    numbers = range(first, first + len(messages))
    return list(map(dict.setdefault, map(attrgetter("__dict__"), messages), repeat("_key"), numbers))


if TYPE_CHECKING or native_kernels.kernels is None:
    MessageFields = PlainMessageFields
else:
    MessageFields, _number_messages = native_kernels.kernels.MessageFields, native_kernels.kernels.number_messages


@dataclass(frozen=True, init=False, eq=False)
class Message(MessageFields):
    """One message to send.

    Attributes:
        topic: its topic; letters, digits and % | _ -, at most 127 characters.
        body: at least 1 byte, at most the brokers' `max_message_bytes` (4 MiB by default).
        tags: the tag that subscriptions filter by; one tag, no blank-separated list.
        keys: the keys by which `Admin.query_by_key` finds it; one string or several, none with a blank in it.
        properties: text to text; names of system properties are refused.
        delay_level: 0 is immediate delivery, 1..18 the delay of that level (higher ones clamp).
        deliver_at: the earliest delivery time, at most 40 days ahead; a time in the past is immediate delivery. Seconds
            since 1970, or a datetime with a time zone, which is kept as seconds.
        unique_key: the id given by the producer. If the same object is sent twice, both copies have the same id.

    Raises:
        InvalidInput: a rule is broken; its `.field`, `.limit` and `.actual` say which.
        TypeError: a value of the wrong type.
    """

    __slots__ = ()

    topic: str
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    delay_level: int
    deliver_at: float | None

    def __init__(
        self,
        topic: str,
        body: bytes,
        tags: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        deliver_at: float | datetime | None = None,
        *,
        unique_key: str | None = None,
    ) -> None:
        self._initialize(topic, body, tags, keys, properties, delay_level, deliver_at, unique_key)

    def _initialize(
        self,
        topic: str,
        body: bytes,
        tags: str | None,
        keys: Iterable[str],
        properties: Mapping[str, str] | None,
        delay_level: int,
        deliver_at: float | datetime | None,
        unique_key: str | None,
    ) -> None:
        """Check all values and set all fields."""
        try:
            topic = check_sendable(topic)
        except TypeError:
            check_topic(topic)  # raises the error for topics that are not hashable, too
            raise
        if type(body) is not bytes:
            if not isinstance(body, bytes | bytearray | memoryview):
                raise TypeError(f"body must be bytes, not {type(body).__name__}" + _ENCODE * isinstance(body, str))
            body = bytes(body)
        # The limit of the brokers' `max_message_bytes` is checked at the send.
        if not 0 < len(body) <= message_limits.MAX_MESSAGE_BYTES:
            raise InvalidInput(
                "body", message_limits.BODY, len(body), remedy=message_limits.ELSEWHERE if body else None
            )
        if unique_key is not None:
            _check_text("unique_key", unique_key)
            if not unique_key:
                raise InvalidInput("unique_key", "at least one character", unique_key)
        delay_level, due = _checked_delay(delay_level, deliver_at)
        own = {"topic": topic, "body": body, "delay_level": delay_level, "deliver_at": due}
        self.__setstate__({**own, "is_delayed": delay_level > 0 or due is not None})
        if unique_key is not None:
            _set(self, "_key", unique_key)
        self._describe(tags, (keys,) if isinstance(keys, str) else tuple(keys), properties)

    def __repr__(self) -> str:
        """Return one line with the beginning of the body and the names of the properties.

        Values of properties are not shown, since they may be secret.
        """
        shown = [f"topic={self.topic!r}", _shown_body(self.body)]
        for name, value in (("tags", self.tags), ("keys", self.keys), ("properties", sorted(self.properties))):
            if value:
                shown.append(f"{name}={value!r}")
        if self.delay_level:
            shown.append(f"delay_level={self.delay_level}")
        if self.deliver_at is not None:
            shown.append(f"deliver_at={self.deliver_at!r}")
        return f"Message({', '.join(shown)})"

    @property
    def unique_key(self) -> str:
        """Return the id given by the producer."""
        key = self._key
        if key is None:
            (key,) = key_numbers([self])
        if not isinstance(key, str):  # stored as text: in a forked child the number would stand for another key
            key = _unique_keys.text(key)
            _set(self, "_key", key)
        return key

    def encode(self, born_timestamp_ms: int, born_host: bytes) -> bytearray:
        """Return its encoded record for a broker's store.

        The queue id is filled in when a queue is chosen.
        """
        template, key = record_template(self.topic, born_host), self._key
        if key is None:
            (key,) = key_numbers([self])
        if isinstance(key, str):
            return template.encode(
                self.body, f"{properties.UNIQ_KEY}\x01{key}\x02".encode() + self.own_properties, born_timestamp_ms
            )
        return template.encode_keyed(_unique_keys, key, self.body, self.own_properties, born_timestamp_ms)

    def __reduce__(self) -> tuple[Any, ...]:
        # The number that stands for a key is valid in this process only.
        own = {name: getattr(self, name) for name in (*_field_names, "own_properties", "is_delayed")} | getattr(
            self, "__dict__", {}
        )
        return _restored, (type(self), {**own, "_key": self.unique_key, "properties": dict(self.properties)})

    def __setstate__(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            _set(self, name, value)  # past the frozen __setattr__

    @property
    def key_pair_bytes(self) -> int:
        """Return the length of the unique key's property with its separators."""
        key = self._key
        if not isinstance(key, str):
            return PAIR_BYTES
        return PAIR_BYTES - KEY_CHARACTERS + len(key.encode())

    @property
    def due_ms(self) -> int | None:
        """Return `deliver_at` in milliseconds, rounded up; None if there is none."""
        return None if self.deliver_at is None else math.ceil(self.deliver_at * 1000)

    def _describe(self, tags: str | None, keys: tuple[str, ...], user_properties: Mapping[str, str] | None) -> None:
        """Check and set tags, keys and properties."""
        if user_properties is not None and not isinstance(user_properties, Mapping):
            raise InvalidInput("properties", "a mapping of text to text", user_properties)
        own = dict(user_properties or {})
        stored = dict(own)
        for name, value in own.items():
            _check_text("properties", name)
            _check_text("properties", value, f"properties[{name!r}]")
            if not name or name in properties.SYSTEM_PROPERTIES:
                raise InvalidInput("properties", message_limits.PROPERTY_NAME, name)
            if not value:  # RocketMQ's consumers would drop it, and its producers refuse it
                raise InvalidInput("properties", message_limits.PROPERTY_VALUE, {name: value}, remedy="leave it out")
        if keys:
            for key in keys:
                _check_text("keys", key)
                if not key or " " in key:
                    raise InvalidInput("keys", message_limits.KEY, key)
            stored[properties.KEYS] = properties.KEY_SEPARATOR.join(keys)
        if tags is not None:
            _check_text("tags", tags)
            if not tags.strip() or "||" in tags:
                raise InvalidInput("tags", message_limits.TAG, tags)
            stored[properties.TAGS] = tags
        if self.delay_level:
            stored[properties.DELAY] = str(self.delay_level)
        if self.deliver_at is not None:
            stored[properties.TIMER_DELIVER_MS] = str(self.due_ms)
        encoded = encode_properties(stored)
        size = len(encoded) + self.key_pair_bytes
        if size > message_limits.MAX_PROPERTIES_BYTES:
            raise InvalidInput("properties", message_limits.PROPERTIES, size)
        described = {"tags": tags, "keys": keys, "properties": MappingProxyType(own)}
        self.__setstate__({**described, "own_properties": encoded})


def key_numbers(messages: list[Message]) -> Sequence[str | int]:
    """Return the unique key of each message, or the number that stands for it.

    `process_unique_keys().text` converts such a number. Messages without a key get one.
    """
    return _number_messages(messages, _unique_keys.reserve(len(messages)))


if MessageFields is not PlainMessageFields:  # the compiled `__init__` takes the same arguments
    Message.__signature__ = inspect.signature(Message)  # type: ignore[attr-defined, unused-ignore]
    del Message.__init__

_field_names: Final = tuple(each.name for each in fields(Message))


def _restored(kind: type[Message], values: Mapping[str, Any]) -> Message:
    message = kind.__new__(kind)
    message.__setstate__(values)
    return message


def _checked_delay(delay_level: int, deliver_at: float | datetime | None) -> tuple[int, float | None]:
    """Return the delay level and the delivery time in seconds if they are valid."""
    if not hasattr(delay_level, "__index__") or isinstance(delay_level, bool):
        raise TypeError(f"delay_level must be int, not {type(delay_level).__name__}")
    delay_level = index(delay_level)
    if delay_level < 0:
        raise InvalidInput("delay_level", message_limits.DELAY_LEVEL, delay_level)
    if deliver_at is None:
        return delay_level, None
    is_time = isinstance(deliver_at, datetime) or hasattr(deliver_at, "__float__")
    if not is_time or isinstance(deliver_at, bool):
        raise TypeError(f"deliver_at must be a number or a datetime, not {type(deliver_at).__name__}")
    due = checked_due_time("deliver_at", deliver_at)
    if delay_level:
        raise InvalidInput("deliver_at", message_limits.DELIVER_AT, due)
    return delay_level, due


def _check_text(name: str, value: object, place: str = "") -> None:
    if not isinstance(value, str):
        raise TypeError(f"{place or name} must be str, not {type(value).__name__}")
    if _find_forbidden(value) is not None:
        raise InvalidInput(name, message_limits.TEXT, value)
    if not value.isascii():
        arguments.encodable(name, value)


def _shown_body(body: bytes) -> str:
    if len(body) <= _SHOWN_BYTES:
        return f"body={body!r}"
    return f"body={body[:_SHOWN_BYTES]!r}... ({len(body)} bytes)"


class _Undecoded:
    """The undecoded record and the receipt of a received message, which are no fields."""

    __slots__ = ("_around", "receipt")
    _around: RecordSource | CompressedBody | None
    #: The handle that acknowledges it, if it was popped. It is pickled too, and left out by `dataclasses.asdict`.
    receipt: Receipt | None


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedMessage(_Undecoded):
    """One delivery of a message. Times are seconds since 1970.

    It can be pickled, copied and hashed. Two are equal if they have the same unique key (None if the producer gave
    none), queue and queue offset: a message and its retry are not equal.

    `topic`, `message_id`, `born_timestamp`, `keys`, `tags` and `properties` are those of the original message, however
    often it was retried; `queue`, `queue_offset`, `store_timestamp` and `reconsume_times` are those of this copy.

    Thread-safe. Most fields are decoded when one of them is first read. A compressed body is decompressed when it is
    read, and again when it is read much later: keep it in a variable to use it often. A body that is marked as
    compressed and is not is returned as it is stored, so that it does not block the messages after it.
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

    def __repr__(self) -> str:
        """Return one line with the position, the retries and the beginning of the body.

        Of the properties only the names are shown.
        """
        shown = [f"queue='{self.queue.broker}/{self.queue.queue_id}'", f"queue_offset={self.queue_offset}"]
        try:
            shown.insert(0, f"topic={self.topic!r}")
            shown.append(f"unique_key={self.unique_key!r}")
            for name, value in (("tags", self.tags), ("keys", self.keys), ("properties", sorted(self.properties))):
                if value:
                    shown.append(f"{name}={value!r}")
            shown.append(f"reconsume_times={self.reconsume_times}")
            is_compressed = isinstance(getattr(self, "_around", None), CompressedBody)
            shown.append("body=<compressed>" if is_compressed else _shown_body(self.body))
        except Exception as error:  # noqa: BLE001 - a damaged record needs a repr, too
            shown.append(f"unreadable: {type(error).__name__}")
        return f"ReceivedMessage({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, ReceivedMessage) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str | None, MessageQueue, int]:
        return self.unique_key, self.queue, self.queue_offset

    def __reduce__(self) -> tuple[Any, ...]:
        values = tuple(getattr(self, each.name) for each in fields(self))
        return _unpickled, (type(self), values, self.receipt)

    @property
    def lease_lost(self) -> bool:
        """Return True if another member may have received this message by now.

        Only for a push consumer with mode="pop"; otherwise it is False.
        """
        return self.receipt is not None and self.receipt.is_lost

    @classmethod
    def from_record(cls, record: Record, broker: str, receipt: Receipt | None = None) -> ReceivedMessage:
        """Return the message in a record that `broker` served."""
        own: dict[str, str] = {}
        system: dict[str, str] = {}
        for name, value in record.properties.items():
            (system if name in properties.SYSTEM_PROPERTIES else own)[name] = value
        message = cls(
            topic=system.get(properties.RETRY_TOPIC, record.topic),
            body=record.body,
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
        )
        _set_receipt(message, receipt)
        if record.sys_flag & SYS_FLAG_COMPRESSED:
            # A few bytes may decompress to megabytes, so the body is decompressed only when it is read.
            _body_slot.__delete__(message)
            _set_around(message, CompressedBody(record.body, record.sys_flag))
        return message

    @property
    def failure(self) -> str | None:
        """Return why the previous try failed, such as "ValueError: no such account".

        None at the first try, and for pop consumers.
        """
        return self.system_properties.get(properties.FAILURE)

    def with_failure(self, failure: str | None = None) -> ReceivedMessage:
        """Return a copy with `reconsume_times` incremented and this failure.

        `failure` is why the last try failed; None: it did not fail.
        """
        around = getattr(self, "_around", None)
        is_compressed = isinstance(around, CompressedBody)
        system = {name: value for name, value in self.system_properties.items() if name != properties.FAILURE}
        if failure is not None:
            system[properties.FAILURE] = failure
        replaced: dict[str, Any] = {"body": b""} if is_compressed else {}
        message = replace(self, reconsume_times=self.reconsume_times + 1, system_properties=system, **replaced)
        _set_receipt(message, self.receipt)
        if is_compressed:
            _body_slot.__delete__(message)
            _set_around(message, around)
        return message

    @classmethod
    def undecoded(
        cls, queue: MessageQueue, offsets: npt.NDArray[np.int64], bodies: list[bytes], around: RecordSource
    ) -> list[ReceivedMessage]:
        """Return messages of valid records whose bodies are not compressed.

        The other fields are decoded when they are read.

        Args:
            offsets: the queue offset of each.
            around: the records without their bodies.
        """
        if native_kernels.kernels is not None:
            # A message is in no reference cycle, so the garbage collector need not track it.
            return native_kernels.kernels.filled(cls, _AT_ONCE, bodies, queue, offsets, around)
        # Without Python code per message: C creates the objects and fills one slot of all of them after the other.
        messages: list[ReceivedMessage] = list(map(cls.__new__, repeat(cls, len(bodies))))
        columns: tuple[Iterable[Any], ...] = (bodies, repeat(queue), offsets.tolist(), repeat(around))
        for fill, values in zip(_SET_AT_ONCE, columns, strict=True):
            deque(map(fill, messages, values), maxlen=0)
        return messages

    @classmethod
    def from_lazy_record(cls, queue: MessageQueue, offset: int, body: bytes, around: RecordSource) -> ReceivedMessage:
        """Return one message as `undecoded` does."""
        message = cls.__new__(cls)
        _set_body(message, body)
        _set_queue(message, queue)
        _set_offset(message, offset)
        _set_around(message, around)
        return message

    if not TYPE_CHECKING:  # hidden from type checkers, so that they still report unknown attributes

        def __getattr__(self, name: str) -> Any:
            # Called for missing attributes only: for a field that is not decoded yet, or for an unknown name.
            if name == "receipt":
                return None
            if name not in _DECODED_LATE and name != "body":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            around = self._around
            if isinstance(around, CompressedBody):
                return around.plain()
            if around is not None:  # None if another thread has just decoded it
                self._decode(around)
            return object.__getattribute__(self, name)

    def _decode(self, around: RecordSource) -> None:
        record = decode(around.record(self.queue_offset, self.body), check_crc=False)
        whole = ReceivedMessage.from_record(record, self.queue.broker)
        for name in _DECODED_LATE:
            object.__setattr__(self, name, getattr(whole, name))
        object.__setattr__(self, "_around", None)


def _unpickled(kind: type[ReceivedMessage], values: tuple[Any, ...], receipt: Receipt | None) -> ReceivedMessage:
    message = kind(*values)
    _set_receipt(message, receipt)
    return message


#: The slots that `undecoded` fills, and their setters, past the frozen __setattr__.
_AT_ONCE: Final = ("body", "queue", "queue_offset", "_around")
_SET_AT_ONCE: Final = tuple(getattr(ReceivedMessage, name).__set__ for name in _AT_ONCE)
_set_body, _set_queue, _set_offset, _set_around = _SET_AT_ONCE
_set_receipt: Final = _Undecoded.__dict__["receipt"].__set__
_body_slot: Final = ReceivedMessage.__dict__["body"]
_DECODED_LATE: Final = frozenset(each.name for each in fields(ReceivedMessage)) - {"body", "queue", "queue_offset"}
