"""A consumer's claim on a message that it popped."""

from __future__ import annotations

from dataclasses import dataclass

from raymq.actors.wire.headers.pop import Handle


@dataclass(slots=True)
class Receipt:
    """Goes with a received message, also to another process; `handle` is replaced when the delivery is renewed."""

    handle: Handle
