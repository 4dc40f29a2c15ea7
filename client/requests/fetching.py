"""Reading queues over sockets: single fetches. Whole ranges as tables are in `raymq.client.bulk.range_reader`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raymq.actors.filter.wanted import Wanted
from raymq.actors.wire.commands.fetch import (
    MAX_ANSWER_BYTES,
    Fetched,
    fetch_command,
    read_epoch,
    read_fetched,
    read_one,
)
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.requests.asking import ask_among

#: Bytes of one chunk of a range: what an answer may hold.
CHUNK_BYTES = MAX_ANSWER_BYTES
#: Bytes of one answer: what a socket holds while the answer before is looked at, and a processor's caches hold about.
ANSWER_BYTES = 4 * 1024 * 1024
#: What an answer may take beyond the time for which the request may be parked.
ANSWER_SECONDS = 10.0
#: ... and may take at least, however short the time is that its caller has.
_LEAST_ANSWER_SECONDS = 2.0


def answer_seconds(timeout: float) -> float:
    """What an answer may take beyond its caller's time-out: as long again, so that one who hangs is told soon."""
    return min(ANSWER_SECONDS, max(_LEAST_ANSWER_SECONDS, timeout))


@dataclass(frozen=True, slots=True)
class EarlyAnswers:
    """Reads what a fetch that goes on brings.

    Attributes:
        parts: told parts of queues.
        one: told one message: the index of its queue, and its record, which is valid during the call.
        queues: how many queues the fetch names.
    """

    parts: Callable[[list[Fetched]], None]
    one: Callable[[int, memoryview], None]
    queues: int

    def __call__(self, answer: Command) -> None:
        self.parts(read_fetched(answer, self.queues))

    def bare(self, body: memoryview) -> None:
        self.one(*read_one(body, self.queues))


async def fetch(
    mq: Connection,
    broker: str,
    session: str,
    wanted: Sequence[Wanted],
    max_messages: int,
    max_bytes: int,
    wait_seconds: float,
    group: str | None = None,
    member: str | None = None,
    *,
    check_crc: bool = False,
    bodies: bool = True,
    on_early: EarlyAnswers | None = None,
    on_epoch: Callable[[int], None] | None = None,
    answer_within: float = ANSWER_SECONDS,
) -> list[Fetched]:
    """One fetch of several queues of one broker; parked there for up to `wait_seconds` if they have nothing.

    With `on_early` it goes on for so long, within its limits: that is told, on the loop, what comes before, and what it
    raises ends the fetch.

    With a `group` it is counted for it, and a queue in which the group was reset has the error OffsetReset; the group's
    `member` is known as their owner.

    The answer may take `answer_within` seconds longer than it may be parked.

    `on_epoch` is told the broker's recovery epoch before this returns: what is wanted next names it. A queue that named
    an older one, and whose reader has read what the broker's log has lost since, has the error OffsetReset.

    The bodies' checksums are compared by who decodes what this returns. Who finds a wrong one fetches once more with
    `check_crc`: the broker then compares them too, and gives what is before the damage, or names the file it is in.

    Without `bodies` they stay where they are, and the records that come have empty ones.

    Raises:
        BrokerUnavailable: no answer.
    """
    limits = max_messages, max_bytes, wait_seconds
    goes_on = on_early is not None
    command = fetch_command(
        session, wanted, *limits, group, member, check_crc=check_crc, goes_on=goes_on, bodies=bodies
    )
    topics = (want.topic for want in wanted)
    answer = await ask_among(mq, topics, broker, command, wait_seconds + answer_within, on_early=on_early)
    if on_epoch is not None and (epoch := read_epoch(answer)) is not None:
        on_epoch(epoch)
    return read_fetched(answer, len(wanted))
