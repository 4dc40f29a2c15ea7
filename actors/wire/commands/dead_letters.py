"""Our own commands of dead-letter queues: their entries go to the group again, or are deleted."""

from __future__ import annotations

from collections.abc import Sequence

from raymq.actors.protocol import Redriven
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.told import number, reader


def redrive_command(group: str, offsets: Sequence[int], *, force: bool, dry_run: bool) -> Command:
    """The entries at these offsets of the group's dead-letter queue."""
    fields = {"group": group, "offsets": list(offsets), "force": force, "dry_run": dry_run}
    return Command(RequestCode.REDRIVE_DEAD_LETTERS, fields, serialization=Serialization.MSGPACK)


@reader
def read_redriven(answer: Command) -> list[Redriven]:
    """What was done, for each offset."""
    return [Redriven(word) for word in answer.fields["told"]]


def delete_command(group: str, offsets: Sequence[int]) -> Command:
    """DELETE_DEAD_LETTERS: the entries at these offsets of the group's dead-letter queue."""
    fields = {"group": group, "offsets": list(offsets)}
    return Command(RequestCode.DELETE_DEAD_LETTERS, fields, serialization=Serialization.MSGPACK)


def deleted_command(group: str) -> Command:
    """DELETED_DEAD_LETTERS: which entries of the group's dead-letter queue were deleted."""
    return Command(RequestCode.DELETED_DEAD_LETTERS, {"group": group}, serialization=Serialization.MSGPACK)


@reader
def read_count(answer: Command) -> int:
    """Return how many entries a DELETE_DEAD_LETTERS has deleted."""
    return number(answer.fields["deleted"])


@reader
def read_deleted(answer: Command) -> list[tuple[int, int]]:
    """Return the ranges (first, end) of offsets in an answer to DELETED_DEAD_LETTERS, sorted."""
    return [(number(first), number(end)) for first, end in answer.fields["ranges"]]
