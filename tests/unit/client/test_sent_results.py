"""Test the results of a batch: one per message, in order, over all of its parts."""

from __future__ import annotations

import numpy as np

from raymq.actors.errors import NotStored, OutcomeUnknown, SendError
from raymq.actors.protocol import MessageQueue, RecordPositions, SendStatus
from raymq.actors.sending.sender import SendOutcome
from raymq.client.produce.sent_results import BatchResults, batch_error, results_of
from raymq.storage.records.unique_key_generator import process_unique_keys


def send_outcome(queue_id: int, first: int, count: int) -> SendOutcome:
    offsets = first + np.arange(count)
    placed = RecordPositions("t", np.full(count, queue_id, np.int32), offsets, offsets * 1_000)
    return SendOutcome(SendStatus.SEND_OK, MessageQueue("t", "broker-a", queue_id), "127.0.0.1:10911", placed)


def test_results_are_in_message_order() -> None:
    parts = [send_outcome(0, 7, 30), send_outcome(3, 0, 1), send_outcome(1, 5, 2)]
    numbers: list[str | int] = [*range(32), "given"]
    results = BatchResults(parts, numbers)
    assert len(results) == 33
    assert [result.queue_offset for result in results] == [*range(7, 37), 0, 5, 6]
    assert [result.queue.queue_id for result in results] == [0] * 30 + [3] + [1] * 2
    assert [result.unique_key for result in results] == [*map(process_unique_keys().text, range(32)), "given"]
    assert results[-1].message_id == "7F00000100002A9F0000000000001770"
    assert results[30:] == [*results_of(parts[1], [30]), *results_of(parts[2], [31, "given"])]


def test_batch_results_equal_a_list_of_results() -> None:
    results = BatchResults([send_outcome(0, 0, 3)], range(3))
    assert results == list(results)
    assert results == BatchResults([send_outcome(0, 0, 3)], range(3))
    assert results != list(results)[:2]
    assert results != 3


def test_batch_error_omits_messages_kept_in_the_outbox() -> None:
    """A kept message in one of the lists would be sent twice."""
    failures: list[SendError] = [NotStored("not stored"), OutcomeUnknown("unknown")]
    kept: list[SendError] = [NotStored("not stored"), OutcomeUnknown("unknown")]
    for each in kept:
        each.kept = True
    error = batch_error([(1, each) for each in (*kept, *failures)], range(4))
    assert isinstance(error, OutcomeUnknown)
    assert error.not_stored == [2]
    assert error.unknown == [3]
