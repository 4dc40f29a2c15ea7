"""Coordinate staged writes: decide whether a write is committed, and answer queries.

A write is opened before its rows are staged. Its driver requests a commit or an abort; the first decision is final, and
every later request returns it. An open write without activity for `TRANSACTION_TIMEOUT_SECONDS` is aborted. An unknown
write was never opened or was finished long ago: it can no longer be committed, so its rows may be dropped.

The record of a commit is kept until every broker with parts of it has reported that they are in its log, and then for
`RESULT_RETENTION_SECONDS`, so that queries get definite answers. For a series (a sink of a stream), the number of the
last commit is kept for good: every number up to it has been committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from raymq.actors.errors import InvalidInput, ServerBusy, StoreError
from raymq.actors.naming import check_topic
from raymq.storage.tables.write_transactions import (
    SeriesCommit,
    WriteState,
    WriteTransaction,
    WriteTransactionStore,
    check_transaction_name,
)

#: An open write without activity for this long, in counted seconds, is aborted: its driver has gone.
TRANSACTION_TIMEOUT_SECONDS: Final = 24 * 3600.0
#: How long the status of a write is kept after its end.
RESULT_RETENTION_SECONDS: Final = 7 * 24 * 3600.0
#: The same for a write of a series that has a later commit, because the record of the series suffices.
SERIES_RETENTION_SECONDS: Final = 600.0
#: Activity of an open write is stored if it is this much later than the stored one.
TOUCH_PERSIST_SECONDS: Final = 3600.0
#: The limit of known writes.
MAX_TRANSACTIONS: Final = 100_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """The status of a write, as reported to clients.

    Attributes:
        decision: None if the write is unknown, or no longer known.
        record: the stored record of the write.
        instead: an earlier write of the series that was committed in place of this one, which was therefore aborted.
    """

    decision: WriteState | None
    record: WriteTransaction | None = None
    instead: SeriesCommit | None = None


class TransactionCoordinator:
    """The writes that this broker coordinates.

    One call at a time, on any thread; most block on the disk. `transaction_status` may run concurrently with another
    call. `clock` is in seconds and continues to count over restarts.
    """

    def __init__(
        self, records: WriteTransactionStore, clock: Callable[[], float], most: int = MAX_TRANSACTIONS
    ) -> None:
        self._records = records
        self._clock = clock
        self._most = most
        self._known: dict[str, WriteTransaction] = {}
        #: The last activity of each write, as stored.
        self._stored_touch: dict[str, float] = {}
        now = clock()
        for record in records.transactions():
            self._stored_touch[record.transaction] = record.touched
            self._known[record.transaction] = _restored(record, now)
        #: By series, the last commit that is stored with the write but not yet with the series.
        self._unsettled: dict[str, SeriesCommit] = {}
        for record in sorted(self._known.values(), key=lambda record: record.number):
            self._settle(record)

    @property
    def open_count(self) -> int:
        """Return how many writes are open, or committed and not in every log."""
        return sum(
            each.decision is WriteState.OPEN or (each.decision is WriteState.COMMITTED and bool(each.unfinished))
            for each in self._known.values()
        )

    def open(self, transaction: str, topic: str, series: str = "", number: int = 0) -> TransactionStatus:
        """Open a write before its rows are staged. May be repeated.

        Returns:
            its status: open; or with `instead`, the write that was committed as this or a later number of the series,
            and then this one is not opened.

        Raises:
            InvalidInput: a name or number is invalid.
            ServerBusy: the limit of known writes is reached. StoreFull, StoreFailed.
        """
        check_transaction_name(transaction)
        check_topic(topic)
        known = self._known.get(transaction)
        if known is not None:
            return self._status_of(known)
        if series:
            if number < 0:
                raise InvalidInput("number", "0 or more", number)
            end = self._end(series)
            if end is not None and number <= end.number:
                return TransactionStatus(None, None, end)
        if len(self._known) >= self._most:
            raise ServerBusy(f"{self._most} writes are open or recent, which is the limit")
        record = WriteTransaction(transaction, topic, WriteState.OPEN, self._clock(), series, number)
        self._put(record)
        return TransactionStatus(WriteState.OPEN, record)

    def commit(self, transaction: str, parts: Mapping[str, Mapping[str, int]]) -> TransactionStatus:
        """Commit a write at its driver's request; return the status in force.

        `parts` has the parts by broker, with their rows.

        Raises:
            StoreFull, StoreFailed: it could not be stored; nothing was decided, or the earlier decision stands.
        """
        record = self._known.get(transaction)
        if record is None:
            return TransactionStatus(None)
        if record.decision is WriteState.OPEN:
            if self._is_superseded(record):
                return self._status_of(self._decide(record, WriteState.ABORTED))
            named = {broker: dict(each) for broker, each in parts.items() if each}
            record = self._decide(replace(record, parts=named), WriteState.COMMITTED)
        return self._status_of(record)

    def abort(self, transaction: str) -> TransactionStatus:
        """Abort a write at its driver's request; return the status in force.

        It raises as `commit`.
        """
        record = self._known.get(transaction)
        if record is None:
            return TransactionStatus(None)
        if record.decision is WriteState.OPEN:
            record = self._decide(record, WriteState.ABORTED)
        return self._status_of(record)

    def transaction_status(self, transaction: str) -> TransactionStatus:
        """Return the status of a write."""
        record = self._known.get(transaction)
        return TransactionStatus(None) if record is None else self._status_of(record)

    def query_status(self, transaction: str, idle_seconds: float) -> TransactionStatus:
        """Answer the query of a broker that has rows of a write.

        `idle_seconds` is how long no rows were added there.
        """
        record = self._known.get(transaction)
        if record is not None and record.decision is WriteState.OPEN:
            if self._is_superseded(record):
                self._decide(record, WriteState.ABORTED)
            else:
                self._touch(record, self._clock() - max(0.0, idle_seconds))
        return self.transaction_status(transaction)

    def mark_finished(self, transaction: str, broker: str, missing: tuple[int, str] | None = None) -> None:
        """Record that a broker has its parts in its log, on disk. May be repeated.

        If StoreFull or StoreFailed is raised, the broker has to report again.

        Args:
            missing: the number of rows that are missing, and why; reported in the status of the write.
        """
        record = self._known.get(transaction)
        if record is not None and broker in record.parts and broker not in record.finished:
            lost = record.missing if missing is None else {**record.missing, broker: missing}
            self._put(replace(record, finished=record.finished | {broker}, missing=lost))

    def accept_missing(self, transaction: str, missing: Mapping[str, int]) -> TransactionStatus:
        """Accept the loss of rows at its writer's request; return the status in force.

        `missing` has the accepted number of rows by broker. Further rows that turn out to be lost later are reported
        again. It raises as `commit`.
        """
        record = self._known.get(transaction)
        if record is not None and record.decision is WriteState.COMMITTED:
            known = {broker: rows for broker, rows in missing.items() if broker in record.parts}
            accepted = {broker: max(rows, record.accepted.get(broker, 0)) for broker, rows in known.items()}
            if (both := {**record.accepted, **accepted}) != record.accepted:
                record = replace(record, accepted=both)
                self._put(record)
        return TransactionStatus(None) if record is None else self._status_of(record)

    def sweep(self) -> list[str]:
        """Abort abandoned writes and forget old ones; return the aborted writes.

        Raises:
            StoreFull, StoreFailed: some were not processed; the next call tries again.
        """
        now = self._clock()
        for end in list(self._unsettled.values()):
            self._write_end(end)
        aborted = []
        for record in list(self._known.values()):
            if (
                self._stored_touch[record.transaction] > now
            ):  # the clock was lost: else the timeout restarts at each start
                self._put(record)
            if record.decision is WriteState.OPEN:
                if now - record.touched >= TRANSACTION_TIMEOUT_SECONDS:
                    _log.warning("the write %s is aborted: its writer has abandoned it", record.transaction)
                    self._decide(record, WriteState.ABORTED)
                    aborted.append(record.transaction)
            elif record.unfinished or self._unsettled.get(record.series) == _end_by(record):
                continue
            elif self._is_forgotten(record, now - record.touched):
                self._records.remove(record.transaction)
                del self._known[record.transaction], self._stored_touch[record.transaction]
        return aborted

    def _is_forgotten(self, record: WriteTransaction, seconds: float) -> bool:
        """Return True if a write that finished `seconds` ago need not be kept any more."""
        is_superseded = seconds >= SERIES_RETENTION_SECONDS and self._is_superseded(record)
        return seconds >= RESULT_RETENTION_SECONDS or is_superseded

    def _is_superseded(self, record: WriteTransaction) -> bool:
        """Return True if its series has a commit of this number or a later one."""
        end = self._end(record.series) if record.series else None
        return end is not None and record.number <= end.number

    def _status_of(self, record: WriteTransaction) -> TransactionStatus:
        self._settle(record)
        if record.decision is WriteState.ABORTED and self._is_superseded(record):
            return TransactionStatus(record.decision, record, self._end(record.series))
        return TransactionStatus(record.decision, record)

    def _decide(self, record: WriteTransaction, decision: WriteState) -> WriteTransaction:
        decided = replace(record, decision=decision, touched=self._clock())
        self._put(decided)
        return decided

    def _touch(self, record: WriteTransaction, touched: float) -> None:
        if touched > record.touched:
            self._known[record.transaction] = replace(record, touched=touched)
        if touched >= self._stored_touch[record.transaction] + TOUCH_PERSIST_SECONDS:
            try:
                self._put(self._known[record.transaction])
            except StoreError as error:  # the activity is known in memory until a restart
                _log.info("the activity of the write %s is not stored: %s", record.transaction, error)

    def _put(self, record: WriteTransaction) -> None:
        self._records.put(record)
        self._known[record.transaction] = record
        self._stored_touch[record.transaction] = record.touched

    def _settle(self, record: WriteTransaction) -> None:
        """Record a committed write as the last commit of its series, now or later.

        The commit is already stored with the write.
        """
        if record.decision is WriteState.COMMITTED and record.series:
            known = self._end(record.series)
            if known is None or known.number < record.number:
                self._unsettled[record.series] = _end_by(record)
            if (end := self._unsettled.get(record.series)) is not None:
                self._write_end(end)

    def _write_end(self, end: SeriesCommit) -> None:
        try:
            self._records.put_series_commit(end)
        except StoreError as error:  # no room, or the disk fails: `sweep` tries again; memory has it meanwhile
            _log.warning("the last commit of the series %s is not stored yet: %s", end.series, error)
        else:
            self._unsettled.pop(end.series, None)

    def _end(self, series: str) -> SeriesCommit | None:
        """Return the last commit of a series."""
        written, known = self._records.end(series), self._unsettled.get(series)
        if written is None or known is None:
            return written or known
        return max(written, known, key=lambda end: end.number)


def _restored(record: WriteTransaction, now: float) -> WriteTransaction:
    """Return the stored record of a write with its last activity adjusted.

    The clock may have lost a little at a restart, and an open write may have been active since it was stored.
    """
    margin = TOUCH_PERSIST_SECONDS if record.decision is WriteState.OPEN else 0.0
    return replace(record, touched=min(record.touched + margin, now))


def _end_by(record: WriteTransaction) -> SeriesCommit:
    return SeriesCommit(record.series, record.number, record.transaction, record.rows)
