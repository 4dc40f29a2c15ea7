"""Arrivals are told when the messages can be read: at once, or when the log is confirmed up to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from raymq.actors.broker.core.reading.long_poll import QueueKey
from raymq.storage.store import Store


class Arrivals:
    """What was appended and cannot be read yet. Used on the broker's event loop.

    Args:
        tell: wakes who waits for these queues.
        ask: has the log confirmed soon; `confirmed` is called then.
    """

    def __init__(self, store: Store, tell: Callable[[Sequence[QueueKey]], None], ask: Callable[[], None]) -> None:
        self._store = store
        self._tell = tell
        self._ask = ask
        #: Where each append ended, in the order of the log, and its queues.
        self._waiting: deque[tuple[int, Sequence[QueueKey]]] = deque()

    def appended(self, queues: Sequence[QueueKey]) -> None:
        """These queues got something, the last of which ends where the log ends now."""
        end = self._store.max_physical_offset
        if self._store.confirmed.offset >= end and not self._waiting:
            self._tell(queues)
        else:
            self._waiting.append((end, queues))
            self._ask()

    def confirmed(self) -> None:
        """The point may have moved: tell what it has passed."""
        waiting = self._waiting
        if not waiting:
            return
        point = self._store.confirmed.offset
        passed: dict[QueueKey, None] = {}
        while waiting and waiting[0][0] <= point:
            passed.update(dict.fromkeys(waiting.popleft()[1]))
        if passed:
            self._tell(list(passed))
