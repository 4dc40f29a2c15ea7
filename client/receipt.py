"""A consumer's claim on a message that it popped."""

from __future__ import annotations

from dataclasses import dataclass

from raymq.actors.wire.headers.pop import Handle


@dataclass(slots=True)
class Receipt:
    """Goes with a received message, also to another process; `handle` is replaced when the delivery is renewed.

    Attributes:
        is_begun: the broker knows that a call begins with it.
        is_suspect: its consumer ended without an answer before: twice, or before its last try.
        is_lost: its time is over, or the broker has given it to somebody else.
    """

    handle: Handle
    is_suspect: bool = False
    is_lost: bool = False
    is_begun: bool = False
