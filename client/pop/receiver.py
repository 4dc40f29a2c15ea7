"""One call of a simple consumer's `receive`, as the engine sees it."""

from __future__ import annotations


class Receiver:
    """Whom messages are given to, on the engine's loop; who waits for them is on another thread, or another loop.

    What the caller gives up may still begin on the engine's loop, behind the word that it was given up. So that word
    alone is not enough: it is also written down here, by the caller's thread, before it is sent.
    """

    __slots__ = ("has_given_up",)

    def __init__(self) -> None:
        #: Nobody waits any more: from now on it is given nothing.
        self.has_given_up = False
