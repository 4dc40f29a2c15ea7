"""Fetch messages of several queues of one broker over sockets.

Whole ranges as tables are in `raymq.client.bulk.range_reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.wire.commands.fetch_commands import (
    MAX_ANSWER_BYTES,
    Fetched,
    fetch_command,
    read_epoch,
    read_fetched,
    read_single_message,
)
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.requests.broker_requests import request_via_topics

#: Bytes of one chunk of a range: the maximum of an answer.
CHUNK_BYTES = MAX_ANSWER_BYTES
#: Bytes of one answer: about what a socket buffers while the previous answer is processed, and what fits into a
#: processor's caches.
ANSWER_BYTES = 4 * 1024 * 1024
#: The time for an answer after the time for which the request may be parked.
ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StreamedAnswers:
    """The handlers of the answers of a continued fetch.

    Attributes:
        parts: called with parts of queues.
        one: called with one message: the index of its queue, and its record, which is valid during the call.
        queues: how many queues the fetch names.
    """

    parts: Callable[[list[Fetched]], None]
    one: Callable[[int, memoryview], None]
    queues: int

    def __call__(self, answer: Command) -> None:
        self.parts(read_fetched(answer, self.queues))

    def bare(self, body: memoryview) -> None:
        self.one(*read_single_message(body, self.queues))


async def fetch(
    mq: Connection,
    broker: str,
    session: str,
    specs: Sequence[FetchSpec],
    max_messages: int,
    max_bytes: int,
    wait_seconds: float,
    group: str | None = None,
    member: str | None = None,
    *,
    check_crc: bool = False,
    bodies: bool = True,
    on_early_answer: StreamedAnswers | None = None,
    on_epoch: Callable[[int], None] | None = None,
) -> list[Fetched]:
    """Fetch several queues of one broker with one request.

    The broker parks the request for up to `wait_seconds` if the queues have no records.

    With `on_early_answer` the fetch continues for that long, within its limits: the handlers are called on the event
    loop with each answer before the last, and an exception that they raise ends the fetch.

    With a `group` the broker counts the fetch for the group, and a queue in which the group was reset has the error
    OffsetReset; the broker records the group's `member` as the owner of the queues.

    `on_epoch` is called with the broker's recovery epoch before this returns: the next fetch has to name it. If a queue
    names an older epoch, and the broker's log has lost records since that its reader has read, the queue has the error
    OffsetReset.

    The caller compares the bodies' checksums when it decodes the result. If one is wrong, the caller fetches once more
    with `check_crc`: the broker then compares them too, and returns the records before the damage, or names the damaged
    file.

    Without `bodies` the broker does not send the bodies, and the returned records have empty ones.

    Raises:
        BrokerUnavailable: no answer.
    """
    limits = max_messages, max_bytes, wait_seconds
    goes_on = on_early_answer is not None
    command = fetch_command(session, specs, *limits, group, member, check_crc=check_crc, goes_on=goes_on, bodies=bodies)
    topics = (spec.topic for spec in specs)
    answer = await request_via_topics(
        mq, topics, broker, command, wait_seconds + ANSWER_SECONDS, on_early_answer=on_early_answer
    )
    if on_epoch is not None and (epoch := read_epoch(answer)) is not None:
        on_epoch(epoch)
    return read_fetched(answer, len(specs))
