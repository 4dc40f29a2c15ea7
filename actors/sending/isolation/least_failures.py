"""The broker with the fewest failures gets the message; ties go round robin."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from raymq.actors.sending.isolation.base import Outcome

#: Of one broker no more failures are remembered: two that fail without end are equally bad.
_REMEMBERED: Final = 1_000


@dataclass(slots=True)
class LeastFailures:
    """Ranks: the failures of the last `window_seconds`; without such a window one would cost a broker all traffic."""

    clock: Callable[[], float]
    window_seconds: float = 60.0
    _failed_at: dict[str, deque[float]] = field(default_factory=dict)
    _silent: set[str] = field(default_factory=set)

    def report(self, broker: str, outcome: Outcome, latency_ms: float) -> None:  # noqa: ARG002 - the protocol's
        """Count a failure."""
        if outcome is not Outcome.ANSWERED:
            self._failed_at.setdefault(broker, deque(maxlen=_REMEMBERED)).append(self.clock())
        if outcome is Outcome.SILENT:
            self._silent.add(broker)
        else:
            self._silent.discard(broker)

    def rank(self, broker: str) -> int:
        """How often it failed lately."""
        failures = self._failed_at.get(broker)
        if failures is None:
            return 0
        oldest = self.clock() - self.window_seconds
        while failures and failures[0] <= oldest:
            failures.popleft()
        if not failures:
            self._failed_at.pop(broker, None)
        return len(failures)

    def suspects(self) -> list[str]:
        """Those that were silent when last tried, as long as that counts."""
        return [broker for broker in sorted(self._silent) if self.rank(broker)]

    def recovered(self, broker: str) -> None:
        """Forget its failures."""
        self._failed_at.pop(broker, None)
        self._silent.discard(broker)

    def validate(self) -> None:
        """Failures are remembered in order."""
        assert all(list(failures) == sorted(failures) for failures in self._failed_at.values())
