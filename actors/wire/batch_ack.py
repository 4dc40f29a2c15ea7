"""Acknowledging many deliveries at once: per queue and pop a set of bits, one for each offset."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from raymq.actors.core.pop import MAX_IN_FLIGHT
from raymq.actors.errors import InvalidInput
from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pop import Handle

#: Ours, in the answer to BATCH_ACK_MESSAGE: how many of the handles were stale.
STALE = "raymqStale"


def read_batch_acks(request: Command) -> list[tuple[str, str, int, int, Sequence[int]]]:
    """(group, topic, queue id, pop time, offsets) of each entry."""
    acks = json_body.read_object(request.body).get("acks")
    if not isinstance(acks, list):
        raise InvalidInput("acks", "a list", acks)
    return [_batch_ack(each) for each in acks]


def _batch_ack(told: Mapping[str, Any]) -> tuple[str, str, int, int, Sequence[int]]:
    try:
        group, topic, queue_id, pop_time_ms = str(told["c"]), str(told["t"]), int(told["q"]), int(told["pt"])
        start, bits = int(told["so"]), base64.b64decode(told["b"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise InvalidInput("acks", "entries of RocketMQ's BatchAck", str(error)) from error
    numbers = np.frombuffer(bits, np.uint8)
    if np.count_nonzero(numbers) > MAX_IN_FLIGHT:
        raise InvalidInput("acks", f"at most {MAX_IN_FLIGHT} messages", len(bits) * 8)
    used = np.flatnonzero(numbers)
    each = np.unpackbits(numbers[used, None], axis=1, bitorder="little")
    rows, places = np.nonzero(each)
    return group, topic, queue_id, pop_time_ms, (start + used[rows] * 8 + places).tolist()


def batch_ack_command(group: str, topic: str, handles: Iterable[Handle]) -> Command:
    """BATCH_ACK_MESSAGE of deliveries of one topic on one broker."""
    batches: dict[tuple[str, int, int, int], list[Handle]] = {}
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
