"""The pop family: the limit of messages per pop, and the handles in an answer."""

from __future__ import annotations

from collections.abc import Callable

from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pop_headers import PopMessage, ReceiptHandle, retry_mark
from raymq.actors.wire.response_validation import protocol_checked

#: Ours, in the answer to a pop: queue id and offset of messages whose last attempt this is and whose earlier consumers
#: stopped without an acknowledgement or a failure report.
SUSPECTS = "raymqSuspects"
#: The most messages of one pop, whatever it requests.
MAX_MESSAGES = 1024


@protocol_checked
def read_suspects(answer: Command) -> set[tuple[int, int]]:
    """Return queue id and offset of the suspects in an answer to POP_MESSAGE."""
    packed = str(answer.fields.get(SUSPECTS) or "")
    pairs = [part.split(" ") for part in packed.split(";") if part]
    return {(int(queue_id), int(offset)) for queue_id, offset in pairs}


@protocol_checked
def read_handles(header: PopMessage, broker: str, answer: Command) -> Callable[[int, int], ReceiptHandle]:
    """Return a function that makes a message's handle from its queue id and offset.

    The function uses the fields of an answer to POP_MESSAGE.
    """
    fields = answer.fields
    starts: dict[int, int] = {}
    for part in fields["startOffsetInfo"].split(";"):
        _, queue_id, start = part.split(" ")
        starts[int(queue_id)] = int(start)
    pop_time_ms, invisible_ms = int(fields["popTime"]), int(fields["invisibleTime"])
    revive_queue_id, retry = int(fields["reviveQid"]), retry_mark(header.topic)

    def handle(queue_id: int, offset: int) -> ReceiptHandle:
        return ReceiptHandle(
            starts[queue_id], pop_time_ms, invisible_ms, revive_queue_id, retry, broker, queue_id, offset
        )

    return handle
