"""Split the properties of many records into Arrow columns, without a Python step per property.

All properties lie in one block of bytes. One pass per separator finds where every name and value begins and ends.
`gather` then copies columns from the block in C.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raymq.storage.errors import InvalidInput
from raymq.storage.records import native_kernels, record_batch
from raymq.storage.records import property_names as names
from raymq.storage.records.native_kernels import as_bytes
from raymq.storage.records.record import Buffer

Int64s = npt.NDArray[np.int64]

_NAME_END = 1
_PAIR_END = 2
_BLANK = ord(names.KEY_SEPARATOR)
_MAX_BLOCK_BYTES = (1 << 31) - 1


def gather(block: pa.Buffer, starts: Int64s, ends: Int64s, kind: pa.DataType) -> pa.Array:
    """Copy the slices [start, end) of `block` into one array of `kind` (binary or string).

    It makes one copy, in C. The slices are in ascending order and do not overlap. In Arrow, the block is an array whose
    elements are alternately a gap between two slices and a slice, so the slices are its odd elements. The result owns
    its bytes.

    Raises:
        InvalidInput: the block has 2 GiB or more, which Arrow's offsets of 32 bits cannot express.
    """
    if block.size > _MAX_BLOCK_BYTES:
        raise InvalidInput("records", f"at most {_MAX_BLOCK_BYTES} bytes", block.size)
    count = len(starts)
    if native_kernels.kernels is not None and count:
        ends_of = np.empty(count + 1, np.int32)
        data = pa.allocate_buffer(int((ends - starts).sum()))
        native_kernels.kernels.gather(as_bytes(block), starts, ends, ends_of, as_bytes(data))
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(ends_of), data])
    offsets = np.zeros(2 * count + 2, np.int32)
    offsets[1:-1:2] = starts
    offsets[2::2] = ends
    offsets[-1] = ends[-1] if count else 0
    whole = pa.Array.from_buffers(kind, 2 * count + 1, [None, pa.py_buffer(offsets), block])
    return whole.take(pa.array(np.arange(1, 2 * count + 1, 2, dtype=np.int64)))


def gather_bodies(batch: record_batch.Batch, *, check_crc: bool) -> pa.Array:
    """Return the bodies as they are stored, as an array of binary.

    Raise BadRecord if `check_crc` is true and a body has another CRC.
    """
    if native_kernels.kernels is None or not check_crc:
        if check_crc:
            record_batch.parse(batch.records, batch.sizes.astype(np.int32), check_crc=True)
        block = pa.py_buffer(batch.records)
        return gather(block, batch.body_at, batch.body_at + batch.body_lengths, pa.binary())
    ends = np.empty(len(batch) + 1, np.int32)
    data = pa.allocate_buffer(int(batch.body_lengths.sum()))
    places = batch.starts, batch.body_at, batch.body_lengths
    if native_kernels.kernels.gather_bodies(batch.records, *places, ends, as_bytes(data)) >= 0:
        record_batch.parse(batch.records, batch.sizes.astype(np.int32), check_crc=True)
    return pa.Array.from_buffers(pa.binary(), len(batch), [None, pa.py_buffer(ends), data])


@dataclass(slots=True)
class PropertyColumns:
    """The name-value pairs of n records, in the order they are stored."""

    count: int
    block: pa.Buffer
    row: Int64s
    """The index of each pair's record."""
    name_start: Int64s
    name_end: Int64s
    value_end: Int64s
    codes: npt.NDArray[np.int32]
    """The index in `names` of each pair's name."""
    names: pa.Array

    def has(self, name: str) -> bool:
        """Return True if a record has a property of this name."""
        return bool(self.names.index(name).as_py() >= 0)

    def first(self, name: str) -> pa.Array:
        """Return the first value of `name` in each record, or null."""
        return self._values(name, last=False)

    def last(self, name: str) -> pa.Array:
        """Return the last value of `name` in each record, or null."""
        return self._values(name, last=True)

    def user(self) -> pa.Array:
        """Return the user's properties as map<string, string>.

        The last value of a repeated name is used.
        """
        reserved = pc.is_in(self.names, pa.array(sorted(names.SYSTEM_PROPERTIES)))
        mine = ~np.asarray(reserved, bool)[self.codes] if len(self.names) else np.zeros(0, bool)
        chosen = self._without_repeats(np.flatnonzero(mine))
        offsets = _offsets(np.bincount(self.row[chosen], minlength=self.count))
        keys = gather(self.block, self.name_start[chosen], self.name_end[chosen], pa.string())
        values = gather(self.block, self.name_end[chosen] + 1, self.value_end[chosen], pa.string())
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values)

    def keys(self) -> pa.Array:
        """Return the keys in KEYS as list<string>, empty for records without keys."""
        joined = self.last(names.KEYS).fill_null("")
        starts, ends, block = spans(joined)
        row, start, end = _segments(block, starts, ends, _BLANK)
        filled = start < end
        return pa.ListArray.from_arrays(
            pa.array(_offsets(np.bincount(row[filled], minlength=self.count))),
            gather(block, start[filled], end[filled], pa.string()),
        )

    def _values(self, name: str, *, last: bool) -> pa.Array:
        code = self.names.index(name).as_py()
        if code < 0:
            return pa.nulls(self.count, pa.string())
        pairs = np.flatnonzero(self.codes == code)
        chosen = np.full(self.count, -1, np.int64)
        # If an index occurs several times, NumPy keeps the value that is assigned last.
        ordered = pairs if last else pairs[::-1]
        chosen[self.row[ordered]] = ordered
        present = np.flatnonzero(chosen >= 0)
        pairs = chosen[present]
        values = gather(self.block, self.name_end[pairs] + 1, self.value_end[pairs], pa.string())
        if len(present) == self.count:
            return values
        places = np.zeros(self.count, np.int64)
        places[present] = np.arange(len(present))
        return values.take(pa.array(places, mask=chosen < 0))

    def _without_repeats(self, pairs: Int64s) -> Int64s:
        identity = self.row[pairs] * max(1, len(self.names)) + self.codes[pairs]
        _, last_from_behind = np.unique(identity[::-1], return_index=True)
        if len(last_from_behind) == len(pairs):
            return pairs
        kept: Int64s = pairs[np.sort(len(pairs) - 1 - last_from_behind)]
        return kept


