"""What a strategy is: it is told how each try ended, and ranks the brokers."""

from __future__ import annotations

import enum
from typing import Protocol


class Outcome(enum.Enum):
    """How a try ended, as far as its broker is to blame."""

    #: It took the message, or refused it for the message's own sake.
    ANSWERED = "answered"
    #: It answered with an error of its own: busy, full, closing.
    REFUSED = "refused"
    #: It could not be reached, or did not answer.
    SILENT = "silent"


class Isolation(Protocol):
    """Learns how brokers behave. Used from one thread."""

    def report(self, broker: str, outcome: Outcome, latency_ms: float) -> None:
        """A try that took `latency_ms` ended so."""

    def rank(self, broker: str) -> int:
        """Where the broker stands now: 0 is as good as any, and a lower rank is preferred to a higher one.

        A rank never excludes: where every broker ranks badly, the least bad one still gets the message.
        """

    def suspects(self) -> list[str]:
        """The isolated brokers that a probe may free: those that were silent. One that answers with errors is alive."""

    def recovered(self, broker: str) -> None:
        """A probe of a suspect was answered: its isolation ends now."""

    def validate(self) -> None:
        """Assert the invariants; called after every unit test."""
