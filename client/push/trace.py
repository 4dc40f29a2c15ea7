"""What becomes of each message in a consumer, for those who want to watch: ready, in flight, then its end."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from raymq.client.message import ReceivedMessage


class TraceState(enum.Enum):
    """A message is READY when it was fetched and IN_FLIGHT while a listener has it; the other three end a delivery."""

    READY = "ready"
    IN_FLIGHT = "in flight"
    COMMIT = "commit"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One step of one delivery."""

    state: TraceState
    message: ReceivedMessage


#: Called on the connection's event loop: it must not block. What it raises is logged and otherwise ignored.
Trace = Callable[[TraceEvent], None]
