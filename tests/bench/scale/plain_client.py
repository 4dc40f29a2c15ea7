"""A client that speaks RocketMQ's protocol and nothing of ours, so that it measures both brokers alike.

One thread, one connection. Its own steps are in what it measures, for both.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pull_headers import HAS_SUBSCRIPTION, PullMessage
from raymq.actors.wire.headers.send_headers import SendBatchMessage, SendMessage, SendMessageV2
from raymq.storage.records.record import encode_properties
from tests.integration.foreign_client import ForeignClient

ANSWER_SECONDS: Final = 60.0
#: Requests under way while many are sent.
_WINDOW: Final = 64
_KEY_CHARACTERS: Final = 32
_FETCHED: Final = 32


class PlainClient:
    """Closed by the end of a `with` block."""

    def __init__(self, address: str, body_bytes: int) -> None:
        self._connection = ForeignClient(address)
        self._body = b"x" * body_bytes
        self._numbers = itertools.count(time.time_ns())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(self, topic: str, queue_id: int) -> None:
        """One message; returns when it is acknowledged."""
        self._connection.done(self._message(SendMessageV2, topic, queue_id, self._body))

    def fetch(self, topic: str, queue_id: int) -> int:
        """Pull up to 32 messages from the beginning of a queue; how many bytes came, 0 where there is none yet."""
        request = PullMessage("scale", topic, queue_id, 0, _FETCHED, HAS_SUBSCRIPTION, subscription="*")
        answer = self._connection.ask(request.command(), ANSWER_SECONDS)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND):
            raise RuntimeError(f"not fetched: {answer.code} {answer.remark}")
        return len(answer.body)

    def send_timers(self, topic: str, times_ms: Iterable[int]) -> Iterator[int]:
        """Messages that are to come at these times (Unix, milliseconds); yields 1 for each that is acknowledged."""
        return self._send_many(
            self._message(SendMessageV2, topic, 0, self._body, TIMER_DELIVER_MS=str(each)) for each in times_ms
        )

    def send_batches(self, queues: Iterable[tuple[str, int]], count: int) -> Iterator[int]:
        """A batch of so many messages to each queue; yields `count` for each batch that is acknowledged."""
        members = _Members(self._body, count)
        batches = (
            self._message(SendBatchMessage, topic, queue_id, members.with_keys(next(self._numbers)))
            for topic, queue_id in queues
        )
        return (count for _ in self._send_many(batches))

    def _message(self, header: type[SendMessage], topic: str, queue_id: int, body: bytes, **properties: str) -> Command:
        told = encode_properties({"UNIQ_KEY": f"{next(self._numbers):0{_KEY_CHARACTERS}d}", **properties}).decode()
        told_of: dict[str, Any] = {
            "producer_group": "scale",
            "topic": topic,
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "queue_id": queue_id,
            "sys_flag": 0,
            "born_timestamp": time.time_ns() // 1_000_000,
            "flag": 0,
            "properties": told,
            "batch": header is SendBatchMessage,
        }
        return header(**told_of).command(body)

    def _send_many(self, commands: Iterable[Command]) -> Iterator[int]:
        under_way: deque[int] = deque()
        for command in commands:
            if len(under_way) >= _WINDOW:
                yield self._stored(under_way.popleft())
            under_way.append(self._connection.send(command))
        while under_way:
            yield self._stored(under_way.popleft())

    def _stored(self, opaque: int) -> int:
        answer = self._connection.answer(opaque, ANSWER_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise RuntimeError(f"not stored: {answer.code} {answer.remark}")
        return 1


class _Members:
    """The messages of a batch as RocketMQ's clients pack them, with other unique keys each time."""

    def __init__(self, body: bytes, count: int) -> None:
        properties = encode_properties({"UNIQ_KEY": "0" * _KEY_CHARACTERS})
        size = 22 + len(body) + len(properties)
        member = (
            struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + struct.pack(">H", len(properties)) + properties
        )
        self._bytes: npt.NDArray[np.uint8] = np.tile(np.frombuffer(member, np.uint8), (count, 1))
        first = member.rindex(b"0" * _KEY_CHARACTERS)
        self._prefix = self._bytes[:, first : first + 20]
        digits = np.arange(count)[:, None] // 10 ** np.arange(_KEY_CHARACTERS - 21, -1, -1) % 10
        self._bytes[:, first + 20 : first + _KEY_CHARACTERS] = digits + ord("0")

    def with_keys(self, number: int) -> bytes:
        """Keys that begin with this number."""
        self._prefix[:] = np.frombuffer(f"{number:020d}".encode(), np.uint8)
        return self._bytes.tobytes()
