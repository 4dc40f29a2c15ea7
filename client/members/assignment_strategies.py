"""Assign a topic's queues to a group's members. No I/O.

Every member computes the same assignment from the same lists. All members of a group must use one strategy. `average`
is RocketMQ's default and the one for groups that RocketMQ's clients are members of, too; the others move fewer queues
when members join and leave.
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence

from raymq.actors import queue_allocation
from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue

#: Returns one member's queues, from all queues of a topic, all members' ids, its own id, and each queue's previous
#: owner.
AssignmentStrategy = Callable[
    [Sequence[MessageQueue], Sequence[str], str, Mapping[MessageQueue, str]], list[MessageQueue]
]

#: Points of one member on the ring of `consistent_hash`: with this number shares differ by some tens of per cent only.
_PLACES = 100


def average(
    queues: Sequence[MessageQueue],
    members: Sequence[str],
    member: str,
    owners: Mapping[MessageQueue, str],  # noqa: ARG001 - this strategy ignores the previous owners
) -> list[MessageQueue]:
    """Assign contiguous shares of the sorted queues, as RocketMQ does."""
    return queue_allocation.average(queues, members, member)


def sticky(
    queues: Sequence[MessageQueue], members: Sequence[str], member: str, owners: Mapping[MessageQueue, str]
) -> list[MessageQueue]:
    """Assign even shares, and leave each queue with its previous owner if possible.

    Only queues whose previous owner has left, and those above an owner's full share, are moved. Members that see the
    change half done compute the same assignment.
    """
    ranked = sorted(set(members))
    if member not in ranked:
        return []
    held: dict[str, list[MessageQueue]] = {each: [] for each in ranked}
    free: list[MessageQueue] = []
    for queue in sorted(queues):
        held.get(owners.get(queue, ""), free).append(queue)
    share, more = divmod(len(queues), len(ranked))
    # The members with more than a share are the first that get one queue more than the others.
    most_first = sorted(ranked, key=lambda each: (len(held[each]) <= share, each))
    full = {each: share + (rank < more) for rank, each in enumerate(most_first)}
    for each in ranked:
        free += held[each][full[each] :]
    free.sort()
    begin = sum(max(0, full[each] - len(held[each])) for each in ranked[: ranked.index(member)])
    room = max(0, full[member] - len(held[member]))
    return sorted(held[member][: full[member]] + free[begin : begin + room])


def consistent_hash(
    queues: Sequence[MessageQueue],
    members: Sequence[str],
    member: str,
    owners: Mapping[MessageQueue, str],  # noqa: ARG001 - this strategy ignores the previous owners
) -> list[MessageQueue]:
    """Assign queues by a ring of hashes.

    A change of members moves only the queues of the member that joined or left. Shares are uneven: with few queues a
    member may have none.
    """
    ring = sorted((_hash(f"{each}#{place}"), each) for each in set(members) for place in range(_PLACES))
    if not ring:
        return []
    places = [place for place, _ in ring]
    found = {queue: ring[bisect(places, _hash(_name(queue))) % len(ring)][1] for queue in queues}
    return sorted(queue for queue, owner in found.items() if owner == member)


STRATEGIES: dict[str, AssignmentStrategy] = {"average": average, "sticky": sticky, "consistent-hash": consistent_hash}


def get_strategy(name: str) -> AssignmentStrategy:
    """Return the strategy of that name; raise InvalidInput, which lists them, if unknown."""
    found = STRATEGIES.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidInput("strategy", " | ".join(STRATEGIES), name)
    return found


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}:{queue.broker}:{queue.queue_id}"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
