"""Find the properties by which messages are looked up: UNIQ_KEY, KEYS and TAGS.

The functions work on one record or on many at once. The last value of a repeated name is used, as in RocketMQ. A record
of a RocketMQ batch has two unique keys: first its own, which the sender has, and last the key of the batch. It can be
found by both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.records.byte_rows import Int64s, every, pieces
from raymq.storage.records.record import Buffer

_PAIR_END: Final = 2
_BLANK: Final = 0x20


def _little(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


#: A name is recognized by the first five bytes of its pair. They are read as the end of a word that starts three bytes
#: earlier, which lies within the buffer even if the last pair of the last record is short.
_LEAD: Final = 3
_LEAD_BITS: Final = np.uint64(8 * _LEAD)
_KEYS: Final = _little(b"KEYS\x01")
_TAGS: Final = _little(b"TAGS\x01")
_UNIQ: Final = _little(b"UNIQ_")
_UNIQ_REST: Final = _little(b"NIQ_KEY\x01")
_SHORT_NAME: Final = len(b"KEYS\x01")
_UNIQ_KEY: Final = b"UNIQ_KEY\x01"
_LONG_NAME: Final = len(_UNIQ_KEY)


def tags_and_keys(properties: bytes) -> tuple[bytes, list[bytes]]:
    """Return the value of TAGS (b"" without TAGS) and the indexed keys.

    The keys are, in this order: the first UNIQ_KEY, the last UNIQ_KEY if it differs, and every key of KEYS.
    """
    if properties.startswith(_UNIQ_KEY) and properties.find(b"\x02") == len(properties) - 1 > _LONG_NAME:
        return b"", [properties[_LONG_NAME:-1]]  # Most messages have no other property.
    tags = keys = b""
    uniques: list[bytes] = []
    for pair in properties.split(b"\x02"):
        name = pair[:_SHORT_NAME]
        if name == b"KEYS\x01":
            keys = pair[_SHORT_NAME:]
        elif name == b"TAGS\x01":
            tags = pair[_SHORT_NAME:]
        elif name == b"UNIQ_" and pair.startswith(_UNIQ_KEY):
            uniques.append(pair[_LONG_NAME:])
    if len(uniques) > 1:
        first, last = uniques[0], uniques[-1]
        uniques = [first] if last == first else [first, last]
    found = uniques + keys.split(b" ") if keys else uniques
    return tags, found if all(found) else [key for key in found if key]


@dataclass(frozen=True, slots=True)
class Spans:
    """Non-empty pieces of a buffer in ascending order; `owners` are their records' indices."""

    owners: Int64s
    starts: Int64s
    ends: Int64s

    def __len__(self) -> int:
        return len(self.owners)

    def chosen(self, mask: npt.NDArray[np.bool_]) -> Spans:
        """Return the spans for which the mask is true."""
        return self if every(mask) else Spans(self.owners[mask], self.starts[mask], self.ends[mask])


@dataclass(frozen=True, slots=True)
class TagsAndKeys:
    """The result of `find_tags_and_keys`: the tags, and the keys that `tags_and_keys` returns."""

    tags: Spans
    keys: Spans


def find_tags_and_keys(buffer: Buffer, starts: Int64s, ends: Int64s) -> TagsAndKeys:
    """Find the tags and keys of many records.

    Args:
        starts, ends: where each record's properties lie in `buffer`; ascending, each at byte 3 or later.
    """
    bytes_ = np.frombuffer(buffer, np.uint8)
    filled = ends > starts
    closed = filled & (bytes_[ends - 1] == _PAIR_END)
    owners, pair_starts, pair_ends = pieces(buffer, starts, ends - closed, _PAIR_END)
    words = np.ndarray((max(0, len(buffer) - 7),), "<u8", buffer, strides=(1,))
    last_word = len(words) - 1
    names = words[np.minimum(pair_starts - _LEAD, last_word)] >> _LEAD_BITS
    pairs = Spans(owners, pair_starts, pair_ends)
    unique = np.flatnonzero(names == _UNIQ)
    if len(unique):
        rest = words[np.minimum(pair_starts[unique] + 1, last_word)]
        unique = unique[rest == _UNIQ_REST]
    tags = _values(pairs, np.flatnonzero(names == _TAGS), _SHORT_NAME)
    keys = _values(pairs, np.flatnonzero(names == _KEYS), _SHORT_NAME)
    keys = keys.chosen(_is_last(keys.owners))
    return TagsAndKeys(
        _filled(tags.chosen(_is_last(tags.owners))),
        _merged([*_unique(buffer, _values(pairs, unique, _LONG_NAME)), _split(buffer, keys)]),
    )


def _values(pairs: Spans, which: Int64s, name_bytes: int) -> Spans:
    starts, ends = pairs.starts[which] + name_bytes, pairs.ends[which]
    return Spans(pairs.owners[which], starts, ends).chosen(starts <= ends)


def _filled(spans: Spans) -> Spans:
    return spans.chosen(spans.starts < spans.ends)


def _is_last(owners: Int64s) -> npt.NDArray[np.bool_]:
    """Return a mask of the last span of each record."""
    last = np.ones(len(owners), np.bool_)
    np.not_equal(owners[1:], owners[:-1], out=last[:-1])
    return last


def _unique(buffer: Buffer, values: Spans) -> list[Spans]:
    """Return each record's first unique key, and its last one where that differs."""
    last = _is_last(values.owners)
    if every(last):
        return [_filled(values)]
    first = np.ones(len(last), np.bool_)
    first[1:] = last[:-1]
    once, again = values.chosen(first), values.chosen(last)
    other = again.ends - again.starts != once.ends - once.starts
    view = memoryview(buffer)
    # Keys of equal length are the same key (a single value, or written twice) or two keys, as in a RocketMQ batch.
    for i in np.flatnonzero(~other & (again.starts != once.starts)).tolist():
        other[i] = view[once.starts[i] : once.ends[i]] != view[again.starts[i] : again.ends[i]]
    return [_filled(once), _filled(again.chosen(other))]


def _split(buffer: Buffer, keys: Spans) -> Spans:
    """Return the single keys of each value of KEYS."""
    if not len(keys):
        return keys
    rows, starts, ends = pieces(buffer, keys.starts, keys.ends, _BLANK)
    return _filled(Spans(keys.owners[rows], starts, ends))


def _merged(parts: list[Spans]) -> Spans:
    """Sort spans by record; within a record they keep the order of `parts`."""
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    owners = np.concatenate([part.owners for part in parts])
    # The record's and the span's index form one word, because NumPy sorts words much faster than indirectly.
    order = np.sort(owners << 32 | np.arange(len(owners))) & 0xFFFFFFFF
    starts = np.concatenate([part.starts for part in parts])
    ends = np.concatenate([part.ends for part in parts])
    return Spans(owners[order], starts[order], ends[order])
