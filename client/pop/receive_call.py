"""Represent one call of a simple consumer's `receive` in the engine."""

from __future__ import annotations


class ReceiveCall:
    """The receiver of messages on the engine's loop, whose caller runs elsewhere.

    The caller waits on another thread or another loop. A call that was given up may still begin on the engine's loop
    after the engine processed the notice of it. The notice alone is therefore not enough, and the caller's thread also
    sets `has_given_up` before it sends the notice.
    """

    __slots__ = ("has_given_up",)

    def __init__(self) -> None:
        #: The caller no longer waits, so the engine must give no messages to this call.
        self.has_given_up = False
