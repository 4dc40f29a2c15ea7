"""Make spans of listener calls, and of what follows the failed ones.

A retry or a dead letter.

A consumer uses these classes in place of their base classes where its connection traces, so that tracing costs other
consumers nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from raymq.client.message import ReceivedMessage
from raymq.client.push.call_results import SendBackResult
from raymq.client.push.consumer_settings import ConsumerSettings
from raymq.client.push.failures import CallFailure
from raymq.client.push.listener import Listener, ListenerRunner
from raymq.client.tracing import span_attributes
from raymq.client.tracing.message_tracer import MessageSpan, MessageTracer

#: Sends a failed message back to its broker.
SendBack = Callable[[ReceivedMessage, CallFailure], Awaitable[SendBackResult]]


class TracedListenerRunner(ListenerRunner):
    """A listener runner that makes a span of each call.

    Spans that the listener begins are its children.
    """

    def __init__(
        self,
        listener: Listener,
        tracer: MessageTracer,
        settings: ConsumerSettings,
        program_loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        super().__init__(listener, failure_text=settings.failure_text, program_loop=program_loop)
        self._tracer = tracer
        self._group = settings.group
        self._with_text = settings.failure_text
        self._more: span_attributes.Attributes = {span_attributes.MODEL: settings.model.value.lower()}

    def call(self, messages: list[ReceivedMessage]) -> list[CallFailure | None]:
        """Do `ListenerRunner.call` within a span."""
        with self._tracer.processing(messages, self._group, self._more) as span:
            failures = super().call(messages)
            record_failures(span, failures, with_text=self._with_text)
        return failures


def record_failures(span: MessageSpan, failures: Sequence[CallFailure | None], *, with_text: bool) -> None:
    """Record the failures of a call in its span.

    `with_text` False leaves out the text of the exception.
    """
    failed = [failure for failure in failures if failure is not None]
    if not failed:
        return
    first = failed[0]
    if first.error is not None and with_text:
        span.record_exception(first.error)
    if len(failures) > 1:
        span.set_attribute(span_attributes.FAILED_MESSAGES, len(failed))
    span.failed(error_type(first), first.reason)


def error_type(failure: CallFailure) -> str:
    """Return the `error.type` of a failure: the exception's class, or how the listener's result failed."""
    return failure.kind if failure.error is None else type(failure.error).__name__


def traced_send_back(send_back: SendBack, tracer: MessageTracer, group: str) -> SendBack:
    """Return a function that makes a span of each send-back: "retry", or "dead_letter"."""

    async def traced(message: ReceivedMessage, failure: CallFailure) -> SendBackResult:
        with tracer.settling("retry", message, group) as span:
            result = await send_back(message, failure)
            if result.dead:
                span.rename("dead_letter", message)
            elif result.given_up:
                span.failed("given_up", "the message will not be delivered again")
            span.set_attribute(span_attributes.FAILURE, failure.reason)
        return result

    return traced
