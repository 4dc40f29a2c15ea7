"""Compute Java's `String.hashCode`, the base of RocketMQ's tags codes and key index.

The hash runs over UTF-16 code units (a character outside the basic plane has two), in 32-bit arithmetic: `h = 31 * h +
unit`. Many ASCII texts are hashed at once, eight bytes in one step. Zeros before a text do not change its hash, so
texts of different lengths only have to end at the same position.
"""

from __future__ import annotations

from functools import lru_cache
from operator import mul
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.records.byte_rows import LAST_BYTES_MASK, Int64s, any_true, rows_before, width_classes
from raymq.storage.records.record import MAX_PROPERTIES_BYTES, Buffer

Hashes = npt.NDArray[np.uint32]

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000
_POWERS_UP_TO = 4096

#: An ASCII text is a number to the base 31 whose digits go up to 127. `int` can parse the digits' remainders and the
#: digits' quotients by 31 as two numbers.
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"
_REMAINDERS: Final = bytes(_DIGITS[unit % 31] for unit in range(256))
_QUOTIENTS: Final = bytes(_DIGITS[unit // 31] for unit in range(256))
#: `int` parses at most this many digits: its time is quadratic, and it can be configured to refuse more than a few
#: hundred.
_AT_ONCE: Final = 512


def _powers() -> tuple[int, ...]:
    powers = [1]
    for _ in range(_POWERS_UP_TO):
        powers.append(powers[-1] * 31 & _MASK)
    return tuple(powers)


#: 31**k modulo 2**32, descending: the last n of them are the weights of a text of n units.
_WEIGHTS = _powers()[::-1]


def java_hash(text: str) -> int:
    """Return Java's `text.hashCode()`, a signed 32-bit number."""
    if text.isascii():
        value = _of_ascii(text.encode("ascii"))
        return value - ((value & _SIGN) << 1)
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    if len(units) < len(_WEIGHTS):
        value = sum(map(mul, units, _WEIGHTS[len(_WEIGHTS) - len(units) :])) & _MASK
    else:
        value = 0
        for unit in units:
            value = (31 * value + unit) & _MASK
    return int(value - ((value & _SIGN) << 1))


def _of_ascii(text: bytes) -> int:
    """Return the Java hash of an ASCII text, modulo 2**32."""
    if 0 < len(text) <= _AT_ONCE:
        return int(text.translate(_REMAINDERS), 31) + 31 * int(text.translate(_QUOTIENTS), 31) & _MASK
    value = 0
    for at in range(0, len(text), _AT_ONCE):
        part = text[at : at + _AT_ONCE]
        value = value * pow(31, len(part), 1 << 32) + _of_ascii(part) & _MASK
    return value


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """Return the tags code of a consume queue entry.

    It is the Java hash of the whole TAGS property, and 0 without a tag.
    """
    return java_hash(tag) if tag else 0


@lru_cache(maxsize=4096)
def tags_code_of_bytes(tag: bytes) -> int:
    """Return the `tags_code` of a TAGS value in the bytes of a record.

    Bytes that are not UTF-8 count as U+FFFD, as in Java.
    """
    return tags_code(tag.decode("utf-8", "replace"))


def index_hash(text: str) -> int:
    """Return the key index's hash of `topic#key`.

    It is the absolute value of the Java hash, and 0 for the smallest int.
    """
    value = abs(java_hash(text))
    return 0 if value == _SIGN else value


def index_hash_of_bytes(text: bytes) -> int:
    """Return the `index_hash` of `topic#key`, given as the bytes of a record."""
    if not text.isascii():
        return index_hash(text.decode("utf-8", "replace"))
    value = _of_ascii(text)
    if value < _SIGN:
        return value
    return 2 * _SIGN - value if value > _SIGN else 0


#: 31**k modulo 2**32, ascending, up to the longest property.
_RISING: Final[Hashes] = np.multiply.accumulate(np.array([1, *[31] * MAX_PROPERTIES_BYTES], np.uint32), dtype=np.uint32)
_WORD: Final = 8
_TEXT_WORDS_POWER: Final = _RISING[_WORD]
_NOT_ASCII: Final = np.uint64(0x8080808080808080)
_EVERY_2ND: Final = np.uint64(0x00FF00FF00FF00FF)
_EVERY_4TH: Final = np.uint64(0x0000FFFF0000FFFF)
_HALF: Final = np.uint64(_MASK)


def java_hashes(buffer: Buffer, starts: Int64s, ends: Int64s) -> tuple[Hashes, npt.NDArray[np.bool_]]:
    """Return the Java hashes of many ASCII texts, and which texts are not ASCII.

    The hashes are modulo 2**32. The second array is a mask of the texts that are not ASCII; their hashes are not valid.

    Args:
        starts, ends: where the texts lie in `buffer`; ascending, each at most as long as properties can be.
    """
    hashes = np.zeros(len(starts), np.uint32)
    foreign = np.zeros(len(starts), np.bool_)
    lengths = ends - starts
    for width, members in width_classes(lengths, _WORD):
        chosen: slice | Int64s = slice(None) if members is None else members
        words = rows_before(buffer, ends[chosen], width).view("<u8")
        lengths_ = lengths[chosen]
        if any_true(lengths_ < width):
            behind = np.arange(width - _WORD, -1, -_WORD)
            words &= LAST_BYTES_MASK[np.clip(lengths_[:, None] - behind, 0, _WORD)]
        if any_true(words & _NOT_ASCII != 0):
            foreign[chosen] = (words & _NOT_ASCII).any(axis=1)
        hashes[chosen] = _hash_words(words)
    return hashes, foreign


def _hash_words(words: npt.NDArray[np.uint64]) -> Hashes:
    """Hash each row of little-endian words as one text."""
    # The hashes of pairs of bytes, pairs of pairs, words.
    pairs = (words & _EVERY_2ND) * np.uint64(31) + (words >> np.uint64(8) & _EVERY_2ND)
    fours = (pairs & _EVERY_4TH) * np.uint64(31**2) + (pairs >> np.uint64(16) & _EVERY_4TH)
    eights = ((fours & _HALF) * np.uint64(31**4) + (fours >> np.uint64(32))).astype(np.uint32)
    hashes = eights[:, 0]
    for column in range(1, eights.shape[1]):
        hashes = hashes * _TEXT_WORDS_POWER + eights[:, column]
    return hashes


def tags_codes(buffer: Buffer, starts: Int64s, ends: Int64s) -> Int64s:
    """Return the `tags_code_of_bytes` of many TAGS values."""
    hashes, foreign = java_hashes(buffer, starts, ends)
    codes = hashes.view(np.int32).astype(np.int64)
    view = memoryview(buffer)
    for i in np.flatnonzero(foreign).tolist():
        codes[i] = tags_code_of_bytes(bytes(view[starts[i] : ends[i]]))
    return codes


def index_hashes(prefixes: Hashes, buffer: Buffer, starts: Int64s, ends: Int64s) -> npt.NDArray[np.int32]:
    """Return `index_hash(prefix + key)` of many UTF-8 keys.

    Args:
        prefixes: the Java hash of each key's prefix (`prefix_hash`).
    """
    hashes, foreign = java_hashes(buffer, starts, ends)
    hashes += prefixes * _RISING[ends - starts]
    view = memoryview(buffer)
    for i in np.flatnonzero(foreign).tolist():
        text = str(view[starts[i] : ends[i]], "utf-8", "replace")
        # The prefix's hash is multiplied by 31 once per UTF-16 unit of the text, and the text's own hash is added.
        units = len(text.encode("utf-16-le", "surrogatepass")) // 2
        hashes[i] = (int(prefixes[i]) * int(_RISING[units]) + java_hash(text)) & _MASK
    # The smallest int has no absolute value; it stays negative and becomes 0.
    return np.maximum(np.abs(hashes.view(np.int32)), 0)


@lru_cache(maxsize=4096)
def prefix_hash(topic: str) -> int:
    """Return the Java hash of `topic#`, modulo 2**32."""
    return java_hash(f"{topic}#") & _MASK
