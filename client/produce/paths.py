"""The ways that a producer's messages go: made together, before its first send, and together once more after a fork."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from raymq.actors.errors import InvalidInput
from raymq.actors.sending.direct import DirectSender
from raymq.actors.sending.direct_idempotent import DirectIdempotentSender
from raymq.actors.sending.idempotent import IdempotentSender
from raymq.actors.sending.isolation import STRATEGIES
from raymq.actors.sending.sender import Sends, make_sender
from raymq.actors.sending.shared_batches import PooledSends
from raymq.client import arguments
from raymq.client.connection import Connection
from raymq.client.produce.batcher import Batcher
from raymq.client.produce.options import NO_OPTIONS, SendDefaults
from raymq.client.produce.outbox import OutboxSends
from raymq.client.produce.outbox_file import OutboxFile

#: Numbered batches of a topic that are under way together: enough for many threads, and few for those who wait.
_LANES: Final = 8
#: What a producer that is closed may take to write into its outbox.
OUTBOX_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class PathOptions:
    """The arguments of a producer by which its ways are made."""

    group: str
    linger: float
    idempotent: bool
    isolation: str | None
    shared: bool
    buffer_bytes: int
    when_full: Literal["block", "raise"]
    outbox: str | Path | None

    def check(self, timeout: float) -> None:
        """InvalidInput; `timeout` is the budget of a send, seconds."""
        if self.isolation not in STRATEGIES:
            raise InvalidInput("isolation", f"one of {', '.join(map(repr, STRATEGIES))}", self.isolation)
        within = f"0 to the timeout ({timeout}) seconds"
        arguments.number("linger", self.linger, within, least=0.0, most=timeout)
        arguments.whole("buffer_bytes", self.buffer_bytes, 1, arguments.MOST_OFFSET)
        arguments.flag("idempotent", self.idempotent)
        arguments.flag("shared", self.shared)
        if self.outbox is not None and not isinstance(self.outbox, str | os.PathLike):
            raise InvalidInput("outbox", "None, or the path of a file", self.outbox)
        if self.when_full not in ("block", "raise"):
            raise InvalidInput("when_full", '"block" or "raise"', self.when_full)


@dataclass(frozen=True, slots=True)
class SendPaths:
    """One producer's ways.

    Attributes:
        sends: the way of everything that takes no other one, on the event loop.
        direct: the quick way, where nobody numbers, keeps or forwards what is sent.
        one_by_one: the quick way of single messages, where nobody keeps or forwards what is sent.
        batcher: where messages are gathered first; None without `linger`.
    """

    sends: Sends
    direct: DirectSender | None
    one_by_one: DirectSender | DirectIdempotentSender | None
    batcher: Batcher | None

    @classmethod
    def make(cls, mq: Connection, options: PathOptions, defaults: SendDefaults, owner: object) -> SendPaths:
        """`owner`, which has to be closed, lives for as long as something is gathered or under way.

        Raises:
            InvalidInput: `shared` without Ray.
        """
        sends: Sends
        direct: DirectSender | None = None
        one_by_one: DirectSender | DirectIdempotentSender | None = None
        if options.shared:
            from raymq.client.produce.shared_producer import SharedSends

            sends = SharedSends(mq, options.group, options.isolation, idempotent=options.idempotent)
        else:
            sends = sender = make_sender(mq.pool, mq.routes, options.isolation)
            quick = DirectSender(sender, mq.routes, mq.channels, mq.run)
            if options.idempotent:
                sends = numbering = IdempotentSender(sender)
                if options.linger:  # more batches may come than the queues have turns: those that would wait are joined
                    sends = PooledSends(numbering, _LANES)
                one_by_one = DirectIdempotentSender(numbering, quick, mq.channels, mq.run)
            else:
                direct = one_by_one = quick
        if options.outbox is not None:
            sends = mq.run(_with_outbox(sends, OutboxFile(options.outbox), defaults, owner))
            direct = one_by_one = None
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
                keep=sends.keep if isinstance(sends, OutboxSends) else None,
            )
        return cls(sends, direct, one_by_one, batcher)

    def begin_close_outbox(self, mq: Connection) -> None:
        """Begin with what `close_outbox` does, where nothing is under way, and nothing will be: its file may be locked,
        and many of them are waited for together so.
        """
        if isinstance(self.sends, OutboxSends) and self.batcher is None:
            mq.submit(self.sends.close_if_idle())

    def close_outbox(self, mq: Connection, timeout: float) -> None:
        """What has no answer goes into the outbox, where there is one, within `timeout` seconds and a few more."""
        if isinstance(self.sends, OutboxSends):
            with contextlib.suppress(TimeoutError):  # its file is locked by another process
                gathered = None if self.batcher is None else self.batcher.end
                mq.run(self.sends.close(gathered), timeout + OUTBOX_SECONDS)


async def _with_outbox(sends: Sends, file: OutboxFile, defaults: SendDefaults, owner: object) -> OutboxSends:
    return OutboxSends(sends, file, defaults.terms("", NO_OPTIONS), owner=owner)
