"""The protocol of an isolation strategy, which ranks brokers by the outcomes of tries."""

from __future__ import annotations

import enum
from typing import Protocol


class TryOutcome(enum.Enum):
    """How a try ended, as far as its broker is the cause."""

    #: The broker accepted the message, or refused it because of the message itself.
    ANSWERED = "answered"
    #: The broker answered with an error of its own: busy, full, closing.
    REFUSED = "refused"
    #: The broker could not be reached, or did not answer.
    SILENT = "silent"


class Isolation(Protocol):
    """A strategy that ranks brokers. Used by one thread."""

    def report(self, broker: str, outcome: TryOutcome, latency_ms: float) -> None:
        """Record the outcome of a try that took `latency_ms`."""

    def rank(self, broker: str) -> int:
        """Return the broker's rank: 0 is best, and a lower rank is preferred.

        A rank never excludes a broker: if all brokers rank badly, the best of them still receives the message.
        """

    def suspects(self) -> list[str]:
        """Return the isolated brokers that a probe may free: those that did not answer.

        A broker that answers with errors is running, so a probe of it shows nothing.
        """

    def recovered(self, broker: str) -> None:
        """End the isolation of a suspect that has answered a probe."""

    def validate(self) -> None:
        """Assert the invariants; called after every unit test."""
