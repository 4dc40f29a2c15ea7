"""Which queues of a broker are fetched with one request: no more than a request may name. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from raymq.actors.protocol import MessageQueue
from raymq.actors.request_limits import MAX_FETCHED


class Share(NamedTuple):
    """Some queues of one broker, at most `MAX_FETCHED`; nearly all consumers have one share of each."""

    broker: str
    number: int

    def __str__(self) -> str:
        return f"{self.broker}, part {self.number + 1}" if self.number else self.broker


class FetchShares:
    """The shares of one consumer's queues. A queue stays in its share for as long as the consumer has it."""

    def __init__(self, most: int = MAX_FETCHED) -> None:
        self._most = most
        self._shares: dict[MessageQueue, Share] = {}
        self._counts: Counter[Share] = Counter()

    def of(self, queue: MessageQueue) -> Share:
        """A queue's share: from now on the first of its broker with a place, if it had none."""
        share = self._shares.get(queue)
        if share is None:
            share = Share(queue.broker, 0)
            while self._counts[share] >= self._most:
                share = Share(share.broker, share.number + 1)
            self._shares[queue] = share
            self._counts[share] += 1
        return share

    def keep_only(self, queues: Collection[MessageQueue]) -> None:
        """Others are not the consumer's any more: their places are free."""
        for queue in self._shares.keys() - queues:
            self._counts[self._shares.pop(queue)] -= 1
