"""Whether name servers hang, so that nobody waits for them who can go on without. No I/O, injected clock.

One that refuses costs nothing: that is known at once. One that hangs takes the whole time of whoever asks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raymq.actors.backoff import Backoff

#: An ask that fails sooner was refused, or had no time.
HANGING_SECONDS: Final = 0.5
#: The longest wait before somebody asks again, seconds; the first one is a second.
_LONGEST_SECONDS: Final = 5.0


class NameServerSilence:
    """What became of one client's asks. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._backoff = Backoff(cap=_LONGEST_SECONDS)
        self._ask_again_at = 0.0
        #: Whether nobody answered who was asked last.
        self.is_on = False

    @property
    def is_to_be_asked(self) -> bool:
        """Whether it is time to see if somebody answers again."""
        return self.is_on and self._clock() >= self._ask_again_at

    def unanswered(self, seconds: float, timeout: float) -> None:
        """Nobody answered: `seconds` were waited of the `timeout` that there was."""
        if seconds < min(HANGING_SECONDS, 0.9 * timeout):
            self.answered()
            return
        self.is_on = True
        self._ask_again_at = self._clock() + self._backoff.next_delay()

    def answered(self) -> None:
        """Somebody did, or refused."""
        self.is_on = False
        self._backoff.reset()
