"""Sharing a topic's queues out among a group's members. No I/O: every member computes the same from the same lists.

All members of a group must use one strategy. `average` is RocketMQ's default and the one to share a group with its
clients; the others move fewer queues when members come and go.
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence

from raymq.actors import assignment
from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue

#: The queues of one member, from all queues of a topic, all members' ids, its own id, and who had which queue.
Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str, Mapping[MessageQueue, str]], list[MessageQueue]]

#: Places of one member on the ring of `consistent_hash`: enough that shares differ by some tens of per cent only.
_PLACES = 100


def average(
    queues: Sequence[MessageQueue],
    members: Sequence[str],
    member: str,
    owners: Mapping[MessageQueue, str],  # noqa: ARG001 - who had them plays no part
) -> list[MessageQueue]:
    """Contiguous shares of the sorted queues, as RocketMQ deals them out."""
    return assignment.average(queues, members, member)


def sticky(
    queues: Sequence[MessageQueue], members: Sequence[str], member: str, owners: Mapping[MessageQueue, str]
) -> list[MessageQueue]:
    """Even shares that move no queue which need not: its owner of before keeps it, up to a full share.

    Only what belonged to nobody who is here, and what is above a share, changes hands. Members that see the change half
    done compute the same.
    """
    ranked = sorted(set(members))
    if member not in ranked:
        return []
    held: dict[str, list[MessageQueue]] = {each: [] for each in ranked}
    free: list[MessageQueue] = []
    for queue in sorted(queues):
        held.get(owners.get(queue, ""), free).append(queue)
    share, more = divmod(len(queues), len(ranked))
    # Who holds more than a share keeps one above it, before others get one.
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
    owners: Mapping[MessageQueue, str],  # noqa: ARG001 - who had them plays no part
) -> list[MessageQueue]:
    """Shares by a ring of hashes: a change moves the queues of the member that came or went, and no other.

    Shares are uneven: with few queues a member may have none.
    """
    ring = sorted((_hash(f"{each}#{place}"), each) for each in set(members) for place in range(_PLACES))
    if not ring:
        return []
    places = [place for place, _ in ring]
    found = {queue: ring[bisect(places, _hash(_name(queue))) % len(ring)][1] for queue in queues}
    return sorted(queue for queue, owner in found.items() if owner == member)


STRATEGIES: dict[str, Strategy] = {"average": average, "sticky": sticky, "consistent-hash": consistent_hash}


def strategy_named(name: str) -> Strategy:
    """The strategy of that name; InvalidInput lists them."""
    found = STRATEGIES.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidInput("strategy", " | ".join(STRATEGIES), name)
    return found


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}:{queue.broker}:{queue.queue_id}"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
