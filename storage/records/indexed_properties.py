"""The properties by which messages are found: UNIQ_KEY, KEYS and TAGS, of one record or of many at once.

Of a repeated name the last value counts, as in RocketMQ; but a record of a RocketMQ batch has two unique keys: its
own first, which its sender knows, and the batch's last. It is found by both.
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


#: A name is found by the five bytes from its pair's start on. They are read as the end of a word that begins three
#: bytes earlier, which lies within the buffer however short the last pair of the last record is.
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
    """The value of TAGS, b"" without; and what is indexed.

    That is, in this order: the first UNIQ_KEY, the last one if it is another, every key of KEYS.
    """
    if properties.startswith(_UNIQ_KEY) and properties.find(b"\x02") == len(properties) - 1 > _LONG_NAME:
        return b"", [properties[_LONG_NAME:-1]]  # Nothing else, as in most messages.
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
    """Pieces of a buffer, none of them empty, in its order; `owners` are the numbers of their records."""

    owners: Int64s
    starts: Int64s
    ends: Int64s

    def __len__(self) -> int:
        return len(self.owners)

    def chosen(self, mask: npt.NDArray[np.bool_]) -> Spans:
        """Those where the mask says so."""
        return self if every(mask) else Spans(self.owners[mask], self.starts[mask], self.ends[mask])


@dataclass(frozen=True, slots=True)
class Found:
    """What `find` found: the tags, and the keys as `tags_and_keys` has them."""

    tags: Spans
    keys: Spans


def find(buffer: Buffer, starts: Int64s, ends: Int64s) -> Found:
    """The tags and keys of many records.

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
    return Found(
        _filled(tags.chosen(_is_last(tags.owners))),
        _merged([*_unique(buffer, _values(pairs, unique, _LONG_NAME)), _split(buffer, keys)]),
    )


def _values(pairs: Spans, which: Int64s, name_bytes: int) -> Spans:
    starts, ends = pairs.starts[which] + name_bytes, pairs.ends[which]
    return Spans(pairs.owners[which], starts, ends).chosen(starts <= ends)


def _filled(spans: Spans) -> Spans:
    return spans.chosen(spans.starts < spans.ends)


def _is_last(owners: Int64s) -> npt.NDArray[np.bool_]:
    """Which of each record's spans is its last one."""
    last = np.ones(len(owners), np.bool_)
    np.not_equal(owners[1:], owners[:-1], out=last[:-1])
    return last


def _unique(buffer: Buffer, values: Spans) -> list[Spans]:
    """Each record's first unique key, and its last one where that is another."""
    last = _is_last(values.owners)
    if every(last):
        return [_filled(values)]
    first = np.ones(len(last), np.bool_)
    first[1:] = last[:-1]
    once, again = values.chosen(first), values.chosen(last)
    other = again.ends - again.starts != once.ends - once.starts
    view = memoryview(buffer)
    # Of equal length: the same one (a single value, or written twice) or, as in a RocketMQ batch, another.
    for i in np.flatnonzero(~other & (again.starts != once.starts)).tolist():
        other[i] = view[once.starts[i] : once.ends[i]] != view[again.starts[i] : again.ends[i]]
    return [_filled(once), _filled(again.chosen(other))]


def _split(buffer: Buffer, keys: Spans) -> Spans:
    """The keys of each value of KEYS."""
    if not len(keys):
        return keys
    rows, starts, ends = pieces(buffer, keys.starts, keys.ends, _BLANK)
    return _filled(Spans(keys.owners[rows], starts, ends))


def _merged(parts: list[Spans]) -> Spans:
    """Spans in the order of their records, of one record in the order of `parts`."""
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    owners = np.concatenate([part.owners for part in parts])
    # The number of a record and that of a span in one word: NumPy sorts words much faster than it sorts indirectly.
    order = np.sort(owners << 32 | np.arange(len(owners))) & 0xFFFFFFFF
    starts = np.concatenate([part.starts for part in parts])
    ends = np.concatenate([part.ends for part in parts])
    return Spans(owners[order], starts[order], ends[order])
