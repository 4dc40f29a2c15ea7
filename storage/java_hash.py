"""Java's `String.hashCode`, on which RocketMQ's tags codes and key index rest.

The hash runs over UTF-16 code units (a character outside the basic plane is two of them), in 32-bit arithmetic:
`h = 31 * h + unit`. Many ASCII texts of the same length are hashed at once as a matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import mul

import numpy as np
import numpy.typing as npt

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000
_POWERS_UP_TO = 4096


def _powers() -> tuple[int, ...]:
    powers = [1]
    for _ in range(_POWERS_UP_TO):
        powers.append(powers[-1] * 31 & _MASK)
    return tuple(powers)


#: 31**k modulo 2**32, descending, so that the last n of them weigh a text of n units.
_WEIGHTS = _powers()[::-1]


def java_hash(text: str) -> int:
    """`text.hashCode()` of Java, a signed 32-bit number."""
    units: Sequence[int]
    units = text.encode("ascii") if text.isascii() else memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    if len(units) < len(_WEIGHTS):
        value = sum(map(mul, units, _WEIGHTS[len(_WEIGHTS) - len(units) :])) & _MASK
    else:
        value = 0
        for unit in units:
            value = (31 * value + unit) & _MASK
    return int(value - ((value & _SIGN) << 1))


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """The tags code of a consume queue entry: the hash of the whole TAGS property; 0 without tag."""
    return java_hash(tag) if tag else 0


@lru_cache(maxsize=4096)
def tags_code_of_bytes(tag: bytes) -> int:
    """`tags_code` of a TAGS value as it lies in a record; bytes that are no UTF-8 count as U+FFFD, as in Java."""
    return tags_code(tag.decode("utf-8", "replace"))


def index_hash(text: str) -> int:
    """The key index's hash of `topic#key`: the absolute Java hash, 0 for the smallest int."""
    value = abs(java_hash(text))
    return 0 if value == _SIGN else value


@lru_cache(maxsize=512)
def _weights_array(length: int) -> npt.NDArray[np.uint32]:
    return np.array(_WEIGHTS[len(_WEIGHTS) - length :], np.uint32)


def index_hashes(prefix: str, keys: Sequence[bytes]) -> npt.NDArray[np.int32]:
    """`index_hash(prefix + key)` for each UTF-8 key; keys of equal length are hashed together."""
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    hashes = np.empty(len(keys), np.int64)
    if not prefix.isascii() or not b"".join(keys).isascii() or (len(keys) and int(lengths.max()) >= _POWERS_UP_TO):
        hashes[:] = [index_hash(prefix + key.decode("utf-8", "replace")) for key in keys]
        return hashes.astype(np.int32)
    prefix_hash = java_hash(prefix) & _MASK
    for length in np.unique(lengths).tolist():
        chosen = np.flatnonzero(lengths == length)
        text = b"".join(keys) if len(chosen) == len(keys) else b"".join([keys[i] for i in chosen.tolist()])
        units = np.frombuffer(text, np.uint8).reshape(len(chosen), length).astype(np.uint32)
        start = prefix_hash * _WEIGHTS[len(_WEIGHTS) - 1 - length] & _MASK
        values = (units * _weights_array(length)).sum(axis=1, dtype=np.uint32) + np.uint32(start)
        signed = np.abs(values.view(np.int32).astype(np.int64))
        signed[signed == _SIGN] = 0
        hashes[chosen] = signed
    return hashes.astype(np.int32)
