"""Report arrivals once the messages are readable: at once, or when the log is confirmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from raymq.actors.broker.core.reading.long_poll import QueueKey
from raymq.storage.store import Store


class ArrivalNotifier:
    """Appended messages that are not readable yet. Used on the broker's event loop.

    Args:
        tell: wakes the requests that are parked on these queues.
        ask: requests that the log be confirmed soon; `confirmed` is called then.
    """

    def __init__(self, store: Store, tell: Callable[[Sequence[QueueKey]], None], ask: Callable[[], None]) -> None:
        self._store = store
        self._tell = tell
        self._ask = ask
        #: The end of each append, in the order of the log, and its queues.
        self._waiting: deque[tuple[int, Sequence[QueueKey]]] = deque()

    def appended(self, queues: Sequence[QueueKey]) -> None:
        """Record an append to these queues that ends at the current end of the log."""
        end = self._store.max_physical_offset
        if self._store.confirmed.offset >= end and not self._waiting:
            self._tell(queues)
        else:
            self._waiting.append((end, queues))
            self._ask()

    def confirmed(self) -> None:
        """Report the arrivals up to the confirmed offset, which may have advanced."""
        waiting = self._waiting
        if not waiting:
            return
        point = self._store.confirmed.offset
        passed: dict[QueueKey, None] = {}
        while waiting and waiting[0][0] <= point:
            passed.update(dict.fromkeys(waiting.popleft()[1]))
        if passed:
            self._tell(list(passed))
