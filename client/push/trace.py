"""Report the steps of each message in a consumer to a trace function.

The steps are: ready, in flight, then the end of the delivery.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from raymq.client.message import ReceivedMessage


class TraceState(enum.Enum):
    """The step of a message.

    A message is READY when it was fetched, and IN_FLIGHT while a listener call has it. The other three states end a
    delivery.
    """

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


#: A trace function. It is called on the connection's event loop and must not block. An exception that it raises is
#: logged and otherwise ignored.
Trace = Callable[[TraceEvent], None]
