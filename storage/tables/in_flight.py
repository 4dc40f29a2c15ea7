"""Messages that consumers have been given and have not acknowledged, by group and queue.

Every change appends one frame to `raymq/in_flight.journal` with a single write; from then on the kernel has it, and it
survives the death of the process. All entries say what is so afterwards, not what was added, so that a replay of any
prefix followed by all of the journal gives the same. When the journal has grown, what is still out is written beside
it by another thread, while changes go on.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from raymq.storage.errors import StoreError
from raymq.storage.files.work_thread import begin
from raymq.storage.tables.journal import Journal, ignore_failure
from raymq.storage.tables.remains import EVERYTHING, Remains

#: group, topic, queue id
GroupQueue = tuple[str, str, int]

#: Of `reconsume_times`, in what older versions wrote: its first delivery was given back unseen.
NEVER: Final = -1
#: Of `reconsume_times`: a higher number is no count.
_MOST_TIMES: Final = 1 << 30

_REWRITE_BYTES: Final = 4 << 20
#: So many deliveries are made a frame before other threads have the interpreter.
_STEP_DELIVERIES: Final = 500
_DELIVERED: Final = "d"
_DONE: Final = "a"
_FORGOTTEN: Final = "f"
#: A topic was deleted, when the log ended there.
_TOPIC_GONE: Final = "t"
#: Of which deletions of topics the table knows.
_KNOWN: Final = "k"


class Ending(enum.IntEnum):
    """What it means that a delivery's time is over. The numbers are on disk."""

    #: It was a try, which failed.
    TRIED = 0
    #: The message was lent ahead or given back; no program has seen it, so that the delivery does not count.
    UNSEEN = 1
    #: A listener's call had begun, and its consumer has neither answered nor renewed the lease.
    UNANSWERED = 2
    #: The listener failed, and the wait before the next try is over.
    FAILED = 3


class Lent(NamedTuple):
    """One message in a consumer's hands.

    Attributes:
        pop_time_ms: which of its deliveries this is; a handle names it.
        visible_at_ms: when the message is anyone's again.
        reconsume_times: how often it had been delivered before; NEVER: this delivery does not count, either.
        max_reconsume_times: at how many the consumer wanted it to be a dead letter.
        lent_ms: for how long it was given out, whatever the clock said; 0 in what older versions wrote.
        ending: an `Ending`, which says what the end of its time means.
        unanswered: how many earlier deliveries were UNANSWERED when their time ended.
        reason: why the listener failed on its last try; "" if it did not say.
    """

    pop_time_ms: int
    visible_at_ms: int
    reconsume_times: int
    max_reconsume_times: int
    lent_ms: int = 0
    ending: int = Ending.TRIED
    unanswered: int = 0
    reason: str = ""

    @property
    def next_reconsume_times(self) -> int:
        """The reconsume times of the delivery that follows this one."""
        if self.reconsume_times == NEVER:
            return 0
        return min(max(0, self.reconsume_times), _MOST_TIMES) + (self.ending != Ending.UNSEEN)

    @property
    def next_unanswered(self) -> int:
        """How many deliveries were UNANSWERED, this one included."""
        return self.unanswered + (self.ending == Ending.UNANSWERED)

    @property
    def is_last(self) -> bool:
        """Whether the message is a dead letter when the time of this delivery is over."""
        return self.ending != Ending.UNSEEN and self.reconsume_times >= self.max_reconsume_times


@dataclass(slots=True)
class Outstanding:
    """A queue of which something is out: by offset, ascending. `next_offset` is the first that never was."""

    next_offset: int
    deliveries: dict[int, Lent] = field(default_factory=dict)


