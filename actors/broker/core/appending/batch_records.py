"""Encode the records of a batch.

The fields that all records share are encoded once, the rest of each record with three small packs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raymq.actors.broker.core.appending.batch_body import AT_ONCE, BatchMember
from raymq.actors.broker.core.appending.inbound_message import InboundMessage
from raymq.storage.cooperative_steps import Steps
from raymq.storage.errors import InvalidInput
from raymq.storage.records import crc
from raymq.storage.records import record as layout

#: The fields before those that are the same in all records of a batch: size, magic, CRC, queue id, flag.
_FIRST = struct.Struct(">iiiii")
_INT = struct.Struct(">i")
_PROPERTIES_LENGTH = struct.Struct(">H")


def encode_batch_steps(
    batch: InboundMessage, members: Sequence[BatchMember]
) -> Steps[tuple[bytes, npt.NDArray[np.int32]]]:
    """Encode the members as records of the batch's queue; return buffer and sizes, in steps.

    Raises:
        InvalidInput: properties are too long, or a number of the batch is out of its field's range.
    """
    empty = layout.encode(
        batch.topic,
        batch.queue_id,
        b"",
        b"",
        sys_flag=batch.sys_flag,
        born_timestamp_ms=batch.born_timestamp_ms,
        born_host=batch.born_host,
        reconsume_times=batch.reconsume_times,
    )
    _, magic, _, queue_id, _ = _FIRST.unpack_from(empty)
    sys_flag = _INT.unpack_from(empty, layout.OFFSET_SYS_FLAG)[0]
    body_at = layout.HEADERS[sys_flag & layout.SYS_FLAG_BORN_IPV6].size
    common = empty[_FIRST.size : body_at - _INT.size]
    topic = empty[body_at : -_PROPERTIES_LENGTH.size]
    sizes = np.empty(len(members), np.int32)
    parts: list[bytes] = []
    for number, (flag, body, properties) in enumerate(members):
        if number and number % AT_ONCE == 0:
            yield None
        if len(properties) > layout.MAX_PROPERTIES_BYTES:
            raise InvalidInput("properties", f"at most {layout.MAX_PROPERTIES_BYTES} bytes", len(properties))
        sizes[number] = size = len(empty) + len(body) + len(properties)
        parts += (
            _FIRST.pack(size, magic, crc.crc32(body) & layout.CRC_MASK, queue_id, flag),
            common,
            _INT.pack(len(body)),
            body,
            topic,
            _PROPERTIES_LENGTH.pack(len(properties)),
            properties,
        )
    return b"".join(parts), sizes
