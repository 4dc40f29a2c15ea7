"""How long it is waited for something that does not move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: What does not change for so long is not waited for any more. A replica that takes a lot says how much it lacks.
PATIENCE_SECONDS: Final = 600.0


class Patience:
    """Of one change."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds that do not go back."""
        self._clock = clock
        self._why = ""
        self._since = 0.0

    def is_over(self, why: str) -> bool:
        """Whether exactly this has been in the way for too long."""
        if why != self._why:
            self._why, self._since = why, self._clock()
        return self._clock() - self._since >= PATIENCE_SECONDS

    def rest(self) -> None:
        """Nothing is in the way now."""
        self._why = ""
