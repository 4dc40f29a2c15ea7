"""The offset family: a group's committed offset in a queue."""

from __future__ import annotations

from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.group_headers import QueryConsumerOffset, UpdateConsumerOffset
from raymq.actors.wire.response_validation import number, protocol_checked, read_number_field

#: Value of `since`: to the consumer's knowledge its group has no offset; the broker reports if it has one by now.
NO_OFFSET = -1


def query_offset_command(group: str, topic: str, queue_id: int) -> Command:
    """Return QUERY_CONSUMER_OFFSET.

    If the group never committed an offset, the answer is QUERY_NOT_FOUND.
    """
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
    """Return UPDATE_CONSUMER_OFFSET: all messages below `offset` are processed.

    A commit never lowers the committed offset.

    Args:
        overrules_reset: the application itself chose this offset, which replaces an earlier reset by an administrator.
        since: the group's offset as the consumer knows it, or NO_OFFSET; answered with OffsetReset if the group's
            offset is lower, or if a group without an offset has one by now.
        incarnation: the topic's incarnation as the consumer knows it; answered with OffsetReset if the topic was
            recreated.
        epoch: the recovery epoch under which all messages below `offset` were read; answered with OffsetReset if the
            broker's log has lost some of them. None or 0: not known.
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


@protocol_checked
def read_committed_offset(answer: Command) -> tuple[int, int]:
    """Return an offset, and the topic's incarnation to which it applies.

    Raise ProtocolError if they are invalid.
    """
    return read_number_field(answer, "offset"), number(answer.fields.get("raymqIncarnation", 0))
