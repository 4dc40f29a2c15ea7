"""Process the results of listener calls: finish messages, send failed ones back, log and trace.

Runs on the connection's event loop. A message that failed is sent back to its broker, which redelivers it later or
stores it in the dead letters. An ordered queue repeats it in its place instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from raymq.actors.backoff import Backoff
from raymq.actors.errors import (
    BrokerUnavailable,
    InvalidInput,
    NotFoundError,
    PermissionDenied,
    RayMQError,
    StoreCorrupt,
    StoreError,
    TopicNotFound,
)
from raymq.actors.naming import retry_topic
from raymq.actors.protocol import STRAIGHT_TO_DLQ, MessageQueue
from raymq.actors.supervisor import Supervisor, Work
from raymq.actors.wire.commands.send_back_commands import DELAY_MS, QUARANTINE_REASON, send_back_command
from raymq.actors.wire.frame import Command
from raymq.client.connection import Connection
from raymq.client.message import ReceivedMessage
from raymq.client.push.call_limits import CircuitBreaker
from raymq.client.push.consumer_settings import ConsumerSettings, MessageModel, TraceEvent, TraceState
from raymq.client.push.delivery_order import DeliveryOrder, Failures
from raymq.client.push.failures import CallFailure, FailureLog
from raymq.client.push.process_queue import ProcessQueue
from raymq.client.requests.broker_requests import broker_address_via
from raymq.storage.errors import number_text

#: How many seconds a log line on a failed call waits for the broker's response about the redelivery.
_ANSWER_SECONDS = 1.0
_REQUEST_SECONDS = 5.0
#: The longest pause between attempts. Messages after it in its queue cannot be committed before it is sent back.
_LONGEST_WAIT_SECONDS = 5.0
#: After this many errors without a meaning here, a broker's response will not change.
_MAX_REFUSALS = 100
#: Errors that a retry does not change: the message, its topic, its group or its permission is gone.
_DEFINITE = (NotFoundError, PermissionDenied, InvalidInput, StoreCorrupt)

_log = logging.getLogger(__name__)


#: Called with a message that will not be delivered again: its queue, its offset and the error.
OnGivenUp = Callable[[MessageQueue, int, BaseException], None]


@dataclass(frozen=True, slots=True)
class SendBackResult:
    """The outcome of sending a message back.

    Attributes:
        dead: whether the message is in the dead letters.
        delay_seconds: how long it waits for its next try. None if there is none, or if the broker does not report it.
        given_up: whether the message cannot be delivered again.
    """

    dead: bool = False
    delay_seconds: float | None = None
    given_up: bool = False


class SendBackClient:
    """The send-backs of one group. Runs on the connection's event loop.

    The brokers keep the limit of redeliveries.

    Attributes:
        given_up: how many messages will not be delivered again and are not dead letters either.
    """

    def __init__(self, mq: Connection, group: str, *, on_given_up: OnGivenUp, on_unreadable: OnGivenUp) -> None:
        """Initialize the client.

        Args:
            on_given_up: called with a message that its broker does not take back.
            on_unreadable: called with a damaged message, which cannot be sent back.
        """
        self._mq = mq
        self._group = group
        self._on_given_up = on_given_up
        self._on_unreadable = on_unreadable
        self.given_up = 0

    async def __call__(self, message: ReceivedMessage, failure: CallFailure) -> SendBackResult:
        """Send a message back. Return when the broker has stored it, or never can."""
        level = failure.level
        try:
            place, message_id = message.physical_offset, message.message_id
        except Exception as error:  # noqa: BLE001 - any error means that the message cannot be read
            self._on_unreadable(message.queue, message.queue_offset, error)
            return SendBackResult(given_up=True)
        command = send_back_command(self._group, message.topic, place, message_id, level, None, failure.reason)
        backoff = Backoff(first=0.1, cap=_LONGEST_WAIT_SECONDS)
        refusals = 0
        while True:
            try:
                answer = await self._ask(message, command)
            except _DEFINITE as error:
                return self._give_up(message, error)
            except RayMQError as error:
                if not (error.retriable or isinstance(error, StoreError)):
                    refusals += 1
                    if refusals >= _MAX_REFUSALS:
                        return self._give_up(message, error)
                _log.debug("send-back of %s: %s", message.message_id, error)
                await asyncio.sleep(backoff.next_delay())
            else:
                reason = answer.fields.get(QUARANTINE_REASON)
                if reason is not None:
                    return self._give_up(message, RayMQError(str(reason)))
                dead = answer.fields.get("deadLetter") == "true" or level == STRAIGHT_TO_DLQ
                return SendBackResult(dead, None if dead else _seconds(answer.fields.get(DELAY_MS)))

    async def _ask(self, message: ReceivedMessage, command: Command) -> Command:
        """Return the response of the message's broker, also if its topic was deleted.

        Raise BrokerUnavailable if no route contains that broker.
        """
        topics, broker = (message.queue.topic, retry_topic(self._group)), message.queue.broker
        try:
            address = await broker_address_via(self._mq, topics, broker)
        except TopicNotFound as error:
            raise BrokerUnavailable(broker, str(error)) from None
        return await self._mq.pool.request(address, command, _REQUEST_SECONDS)

    def _give_up(self, message: ReceivedMessage, error: RayMQError) -> SendBackResult:
        """Report that a message will not be delivered again.

        The messages after it in its queue go on.
        """
        self.given_up += 1
        _log.error("%s of group %s will not come again: %s", message.message_id, self._group, error)
        self._on_given_up(message.queue, message.queue_offset, error)
        return SendBackResult(given_up=True)


def _seconds(milliseconds: object) -> float | None:
    """Convert a broker's number of milliseconds to seconds.

    Return None if the value is not a number.
    """
    text = str(milliseconds)
    return int(text) / 1000 if text.isascii() and text.isdecimal() else None


class CallResults:
    """The results of one consumer's calls.

    Args:
        circuit_breaker: records each outcome.
        send_back: sends a failed message back to its broker and returns the outcome. It returns only when that has
            succeeded or is no longer possible.
        on_finished: called with a queue of which messages have been finished.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        supervisor: Supervisor,
        circuit_breaker: CircuitBreaker,
        *,
        send_back: Callable[[ReceivedMessage, CallFailure], Awaitable[SendBackResult]],
        on_finished: Callable[[ProcessQueue], None],
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._circuit_breaker = circuit_breaker
        self._send_back = send_back
        self._on_finished = on_finished
        self._loop = asyncio.get_running_loop()
        self.failure_log = FailureLog(settings.group, self._loop.time)
        self._returning: set[asyncio.Task[None]] = set()

    @property
    def is_returning(self) -> bool:
        """Return True while failed messages are on their way to their brokers."""
        return bool(self._returning)

    async def close(self) -> None:
        """Cancel the send-backs that have not ended, and write the last log lines.

        A message that is not sent back is not committed either, so it is redelivered.
        """
        unfinished = list(self._returning)
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
        self.failure_log.flush(all_of_them=True)

    def process(
        self, order: DeliveryOrder, messages: list[ReceivedMessage], failures: Failures, *, probe: bool = False
    ) -> None:
        """Process the results of calls of one queue.

        There is one failure, or None, per message.
        """
        try:
            self._process(order, messages, failures, probe=probe)
        except BaseException as error:  # noqa: BLE001 - an unreadable message must not block the others
            self._supervisor.report("outcome of a call", error)
            self._process_singly(order, messages, failures)
        self._on_finished(order.process)

    def _process(
        self, order: DeliveryOrder, messages: list[ReceivedMessage], failures: Failures, *, probe: bool
    ) -> None:
        process = order.process
        returned: dict[int, asyncio.Future[SendBackResult]] = {}
        if stays_out := self._settings.on_outage is not None and self._stays_out(failures, probe=probe):
            order.put_back(messages)
        else:
            decision = order.done(messages, failures, self._loop.time())
            for message in decision.finished:
                process.finish(message.queue_offset)
            self.trace(TraceState.COMMIT, decision.finished)
            for message, failure in decision.returned:
                returned[message.queue_offset] = self._give_back(process, message, failure)
            if self._settings.ordered and self._settings.trace is not None:
                ended = {message.queue_offset for message in decision.finished} | returned.keys()
                self.trace(TraceState.RETRY, [message for message in messages if message.queue_offset not in ended])
        self._log_failed(messages, failures, returned, stays_out=stays_out)

    def _process_singly(self, order: DeliveryOrder, messages: list[ReceivedMessage], failures: Failures) -> None:
        """Process the messages one by one, after an error in `_process`.

        Messages that succeeded are finished, and those that failed are sent back.
        """
        for message, failure in zip(messages, failures, strict=True):
            if failure is None:
                order.process.finish(message.queue_offset)
            else:
                self._give_back(order.process, message, failure)
        order.forget_call()

    def _stays_out(self, failures: Failures, *, probe: bool) -> bool:
        """Return True if an outage continues after these calls.

        Their messages are kept then.
        """
        for failure in failures:
            self._circuit_breaker.record(success=failure is None)
        if not self._circuit_breaker.active or None in failures:
            return False
        if probe:
            self._circuit_breaker.probe_failed()
        return True

    def _give_back(
        self, process: ProcessQueue, message: ReceivedMessage, failure: CallFailure
    ) -> asyncio.Future[SendBackResult]:
        """Send a message back to its broker, and return a future of the outcome."""
        outcome: asyncio.Future[SendBackResult] = self._loop.create_future()
        if self._settings.model is MessageModel.BROADCASTING:
            process.finish(message.queue_offset)
            outcome.set_result(SendBackResult(given_up=True))
            return outcome

        async def work() -> None:
            result = await self._return(process, message, failure)
            outcome.set_result(result)

        self._keep_returning("send-back", work)
        return outcome

    def _keep_returning(self, name: str, work: Work) -> None:
        task = self._supervisor.keep(name, work)
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _return(self, process: ProcessQueue, message: ReceivedMessage, failure: CallFailure) -> SendBackResult:
        """Send a message back. It stays in flight and uncommitted until the broker has it."""
        result = await self._send_back(message, failure)
        process.finish(message.queue_offset)
        self.trace(TraceState.DEAD_LETTER if result.dead else TraceState.RETRY, [message])
        if result.dead:
            self.failure_log.dead_letter(message, failure.reason)
        self._on_finished(process)
        return result

    def _log_failed(
        self,
        messages: list[ReceivedMessage],
        failures: Failures,
        returned: dict[int, asyncio.Future[SendBackResult]],
        *,
        stays_out: bool,
    ) -> None:
        """Log a failed call, unless the log's rate limit drops it.

        The line waits a moment for the broker's response about the message.
        """
        failed = [(m, failure) for m, failure in zip(messages, failures, strict=True) if failure is not None]
        if not failed:
            return
        messages, failure = [message for message, _ in failed], failed[0][1]
        line = self.failure_log.admit(failure, messages[0])
        if line is None:
            return
        outcome = returned.get(messages[0].queue_offset)
        if stays_out:
            follows = "it is tried again when the outage is over"
        elif self._settings.model is MessageModel.BROADCASTING and not self._settings.ordered:
            follows = "it does not come again, since the consumer broadcasts"
        elif outcome is None:
            follows = f"it is tried again in {number_text(self._settings.ordered_retry_interval)} s, in its place"
        else:
            waited = outcome  # not None below

            async def write() -> None:
                try:
                    await asyncio.wait((waited,), timeout=_ANSWER_SECONDS)
                finally:
                    self.failure_log.write(line, failure, messages, _what_follows(waited, messages[0].queue.broker))

            self._keep_returning("log of failures", write)
            return
        self.failure_log.write(line, failure, messages, follows)

    def trace(self, state: TraceState, messages: Sequence[ReceivedMessage]) -> None:
        """Pass a step of messages to the trace function, if there is one."""
        if self._settings.trace is None:
            return
        for message in messages:
            try:
                self._settings.trace(TraceEvent(state, message))
            except BaseException as error:  # noqa: BLE001 - an error of the hook must not stop the consumer
                self._supervisor.report("trace hook", error)


def _what_follows(outcome: asyncio.Future[SendBackResult], broker: str) -> str:
    """Return the part of a log line that says what happens to a failed message."""
    if not outcome.done():
        return f"it comes again when {broker} has taken it back"
    result = outcome.result()
    if result.dead:
        return "it goes to the dead letters"
    if result.given_up:
        return "it does not come again"
    return "it comes again" + ("" if result.delay_seconds is None else f" in {number_text(result.delay_seconds)} s")
