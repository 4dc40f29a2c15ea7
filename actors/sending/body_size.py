"""Refuse bodies that are longer than a broker accepts, before anything is sent.

A broker refuses such a body with the same error. But it closes the connection without an answer if the body exceeds its
greatest frame, and the sender would not know why. Bodies that fit into every broker's frames are left to the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import TopicRoute
from raymq.storage.records import record as layout
from raymq.storage.records.message_limits import DEFAULT_MESSAGE_BYTES, TOO_LONG
from raymq.storage.records.record import Buffer

#: Records of so many bytes fit into a frame of any broker, whatever its settings, and need no check.
ALWAYS_READABLE_BYTES: Final = DEFAULT_MESSAGE_BYTES


def body_limit(route: TopicRoute | None, broker: str) -> int:
    """Return the longest body that a broker accepts.

    It is the default if neither the broker nor its name server reports a limit.
    """
    limit = None if route is None else route.max_body_bytes(broker)
    return DEFAULT_MESSAGE_BYTES if limit is None else limit


def longest_body(records: Buffer, sizes: Sequence[int] | npt.NDArray[np.integer]) -> int:
    """Return the length of the longest body in contiguous records; 0 if all are short.

    Short records, of at most `ALWAYS_READABLE_BYTES`, are not counted.

    Raises:
        StoreCorrupt: a longer record is malformed.
    """
    longest = 0
    if len(records) > ALWAYS_READABLE_BYTES:
        ends = np.cumsum(sizes, dtype=np.int64)
        for number in np.flatnonzero(np.asarray(sizes) > ALWAYS_READABLE_BYTES).tolist():
            end = int(ends[number])
            begin = end - int(sizes[number])
            version, body_at, topic_at, _, _ = layout.locate(records, begin, end, check_crc=False)
            longest = max(longest, topic_at - version - body_at)
    return longest


def check_body_size(longest: int, limit: int) -> None:
    """Raise InvalidInput if a body of `longest` bytes exceeds the brokers' `limit`."""
    if longest > limit:
        raise body_too_long(longest, limit)


def body_too_long(longest: int, limit: int) -> InvalidInput:
    """Return the error of a body of `longest` bytes above the brokers' `limit`."""
    return InvalidInput("body", f"1 to {limit} bytes", longest, remedy=TOO_LONG)
