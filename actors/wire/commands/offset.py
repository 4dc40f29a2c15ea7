"""The offset family: what a group has committed in a queue."""

from __future__ import annotations

from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.group import QueryConsumerOffset, UpdateConsumerOffset
from raymq.actors.wire.told import number, number_in, reader

#: As `since`: the consumer knows that its group has no offset, and is told of one that it has by now.
NOWHERE = -1


def query_offset_command(group: str, topic: str, queue_id: int) -> Command:
    """QUERY_CONSUMER_OFFSET; "never committed" is answered with QUERY_NOT_FOUND."""
    return QueryConsumerOffset(group, topic, queue_id, set_zero_if_not_found=False).command()


def update_offset_command(
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    *,
    overrules_reset: bool = False,
    since: int | None = None,
    incarnation: int | None = None,
    epoch: int | None = None,
) -> Command:
    """UPDATE_CONSUMER_OFFSET: everything below `offset` is done; never back.

    Args:
        overrules_reset: the program itself chose this offset, and means it whatever an administrator did before.
        since: the group's offset as the consumer knows it, or NOWHERE; answered with OffsetReset if the group is before
            it, or has begun.
        incarnation: of the topic as the consumer knows it; answered with OffsetReset if it was made anew.
        epoch: the recovery epoch under which all below `offset` was read; answered with OffsetReset if the broker's log
            has lost some of that. None or 0: it is not known.
    """
    return UpdateConsumerOffset(
        group,
        topic,
        queue_id,
        offset,
        forward_only=True,
        overrules_reset=overrules_reset,
        since=since,
        incarnation=incarnation,
        epoch=epoch or None,
    ).command()


@reader
def read_place(answer: Command) -> tuple[int, int]:
    """An offset, and the topic's incarnation in which it is meant; ProtocolError."""
    return number_in(answer, "offset"), number(answer.fields.get("raymqIncarnation", 0))
