"""Sharing a topic's queues out as RocketMQ does. No I/O: clients and brokers compute the same from the same lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raymq.actors.protocol import MessageQueue

#: The queues of one member, from all queues of a topic, all members' ids, and its own id.
Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]


def average(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """The queues of `member`: contiguous shares of the sorted queues, the first members get one more.

    A member that is not in the list gets none (RocketMQ's AllocateMessageQueueAveragely).
    """
    ranked = sorted(set(members))
    if member not in ranked:
        return []
    index = ranked.index(member)
    share, more = divmod(len(queues), len(ranked))
    start = index * share + min(index, more)
    return sorted(queues)[start : start + share + (index < more)]


def by_circle(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """The queues of `member`: the sorted queues are dealt out in turn (AllocateMessageQueueAveragelyByCircle)."""
    ranked = sorted(set(members))
    return sorted(queues)[ranked.index(member) :: len(ranked)] if member in ranked else []


#: By RocketMQ's names.
STRATEGIES: Mapping[str, Strategy] = {"AVG": average, "AVG_BY_CIRCLE": by_circle}
