"""What a broker answered to a batch, as one result per message, vectorised."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from raymq.actors.protocol import MessageQueue
from raymq.actors.sending import Sent
from raymq.client import unique_key
from raymq.client.encoding import FEW, key_texts, strings
from raymq.client.results import SendResult
from raymq.storage import message_id
from raymq.storage.record import pack_host
from raymq.storage.unique_keys import hexadecimal


def results_of(sent: Sent, key_numbers: Sequence[str | int]) -> list[SendResult]:
    """The result of each message of `sent`, whose unique keys are `key_numbers`."""
    placed = sent.placed
    if len(key_numbers) == 1:
        return [_result_of_one(sent, key_numbers[0])]
    ids = placed.queue_ids.tolist()
    queues = {queue_id: MessageQueue(placed.topic, sent.queue.broker, queue_id) for queue_id in set(ids)}
    columns = zip(
        repeat(sent.status),
        _message_ids(sent),
        key_texts(key_numbers),
        map(queues.__getitem__, ids),
        placed.queue_offsets.tolist(),
        repeat(None),
        repeat(None),
    )
    return list(map(SendResult._make, columns))


def _result_of_one(sent: Sent, key_number: str | int) -> SendResult:
    """The same without columns, for sends of single messages."""
    placed = sent.placed
    host, _, port = sent.address.rpartition(":")
    return SendResult(
        sent.status,
        message_id.encode(host.strip("[]"), int(port), int(placed.physical_offsets[0])),
        key_number if isinstance(key_number, str) else unique_key.text(key_number),
        MessageQueue(placed.topic, sent.queue.broker, int(placed.queue_ids[0])),
        int(placed.queue_offsets[0]),
    )


def _message_ids(sent: Sent) -> list[str]:
    host, _, port = sent.address.rpartition(":")
    host = host.strip("[]")
    offsets = sent.placed.physical_offsets
    if len(offsets) <= FEW or ":" in host:
        return [message_id.encode(host, int(port), offset) for offset in offsets.tolist()]
    rows = np.empty((len(offsets), 16), np.uint8)
    rows[:, :8] = np.frombuffer(pack_host(host, int(port)), np.uint8)
    rows[:, 8:] = offsets.astype(">i8").view(np.uint8).reshape(len(offsets), 8)
    return strings(hexadecimal(rows))
