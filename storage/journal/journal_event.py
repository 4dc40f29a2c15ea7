"""One event of the state journal, as a master ships it to its replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from raymq.storage.errors import StateMismatch
from raymq.storage.journal.journal_frames import MAX_PAYLOAD_BYTES

#: number, log end, table
_HEAD_FIELDS = 3


class JournalEvent(NamedTuple):
    """An event with its place in the stream of a master.

    Attributes:
        sequence: its number, from 1 on; a replica's journal gives it the same number.
        log_offset: the log's end when it was written: it refers to messages before that offset only.
        payload: the payload of its frame, `[number, log end, table, value, ...]` in msgpack.
    """

    sequence: int
    log_offset: int
    payload: bytes

    def decode(self) -> tuple[int, Sequence[Any]]:
        """Return the number of its table, and its values.

        Raise StateMismatch if the payload is malformed, or is that of another event.
        """
        try:
            number, log_end, table, *fields = msgpack.unpackb(self.payload)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise StateMismatch(f"event {self.sequence} is malformed: {error}") from None
        if (number, log_end) != (self.sequence, self.log_offset) or type(table) is not int or table < 1:
            raise StateMismatch(f"event {self.sequence} is malformed: it begins with {(number, log_end, table)!r:.100}")
        if len(self.payload) > MAX_PAYLOAD_BYTES:
            raise StateMismatch(f"event {self.sequence} has {len(self.payload)} bytes, more than {MAX_PAYLOAD_BYTES}")
        return table, fields
