"""Sharing a topic's queues out among a group's members. No I/O: every member computes the same from the same lists.

All members of a group must use one strategy. `average` is RocketMQ's default and the one to share a group with its
clients; the others move fewer queues when members come and go.
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections.abc import Callable, Sequence

from raymq.actors.errors import InvalidInput
from raymq.actors.protocol import MessageQueue

#: The queues of one member, from all queues of a topic, all members' ids, and its own id.
Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]

#: Places of one member on the ring of `consistent_hash`: enough that shares differ by some tens of per cent only.
_PLACES = 100


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


def sticky(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """Even shares that move few queues: each goes to the member with the highest hash of (queue, member) that has room.

    When a member leaves, the others keep nearly all that they had; nobody has more than one queue more than another.
    """
    ranked = sorted(set(members))
    if member not in ranked:
        return []
    share, more = divmod(len(queues), len(ranked))
    held = dict.fromkeys(ranked, 0)
    mine = []
    for queue in sorted(queues):
        # `more` members may hold one above the share; once they do, the share is the limit for the rest
        full = share if sum(count > share for count in held.values()) >= more else share + 1
        owner = max((m for m in ranked if held[m] < full), key=lambda m: _hash(f"{_name(queue)}@{m}"))
        held[owner] += 1
        if owner == member:
            mine.append(queue)
    return mine


def consistent_hash(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """Shares by a ring of hashes: a change moves the queues of the member that came or went, and no other.

    Shares are uneven: with few queues a member may have none.
    """
    ring = sorted((_hash(f"{each}#{place}"), each) for each in set(members) for place in range(_PLACES))
    if not ring:
        return []
    places = [place for place, _ in ring]
    owners = {queue: ring[bisect(places, _hash(_name(queue))) % len(ring)][1] for queue in queues}
    return sorted(queue for queue, owner in owners.items() if owner == member)


STRATEGIES: dict[str, Strategy] = {"average": average, "sticky": sticky, "consistent-hash": consistent_hash}


def strategy_named(name: str) -> Strategy:
    """The strategy of that name; InvalidInput lists them."""
    found = STRATEGIES.get(name)
    if found is None:
        raise InvalidInput("strategy", " | ".join(STRATEGIES), name)
    return found


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}:{queue.broker}:{queue.queue_id}"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
