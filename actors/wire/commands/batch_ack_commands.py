"""Acknowledge many deliveries at once: per queue and pop one bit per offset."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Annotated

import msgspec
import numpy as np

from raymq.actors.errors import InvalidInput
from raymq.actors.request_limits import MAX_IN_FLIGHT
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pop_headers import ReceiptHandle
from raymq.actors.wire.json_body import decode

#: Ours, in the answer to BATCH_ACK_MESSAGE: how many of the handles were stale.
STALE = "raymqStale"
_MAX_OFFSET = 1 << 60


class BatchAck(
    msgspec.Struct,
    frozen=True,
    rename={"group": "c", "topic": "t", "queue_id": "q", "pop_time_ms": "pt", "start": "so", "bits": "b"},
):
    """One entry of a request: deliveries of one queue and pop.

    On the wire it has RocketMQ's names.

    A bit in `bits` stands for the offset `start` plus the bit's index.
    """

    group: str
    topic: str
    queue_id: int
    pop_time_ms: int
    start: Annotated[int, msgspec.Meta(ge=0, le=_MAX_OFFSET)]
    bits: bytes

    @property
    def count(self) -> int:
        """Return the number of deliveries."""
        return int.from_bytes(self.bits, "big").bit_count()

    def offsets(self) -> list[int]:
        """Return the queue offsets, ascending."""
        numbers = np.frombuffer(self.bits, np.uint8)
        used = np.flatnonzero(numbers)
        rows, places = np.nonzero(np.unpackbits(numbers[used, None], axis=1, bitorder="little"))
        return (self.start + used[rows] * 8 + places).tolist()  # type: ignore[no-any-return]


class _Body(msgspec.Struct):
    acks: list[BatchAck]


def read_batch_acks(request: Command) -> list[BatchAck]:
    """Return the entries of BATCH_ACK_MESSAGE, with their bits still packed.

    Raises:
        InvalidInput: the body is not in RocketMQ's form, or names more messages than a group may have in flight.
    """
    acks = decode(request.body, _Body).acks
    count = sum(ack.count for ack in acks)
    if count > MAX_IN_FLIGHT:
        raise InvalidInput("acks", f"at most {MAX_IN_FLIGHT} messages", count)
    return acks


def batch_ack_command(group: str, topic: str, handles: Iterable[ReceiptHandle]) -> Command:
    """Return BATCH_ACK_MESSAGE for deliveries of one topic on one broker."""
    batches: dict[tuple[str, int, int, int], list[ReceiptHandle]] = {}
    broker = ""
    for handle in handles:
        broker = handle.broker
        same = (handle.retry, handle.queue_id, handle.start_offset, handle.pop_time_ms)
        batches.setdefault(same, []).append(handle)
    acks = [
        {
            "c": group,
            "t": topic,
            "r": retry,
            "so": start,
            "q": queue_id,
            "rq": batch[0].revive_queue_id,
            "pt": pop_time_ms,
            "it": batch[0].invisible_ms,
            "b": base64.b64encode(_bits(handle.offset - start for handle in batch)).decode(),
        }
        for (retry, queue_id, start, pop_time_ms), batch in batches.items()
    ]
    return Command(RequestCode.BATCH_ACK_MESSAGE, body=json.dumps({"brokerName": broker, "acks": acks}).encode())


def _bits(numbers: Iterable[int]) -> bytes:
    places = np.fromiter(numbers, np.int64)
    bits = np.zeros(int(places.max()) + 1, np.uint8)
    bits[places] = 1
    return np.packbits(bits, bitorder="little").tobytes()
