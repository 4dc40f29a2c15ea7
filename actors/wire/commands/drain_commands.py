"""The data that remains on a broker that is to be removed (ours)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.response_validation import number, protocol_checked, read_json_answer, text

_CONSUMED: Final = "consumed"
#: The most entries of each table in an answer; further groups and topics count only in the total of unconsumed
#: messages.
MAX_LISTED_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class DrainBacklog:
    """The data that would be lost or unreachable without the broker, by kind.

    A count of 0 means that there is none.

    Attributes:
        unconsumed: unconsumed messages by (group, topic), the largest counts first.
        unconsumed_messages: the total of unconsumed messages of all groups.
        delayed, timers: messages that wait for a delay level, or for a delivery time of their own.
        lent: messages in flight: delivered to a group that pops and not acknowledged.
        staged: staged writes with rows on this broker that are undecided, or not completely in the log.
        writes: writes that this broker coordinates and that are not finished.
        homes: streams and series of writes whose progress is kept on this broker permanently.
        dead_letters: dead letters, by group.
        lent_to: messages in flight by group, the largest counts first; empty from a broker of an earlier version.
    """

    unconsumed: dict[tuple[str, str], int] = field(default_factory=dict)
    unconsumed_messages: int = 0
    delayed: int = 0
    timers: int = 0
    lent: int = 0
    staged: int = 0
    writes: int = 0
    homes: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)
    lent_to: dict[str, int] = field(default_factory=dict)

    def has_pending(self, without: Collection[str] = ()) -> bool:
        """Return True if data is left that drains in time or that groups consume.

        Unconsumed and in-flight messages of the groups `without` are ignored, as far as the answer lists these groups.
        """
        ignored = sum(count for (group, _), count in self.unconsumed.items() if group in without)
        lent = self.lent - sum(self.lent_to.get(group, 0) for group in without)
        waiting = (self.unconsumed_messages - ignored, lent, self.delayed, self.timers, self.staged, self.writes)
        return any(count > 0 for count in waiting)


def drain_backlog_command() -> Command:
    """Return REMAINS: request the backlog."""
    return Command(RequestCode.REMAINS, serialization=Serialization.MSGPACK)


def consumption_command() -> Command:
    """Return REMAINS in its other form: request the topics that each group consumes."""
    return Command(RequestCode.REMAINS, {_CONSUMED: True}, serialization=Serialization.MSGPACK)


def is_consumption_request(request: Command) -> bool:
    """Return True if a REMAINS is of the form that `consumption_command` returns."""
    return bool(request.fields.get(_CONSUMED))


def consumption_answer(request: Command, topics: Mapping[str, Sequence[str]]) -> Command:
    """Return the answer to `consumption_command`: the topics by group."""
    return json_body.answer(request, {_CONSUMED: {group: list(each) for group, each in topics.items()}})


@protocol_checked
def read_consumption(answer: Command) -> set[tuple[str, str]]:
    """Return the (group, topic) pairs in an answer to `consumption_command`.

    A broker of an earlier version answers with its backlog instead; the result is empty then.
    """
    consumed = read_json_answer(answer).get(_CONSUMED, {})
    return {(text(group), text(topic)) for group, topics in consumed.items() for topic in topics}


def drain_backlog_answer(request: Command, remains: DrainBacklog) -> Command:
    """Return the answer to `drain_backlog_command`."""
    data: dict[str, Any] = asdict(remains)
    data["unconsumed"] = [[group, topic, count] for (group, topic), count in remains.unconsumed.items()]
    return json_body.answer(request, data)


@protocol_checked
def read_drain_backlog(answer: Command) -> DrainBacklog:
    """Return the backlog in an answer to `drain_backlog_command`."""
    data = read_json_answer(answer)
    return DrainBacklog(
        unconsumed={(text(group), text(topic)): number(count) for group, topic, count in data["unconsumed"]},
        dead_letters={text(group): number(count) for group, count in data["dead_letters"].items()},
        lent_to={text(group): number(count) for group, count in data.get("lent_to", {}).items()},
        **{
            name: number(data[name])
            for name in ("unconsumed_messages", "delayed", "timers", "lent", "staged", "writes", "homes")
        },
    )
