"""Find, at startup, the in-flight dead messages that already have a dead letter.

A dead letter is stored first; then the delivery ends in the journals. If the broker is killed in between, both remain.
The same happens on a disk that has room for the log but not for the journals, then possibly for many deliveries.
"""

from __future__ import annotations

from collections.abc import Iterator

from raymq.actors.broker.core.copies.property_scan import scan_topic
from raymq.actors.broker.core.copies.republisher import rejection_reason
from raymq.actors.broker.core.delay.delivery_recovery import message_content
from raymq.actors.naming import dlq_topic
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Record, decode
from raymq.storage.store import Store
from raymq.storage.tables.in_flight_messages import GroupQueue


def dead_letter_key(queue: GroupQueue, offset: int, pop_time_ms: int) -> str:
    """Return the key of a delivery, which its dead letter has as property DIED_IN."""
    _, topic, queue_id = queue
    return f"{topic}:{queue_id}:{offset}:{pop_time_ms}"


def find_dead_lettered(store: Store) -> set[tuple[str, str]]:
    """Return (group, key) of each in-flight delivery that already has a dead letter.

    A dead letter lies after its message in the log, so only letters after the oldest possibly dead message are read.
    """
    found: set[tuple[str, str]] = set()
    for group, (since, deaths) in _may_be_dead(store).items():
        for part in scan_topic(store, dlq_topic(group), names.DIED_IN, since):
            died_in = part.columns.last(names.DIED_IN).to_pylist()
            for number in part.marked.tolist():
                if died_in[number] in deaths:
                    letter = decode(part.batch.records, int(part.batch.starts[number]), check_crc=False)
                    if _is_letter_of(store, *deaths[died_in[number]], letter):
                        found.add((group, died_in[number]))
    return found


def _may_be_dead(store: Store) -> dict[str, tuple[int, dict[str, tuple[GroupQueue, int]]]]:
    """Return, by group, the deliveries that may be dead.

    Each value is the physical offset of the oldest of these messages, and queue and offset of each delivery by its key.
    """
    found: dict[str, tuple[int, dict[str, tuple[GroupQueue, int]]]] = {}
    for queue, out in store.in_flight.queues.items():
        last_tries = {
            dead_letter_key(queue, offset, each.pop_time_ms): (queue, offset)
            for offset, each in out.deliveries.items()
            if each.is_final_delivery
        }
        for place in _first_place(store, queue, [offset for _, offset in last_tries.values()]):
            since, deaths = found.get(queue[0], (place, {}))
            found[queue[0]] = min(since, place), deaths | last_tries
    return found


def _first_place(store: Store, queue: GroupQueue, offsets: list[int]) -> Iterator[int]:
    """Yield the physical offset of the first of these messages that still exists, if any."""
    topic_queue = queue[1:]
    try:
        [place], _, _ = store.entries(*topic_queue, max(min(offsets), store.min_offset(*topic_queue)), 1)
    except Exception as error:  # noqa: BLE001 - an unreadable message has no dead letter, and the start goes on
        rejection_reason(error)
    else:
        yield int(place)


def _is_letter_of(store: Store, queue: GroupQueue, offset: int, letter: Record) -> bool:
    """Return True if the dead letter has the content of that message.

    The property alone is no proof, because a client that appends encoded records can write any property.
    """
    try:
        with store.read(*queue[1:], offset, 1) as lease:
            return message_content(lease.messages()[0]) == message_content(letter)
    except Exception as error:  # noqa: BLE001 - as above
        rejection_reason(error)
        return False
