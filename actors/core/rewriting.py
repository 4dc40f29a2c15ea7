"""Making a record anew from one that is stored: another queue, other properties, the same message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from raymq.storage.record import Record, encode, encode_properties
from raymq.storage.store import AppendResult


class Append(Protocol):
    """Appends `records` of `lanes` and wakes who waits for them; `check_crc` and `again` as in `Store.append`."""

    def __call__(
        self,
        records: bytes | memoryview,
        sizes: npt.NDArray[np.int32],
        *lanes: tuple[str, int],
        check_crc: bool = True,
        again: bool = False,
    ) -> AppendResult: ...


def encode_again(record: Record, topic: str, queue_id: int, properties: dict[str, str]) -> bytes:
    """The bytes of `record` for another place. Body, flags, born time and born host stay; the store stamps the rest."""
    host, _, port = record.born_host.rpartition(":")
    return encode(
        topic,
        queue_id,
        record.body,
        encode_properties(properties),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=(host.strip("[]"), int(port)),
        reconsume_times=record.reconsume_times,
    )


def join(records: Sequence[bytes]) -> tuple[bytes, npt.NDArray[np.int32]]:
    """Records in one buffer, and their sizes."""
    return b"".join(records), np.fromiter(map(len, records), np.int32, len(records))
