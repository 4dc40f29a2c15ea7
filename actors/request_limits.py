"""Limits of the number of items in one request, used by clients and servers.

The cost of one item on a broker's loop is known (measured as 2 to 10 microseconds), and a request may occupy the loop
for 20 ms. RayMQ's clients split larger requests into several ones. Foreign clients get an error with the limit and the
remedy. Requests that are within their limit but take longer than a step run in steps, see
`raymq.actors.wire.stepwise_handlers`.
"""

from __future__ import annotations

from typing import Final

from raymq.actors.errors import InvalidInput, MessageIllegal

#: Records of one append, as RayMQ's clients send them.
MAX_MESSAGES: Final = 30_000
#: Bytes of the records of one append, unless it is one longer record.
PART_BYTES: Final = 4 << 20
#: Messages of a batch from RocketMQ's clients, which the broker converts to records. The answer has all their ids.
MAX_BATCH: Final = 15_000
#: Queues of a fetch: the broker checks and watches each of them.
MAX_FETCHED: Final = 1_000
#: Queues whose locks are requested or released.
MAX_LOCKED: Final = 5_000
#: Dead letters that are redriven: each is read, copied and stored, all copies with one append.
MAX_REDRIVEN: Final = 1_000
#: Deliveries that are settled one by one: each has its own action, and those of one queue are persisted together.
MAX_SETTLED: Final = 1_000
#: Deliveries that are acknowledged: a group with so many messages of one queue in flight gets no new ones from it.
MAX_IN_FLIGHT: Final = 100_000
#: Parts of a staged write: each task has one on every broker that it wrote to. They are decoded in steps.
MAX_PARTS: Final = 200_000


def check_count(field: str, what: str, count: int, most: int) -> None:
    """Raise InvalidInput if a request has more items than the limit."""
    if count > most:
        raise InvalidInput(field, f"at most {most:,} {what} in one request", count, remedy="ask in several requests")


def check_batch(count: int) -> None:
    """Raise MessageIllegal if a batch has more messages than the limit."""
    if count > MAX_BATCH:
        limit = f"at most {MAX_BATCH:,} messages"
        raise MessageIllegal("batch", limit, count, remedy="send smaller batches")
