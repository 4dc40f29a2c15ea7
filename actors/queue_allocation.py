"""Allocate a topic's queues to group members, as RocketMQ does.

The module performs no I/O. Clients and brokers compute the same result from the same lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raymq.actors.protocol import MessageQueue

#: The queues of one member, from all queues of a topic, all members' ids, and its own id.
AllocationStrategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]


def average(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """Return the queues of `member`: contiguous shares of the sorted queues.

    The first members get one queue more if the division leaves a rest. A member that is not in the list gets none
    (RocketMQ's AllocateMessageQueueAveragely).
    """
    ranked = sorted(set(members))
    if member not in ranked:
        return []
    index = ranked.index(member)
    share, more = divmod(len(queues), len(ranked))
    start = index * share + min(index, more)
    return sorted(queues)[start : start + share + (index < more)]


def allocate_by_circle(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """Return the queues of `member`: the sorted queues are dealt out in turn.

    It is RocketMQ's AllocateMessageQueueAveragelyByCircle.
    """
    ranked = sorted(set(members))
    return sorted(queues)[ranked.index(member) :: len(ranked)] if member in ranked else []


#: The strategies by RocketMQ's names.
ALLOCATION_STRATEGIES: Mapping[str, AllocationStrategy] = {"AVG": average, "AVG_BY_CIRCLE": allocate_by_circle}