class InFlight:
    """The table and its journal. One thread, but for `sync`. Each change raises as `Journal.append` does."""

    def __init__(
        self,
        path: Path,
        *,
        writable: bool,
        on_failure: Callable[[StoreError], None] = ignore_failure,
        remains: Remains = EVERYTHING,
    ) -> None:
        """Read what is there, as far as its messages remain; `on_failure` as in `Journal`."""
        self._queues: dict[GroupQueue, Outstanding] = {}
        self._journal = Journal(path, writable=writable, on_failure=on_failure)
        #: Where the log ended when topics were deleted that are forgotten; None: of an older version.
        self._forgotten: dict[str, int] | None = None if self._journal.entries else {}
        #: The same of deletions that the journal has not taken yet, of which nothing on disk may say that it knows.
        self._owed: dict[str, int] = {}
        self._rewrite_at = _REWRITE_BYTES
        self._rewriting: threading.Thread | None = None
        try:
            self._recover(remains, writable=writable)
        except BaseException:
            self._journal.close()
            raise

    def _recover(self, remains: Remains, *, writable: bool) -> None:
        """Hear the journal, as far as it speaks of what is there."""
        if self._journal.empty and not self._journal.entries:
            self._journal.begin_with((_KNOWN, "", "", 0, {}))
        for kind, group, topic, queue_id, *rest in self._journal.entries:
            self._apply(kind, (group, topic, queue_id), rest)
        for kind, group, topic, queue_id, *rest in self._journal.behind:
            # What was given out behind damage is given out again: before it may be what the damaged frame gave out, and
            # would be passed over. What is done is done.
            if kind != _DELIVERED:
                self._apply(kind, (group, topic, queue_id), rest)
        self._journal.entries.clear()
        self._journal.behind.clear()
        unheeded = remains.deleted_later(self._forgotten)
        told = {topic for _, topic, _ in self._queues}.intersection(unheeded)
        for topic in unheeded:
            self._forget_topic(topic)
        known, self._forgotten = self._forgotten, dict(remains.deleted_topics)
        # Also what stands beside an empty journal: the next start, in which the log may reach further, would hear it.
        clamped = self._clamp(remains)
        if writable and (clamped or known != self._forgotten or not self._journal.empty):
            # First: if what follows does not come to its end, the frames of before are heard again, behind a table
            # that says it knows of these deletions.
            for topic in sorted(told):
                self._journal.append((_TOPIC_GONE, "", topic, 0, remains.deleted_topics[topic]))
            self._rewrite()

    def _clamp(self, remains: Remains) -> bool:
        """Forget deliveries of messages that the log has lost: others get their offsets; whether there were any. See
        `remains`.
        """
        clamped = False
        for queue, known in list(self._queues.items()):
            limit = remains.max_offset(*queue[1:])
            clamped |= known.next_offset > limit  # which all that is out lies below
            known.next_offset = min(known.next_offset, limit)
            # What was written beside the journal may be newer than the frames that were heard again behind it.
            known.deliveries = {
                offset: known.deliveries[offset] for offset in sorted(known.deliveries) if offset < limit
            }
            if not known.deliveries:
                del self._queues[queue]
        return clamped

    @property
    def damage(self) -> Sequence[tuple[Path, int, int]]:
        """What of the journal could not be read: file, offset, bytes."""
        return self._journal.damage

    @property
    def queues(self) -> Mapping[GroupQueue, Outstanding]:
        """All queues of which something is out. Not to be changed."""
        return self._queues

    def deliver(self, queue: GroupQueue, next_offset: int, deliveries: Mapping[int, Lent]) -> Outstanding:
        """Set `deliveries`, new ones in ascending order behind all that are out; something is out afterwards."""
        packed = [[offset, *delivery] for offset, delivery in deliveries.items()]
        self._change(_DELIVERED, queue, next_offset, packed)
        return self._queues[queue]

    def acknowledge(self, queue: GroupQueue, offsets: Iterable[int]) -> None:
        """These are done."""
        self._change(_DONE, queue, list(offsets))

    def forget(self, queue: GroupQueue) -> None:
        """Nothing of the queue is out any more."""
        if queue in self._queues:
            self._change(_FORGOTTEN, queue)

    def forget_topic(self, topic: str, log_end: int) -> None:
        """The topic was deleted when the log ended there: nothing of it is out any more, whatever the disk does.

        Args:
            log_end: told to every later opening by `Remains.deleted_topics`, too.
        """
        entry = _TOPIC_GONE, "", topic, 0, log_end
        if self._journal.append_or_owe(entry):
            self._note_owed()
            self._apply(_TOPIC_GONE, ("", topic, 0), [log_end])
        else:
            self._owed[topic] = log_end
            self._forget_topic(topic)

    def forget_deletions(self, before: int) -> None:
        """No start will hear any more that topics were deleted at or before that place of the log."""
        forgotten = self._forgotten or {}
        for topic in [topic for topic, place in forgotten.items() if place <= before]:
            del forgotten[topic]

    def _note_owed(self) -> None:
        """The journal has the deletions that were owed."""
        self._know(self._owed)
        self._owed.clear()

    def _know(self, deleted: Mapping[str, int]) -> None:
        # In place: there may be very many, and another thread may be about to copy them.
        if self._forgotten is None:
            self._forgotten = {}
        self._forgotten.update(deleted)

    def _forget_topic(self, topic: str) -> None:
        for queue in [queue for queue in self._queues if queue[1] == topic]:
            del self._queues[queue]

    def sync(self) -> None:
        """Wait until all changes are on disk; StoreFailed if they may not be. Any thread."""
        self._journal.sync()

    def close(self, *, rewrite: bool) -> None:
        """Let go of the file; `rewrite` leaves only what is still out in it."""
        self._wait()
        if rewrite and not self._journal.empty:
            self._rewrite()
        self._journal.close()

    def _wait(self) -> None:
        if self._rewriting is not None:
            self._rewriting.join()

    def _change(self, kind: str, queue: GroupQueue, *rest: Any) -> None:
        self._journal.append((kind, *queue, *rest))
        if self._owed:
            self._note_owed()
        self._apply(kind, queue, rest)
        if self._journal.length >= self._rewrite_at:
            # The change is safe in the journal; a rewrite that fails is tried again when as much has come in.
            self._rewrite_at = self._journal.length + _REWRITE_BYTES
            if self._rewriting is None or not self._rewriting.is_alive():
                with contextlib.suppress(StoreError):
                    self._journal.divert()
                    rewriting = threading.Thread(target=self._settle, name="raymq-in-flight", daemon=True)
                    begin(rewriting)
                    self._rewriting = rewriting

    def _apply(self, kind: str, queue: GroupQueue, rest: Iterable[Any]) -> None:
        if kind == _DELIVERED:
            next_offset, packed = rest
            outstanding = self._queues.setdefault(queue, Outstanding(next_offset))
            outstanding.next_offset = next_offset
            for offset, *delivery in packed:
                outstanding.deliveries[offset] = Lent(*delivery)
        elif kind == _DONE:
            (offsets,) = rest
            known = self._queues.get(queue)
            if known is not None:  # it is gone where frames are heard again behind what they have led to
                for offset in offsets:
                    known.deliveries.pop(offset, None)
                if not known.deliveries:
                    del self._queues[queue]
        elif kind == _FORGOTTEN:
            self._queues.pop(queue, None)
        elif kind == _TOPIC_GONE:
            (log_end,) = rest
            self._forget_topic(queue[1])
            self._know({queue[1]: log_end})
        elif kind == _KNOWN:
            (told,) = rest
            self._forgotten = dict(told)

    def _settle(self) -> None:
        with contextlib.suppress(StoreError):  # tried again when more has come in
            self._rewrite_at = max(_REWRITE_BYTES, 2 * self._journal.settle(self._entries()))

    def _rewrite(self) -> None:
        """Leave nothing in the journal but what is out, whatever file it stood in: not what a start has cut off."""
        self._rewrite_at = max(_REWRITE_BYTES, 2 * self._journal.rewrite(self._entries()))
        self._note_owed()

    def _entries(self) -> Iterator[tuple[Any, ...]]:
        """All that is out. Any thread: each copy of a table is one operation of the interpreter."""
        # Before the tables: what is deleted after it is in a frame that is heard again.
        yield _KNOWN, "", "", 0, (self._forgotten or {}).copy()
        for queue, known in self._queues.copy().items():
            next_offset, deliveries = known.next_offset, iter(known.deliveries.copy().items())
            chunk = list(islice(deliveries, _STEP_DELIVERIES))
            while chunk:
                following = list(islice(deliveries, _STEP_DELIVERIES))
                # A frame passes over nothing that one behind it tells of, which may be damaged.
                behind = chunk[-1][0] + 1 if following else next_offset
                yield (_DELIVERED, *queue, behind, [[offset, *each] for offset, each in chunk])
                chunk = following
                time.sleep(0)
