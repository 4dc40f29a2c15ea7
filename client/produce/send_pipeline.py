"""Create the senders through which a producer's messages are sent.

They are created together before the producer's first send, and again after a fork.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from raymq.actors.errors import InvalidInput
from raymq.actors.sending.batching_sender import BatchingSender
from raymq.actors.sending.direct_sender import DirectSender
from raymq.actors.sending.isolation import ISOLATION_STRATEGIES
from raymq.actors.sending.sender import RecordSender, Sender, make_sender
from raymq.client import arguments
from raymq.client.client_metrics import CLIENT_METRICS
from raymq.client.connection import Connection
from raymq.client.produce.batcher import Batcher
from raymq.client.produce.outbox import OutboxSender
from raymq.client.produce.outbox_file import OutboxFile
from raymq.client.produce.send_options import NO_OPTIONS, SendDefaults

#: How many numbered batches of a topic are in flight together: enough for many threads, and few enough for short waits.
_LANES: Final = 8
#: How many seconds a producer that is closed may take to write into its outbox.
OUTBOX_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The arguments of a producer that determine its senders."""

    group: str
    linger: float
    isolation: str | None
    shared: bool
    buffer_bytes: int
    when_full: Literal["block", "raise"]
    outbox: str | Path | None

    def check(self, timeout: float) -> None:
        """Raise InvalidInput if an option is not valid.

        `timeout` is the time budget of a send in seconds.
        """
        if self.isolation not in ISOLATION_STRATEGIES:
            raise InvalidInput("isolation", f"one of {', '.join(map(repr, ISOLATION_STRATEGIES))}", self.isolation)
        within = f"0 to the timeout ({timeout}) seconds"
        arguments.number("linger", self.linger, within, least=0.0, most=timeout)
        arguments.whole("buffer_bytes", self.buffer_bytes, 1, arguments.MAX_OFFSET)
        arguments.flag("shared", self.shared)
        if self.outbox is not None and not isinstance(self.outbox, str | os.PathLike):
            raise InvalidInput("outbox", "None, or the path of a file", self.outbox)
        if self.when_full not in ("block", "raise"):
            raise InvalidInput("when_full", '"block" or "raise"', self.when_full)


@dataclass(frozen=True, slots=True)
class SendPipeline:
    """The senders of one producer.

    Attributes:
        sends: the sender on the event loop, used if no other sender applies.
        direct: the fast sender for blocking calls; None if there is an outbox or a producer actor.
        batcher: gathers messages before they are sent; None without `linger`.
        without_outbox: the sender on the event loop for messages that must not be sent later.
        sender: the sender that makes the tries; None if the producer actor does.
    """

    sends: RecordSender
    direct: DirectSender | None
    batcher: Batcher | None
    without_outbox: RecordSender
    sender: Sender | None

    @classmethod
    def make(cls, mq: Connection, options: PipelineOptions, defaults: SendDefaults, owner: object) -> SendPipeline:
        """Create the senders of a producer.

        Args:
            owner: an object that has to be closed. It is not garbage-collected while messages are gathered or in
                flight.

        Raises:
            InvalidInput: `shared` is used without Ray.
        """
        sends: RecordSender
        direct: DirectSender | None = None
        sender: Sender | None = None
        counts = CLIENT_METRICS.sends(options.group)
        if options.shared:
            from raymq.client.produce.shared_producer import SharedSender

            sends = SharedSender(mq, options.group, options.isolation, counts)
        else:
            sends = sender = make_sender(mq.pool, mq.routes, options.isolation, counts)
            direct = DirectSender(sender, mq.routes, mq.channels, mq.run)
            if defaults.idempotent and options.linger:  # there may be more batches than lanes: waiting ones are joined
                sends = BatchingSender(sender, _LANES)
        without_outbox = sends
        if options.outbox is not None:
            sends = mq.run(_with_outbox(sends, OutboxFile(options.outbox), defaults, owner))
            direct = None
        batcher = None
        if options.linger:
            batcher = Batcher(
                mq,
                sends,
                defaults.terms("", NO_OPTIONS, in_background=True),
                linger=options.linger,
                buffer_bytes=options.buffer_bytes,
                when_full=options.when_full,
                owner=owner,
                keep=sends.keep if isinstance(sends, OutboxSender) else None,
            )
        return cls(sends, direct, batcher, without_outbox, sender)

    def gauges(self) -> tuple[int, int]:
        """Return the number of isolated brokers, and of gathered messages without a response. Any thread."""
        isolated = 0 if self.sender is None else len(self.sender.isolated_brokers())
        return isolated, 0 if self.batcher is None else self.batcher.buffered_messages

    def start_outbox_close(self, mq: Connection) -> None:
        """Start `close_outbox` if no send is in flight and none will follow.

        The outbox file may be locked. Starting early lets several outboxes be awaited together.
        """
        if isinstance(self.sends, OutboxSender) and self.batcher is None:
            mq.submit(self.sends.close_if_idle())

    def close_outbox(self, mq: Connection, timeout: float) -> None:
        """Put messages without a response into the outbox, if there is one.

        This takes at most `timeout` seconds and a few more.
        """
        if isinstance(self.sends, OutboxSender):
            with contextlib.suppress(TimeoutError):  # the outbox file is locked by another process
                gathered = None if self.batcher is None else self.batcher.end
                mq.run(self.sends.close(gathered), timeout + OUTBOX_SECONDS)


async def _with_outbox(sends: RecordSender, file: OutboxFile, defaults: SendDefaults, owner: object) -> OutboxSender:
    return OutboxSender(sends, file, defaults.terms("", NO_OPTIONS), owner=owner)
