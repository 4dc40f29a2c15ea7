"""Bodies that are longer than a broker takes, found before a byte of them is sent.

A broker refuses such a body itself, with the same error. But of one that is longer than its frames may be it does not
even read that far: it closes the connection, and who sent would not know why. What every broker reads is left to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import TopicRoute
from raymq.storage.records import record as layout
from raymq.storage.records.limits import DEFAULT_MESSAGE_BYTES, TOO_LONG
from raymq.storage.records.record import Buffer

#: So many bytes of records fit into a frame of any broker, whatever it allows: they need not be looked at.
READ_BY_ALL_BYTES: Final = DEFAULT_MESSAGE_BYTES


def limit_of(route: TopicRoute | None, broker: str) -> int:
    """The longest body that a broker takes; the default where it, or its name server, does not say."""
    limit = None if route is None else route.max_body_bytes(broker)
    return DEFAULT_MESSAGE_BYTES if limit is None else limit


def longest_body(records: Buffer, sizes: Sequence[int] | npt.NDArray[np.integer]) -> int:
    """The length of the longest body in contiguous records, as far as it matters: 0 where none could be too long.

    Raises:
        StoreCorrupt: a record that is so long is none.
    """
    longest = 0
    if len(records) > READ_BY_ALL_BYTES:
        ends = np.cumsum(sizes, dtype=np.int64)
        for number in np.flatnonzero(np.asarray(sizes) > READ_BY_ALL_BYTES).tolist():
            end = int(ends[number])
            begin = end - int(sizes[number])
            version, body_at, topic_at, _, _ = layout.locate(records, begin, end, check_crc=False)
            longest = max(longest, topic_at - version - body_at)
    return longest


def refuse_longer(longest: int, limit: int) -> None:
    """InvalidInput for a body of `longest` bytes where the brokers take `limit`, and that is less."""
    if longest > limit:
        raise too_long(longest, limit)


def too_long(longest: int, limit: int) -> InvalidInput:
    """The error of a body of `longest` bytes where the brokers take `limit`."""
    return InvalidInput("body", f"1 to {limit} bytes", longest, remedy=TOO_LONG)
