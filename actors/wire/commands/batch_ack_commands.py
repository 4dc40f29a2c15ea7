"""Acknowledge many deliveries at once: per queue and pop one bit per offset."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from raymq.actors.errors import InvalidInput
from raymq.actors.request_limits import MAX_IN_FLIGHT
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pop_headers import ReceiptHandle
from raymq.actors.wire.incremental_json import read_object_steps
from raymq.storage.cooperative_steps import Steps, map_steps

#: Ours, in the answer to BATCH_ACK_MESSAGE: how many of the handles were stale.
STALE = "raymqStale"
_MAX_OFFSET = 1 << 60
#: So many entries are read in one step.
_ENTRIES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class BatchAck:
    """One entry of a request: `count` deliveries of one queue and pop.

    A bit in `bits` stands for the offset `start` plus the bit's index.
    """

    group: str
    topic: str
    queue_id: int
    pop_time_ms: int
    start: int
    bits: bytes
    count: int

    def offsets(self) -> list[int]:
        """Return the queue offsets, ascending."""
        numbers = np.frombuffer(self.bits, np.uint8)
        used = np.flatnonzero(numbers)
        rows, places = np.nonzero(np.unpackbits(numbers[used, None], axis=1, bitorder="little"))
        return (self.start + used[rows] * 8 + places).tolist()  # type: ignore[no-any-return]


def batch_acks_steps(request: Command) -> Steps[list[BatchAck]]:
    """Read the entries of BATCH_ACK_MESSAGE in steps, with their bits still packed.

    Raises:
        InvalidInput: the body is not in RocketMQ's form, or names more messages than a group may have in flight.
    """
    entries = (yield from read_object_steps(request.body)).get("acks")
    if not isinstance(entries, list):
        raise InvalidInput("acks", "a list", type(entries).__name__)
    acks = yield from map_steps(_batch_ack, entries, _ENTRIES_AT_ONCE)
    count = sum(ack.count for ack in acks)
    if count > MAX_IN_FLIGHT:
        raise InvalidInput("acks", f"at most {MAX_IN_FLIGHT} messages", count)
    return acks


def _batch_ack(entry: Mapping[str, Any]) -> BatchAck:
    try:
        group, topic, queue_id, pop_time_ms = str(entry["c"]), str(entry["t"]), int(entry["q"]), int(entry["pt"])
        start, bits = int(entry["so"]), base64.b64decode(entry["b"], validate=True)
    except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
        raise InvalidInput("acks", "entries of RocketMQ's BatchAck", str(error)) from error
    if not 0 <= start <= _MAX_OFFSET:
        raise InvalidInput("so", f"0..{_MAX_OFFSET}", start)
    return BatchAck(group, topic, queue_id, pop_time_ms, start, bits, int.from_bytes(bits, "big").bit_count())


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
