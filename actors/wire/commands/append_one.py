"""APPEND_ONE (ours): one record that its sender has made, as frequent and as quick as a request can be.

The frame's body is the record, which itself says its topic and queue; the header has no fields. Everything else, such
as delayed messages and batches, goes by APPEND_RECORDS. APPEND_ONE_SEQUENCED is that of idempotent producers: the
record says, too, which of its producer it is. All come to the same core.
"""

from __future__ import annotations

import struct
from typing import Final

from raymq.actors.errors import ProtocolError
from raymq.actors.protocol import SendStatus
from raymq.actors.wire.frame import Buffer

#: An answer's body: the status' place in `STATUSES`, queue offset, physical offset.
PLACE: Final = struct.Struct(">Bqq")
STATUSES: Final = tuple(SendStatus)


def read_place(body: Buffer) -> tuple[SendStatus, int, int]:
    """Status, queue offset and physical offset in an answer's body; ProtocolError."""
    try:
        status, queue_offset, physical_offset = PLACE.unpack(body)
        return STATUSES[status], queue_offset, physical_offset
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"no place in the answer: {error}") from error
