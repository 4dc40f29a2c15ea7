"""Generate unique keys (UNIQ_KEY) of messages, thousands at a time.

A key is RocketMQ's 16 bytes as 32 upper-case hexadecimal digits:

    address 4 | process id 2 | random 4 | milliseconds since the month began 4 | counter 2

RocketMQ has the hash of a class loader in place of the random number. The last six bytes are one number that only
increases: a generator that creates more than 65,536 keys in a millisecond runs ahead of the clock and never repeats a
key.
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
#: The two digits of every byte, as one 16-bit number whose bytes are the digits.
_DIGITS: Final = np.stack([np.repeat(_HEX, 16), np.tile(_HEX, 16)], axis=1).view(np.uint16).ravel()


def hexadecimal(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Return each row of bytes (n x width) as a string of upper-case hexadecimal digits."""
    count, width = rows.shape
    digits = _DIGITS.take(rows)
    offsets = np.arange(count + 1, dtype=np.int64) * (2 * width)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(digits))


class UniqueKeyGenerator:
    """A generator of unique keys for one process.

    Thread-safe. After a fork the child calls `restart`.
    """

    def __init__(self, prefix: bytes | None = None) -> None:
        """Start with a prefix of 10 bytes: address, process id and random number.

        Without `prefix` it is made for this process; only tests pass one.
        """
        self.restart(prefix)

    def restart(self, prefix: bytes | None = None) -> None:
        """Start again with a prefix of this process."""
        self._prefix = _own_prefix() if prefix is None else prefix
        #: The first digits of all keys; the twelve digits of the number follow.
        self.prefix = self._prefix.hex().upper()
        #: The prefix of the UNIQ_KEY property in a record.
        self.stored_prefix = f"{properties.UNIQ_KEY}\x01{self.prefix}".encode()
        #: Reentrant, because a signal handler may generate keys on the thread that it has interrupted here.
        self._lock = threading.RLock()
        self._next = 0
        self._month_begins_ms = self._month_ends_ms = 0

    def reserve(self, count: int) -> int:
        """Reserve `count` consecutive new numbers and return the first.

        `text` and `texts` convert the numbers to keys.
        """
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            if now_ms >= self._month_ends_ms:
                self._month_begins_ms, self._month_ends_ms = _month_of(now_ms)
            first = (now_ms - self._month_begins_ms) << _COUNTER_BITS
            # No call from here on: signal handlers run between calls, and one that reserves numbers must not get these.
            if first < self._next:  # noqa: PLR1730
                first = self._next
            self._next = first + count
        return first

    def text(self, number: int) -> str:
        """Return the key of a reserved number."""
        return f"{self.prefix}{number:012X}"

    def numbers(self, count: int) -> npt.NDArray[np.int64]:
        """Reserve and return `count` new numbers, ascending."""
        return self.reserve(count) + np.arange(count, dtype=np.int64)

    def texts(self, numbers: npt.NDArray[np.int64]) -> pa.Array:
        """Return the keys of reserved numbers."""
        rows = np.empty((len(numbers), 16), np.uint8)
        rows[:, :10] = np.frombuffer(self._prefix, np.uint8)
        rows[:, 10:] = numbers.astype(">i8").view(np.uint8).reshape(len(numbers), 8)[:, 2:]
        return hexadecimal(rows)

    def take(self, count: int) -> pa.Array:
        """Return `count` new keys, ascending."""
        return self.texts(self.numbers(count))

    def one(self) -> str:
        """Return one new key."""
        return self.text(self.reserve(1))


@cache
def process_unique_keys() -> UniqueKeyGenerator:
    """Return the process's generator; in a forked child it has another prefix."""
    keys = UniqueKeyGenerator()
    os.register_at_fork(after_in_child=keys.restart)
    return keys


def _own_prefix() -> bytes:
    return _own_address() + (os.getpid() & 0xFFFF).to_bytes(2, "big") + secrets.token_bytes(4)


@cache
def _own_address() -> bytes:
    """Return the host's address, or random bytes if the host cannot resolve its name.

    The result is cached: forked children have the same address, and a failing resolver takes seconds.
    """
    try:
        return socket.inet_aton(socket.gethostbyname(socket.gethostname()))
    except OSError:  # the host cannot resolve its own name, so the random numbers alone must be unique
        return secrets.token_bytes(4)


def _month_of(now_ms: int) -> tuple[int, int]:
    """Return the begin and end of the month of that time, in milliseconds, UTC."""
    begins = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    ends = (begins + dt.timedelta(days=32)).replace(day=1)
    return round(begins.timestamp() * 1000), round(ends.timestamp() * 1000)
