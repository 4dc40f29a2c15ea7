"""The home of staged writes: it says once and for all whether a write is committed, and answers who asks.

A write is opened before its rows are staged. Its driver has it committed or aborted; the first decision stands for ever
and every later wish is answered with it. An open one that nobody touches for `ABANDONED_SECONDS` is aborted. One that
is not known was never opened or is long over: nobody can have it committed any more, so its rows may be dropped.

The record of a commit is kept until every broker with parts of it has said that these are in its log, and for
`KEPT_SECONDS` besides, so that there are definite answers. Of a series (a sink of a stream) the number of the last
commit is kept for good: what is not above it has been committed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from raymq.actors.errors import InvalidInput, ServerBusy, StoreCorrupt, StoreError
from raymq.actors.naming import check_topic
from raymq.storage.tables.write_records import SeriesEnd, WriteDecision, WriteRecord, WriteRecords, checked_transaction

#: An open write that nobody has touched for so long, in counted seconds, is aborted: its driver is gone.
ABANDONED_SECONDS: Final = 24 * 3600.0
#: So long after its end the fate of a write is told.
KEPT_SECONDS: Final = 7 * 24 * 3600.0
#: The same of a write of a series that has a later one: the series tells what is needed.
KEPT_OF_SERIES_SECONDS: Final = 600.0
#: That an open write was touched is written down if it is so much later than what is.
NOTED_SECONDS: Final = 3600.0
#: So many writes are known at a time.
MOST_WRITES: Final = 100_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fate:
    """What is to be told of a write.

    Attributes:
        decision: None: nothing is known of it (any more).
        record: what is known.
        instead: the earlier write of its series that stands for it; it was aborted for that.
    """

    decision: WriteDecision | None
    record: WriteRecord | None = None
    instead: SeriesEnd | None = None


class WriteHome:
    """The writes that have their home on this broker. `clock` is seconds that are counted over restarts.

    One call at a time, on any thread; most wait for the disk. `look` may be called beside another one.
    """

    def __init__(self, records: WriteRecords, clock: Callable[[], float], most: int = MOST_WRITES) -> None:
        self._records = records
        self._clock = clock
        self._most = most
        self._known: dict[str, WriteRecord] = {}
        #: What is kept of these cannot be read: nobody is told anything of them, and nothing of them is dropped.
        self._damaged: dict[str, StoreCorrupt] = {}
        #: When each was touched as its file says.
        self._noted: dict[str, float] = {}
        now = clock()
        for transaction in records.transactions():
            try:
                record = records.read(transaction)
            except StoreCorrupt as error:
                _log.error("what was decided about the write %s cannot be read: %s", transaction, error)
                self._damaged[transaction] = error
            else:
                self._noted[transaction] = record.touched
                self._known[transaction] = _known_again(record, now)
        #: Of series whose own file does not say it yet: their last commit, which stands in the write's file.
        self._unsettled: dict[str, SeriesEnd] = {}
        for record in sorted(self._known.values(), key=lambda record: record.number):
            self._settle(record)

    @property
    def under_way(self) -> int:
        """How many writes are open, or committed and not in the log everywhere; those that cannot be read count."""
        known = self._known.values()
        return len(self._damaged) + sum(
            each.decision is WriteDecision.OPEN or (each.decision is WriteDecision.COMMITTED and bool(each.unfinished))
            for each in known
        )

    def open(self, transaction: str, topic: str, series: str = "", number: int = 0) -> Fate:
        """A write is about to be staged. May be repeated.

        Returns:
            its fate: open; or `instead`, the write that was committed as this or a later number of the series, and
            then this one is not opened.

        Raises:
            InvalidInput: a name or number that cannot be.
            ServerBusy: as many writes are known as may be. StoreFull, StoreFailed.
        """
        checked_transaction(transaction)
        check_topic(topic)
        known = self._record(transaction)
        if known is not None:
            return self._fate(known)
        if series:
            if number < 0:
                raise InvalidInput("number", "0 or more", number)
            end = self._end(series)
            if end is not None and number <= end.number:
                return Fate(None, None, end)
        if len(self._known) >= self._most:
            raise ServerBusy(f"{self._most} writes are open or were made lately; no more may be")
        record = WriteRecord(transaction, topic, WriteDecision.OPEN, self._clock(), series, number)
        self._put(record)
        return Fate(WriteDecision.OPEN, record)

    def commit(self, transaction: str, parts: Mapping[str, Mapping[str, int]]) -> Fate:
        """Its driver wants it committed: these parts, by broker, with their rows. The fate that stands.

        Raises:
            StoreFull, StoreFailed: it could not be written down; nothing was decided, or what was decided stands.
        """
        record = self._record(transaction)
        if record is None:
            return Fate(None)
        if record.decision is WriteDecision.OPEN:
            if self._is_superseded(record):
                return self._fate(self._decide(record, WriteDecision.ABORTED))
            named = {broker: dict(each) for broker, each in parts.items() if each}
            record = self._decide(replace(record, parts=named), WriteDecision.COMMITTED)
        return self._fate(record)

    def abort(self, transaction: str) -> Fate:
        """Its driver gives it up; the fate that stands. Raises as `commit`."""
        record = self._record(transaction)
        if record is None:
            return Fate(None)
        if record.decision is WriteDecision.OPEN:
            record = self._decide(record, WriteDecision.ABORTED)
        return self._fate(record)

    def look(self, transaction: str) -> Fate:
        """What is known of a write."""
        record = self._record(transaction)
        return Fate(None) if record is None else self._fate(record)

    def ask(self, transaction: str, idle_seconds: float) -> Fate:
        """A broker that has rows of it asks; nothing was added to them for so long."""
        record = self._record(transaction)
        if record is not None and record.decision is WriteDecision.OPEN:
            if self._is_superseded(record):
                self._decide(record, WriteDecision.ABORTED)
            else:
                self._touch(record, self._clock() - max(0.0, idle_seconds))
        return self.look(transaction)

    def finished(self, transaction: str, broker: str, missing: tuple[int, str] | None = None) -> None:
        """A broker has its parts in its log, on disk. May be repeated. StoreFull, StoreFailed: it has to tell again.

        Args:
            missing: so many rows are not, and why: whoever asks about the write is told.
        """
        record = self._record(transaction)
        if record is not None and broker in record.parts and broker not in record.finished:
            lost = record.missing if missing is None else {**record.missing, broker: missing}
            self._put(replace(record, finished=record.finished | {broker}, missing=lost))

    def accept(self, transaction: str, missing: Mapping[str, int]) -> Fate:
        """Its writer does without so many rows of these brokers, which are lost; the fate that stands.

        More of them that turn out to be lost later are told again. Raises as `commit`.
        """
        record = self._record(transaction)
        if record is not None and record.decision is WriteDecision.COMMITTED:
            known = {broker: rows for broker, rows in missing.items() if broker in record.parts}
            accepted = {broker: max(rows, record.accepted.get(broker, 0)) for broker, rows in known.items()}
            if (both := {**record.accepted, **accepted}) != record.accepted:
                record = replace(record, accepted=both)
                self._put(record)
        return Fate(None) if record is None else self._fate(record)

    def sweep(self) -> list[str]:
        """Abort what was abandoned, forget what is long over; the transactions that were aborted.

        Raises:
            StoreFull, StoreFailed: some were not; the next call tries again.
        """
        now = self._clock()
        for end in list(self._unsettled.values()):
            self._write_end(end)
        aborted = []
        for record in list(self._known.values()):
            if self._noted[record.transaction] > now:  # of a clock that was lost: it would begin anew with each start
                self._put(record)
            if record.decision is WriteDecision.OPEN:
                if now - record.touched >= ABANDONED_SECONDS:
                    _log.warning("the write %s was given up by its writer: it is aborted", record.transaction)
                    self._decide(record, WriteDecision.ABORTED)
                    aborted.append(record.transaction)
            elif record.unfinished or self._unsettled.get(record.series) == _end_by(record):
                continue
            elif self._is_forgotten(record, now - record.touched):
                self._records.remove(record.transaction)
                del self._known[record.transaction], self._noted[record.transaction]
        return aborted

    def _record(self, transaction: str) -> WriteRecord | None:
        """What is known of a write; StoreCorrupt if that cannot be read."""
        if transaction in self._damaged:
            raise self._damaged[transaction]
        return self._known.get(transaction)

    def _is_forgotten(self, record: WriteRecord, seconds: float) -> bool:
        """Whether nobody need know of a write any more that has been over for so long."""
        if seconds >= KEPT_SECONDS:
            return True
        with contextlib.suppress(StoreCorrupt):  # of its series; whoever asks about that is told
            return seconds >= KEPT_OF_SERIES_SECONDS and self._is_superseded(record)
        return False

    def _is_superseded(self, record: WriteRecord) -> bool:
        """Whether its series knows of a commit of this number or a later one."""
        end = self._end(record.series) if record.series else None
        return end is not None and record.number <= end.number

    def _fate(self, record: WriteRecord) -> Fate:
        self._settle(record)
        if record.decision is WriteDecision.ABORTED and self._is_superseded(record):
            return Fate(record.decision, record, self._end(record.series))
        return Fate(record.decision, record)

    def _decide(self, record: WriteRecord, decision: WriteDecision) -> WriteRecord:
        decided = replace(record, decision=decision, touched=self._clock())
        self._put(decided)
        return decided

    def _touch(self, record: WriteRecord, touched: float) -> None:
        if touched > record.touched:
            self._known[record.transaction] = replace(record, touched=touched)
        if touched >= self._noted[record.transaction] + NOTED_SECONDS:
            try:
                self._put(self._known[record.transaction])
            except StoreError as error:  # it is known all the same, until a restart
                _log.info("that the write %s goes on is not written down: %s", record.transaction, error)

    def _put(self, record: WriteRecord) -> None:
        self._records.put(record)
        self._known[record.transaction] = record
        self._noted[record.transaction] = record.touched

    def _settle(self, record: WriteRecord) -> None:
        """The commit stands in its own file; have the series say so, too, now or as soon as that is possible."""
        if record.decision is WriteDecision.COMMITTED and record.series:
            try:
                known = self._end(record.series)
            except StoreCorrupt:  # whoever asks about the series is told
                return
            if known is None or known.number < record.number:
                self._unsettled[record.series] = _end_by(record)
            if (end := self._unsettled.get(record.series)) is not None:
                self._write_end(end)

    def _write_end(self, end: SeriesEnd) -> None:
        try:
            self._records.put_end(end)
        except StoreError as error:  # no room, or the disk fails: it is tried again, and known meanwhile
            _log.warning("the last commit of the series %s is not in its file yet: %s", end.series, error)
        else:
            self._unsettled.pop(end.series, None)

    def _end(self, series: str) -> SeriesEnd | None:
        """The last commit of a series."""
        written, known = self._records.end(series), self._unsettled.get(series)
        if written is None or known is None:
            return written or known
        return max(written, known, key=lambda end: end.number)


def _known_again(record: WriteRecord, now: float) -> WriteRecord:
    """What was kept of a write, by a clock that may have lost a little; an open one may have been touched since."""
    noted = NOTED_SECONDS if record.decision is WriteDecision.OPEN else 0.0
    return replace(record, touched=min(record.touched + noted, now))


def _end_by(record: WriteRecord) -> SeriesEnd:
    return SeriesEnd(record.series, record.number, record.transaction, record.rows)
