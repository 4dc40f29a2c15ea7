"""Plans of streaming queries: which messages each batch of a query reads.

A plan is kept until the batch after next is planned. It is bytes without a meaning here. The first plan that is put for
a batch is kept, and a client that puts another plan receives the kept one. So all tasks of a batch read the same
messages, and a batch that is run again reads them again.

A turn is a number that increases with each plan of this broker: it shows which query was planned last. A clock cannot
show this, because it may be wrong and then be corrected.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from raymq.storage.errors import InvalidInput
from raymq.storage.journal.journaled_table import Fields, JournaledTable

#: The running batch, and the one before it, in case it is continued.
KEPT_BATCHES: Final = 2
#: The most queries of one stream that are kept, those whose batches were planned last.
MAX_QUERIES: Final = 32
#: The most streams that are kept.
MAX_STREAMS: Final = 10_000
#: The longest plan in bytes, enough for some 40,000 queues.
MAX_PLAN_BYTES: Final = 1 << 20
#: The valid names of streams and queries.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: The limit of batch numbers, which are signed 64-bit numbers.
_BATCHES: Final = 1 << 63

#: The number of a batch, and its plan.
Planned = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class _QueryPlans:
    """The turn of a query's last plan, and its kept plans, the older batch first."""

    turn: int
    plans: tuple[Planned, ...]


class StreamPlanStore(JournaledTable):
    """The plans of the broker of one store directory; any thread.

    Events: [stream, query, turn, [batch, plan], ...] with all kept plans, [stream, query] or [stream] for a query or
    stream that is removed.
    """

    NUMBER: ClassVar = 11
    COPIES: ClassVar = 2

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[str, dict[str, _QueryPlans]] = {}
        #: The turn of each stream's last plan, and the newest of all.
        self._turns: dict[str, int] = {}
        self._turn = 0

    def kept(self, stream: str, query: str) -> list[Planned]:
        """Return the kept plans of a query, the older batch first; empty without plans.

        Raise InvalidInput if a name is not valid.
        """
        known = self._streams.get(_checked("stream", stream), {}).get(_checked("query", query))
        return list(known.plans) if known is not None else []

    def put(self, stream: str, query: str, batch: int, plan: bytes) -> bytes:
        """Store the plan of a batch unless it has one; return the kept plan.

        The kept plan survives a machine crash.

        Raises:
            InvalidInput: a name or number is not valid, the plan is too long, or the batch is older than those that are
                kept.
            StoreFull, StoreFailed: it could not be written.
        """
        _checked("stream", stream), _checked("query", query)
        if not 0 <= batch < _BATCHES:
            raise InvalidInput("batch", "a whole number of 63 bits", batch)
        if len(plan) > MAX_PLAN_BYTES:
            raise InvalidInput("plan", f"at most {MAX_PLAN_BYTES} bytes", len(plan))
        with self._lock:
            known = self.kept(stream, query)
            for number, stored in known:
                if number == batch:
                    self.sync()
                    return stored
            if known and batch < known[-1][0]:
                raise InvalidInput("batch", f"a kept batch, or above {known[-1][0]}", batch)
            kept = [*known, (batch, plan)][-KEPT_BATCHES:]
            removals = list(self._removals(stream, query))  # behind the plan, which the disk may refuse
            self.record_durably((stream, query, self._turn + 1, *kept), *removals)
        return plan

    def latest_query(self, stream: str) -> str | None:
        """Return the query of a stream that was planned last, or None.

        Raise InvalidInput if the name is not valid.
        """
        queries = self._streams.get(_checked("stream", stream), {}).copy()
        return max(queries, key=lambda query: queries[query].turn, default=None)

    def _removals(self, stream: str, query: str) -> Iterator[Fields]:
        """Return the events that make room for a query and its stream.

        The least recently planned ones are removed.
        """
        queries = self._streams.get(stream, {})
        if not queries:
            for name in sorted(self._turns, key=self._turns.__getitem__)[: max(0, len(self._turns) + 1 - MAX_STREAMS)]:
                yield [name]
        if query not in queries:
            oldest = sorted(queries, key=lambda name: queries[name].turn)
            yield from ((stream, name) for name in oldest[: max(0, len(queries) + 1 - MAX_QUERIES)])

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        stream, *rest = fields
        _checked("stream", stream)
        if not rest:
            self._streams.pop(stream, None)
            self._turns.pop(stream, None)
            return
        query, *rest = rest
        _checked("query", query)
        if rest:
            turn, *plans = rest
            kept = _QueryPlans(int(turn), tuple((int(batch), bytes(plan)) for batch, plan in plans))
            self._streams.setdefault(stream, {})[query] = kept
            self._turn = max(self._turn, kept.turn)
            self._turns[stream] = max(kept.turn, self._turns.get(stream, 0))
        else:
            self._streams.get(stream, {}).pop(query, None)

    def snapshot(self) -> Iterator[Fields]:
        """Return an event for each query."""
        for stream, queries in self._streams.copy().items():
            for query, known in queries.copy().items():
                yield stream, query, known.turn, *known.plans


def _checked(field: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(field, "1 to 64 letters, digits, _ or -", name)
    return name
