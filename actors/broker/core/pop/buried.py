"""Which dead messages are in their group's dead letters while they are still out: what a start has to know again.

The letter is stored first, then the delivery ends in the journals. Whatever comes in between (a kill, a disk on which
the log has room and the journals have none, which may be so for many deliveries) leaves both.
"""

from __future__ import annotations

from collections.abc import Iterator

from raymq.actors.broker.core.copies.copying import reason_of
from raymq.actors.broker.core.copies.marked_records import parts_of_topic
from raymq.actors.broker.core.delay.delivered import message_of
from raymq.actors.naming import dlq_topic
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Record, decode
from raymq.storage.store import Store
from raymq.storage.tables.in_flight import GroupQueue


def death_of(queue: GroupQueue, offset: int, pop_time_ms: int) -> str:
    """What the dead letter of a delivery calls it, in its property DIED_IN."""
    _, topic, queue_id = queue
    return f"{topic}:{queue_id}:{offset}:{pop_time_ms}"


def buried_deaths(store: Store) -> set[tuple[str, str]]:
    """Group and name of each delivery that is out, and has its dead letter.

    A letter lies behind its message in the log, so that only those behind the oldest message that may be dead are read.
    """
    found: set[tuple[str, str]] = set()
    for group, (since, deaths) in _may_be_dead(store).items():
        for part in parts_of_topic(store, dlq_topic(group), names.DIED_IN, since):
            told = part.columns.last(names.DIED_IN).to_pylist()
            for number in part.marked.tolist():
                if told[number] in deaths:
                    letter = decode(part.batch.records, int(part.batch.starts[number]), check_crc=False)
                    if _is_letter_of(store, *deaths[told[number]], letter):
                        found.add((group, told[number]))
    return found


def _may_be_dead(store: Store) -> dict[str, tuple[int, dict[str, tuple[GroupQueue, int]]]]:
    """By group: where the oldest of them lies in the log, and queue and offset of each by its name."""
    found: dict[str, tuple[int, dict[str, tuple[GroupQueue, int]]]] = {}
    for queue, out in store.in_flight.queues.items():
        last_tries = {
            death_of(queue, offset, each.pop_time_ms): (queue, offset)
            for offset, each in out.deliveries.items()
            if each.is_last
        }
        for place in _first_place(store, queue, [offset for _, offset in last_tries.values()]):
            since, deaths = found.get(queue[0], (place, {}))
            found[queue[0]] = min(since, place), deaths | last_tries
    return found


def _first_place(store: Store, queue: GroupQueue, offsets: list[int]) -> Iterator[int]:
    """The place of the first of a queue's messages that is still there; none if there is none."""
    topic_queue = queue[1:]
    try:
        [place], _, _ = store.entries(*topic_queue, max(min(offsets), store.min_offset(*topic_queue)), 1)
    except Exception as error:  # noqa: BLE001 - what cannot be read is not buried, and nothing keeps a broker down
        reason_of(error)
    else:
        yield int(place)


def _is_letter_of(store: Store, queue: GroupQueue, offset: int, letter: Record) -> bool:
    """Whether the message that died is the same: who appends ready-made records can write what he likes into them."""
    try:
        with store.read(*queue[1:], offset, 1) as lease:
            return message_of(lease.messages()[0]) == message_of(letter)
    except Exception as error:  # noqa: BLE001 - as above
        reason_of(error)
        return False
