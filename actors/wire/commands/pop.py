"""The pop family: how many messages one pop gives, and the handles of those in an answer."""

from __future__ import annotations

from collections.abc import Callable

from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pop import Handle, PopMessage, retry_mark
from raymq.actors.wire.told import reader

#: Ours, in the answer to a pop: queue id and offset of messages that have their last try now, and whose consumers ended
#: without an answer before.
SUSPECTS = "raymqSuspects"
#: One pop gives at most so many messages, whatever it asks for.
MAX_MESSAGES = 1024


@reader
def read_suspects(answer: Command) -> set[tuple[int, int]]:
    """Queue id and offset of the suspects in an answer to POP_MESSAGE."""
    told = str(answer.fields.get(SUSPECTS) or "")
    pairs = [part.split(" ") for part in told.split(";") if part]
    return {(int(queue_id), int(offset)) for queue_id, offset in pairs}


@reader
def read_handles(header: PopMessage, broker: str, answer: Command) -> Callable[[int, int], Handle]:
    """From an answer to POP_MESSAGE: what makes the handle of a message from its queue id and offset."""
    told = answer.fields
    starts: dict[int, int] = {}
    for part in told["startOffsetInfo"].split(";"):
        _, queue_id, start = part.split(" ")
        starts[int(queue_id)] = int(start)
    pop_time_ms, invisible_ms = int(told["popTime"]), int(told["invisibleTime"])
    revive_queue_id, retry = int(told["reviveQid"]), retry_mark(header.topic)

    def handle(queue_id: int, offset: int) -> Handle:
        return Handle(starts[queue_id], pop_time_ms, invisible_ms, revive_queue_id, retry, broker, queue_id, offset)

    return handle
