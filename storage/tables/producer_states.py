"""Keep the states of idempotent producers up to a log position.

The log is authoritative: the table saves reading it. `position` says up to where the table covers the log. The rows may
be newer, never older: replaying the same records of the log over newer rows changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

import msgpack

from raymq.storage.journal.journaled_table import Fields, JournaledTable
from raymq.storage.journal.recovery_bounds import RecoveryBounds

#: The most lanes in an event.
EVENT_LANES: Final = 200
#: Kinds of events: states of lanes, and the position.
_LANES: Final = "l"
_POSITION: Final = "p"


class ProducerStates(JournaledTable):
    """The saved states by lane: one producer in one queue. The states are kept packed.

    Events: ["l", [[producer, topic, queue id, packed state], ...]], ["p", physical offset]. A lane without a state is
    removed.

    Any thread may change it, one at a time.

    Attributes:
        position: up to which physical offset the rows cover the log.
    """

    NUMBER: ClassVar = 20

    def __init__(self) -> None:
        #: By topic, then by producer and queue id, so that forgetting a topic is one step.
        self._states: dict[str, dict[tuple[str, int], bytes]] = {}
        self.position = 0

    def rows(self) -> Iterator[list[Any]]:
        """Return producer, topic, queue id and the values of the state of each lane."""
        for topic, lanes in self._states.items():
            for (producer, queue_id), state in lanes.items():
                yield [producer, topic, queue_id, *msgpack.unpackb(state)]

    def put(self, rows: Iterable[Sequence[Any]]) -> None:
        """Save lanes, in the form of `rows`; a row without values removes its lane.

        Raise StoreFull or StoreFailed if not all are saved.
        """
        for fields in lane_events(rows):
            self.record(*fields)

    def advance(self, position: int) -> None:
        """Set `position`, after its rows; raise StoreFull or StoreFailed on failure."""
        self.record(_POSITION, position)

    def apply(self, fields: Fields) -> None:
        """Apply an event; see the class."""
        kind, value = fields
        if kind == _POSITION:
            self.position = int(value)
        elif kind == _LANES:
            for producer, topic, queue_id, state in [_checked(*row) for row in value]:
                if state:
                    self._states.setdefault(topic, {})[producer, queue_id] = state
                elif topic in self._states:
                    self._remove(topic, (producer, queue_id))
        else:
            raise ValueError(f"no kind of event: {kind!r:.20}")

    def apply_after_loss(self, fields: Fields) -> None:
        """Apply rows, but no position, of an event after lost ones."""
        if fields[0] != _POSITION:
            self.apply(fields)

    def _remove(self, topic: str, lane: tuple[str, int]) -> None:
        lanes = self._states[topic]
        lanes.pop(lane, None)
        if not lanes:
            del self._states[topic]

    def snapshot(self) -> Iterator[Fields]:
        """Return events of some hundred lanes each, and the position from before they were read."""
        position = self.position
        for topic, lanes in self._states.copy().items():
            rows = [[producer, topic, queue_id, state] for (producer, queue_id), state in lanes.copy().items()]
            yield from _chunks(rows)
        yield _POSITION, position

    def clamp(self, bounds: RecoveryBounds) -> Iterator[Fields]:
        """Move the position back to the log's end."""
        if not bounds.has(self.position):
            yield _POSITION, bounds.log_end

    def forget_topic(self, topic: str, log_end: int) -> None:  # noqa: ARG002 - offsets of the topic begin again at 0
        """Remove the lanes of a deleted topic."""
        self._states.pop(topic, None)


def lane_events(rows: Iterable[Sequence[Any]]) -> Iterator[Fields]:
    """Return the events that save lanes, in the form of `ProducerStates.rows`."""
    return _chunks(
        [
            [producer, topic, queue_id, msgpack.packb(state) if state else b""]
            for producer, topic, queue_id, *state in rows
        ]
    )


def position_event(position: int) -> Fields:
    """Return the event that sets the position."""
    return _POSITION, position


def _chunks(rows: list[list[Any]]) -> Iterator[Fields]:
    for begin in range(0, len(rows), EVENT_LANES):
        yield _LANES, rows[begin : begin + EVENT_LANES]


def _checked(producer: str, topic: str, queue_id: int, state: bytes) -> tuple[str, str, int, bytes]:
    if type(producer) is not str or type(topic) is not str or type(queue_id) is not int or type(state) is not bytes:
        raise ValueError("not the state of a lane")
    return producer, topic, queue_id, state
