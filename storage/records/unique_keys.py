"""Unique keys (UNIQ_KEY) of messages: RocketMQ's 16 bytes as 32 upper-case hexadecimal digits, made by the thousand.

    address 4 | process id 2 | random 4 | milliseconds since the month began 4 | counter 2

RocketMQ has the hash of a class loader where the random number is. The last six bytes are one number that only rises:
a source that hands out more than 65,536 keys in a millisecond runs ahead of the clock and never repeats itself.
"""

from __future__ import annotations

import datetime as dt
import os
import secrets
import socket
import threading
import time
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raymq.storage.records import property_names as properties

KEY_CHARACTERS: Final = 32
#: The length of the property with its separators.
PAIR_BYTES: Final = len(properties.UNIQ_KEY) + 1 + KEY_CHARACTERS + 1
_COUNTER_BITS: Final = 16
_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
#: The two digits of every byte, as one number of 16 bits whose bytes are the digits.
_DIGITS: Final = np.stack([np.repeat(_HEX, 16), np.tile(_HEX, 16)], axis=1).view(np.uint16).ravel()


def hexadecimal(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Each row of bytes (n x width) as a string of upper-case hexadecimal digits."""
    count, width = rows.shape
    digits = _DIGITS.take(rows)
    offsets = np.arange(count + 1, dtype=np.int64) * (2 * width)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(digits))


class UniqueKeys:
    """A source of unique keys for one process. Thread-safe; after a fork the child calls `restart`."""

    def __init__(self, prefix: bytes | None = None) -> None:
        """`prefix` (10 bytes) stands for address, process id and random number; tests give one."""
        self.restart(prefix)

    def restart(self, prefix: bytes | None = None) -> None:
        """Begin anew with a prefix of this process."""
        self._prefix = _own_prefix() if prefix is None else prefix
        #: What the keys begin with; the twelve digits of their numbers follow.
        self.prefix = self._prefix.hex().upper()
        #: The same as it begins a record's property.
        self.stored_prefix = f"{properties.UNIQ_KEY}\x01{self.prefix}".encode()
        #: A signal handler may make messages on the thread that it has interrupted here.
        self._lock = threading.RLock()
        self._next = 0
        self._month_begins_ms = self._month_ends_ms = 0

    def reserve(self, count: int) -> int:
        """The first of `count` new numbers in a row; `text` and `texts` make keys of them."""
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            if now_ms >= self._month_ends_ms:
                self._month_begins_ms, self._month_ends_ms = _month_of(now_ms)
            first = (now_ms - self._month_begins_ms) << _COUNTER_BITS
            # No call from here on: signal handlers run between calls, and one that takes numbers must not get these.
            if first < self._next:  # noqa: PLR1730
                first = self._next
            self._next = first + count
        return first

    def text(self, number: int) -> str:
        """The key of a reserved number."""
        return f"{self.prefix}{number:012X}"

    def numbers(self, count: int) -> npt.NDArray[np.int64]:
        """`count` new numbers, ascending."""
        return self.reserve(count) + np.arange(count, dtype=np.int64)

    def texts(self, numbers: npt.NDArray[np.int64]) -> pa.Array:
        """The keys of reserved numbers."""
        rows = np.empty((len(numbers), 16), np.uint8)
        rows[:, :10] = np.frombuffer(self._prefix, np.uint8)
        rows[:, 10:] = numbers.astype(">i8").view(np.uint8).reshape(len(numbers), 8)[:, 2:]
        return hexadecimal(rows)

    def take(self, count: int) -> pa.Array:
        """`count` new keys, ascending."""
        return self.texts(self.numbers(count))

    def one(self) -> str:
        """One new key."""
        return self.text(self.reserve(1))


def _own_prefix() -> bytes:
    return _own_address() + (os.getpid() & 0xFFFF).to_bytes(2, "big") + secrets.token_bytes(4)


@cache
def _own_address() -> bytes:
    """The host's address, looked up once: forked children have the same, and a resolver that fails takes seconds."""
    try:
        return socket.inet_aton(socket.gethostbyname(socket.gethostname()))
    except OSError:  # a host that cannot look itself up: the random numbers alone must do
        return secrets.token_bytes(4)


def _month_of(now_ms: int) -> tuple[int, int]:
    """When the month of that time began and ends, in UTC."""
    begins = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    ends = (begins + dt.timedelta(days=32)).replace(day=1)
    return round(begins.timestamp() * 1000), round(ends.timestamp() * 1000)
