"""Hold messages that are sent together, and a cheap future for each."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from raymq.actors.errors import OutcomeUnknown
from raymq.actors.sending.send_plan import SendParameters
from raymq.client.callback_executor import CallbackExecutor
from raymq.client.message import Message
from raymq.client.results import SendResult
from raymq.storage.records import native_kernels

_PARTS: Final = frozenset(vars(Future()))


Outcome = SendResult | BaseException
MakeOutcomes = Callable[[], Sequence[Outcome]]


class PlainFields:
    """The base class of a batch and of its results, without compiled code."""


class PlainOpenBatches(dict[Any, "MessageBatch"]):
    """The open batches by topic or another key, without compiled code."""

    def __init__(self, pending: type[PendingResult], overhead: int, limit: int) -> None:  # noqa: ARG002 - as compiled
        """Initialize an empty table; the compiled one says more about the arguments."""
        super().__init__()
        #: No message is added here while this is set.
        self.is_full = False

    def add(self, message: object) -> PendingResult | None:  # noqa: ARG002 - as compiled
        """Add a message in one step of the interpreter, which only compiled code can.

        Return None if nothing was added.
        """
        return None


if TYPE_CHECKING or native_kernels.kernels is None:
    BatchFields = PlainFields
    PendingFields = PlainFields
    OpenBatches = PlainOpenBatches
else:
    BatchFields, PendingFields = native_kernels.kernels.BatchFields, native_kernels.kernels.PendingFields
    OpenBatches = native_kernels.kernels.OpenBatches


class MessageBatch(BatchFields):
    """Gathered messages of one topic that are sent on the same terms.

    The code that adds messages holds a lock of its own meanwhile. All other methods are thread-safe.
    """

    def __init__(self, topic: str, terms: SendParameters, callbacks: CallbackExecutor | None = None) -> None:
        """Initialize an empty batch.

        Args:
            callbacks: runs the callbacks of the batch's futures. None: the thread that settles a future runs them.
        """
        self.topic = topic
        self.callbacks = callbacks
        self.terms = terms
        self.messages: list[Message] = []
        self.count = 0
        #: Whether the batch was handed over for sending, so that no message is added any more.
        self.is_taken = False
        #: One sharding key per message, or no entry if the messages have none.
        self.sharding_keys: list[str] = []
        self.bytes = 0
        self._lock = threading.RLock()
        self._done = False
        self._make_outcomes: MakeOutcomes | None = None
        self._outcomes: Sequence[Outcome] = ()
        #: The pending results that have become real futures.
        self._looked_at: list[PendingResult] = []

    @property
    def done(self) -> bool:
        """Return True if the outcomes are known."""
        return self._done

    def outcomes(self) -> Sequence[Outcome]:
        """Return the outcome of each message of a batch that is done."""
        make = self._make_outcomes
        if make is not None:
            self._outcomes = make()
            self._make_outcomes = None
        return self._outcomes

    def finish(self, make_outcomes: MakeOutcomes) -> None:
        """Mark the batch as done. The outcomes are made at the first access."""
        self._make_outcomes = make_outcomes
        with self._lock:
            self._done = True
            waiting, self._looked_at = self._looked_at, []
            self.messages = []
        for delivery in waiting:
            self._settle(delivery)

    def fail(self, error: BaseException) -> None:
        """Mark the batch as done, with one error for all messages."""
        count = len(self.messages)
        self.finish(lambda: [error] * count)

    def look_at(self, delivery: PendingResult) -> None:
        """Initialize `delivery` as a real future."""
        with self._lock:
            if "_condition" in delivery.__dict__:
                return
            if native_kernels.kernels is not None:
                native_kernels.kernels.track(delivery)
            Future.__init__(delivery)
            delivery.set_running_or_notify_cancel()  # already handed over, so it cannot be cancelled
            if not self._done:
                self._looked_at.append(delivery)
                return
        self._settle(delivery)

    def outcome(self, index: int) -> Outcome:
        """Return the outcome of one message of a batch that is done.

        If it cannot be made from the response, return an OutcomeUnknown error.
        """
        try:
            return self.outcomes()[index]
        except Exception as error:  # noqa: BLE001 - any error is raised to the waiting callers
            unknown = OutcomeUnknown(f"the answer has no result for this message: {error!r}")
            unknown.__cause__ = error
            return unknown

    def _settle(self, delivery: PendingResult) -> None:
        outcome = self.outcome(delivery.index)
        if isinstance(outcome, BaseException):
            delivery.set_exception(outcome)
        else:
            delivery.set_result(outcome)


class PendingResult(PendingFields, Future[SendResult]):
    """The future of one message of a batch. It cannot be cancelled.

    A `concurrent.futures.Future` costs more than all other work for a small message, so its attributes are created when
    they are first used: by waiting, by a callback, by `concurrent.futures.wait`. Until then it refers to its batch but
    the batch does not refer to it, so compiled code excludes it from the garbage collector, which would traverse
    hundreds of thousands of them again and again.
    """

    if PendingFields is PlainFields:

        def __init__(self, batch: MessageBatch, index: int) -> None:
            self.batch = batch
            self.index = index

    def __getattr__(self, name: str) -> Any:
        # Called only for missing attributes: those of Future.__init__, or unknown ones.
        if name not in _PARTS:
            raise AttributeError(name)
        self.batch.look_at(self)
        return self.__dict__[name]

    def add_done_callback(self, fn: Callable[[Future[SendResult]], object]) -> None:
        """Call `fn` with this future once it is done, on the connection's callback thread."""
        callbacks = self.batch.callbacks
        super().add_done_callback(fn if callbacks is None else partial(callbacks.run, fn))

    def on_outcome(self, call: Callable[[Future[SendResult]], object]) -> None:
        """Add a callback that does not block.

        It runs on the thread that settles this future.
        """
        super().add_done_callback(call)

    async def outcome(self) -> SendResult:
        """Wait for the result on the caller's event loop, without another thread."""
        loop = asyncio.get_running_loop()
        known: asyncio.Future[None] = loop.create_future()

        def tell(_: Future[SendResult]) -> None:
            with contextlib.suppress(RuntimeError):  # the caller's loop is closed
                loop.call_soon_threadsafe(lambda: None if known.done() else known.set_result(None))

        self.on_outcome(tell)
        await known
        return self.result()

    def done(self) -> bool:
        """Return True if the outcome is known."""
        return self.batch.done

    def result(self, timeout: float | None = None) -> SendResult:
        """Return the result or raise the error.

        Raise TimeoutError after `timeout` seconds.
        """
        if not self.batch.done:
            return super().result(timeout)
        outcome = self.batch.outcome(self.index)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome
