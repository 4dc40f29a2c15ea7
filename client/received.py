"""What a fetch brought from one queue, as messages."""

from __future__ import annotations

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.fetch import Fetched
from raymq.client.message import ReceivedMessage
from raymq.storage.record import SYS_FLAG_COMPRESSED, decode
from raymq.storage.record_batch import parse

#: Up to how many records a loop is faster than NumPy's set-up.
FEW_RECORDS = 32


def received(part: Fetched, queue: MessageQueue) -> list[ReceivedMessage]:
    """The messages of a part whose checksums were compared (`raymq.client.fetching.fetch` does)."""
    if len(part.sizes) > FEW_RECORDS:
        batch = parse(part.records, part.sizes, check_crc=False)
        if not batch.any_flags & SYS_FLAG_COMPRESSED:
            data = bytes(batch.records)  # slices of bytes are made faster than those of a view
            body_ends = (batch.body_at + batch.body_lengths).tolist()
            places = zip(batch.starts.tolist(), batch.body_at.tolist(), body_ends, batch.ends.tolist(), strict=True)
            return ReceivedMessage.of_records(
                queue, part.offsets.tolist(), [(data[a:b], data[b:c], data[c:d]) for a, b, c, d in places]
            )
    messages = []
    start = 0
    for size in part.sizes.tolist():
        messages.append(ReceivedMessage.from_record(decode(part.records, start, check_crc=False), queue.broker))
        start += size
    return messages
