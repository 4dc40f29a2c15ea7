"""How much one request may ask for by naming it: the one table of counts, which both ends of a connection use.

What one item costs a broker's loop is known (two to ten microseconds each, as measured); so is how long a request may
hold the loop, which is 20 ms. Whatever our own clients have more of they ask for in several requests. A foreign client
is told the limit, and what to do. What takes longer than a step although it is within its limit is done in steps, see
`raymq.actors.wire.stepwise`.
"""

from __future__ import annotations

from typing import Final

from raymq.actors.errors import InvalidInput, MessageIllegal

#: Records that are stored together, as our clients make them;
MAX_MESSAGES: Final = 30_000
#: and so many bytes of them, or one longer record;
PART_BYTES: Final = 4 << 20
#: messages of a batch that RocketMQ's clients make, of which the broker makes records. The answer has all their ids.
MAX_BATCH: Final = 15_000
#: Queues of a fetch: each is looked at, and waited for.
MAX_FETCHED: Final = 1_000
#: Queues whose locks are asked for, or given back.
MAX_LOCKED: Final = 5_000
#: Dead letters that are sent to their group again: each is read, copied and stored, all copies with one append.
MAX_REDRIVEN: Final = 1_000
#: Deliveries that are settled one by one: each has its own action, and all of a queue are written down together.
MAX_SETTLED: Final = 1_000
#: Deliveries that are acknowledged: a group that has so many messages of one queue out gets no new ones there.
MAX_IN_FLIGHT: Final = 100_000
#: Parts of a staged write: each task has one on every broker that it wrote to. They are read in steps.
MAX_PARTS: Final = 200_000


def check_count(field: str, what: str, count: int, most: int) -> None:
    """InvalidInput if a request names more of something than it may."""
    if count > most:
        raise InvalidInput(field, f"at most {most:,} {what} in one request", count, remedy="ask in several requests")


def check_batch(count: int) -> None:
    """MessageIllegal if a batch has more messages than may be stored together."""
    if count > MAX_BATCH:
        limit = f"at most {MAX_BATCH:,} messages"
        raise MessageIllegal("batch", limit, count, remedy="send smaller batches")
