"""RayMQ's own commands for dead-letter queues: redeliver entries to the group, or delete them."""

from __future__ import annotations

from collections.abc import Sequence

from raymq.actors.protocol import RedriveStatus
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.response_validation import number, protocol_checked


def redrive_command(group: str, offsets: Sequence[int], *, force: bool, dry_run: bool) -> Command:
    """Return REDRIVE_DEAD_LETTERS for entries of the group's dead-letter queue, by offset."""
    fields = {"group": group, "offsets": list(offsets), "force": force, "dry_run": dry_run}
    return Command(RequestCode.REDRIVE_DEAD_LETTERS, fields, serialization=Serialization.MSGPACK)


@protocol_checked
def read_redriven(answer: Command) -> list[RedriveStatus]:
    """Return the outcome for each offset, from the answer to REDRIVE_DEAD_LETTERS."""
    return [RedriveStatus(word) for word in answer.fields["told"]]


def delete_command(group: str, offsets: Sequence[int]) -> Command:
    """Return DELETE_DEAD_LETTERS for entries of the group's dead-letter queue, by offset."""
    fields = {"group": group, "offsets": list(offsets)}
    return Command(RequestCode.DELETE_DEAD_LETTERS, fields, serialization=Serialization.MSGPACK)


def deleted_command(group: str) -> Command:
    """Return DELETED_DEAD_LETTERS: request the deleted entries of the dead-letter queue."""
    return Command(RequestCode.DELETED_DEAD_LETTERS, {"group": group}, serialization=Serialization.MSGPACK)


@protocol_checked
def read_count(answer: Command) -> int:
    """Return how many entries a DELETE_DEAD_LETTERS has deleted."""
    return number(answer.fields["deleted"])


@protocol_checked
def read_deleted(answer: Command) -> list[tuple[int, int]]:
    """Return the sorted ranges (first, end) in an answer to DELETED_DEAD_LETTERS."""
    return [(number(first), number(end)) for first, end in answer.fields["ranges"]]
