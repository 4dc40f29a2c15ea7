"""What is left on a broker that is to be taken away (ours)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from raymq.actors.wire import json_body
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.told import number, reader, text, told_in

_CONSUMED: Final = "consumed"
#: Of more groups and topics it is told only how many messages they have not consumed.
MOST_TOLD = 100


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What nobody could get any more without the broker, by kind; 0: nothing.

    Attributes:
        unconsumed: messages that a group has not consumed, by (group, topic), the most of them first.
        unconsumed_messages: how many that are of all groups.
        delayed, timers: messages that wait for a delay level, or for a time of their own.
        lent: messages that are out to a group that pops.
        staged: writes with rows here that are not decided, or not all in the log.
        writes: writes that this broker decides about, and that are not over.
        homes: streams and series of writes whose progress is kept here for good.
        dead_letters: dead letters, by group.
        lent_to: those that are lent, by group, the most of them first; not of a broker of an earlier version.
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

    def are_awaited(self, without: Collection[str] = ()) -> bool:
        """Whether anything is left that goes by itself, or is consumed by other groups than these, as far as those are
        named.
        """
        ignored = sum(count for (group, _), count in self.unconsumed.items() if group in without)
        lent = self.lent - sum(self.lent_to.get(group, 0) for group in without)
        waiting = (self.unconsumed_messages - ignored, lent, self.delayed, self.timers, self.staged, self.writes)
        return any(count > 0 for count in waiting)


def remains_command() -> Command:
    """REMAINS."""
    return Command(RequestCode.REMAINS, serialization=Serialization.MSGPACK)


def consumption_command() -> Command:
    """REMAINS, of what consumes here instead: the topics of each group."""
    return Command(RequestCode.REMAINS, {_CONSUMED: True}, serialization=Serialization.MSGPACK)


def asks_for_consumption(request: Command) -> bool:
    """Whether a REMAINS is that one."""
    return bool(request.fields.get(_CONSUMED))


def consumption_answer(request: Command, topics: Mapping[str, Sequence[str]]) -> Command:
    """The answer: topics by group."""
    return json_body.answer(request, {_CONSUMED: {group: list(each) for group, each in topics.items()}})


@reader
def read_consumption(answer: Command) -> set[tuple[str, str]]:
    """What was answered, as (group, topic); none by a broker of an earlier version, which tells what remains."""
    told = told_in(answer).get(_CONSUMED, {})
    return {(text(group), text(topic)) for group, topics in told.items() for topic in topics}


def remains_answer(request: Command, remains: Leftovers) -> Command:
    """The answer."""
    told: dict[str, Any] = asdict(remains)
    told["unconsumed"] = [[group, topic, count] for (group, topic), count in remains.unconsumed.items()]
    return json_body.answer(request, told)


@reader
def read_remains(answer: Command) -> Leftovers:
    """What was answered."""
    told = told_in(answer)
    return Leftovers(
        unconsumed={(text(group), text(topic)): number(count) for group, topic, count in told["unconsumed"]},
        dead_letters={text(group): number(count) for group, count in told["dead_letters"].items()},
        lent_to={text(group): number(count) for group, count in told.get("lent_to", {}).items()},
        **{
            name: number(told[name])
            for name in ("unconsumed_messages", "delayed", "timers", "lent", "staged", "writes", "homes")
        },
    )
