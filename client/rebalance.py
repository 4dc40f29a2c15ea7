"""Sharing a topic's queues out among a group's members. No I/O: every member computes the same from the same lists."""

from __future__ import annotations

from collections.abc import Sequence

from raymq.actors.protocol import MessageQueue


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