def split_properties(properties: pa.Array) -> PropertyColumns:
    """Split the properties of records (an array of binary, as stored) into names and values.

    As in `record.decode_properties`, bytes that are not UTF-8 become U+FFFD, and pairs without a name or value are
    dropped.
    """
    try:
        properties.cast(pa.string())  # checks all bytes once, so that their parts need no check
    except pa.ArrowInvalid:
        repaired = [value.decode("utf-8", "replace").encode() for value in properties.to_pylist()]
        properties = pa.array(repaired, pa.binary())
    starts, ends, block = spans(properties)
    row, start, end = _segments(block, starts, ends, _PAIR_END)
    bytes_ = np.frombuffer(block, np.uint8)
    name_ends = np.flatnonzero(bytes_ == _NAME_END)
    # The first name end at or after each pair's start; it belongs to the pair if it lies before the pair's end.
    following = np.append(name_ends, len(bytes_))[np.searchsorted(name_ends, start)]
    sound = (following > start) & (following + 1 < end)
    start, following, end = start[sound], following[sound], end[sound]
    encoded = gather(block, start, following, pa.string()).dictionary_encode()
    return PropertyColumns(
        count=len(properties),
        block=block,
        row=row[sound],
        name_start=start,
        name_end=following,
        value_end=end,
        codes=np.asarray(encoded.indices),
        names=encoded.dictionary,
    )


def properties_of_records(records: Buffer, sizes: npt.NDArray[np.int32]) -> PropertyColumns:
    """Return the properties of contiguous, valid records.

    Raises:
        BadRecord: a record is not valid; bodies are not checked.
    """
    return properties_of_batch(record_batch.parse(records, sizes, check_crc=False))


def properties_of_batch(batch: record_batch.Batch) -> PropertyColumns:
    """Return the properties of the records of a checked batch."""
    return split_properties(gather(pa.py_buffer(batch.records), batch.properties_at, batch.ends, pa.binary()))


def spans(array: pa.Array) -> tuple[Int64s, Int64s, pa.Buffer]:
    """Return the starts and ends of an array's values, and the buffer that holds them.

    The values are contiguous.
    """
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(array) + 1, array.offset * 4) if len(array) else np.zeros(1)
    edges = offsets.astype(np.int64)
    return edges[:-1], edges[1:], data if data is not None else pa.py_buffer(b"")


def _segments(block: pa.Buffer, starts: Int64s, ends: Int64s, separator: int) -> tuple[Int64s, Int64s, Int64s]:
    """Split the contiguous spans [start, end) at each `separator`.

    Two separators in a row give an empty piece, and so does a separator at the end of a span.

    Returns:
        Arrays of the span's index, the start and the end of every piece.
    """
    first, last = (int(starts[0]), int(ends[-1])) if len(starts) else (0, 0)
    bytes_ = np.frombuffer(block, np.uint8)[first:last]
    cuts = np.flatnonzero(bytes_ == separator) + first
    before = np.searchsorted(cuts, starts)  # cuts before each span; a span's last piece ends with the span
    after = np.searchsorted(cuts, ends)
    row = np.repeat(np.arange(len(starts)), after - before + 1)
    piece_ends = np.empty(len(row), np.int64)
    last_pieces = np.cumsum(after - before + 1) - 1
    inner = np.ones(len(row), bool)
    inner[last_pieces] = False
    piece_ends[last_pieces] = ends
    piece_ends[inner] = cuts
    piece_starts = np.empty(len(row), np.int64)
    piece_starts[1:] = piece_ends[:-1] + 1
    piece_starts[np.concatenate(([0], last_pieces[:-1] + 1)) if len(starts) else []] = starts
    return row, piece_starts, piece_ends


def _offsets(counts: Int64s) -> npt.NDArray[np.int32]:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets
