"""Recall messages that wait for their delivery time (ours).

RocketMQ has a recall command, too; ours reports a definite outcome.
"""

from __future__ import annotations

from raymq.actors.protocol import RecallStatus
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.response_validation import protocol_checked


def recall_command(handle: str) -> Command:
    """Return RECALL_TIMER (ours)."""
    return Command(RequestCode.RECALL_TIMER, {"handle": handle}, serialization=Serialization.MSGPACK)


@protocol_checked
def read_recalled(answer: Command) -> RecallStatus:
    """Return the outcome in an answer to RECALL_TIMER."""
    return RecallStatus(answer.fields["status"])
