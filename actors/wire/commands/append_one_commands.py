"""APPEND_ONE (ours): one record that the sender has encoded.

It is the most frequent request and has the least overhead. The frame's body is the record, which contains its topic and
queue; the header has no fields. Everything else, such as delayed messages and batches, uses APPEND_RECORDS.
APPEND_ONE_SEQUENCED is the variant for idempotent producers: the record also has its producer's sequence number. All of
them call the same broker core.
"""

from __future__ import annotations

import struct
from typing import Final

from raymq.actors.errors import ProtocolError
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.frame import Buffer

#: An answer's body: the index of the status in `STATUSES`, queue offset, physical offset.
PLACE: Final = struct.Struct(">Bqq")
STATUSES: Final = tuple(SendStatus)


def read_append_position(body: Buffer) -> tuple[SendStatus, int, int]:
    """Return status, queue offset and physical offset from an answer's body.

    Raises:
        ProtocolError: the body is invalid.
    """
    try:
        status, queue_offset, physical_offset = PLACE.unpack(body)
        return STATUSES[status], queue_offset, physical_offset
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"no position in the answer: {error}") from error
