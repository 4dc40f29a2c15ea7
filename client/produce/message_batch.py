"""Messages that travel together, and a future for each that costs next to nothing until somebody looks at it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from raymq.actors.errors import OutcomeUnknown
from raymq.actors.sending.sender import Terms
from raymq.client.callbacks import Callbacks
from raymq.client.message import Message
from raymq.client.results import SendResult
from raymq.storage.records import compiled

_PARTS: Final = frozenset(vars(Future()))


Outcome = SendResult | BaseException
MakeOutcomes = Callable[[], Sequence[Outcome]]


class MessageBatch:
    """Gathered messages of one topic, sent on the same terms.

    Whoever gathers holds a lock of its own while it adds; the rest is thread-safe.
    """

    def __init__(self, topic: str, terms: Terms, callbacks: Callbacks | None = None) -> None:
        """`callbacks` runs those of its deliveries; None: who settles them does."""
        self.topic = topic
        self.callbacks = callbacks
        self.terms = terms
        self.messages: list[Message] = []
        self.count = 0
        #: Whether it is on its way, so that nothing is added any more.
        self.is_taken = False
        #: Of each message, or none: where some have one, all have.
        self.sharding_keys: list[str] = []
        self.bytes = 0
        self._lock = threading.RLock()
        self._done = False
        self._make_outcomes: MakeOutcomes | None = None
        self._outcomes: Sequence[Outcome] = ()
        #: The deliveries that are real futures by now.
        self._looked_at: list[PendingResult] = []

    @property
    def done(self) -> bool:
        """Whether the outcomes are known."""
        return self._done

    def outcomes(self) -> Sequence[Outcome]:
        """What became of each message of a batch that is done."""
        make = self._make_outcomes
        if make is not None:
            self._outcomes = make()
            self._make_outcomes = None
        return self._outcomes

    def finish(self, make_outcomes: MakeOutcomes) -> None:
        """The batch was answered. The outcomes are made when somebody asks for one."""
        self._make_outcomes = make_outcomes
        with self._lock:
            self._done = True
            waiting, self._looked_at = self._looked_at, []
            self.messages = []
        for delivery in waiting:
            self._settle(delivery)

    def fail(self, error: BaseException) -> None:
        """One outcome for all."""
        count = len(self.messages)
        self.finish(lambda: [error] * count)

    def look_at(self, delivery: PendingResult) -> None:
        """Make `delivery` the future that it claims to be."""
        with self._lock:
            if "_condition" in delivery.__dict__:
                return
            if compiled.kernels is not None:
                compiled.kernels.track(delivery)
            Future.__init__(delivery)
            delivery.set_running_or_notify_cancel()  # handed over: there is no way back
            if not self._done:
                self._looked_at.append(delivery)
                return
        self._settle(delivery)

    def outcome(self, index: int) -> Outcome:
        """What became of one message of a batch that is done, also where that cannot be made of the answer."""
        try:
            return self.outcomes()[index]
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits has to know
            unknown = OutcomeUnknown(f"what was answered says nothing of this message: {error!r}")
            unknown.__cause__ = error
            return unknown

    def _settle(self, delivery: PendingResult) -> None:
        outcome = self.outcome(delivery.index)
        if isinstance(outcome, BaseException):
            delivery.set_exception(outcome)
        else:
            delivery.set_result(outcome)


class PendingResult(Future[SendResult]):
    """The future of one message of a batch. It cannot be cancelled.

    A `concurrent.futures.Future` costs more than all else that is done for a small message, so its parts are made when
    they are first used: by waiting, by a callback, by `concurrent.futures.wait`.
    """

    def __init__(self, batch: MessageBatch, index: int) -> None:
        self.batch = batch
        self.index = index
        kernels = compiled.kernels
        if kernels is not None:
            # Until it is looked at it refers to its batch, which does not know it: it is part of no circle. Programs
            # hold hundreds of thousands, and the garbage collector would go through all of them again and again.
            kernels.untrack(self)

    def __getattr__(self, name: str) -> Any:
        # Called only for what is missing: one of the parts that Future.__init__ makes, or nothing of ours.
        if name not in _PARTS:
            raise AttributeError(name)
        self.batch.look_at(self)
        return self.__dict__[name]

    def add_done_callback(self, fn: Callable[[Future[SendResult]], object]) -> None:
        """Call `fn` with this future once its outcome is known, on the connection's thread for that."""
        callbacks = self.batch.callbacks
        super().add_done_callback(fn if callbacks is None else partial(callbacks.run, fn))

    def on_outcome(self, call: Callable[[Future[SendResult]], object]) -> None:
        """`add_done_callback` of what does not block: it runs on whichever thread settles this."""
        super().add_done_callback(call)

    async def outcome(self) -> SendResult:
        """As `result`, waited for on the caller's event loop, without a thread in between."""
        loop = asyncio.get_running_loop()
        known: asyncio.Future[None] = loop.create_future()

        def tell(_: Future[SendResult]) -> None:
            with contextlib.suppress(RuntimeError):  # the caller's loop is gone
                loop.call_soon_threadsafe(lambda: None if known.done() else known.set_result(None))

        self.on_outcome(tell)
        await known
        return self.result()

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.batch.done

    def result(self, timeout: float | None = None) -> SendResult:
        """The result, or the error raised; TimeoutError after `timeout` seconds."""
        if not self.batch.done:
            return super().result(timeout)
        outcome = self.batch.outcome(self.index)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome
