"""Withdraw (recall) timed messages; the result is definite and does not change later."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from raymq.actors.broker.core.copies.record_copy import RecordAppender, join
from raymq.actors.broker.core.delay.delivery_recovery import parse_origin
from raymq.actors.broker.core.delay.timer_message_store import TimerMessageStore
from raymq.actors.broker.core.delay.timer_records import MAX_AHEAD_MS, TIMER_QUEUE, cancelled_key, delete_key
from raymq.actors.naming import TIMER_TOPIC
from raymq.actors.protocol import RecallStatus
from raymq.actors.recall_handle import RecallHandle
from raymq.storage.config import split_host
from raymq.storage.cooperative_steps import Steps
from raymq.storage.errors import InvalidInput, RayMQError, StoreError
from raymq.storage.log.index_file import EVER_MS
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Record, encode, encode_properties, pack_host_bytes
from raymq.storage.store import Store
from raymq.storage.timers.timer_entry import HOUR_MS, Entries, EntryKind, key_of, pending_entries

_MAX_RECORDS = 64
#: Copies are stored when they are due, but the clock may be set back: search the log from this long before.
_CLOCK_ROOM_MS = 24 * HOUR_MS


class RecallMessageProcessor:
    """Withdraws messages on the broker named `broker`.

    `clock` is wall time in seconds.
    """

    def __init__(
        self, broker: str, store: Store, timers: TimerMessageStore, clock: Callable[[], float], append: RecordAppender
    ) -> None:
        self._broker = broker
        self._store = store
        self._timers = timers
        self._clock = clock
        self._append = append

    def recall_steps(self, handle: RecallHandle) -> Steps[RecallStatus]:
        """Withdraw a message if it waits, and return its status.

        Several copies exist if a sender has retried the send: all of them are withdrawn. A retry that is still in
        progress is refused when it arrives, even if the message is not known here yet. If one of the copies was
        delivered, the result is DELIVERED, and the others stay.

        The message is withdrawn in the first step in which all waiting messages are indexed.

        Raises:
            InvalidInput: the handle is another broker's.
            StoreFull, StoreFailed: nothing was withdrawn.
        """
        if handle.broker != self._broker:
            raise InvalidInput("recall_handle", f"a handle of {self._broker}", handle.broker)
        while not self._timers.index_new_records():
            yield None
        status, born_ms = self._withdraw(handle)
        if status is not RecallStatus.DELIVERED:
            self._timers.recalled.add(handle.topic, handle.unique_key, born_ms)
        if status is RecallStatus.UNKNOWN:
            status = yield from self._in_log(handle)
            if status is RecallStatus.DELIVERED:
                self._timers.recalled.forget(handle.topic, handle.unique_key)
        return status

    def _withdraw(self, handle: RecallHandle) -> tuple[RecallStatus, int]:
        """Return the status of the message, and when the last of its copies was born.

        The result is (UNKNOWN, 0) if the timer log does not have the message, or no longer has it.
        """
        self._timers.settle()
        entries = self._timers.log.find(handle.due_ms, key_of(delete_key(handle.topic, handle.unique_key)))
        kinds = set(entries["kind"].tolist())
        if EntryKind.DELIVERED in kinds:
            return RecallStatus.DELIVERED, 0
        born_ms = self._born_ms(entries)
        if len(pending_entries(entries)):
            self._append(*join([self._withdrawal(handle)]), TIMER_QUEUE)
            with contextlib.suppress(StoreError):  # the log has it, and it is indexed before any delivery
                self._timers.index_new_records()
            return RecallStatus.WITHDRAWN, born_ms
        return (RecallStatus.WITHDRAWN if EntryKind.WITHDRAWN in kinds else RecallStatus.UNKNOWN), born_ms

    def _born_ms(self, entries: Entries) -> int:
        """Return the latest born time of the messages of these entries; 0 if unreadable."""
        latest_ms = 0
        for place in entries["physical_offset"][entries["kind"] == EntryKind.WAITS][-_MAX_RECORDS:].tolist():
            with contextlib.suppress(RayMQError):  # damaged or expired: the message will not be delivered
                latest_ms = max(latest_ms, self._store.read_at(place).born_timestamp_ms)
        return latest_ms

    def _withdrawal(self, handle: RecallHandle) -> bytes:
        """Return the record of a withdrawal; recovery reads it like the waiting records."""
        properties = {
            names.UNIQ_KEY: handle.unique_key,
            names.REAL_TOPIC: handle.topic,
            names.TIMER_OUT_MS: str(handle.due_ms),
            names.TIMER_DEL_UNIQKEY: delete_key(handle.topic, handle.unique_key),
        }
        host = pack_host_bytes(*split_host(self._store.config.store_host))
        now_ms = int(self._clock() * 1000)
        return encode(
            *TIMER_QUEUE, b"withdrawn", encode_properties(properties), born_timestamp_ms=now_ms, born_host=host
        )

    def _in_log(self, handle: RecallHandle) -> Steps[RecallStatus]:
        """Return the status of a message that the timer log has forgotten, from the log."""
        for record in (yield from self._found(handle.topic, handle, handle.due_ms - _CLOCK_ROOM_MS)):
            if parse_origin(record.properties) is not None or names.TIMER_DEQUEUE_MS in record.properties:
                return RecallStatus.DELIVERED
        for record in (yield from self._found(TIMER_TOPIC, handle, handle.due_ms - MAX_AHEAD_MS - _CLOCK_ROOM_MS)):
            recalled_key = record.properties.get(names.TIMER_DEL_UNIQKEY)
            if recalled_key is not None and cancelled_key(handle.topic, recalled_key) == handle.unique_key:
                return RecallStatus.WITHDRAWN
        return RecallStatus.UNKNOWN

    def _found(self, topic: str, handle: RecallHandle, since_ms: int) -> Steps[list[Record]]:
        limits = handle.unique_key, since_ms, EVER_MS, _MAX_RECORDS
        found = yield from self._store.search(topic, *limits, written=True)
        return [record for record in found if record.properties.get(names.TIMER_OUT_MS) == str(handle.due_ms)]
