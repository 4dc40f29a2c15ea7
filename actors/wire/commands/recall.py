"""Calling back messages that wait for a chosen time: RocketMQ's command, and ours, which answers definitely."""

from __future__ import annotations

from raymq.actors.protocol import RecallStatus
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.told import reader


def recall_command(handle: str) -> Command:
    """RECALL_TIMER (ours)."""
    return Command(RequestCode.RECALL_TIMER, {"handle": handle}, serialization=Serialization.MSGPACK)


@reader
def read_recalled(answer: Command) -> RecallStatus:
    """What became of the message, from the answer to RECALL_TIMER."""
    return RecallStatus(answer.fields["status"])
