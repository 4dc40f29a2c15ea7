"""Calling back a message that waits for its time: the answer is definite, and stays the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from raymq.actors.broker.core.copies.rewriting import Append, join
from raymq.actors.broker.core.delay.delivered import origin_of
from raymq.actors.broker.core.delay.timer_records import MAX_AHEAD_MS, TIMER_QUEUE, delete_key, withdrawn_key
from raymq.actors.broker.core.delay.timers import Timers
from raymq.actors.naming import TIMER_TOPIC
from raymq.actors.protocol import RecallStatus
from raymq.actors.recall_handle import RecallHandle
from raymq.storage.config import split_host
from raymq.storage.errors import InvalidInput, RayMQError, StoreError
from raymq.storage.log.index_file import EVER_MS
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Record, encode, encode_properties, pack_host_bytes
from raymq.storage.steps import Steps, finish
from raymq.storage.store import Store
from raymq.storage.timers.entry import HOUR_MS, Entries, EntryKind, key_of, still_waiting

_MOST_RECORDS = 64
#: Copies are stored when they are due, by a clock that may be set back; withdrawals at most so long before it.
_CLOCK_ROOM_MS = 24 * HOUR_MS


class Recall:
    """Withdraws messages on the broker of that name. `clock` is wall time in seconds."""

    def __init__(self, broker: str, store: Store, timers: Timers, clock: Callable[[], float], append: Append) -> None:
        self._broker = broker
        self._store = store
        self._timers = timers
        self._clock = clock
        self._append = append

    def recall(self, handle: RecallHandle) -> RecallStatus:
        """Withdraw a message if it waits; what became of it.

        Of several copies, which a sender stored by trying again, all are withdrawn, and one whose try is still under
        way is refused when it comes, also where nothing is known of the message yet. If one of them was delivered the
        answer is DELIVERED, and the others stay.

        Raises:
            InvalidInput: the handle is another broker's.
            StoreFull, StoreFailed: nothing was withdrawn.
        """
        return finish(self.steps(handle))

    def steps(self, handle: RecallHandle) -> Steps[RecallStatus]:
        """`recall` in steps; the first one in which all is known that waits withdraws it."""
        if handle.broker != self._broker:
            raise InvalidInput("recall_handle", f"a handle of {self._broker}", handle.broker)
        while not self._timers.absorb():
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
        """What became of it, and when the last of its copies was born; UNKNOWN, 0: the timer log knows nothing of it
        (any more).
        """
        self._timers.settle()
        told = self._timers.log.find(handle.due_ms, key_of(delete_key(handle.topic, handle.unique_key)))
        kinds = set(told["kind"].tolist())
        if EntryKind.DELIVERED in kinds:
            return RecallStatus.DELIVERED, 0
        born_ms = self._born_ms(told)
        if len(still_waiting(told)):
            self._append(*join([self._withdrawal(handle)]), TIMER_QUEUE)
            with contextlib.suppress(StoreError):  # the log says it, and nothing is delivered before that is heard
                self._timers.absorb()
            return RecallStatus.WITHDRAWN, born_ms
        return (RecallStatus.WITHDRAWN if EntryKind.WITHDRAWN in kinds else RecallStatus.UNKNOWN), born_ms

    def _born_ms(self, told: Entries) -> int:
        """When the last of the messages was born that these entries tell of, as far as they can be read; else 0."""
        latest_ms = 0
        for place in told["physical_offset"][told["kind"] == EntryKind.WAITS][-_MOST_RECORDS:].tolist():
            with contextlib.suppress(RayMQError):  # damaged, or expired: it will not be delivered
                latest_ms = max(latest_ms, self._store.read_at(place).born_timestamp_ms)
        return latest_ms

    def _withdrawal(self, handle: RecallHandle) -> bytes:
        """The record that says so; recovery reads it like the waiting ones."""
        told = {
            names.UNIQ_KEY: handle.unique_key,
            names.REAL_TOPIC: handle.topic,
            names.TIMER_OUT_MS: str(handle.due_ms),
            names.TIMER_DEL_UNIQKEY: delete_key(handle.topic, handle.unique_key),
        }
        host = pack_host_bytes(*split_host(self._store.config.store_host))
        now_ms = int(self._clock() * 1000)
        return encode(*TIMER_QUEUE, b"withdrawn", encode_properties(told), born_timestamp_ms=now_ms, born_host=host)

    def _in_log(self, handle: RecallHandle) -> Steps[RecallStatus]:
        """What the log says of a message of which the timer log forgot what it knew."""
        for record in (yield from self._found(handle.topic, handle, handle.due_ms - _CLOCK_ROOM_MS)):
            if origin_of(record.properties) is not None or names.TIMER_DEQUEUE_MS in record.properties:
                return RecallStatus.DELIVERED
        for record in (yield from self._found(TIMER_TOPIC, handle, handle.due_ms - MAX_AHEAD_MS - _CLOCK_ROOM_MS)):
            told = record.properties.get(names.TIMER_DEL_UNIQKEY)
            if told is not None and withdrawn_key(handle.topic, told) == handle.unique_key:
                return RecallStatus.WITHDRAWN
        return RecallStatus.UNKNOWN

    def _found(self, topic: str, handle: RecallHandle, since_ms: int) -> Steps[list[Record]]:
        limits = handle.unique_key, since_ms, EVER_MS, _MOST_RECORDS
        found = yield from self._store.search(topic, *limits, written=True)
        return [record for record in found if record.properties.get(names.TIMER_OUT_MS) == str(handle.due_ms)]
