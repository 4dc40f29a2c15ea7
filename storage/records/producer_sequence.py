r"""The property by which an idempotent producer numbers its batches.

It is on the first record of each batch:

    RAYMQ_SEQUENCE \x01 producer 16 | epoch 8 | first 16 | count 8 \x02     hexadecimal digits, 64 bytes in all

It has a fixed width and is the first of the properties, so that it can be overwritten when a batch is sent to another
queue: the body's CRC does not cover it. Because it is in the log, a broker can rebuild the state of its producers from
the log.
"""

from __future__ import annotations

import struct
from binascii import unhexlify
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from raymq.storage.errors import InvalidInput
from raymq.storage.records import record as layout
from raymq.storage.records.property_names import PRODUCER_SEQUENCE
from raymq.storage.records.record import Buffer

_NAME: Final = f"{PRODUCER_SEQUENCE}\x01".encode()
#: The packed numbers: epoch, first and count.
_NUMBERS: Final = struct.Struct(">IQI")
_PRODUCER_DIGITS: Final = 16
_DIGITS: Final = _PRODUCER_DIGITS + 2 * _NUMBERS.size
_BYTES: Final = len(_NAME) + _DIGITS + 1
_PROPERTY: Final = struct.Struct(f"{len(_NAME)}s{_PRODUCER_DIGITS}s{2 * _NUMBERS.size}ss")
_LENGTH: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")


@dataclass(slots=True)  # not frozen: that takes twice as long to make, and one is made for every message
class ProducerSequence:
    """The position of a batch in its producer's sequence for one queue.

    The batch has the messages `first` to `first + count - 1` of an epoch. `producer` is 16 hexadecimal digits.
    """

    producer: str
    epoch: int
    first: int
    count: int

    def value(self) -> str:
        """Return the property's value."""
        numbers = _NUMBERS.pack(self.epoch, self.first, self.count).hex()  # a format takes three times as long
        return self.producer.rjust(_PRODUCER_DIGITS, "0") + numbers

    @classmethod
    def from_value(cls, value: str) -> ProducerSequence:
        """Parse the property's value, the reverse of `value`.

        Raise InvalidInput if the value is not of this form.
        """
        try:
            epoch, first, count = _NUMBERS.unpack(unhexlify(value[_PRODUCER_DIGITS:]))
            if first >= 1 << 63 or count < 1:
                raise ValueError
            return cls(value[:_PRODUCER_DIGITS], epoch, first, count)
        except (ValueError, struct.error):  # other characters; more or fewer
            raise InvalidInput(PRODUCER_SEQUENCE, f"{_DIGITS} hexadecimal digits", value) from None


def stamp(records: bytearray, sizes: npt.NDArray[np.int32], sequence: ProducerSequence) -> npt.NDArray[np.int32]:
    """Write the property into the first of `records` in place and return the new sizes.

    Raises:
        InvalidInput: the first record's properties have no room for it.
    """
    grown = stamp_first(records, sequence)
    if grown:
        sizes = sizes.copy()
        sizes[0] += grown
    return sizes


def stamp_first(records: bytearray, sequence: ProducerSequence) -> int:
    """Do as `stamp`, but return by how many bytes the first record grew.

    It is 0 if the record already had the property.
    """
    length_at = _properties_length_at(records)
    begin = length_at + _LENGTH.size
    text = _NAME + sequence.value().encode() + b"\x02"
    if records[begin : begin + len(_NAME)] == _NAME:
        records[begin : begin + _BYTES] = text
        return 0
    length = _LENGTH.unpack_from(records, length_at)[0] + _BYTES
    if length > layout.MAX_PROPERTIES_BYTES:
        limit = f"at most {layout.MAX_PROPERTIES_BYTES - _BYTES} bytes from an idempotent producer"
        raise InvalidInput("properties", limit, length - _BYTES)
    records[begin:begin] = text
    _LENGTH.pack_into(records, length_at, length)
    _INT.pack_into(records, layout.OFFSET_SIZE, _INT.unpack_from(records, layout.OFFSET_SIZE)[0] + _BYTES)
    return _BYTES


def read(records: Buffer) -> ProducerSequence:
    """Return the property of the first of `records`.

    Raise InvalidInput if it does not have the property or is not a record.
    """
    try:
        begin = _properties_length_at(records) + _LENGTH.size
        name, producer, numbers, end = _PROPERTY.unpack_from(records, begin)
        if name == _NAME and end == b"\x02":
            return ProducerSequence(producer.decode("ascii"), *_NUMBERS.unpack(unhexlify(numbers)))
    except (struct.error, IndexError, ValueError):  # too short, or other characters
        pass
    raise InvalidInput("records", f"the property {PRODUCER_SEQUENCE} on the first one", "none")


def _properties_length_at(record: Buffer) -> int:
    _, magic, _, _, sys_flag, body_length = layout.CHECKED.unpack_from(record)
    topic_at: int = layout.OFFSET_BODY + body_length
    if sys_flag & layout.SYS_FLAG_BORN_IPV6:
        shift = layout.IPV6_SHIFT
        topic_at = layout.OFFSET_BODY + shift + int(_INT.unpack_from(record, layout.OFFSET_BODY_LENGTH + shift)[0])
    if magic == layout.MAGIC_V2:
        return topic_at + _LENGTH.size + int(_LENGTH.unpack_from(record, topic_at)[0])
    return topic_at + 1 + record[topic_at]
