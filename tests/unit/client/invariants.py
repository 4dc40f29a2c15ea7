"""Check the invariants of a consumer's tables."""

from __future__ import annotations

from raymq.client.push.process_queue import ProcessQueue
from raymq.client.push.rebalance import QueueAssignment, Stage


def check_process_queue(process: ProcessQueue) -> None:
    """Assert that the messages in flight are in order and counted."""
    offsets = list(process._in_flight)
    assert offsets == sorted(offsets)
    assert offsets == [offset for offset in process._order if offset in process._in_flight]
    assert process._bytes == sum(process._in_flight.values())
    assert all(offset < process.next_offset for offset in offsets)
    assert {message.queue_offset for message in process._ready} <= set(offsets)


def check_assignment(assignment: QueueAssignment) -> None:
    """Assert that the stages of all queues fit together."""
    of_locks = {Stage.LOCKING, Stage.WAITING, Stage.ENDING, Stage.UNLOCKING}
    assert assignment._locking or not of_locks & set(assignment._stages.values())
    assert assignment._vanished <= assignment.at(Stage.ENDING)
    assert not assignment._unsaved.keys() & assignment.at(Stage.OPEN), "an open queue has an unsaved position"
