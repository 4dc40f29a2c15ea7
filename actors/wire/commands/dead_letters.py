"""REDRIVE_DEAD_LETTERS, our own: entries of a group's dead-letter queue go to the group again."""

from __future__ import annotations

from collections.abc import Sequence

from raymq.actors.protocol import Redriven
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.told import reader


def redrive_command(group: str, offsets: Sequence[int], *, force: bool, dry_run: bool) -> Command:
    """The entries at these offsets of the group's dead-letter queue."""
    fields = {"group": group, "offsets": list(offsets), "force": force, "dry_run": dry_run}
    return Command(RequestCode.REDRIVE_DEAD_LETTERS, fields, serialization=Serialization.MSGPACK)


@reader
def read_redriven(answer: Command) -> list[Redriven]:
    """What was done, for each offset."""
    return [Redriven(word) for word in answer.fields["told"]]
