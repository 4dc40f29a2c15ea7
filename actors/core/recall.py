"""Calling back a message that waits for its time: the answer is definite, and stays the same."""

from __future__ import annotations

from collections.abc import Callable

from raymq.actors.core.delivered import origin_of
from raymq.actors.core.recall_handle import RecallHandle
from raymq.actors.core.rewriting import Append, join
from raymq.actors.core.timer_records import LANE, delete_key
from raymq.actors.core.timers import Timers
from raymq.actors.naming import TIMER_TOPIC
from raymq.actors.protocol import RecallStatus
from raymq.storage import properties as names
from raymq.storage.config import split_host
from raymq.storage.errors import InvalidInput
from raymq.storage.record import Record, encode, encode_properties, pack_host_bytes
from raymq.storage.store import Store
from raymq.storage.timer_log import Kind, key_of

_EVER_MS = 1 << 62
_MOST_RECORDS = 64


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
        if handle.broker != self._broker:
            raise InvalidInput("recall_handle", f"a handle of {self._broker}", handle.broker)
        status = self._withdraw(handle)
        if status is not RecallStatus.DELIVERED:
            self._timers.recalled.add(handle.topic, handle.unique_key)
        return status

    def _withdraw(self, handle: RecallHandle) -> RecallStatus:
        self._timers.settle()
        self._timers.absorb()
        key = key_of(delete_key(handle.topic, handle.unique_key))
        kinds = set(self._timers.log.find(handle.due_ms, key)["kind"].tolist())
        if Kind.DELIVERED in kinds:
            return RecallStatus.DELIVERED
        if len(self._timers.waiting_of(handle.due_ms, key)):
            self._append(*join([self._withdrawal(handle)]), LANE)
            self._timers.absorb()
            return RecallStatus.WITHDRAWN
        return RecallStatus.WITHDRAWN if Kind.WITHDRAWN in kinds else self._in_log(handle)

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
        return encode(*LANE, b"withdrawn", encode_properties(told), born_timestamp_ms=now_ms, born_host=host)

    def _in_log(self, handle: RecallHandle) -> RecallStatus:
        """What the log says of a message whose hour is over."""
        for record in self._found(handle.topic, handle):
            if origin_of(record.properties) is not None:
                return RecallStatus.DELIVERED
        for record in self._found(TIMER_TOPIC, handle):
            if record.properties.get(names.TIMER_DEL_UNIQKEY) == delete_key(handle.topic, handle.unique_key):
                return RecallStatus.WITHDRAWN
        return RecallStatus.UNKNOWN

    def _found(self, topic: str, handle: RecallHandle) -> list[Record]:
        found = self._store.query(topic, handle.unique_key, 0, _EVER_MS, _MOST_RECORDS)
        return [record for record in found if record.properties.get(names.TIMER_OUT_MS) == str(handle.due_ms)]
