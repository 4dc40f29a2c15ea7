"""Make a span of each send, and let the messages carry its context.

A producer becomes a `TracedProducer` if its connection traces, so that tracing costs other producers nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Unpack

from raymq.client import arguments
from raymq.client.client_base import ClientBase
from raymq.client.message import Message
from raymq.client.produce.message_batch import PendingResult
from raymq.client.produce.message_encoder import ArrowData
from raymq.client.produce.send_options import SendOptions
from raymq.client.produce.send_pipeline import PipelineOptions
from raymq.client.results import SendResult, TableResult

if TYPE_CHECKING:
    from raymq.client.produce.transaction import Transaction
    from raymq.client.tracing.message_tracer import MessageSpan, MessageTracer


class TracedSends(ClientBase):
    """The methods of a producer that send, each within a span.

    The class behind this one has the same methods.
    """

    group: str
    _options: PipelineOptions
    _batch_terms: Any
    _send_table: Any

    @property
    def _untraced(self) -> Any:
        return super()

    @property
    def _tracer(self) -> MessageTracer:
        tracer = self._mq.tracer
        assert tracer is not None
        return tracer

    def send(self, message: Message, **options: Unpack[SendOptions]) -> SendResult:
        """Do `Producer.send` within a span."""
        arguments.instance("message", message, Message)
        with self._tracer.sending([message], self.group) as span:
            result: SendResult = self._untraced.send(span.messages[0], **options)
            span.stored([result])
        return result

    async def asend(self, message: Message, **options: Unpack[SendOptions]) -> SendResult:
        """Do `Producer.asend` within a span."""
        arguments.instance("message", message, Message)
        if self._options.linger and not message.is_delayed:
            sent: SendResult = await self._untraced.asend(message, **options)  # which calls `send_async`
            return sent
        with self._tracer.sending([message], self.group) as span:
            result: SendResult = await self._untraced.asend(span.messages[0], **options)
            span.stored([result])
        return result

    def send_async(self, message: Message, **options: Unpack[SendOptions]) -> Future[SendResult]:
        """Do `Producer.send_async` with a span that ends with the result."""
        arguments.instance("message", message, Message)
        span = self._tracer.sending([message], self.group)
        try:
            sent: Future[SendResult] = self._untraced.send_async(span.messages[0], **options)
        except BaseException as error:
            span.__exit__(type(error), error, None)
            raise
        add = sent.on_outcome if isinstance(sent, PendingResult) else sent.add_done_callback
        add(lambda done: _end(span, done))
        return sent

    def send_oneway(self, message: Message, **options: Unpack[SendOptions]) -> None:
        """Do `Producer.send_oneway` within a span, which does not say whether the message is stored."""
        arguments.instance("message", message, Message)
        with self._tracer.sending([message], self.group) as span:
            self._untraced.send_oneway(span.messages[0], **options)

    def send_batch(self, messages: Sequence[Message], **options: Unpack[SendOptions]) -> Sequence[SendResult]:
        """Do `Producer.send_batch` within one span, whose context all messages carry."""
        self._batch_terms(messages, options)
        with self._tracer.sending(messages, self.group, is_batch=True) as span:
            results: Sequence[SendResult] = self._untraced.send_batch(span.messages, **options)
        return results

    async def asend_batch(self, messages: Sequence[Message], **options: Unpack[SendOptions]) -> Sequence[SendResult]:
        """Do `Producer.asend_batch` within one span, whose context all messages carry."""
        self._batch_terms(messages, options)
        with self._tracer.sending(messages, self.group, is_batch=True) as span:
            results: Sequence[SendResult] = await self._untraced.asend_batch(span.messages, **options)
        return results

    def send_table(
        self,
        topic: str,
        table: ArrowData,
        body: str,
        keys: str | None = None,
        tags: str | None = None,
        properties: str | None = None,
        **options: Unpack[SendOptions],
    ) -> TableResult:
        """Do `Producer.send_table` within one span, whose context all messages carry."""
        with self._tracer.sending_rows(str(topic), self.group) as span:
            sent: TableResult = self._send_table(topic, table, (body, keys, tags, properties), options, span.carrier)
            span.rows(sent.rows)
        return sent

    async def _begin_transaction(self, message: Message, check_after: int | None, options: Any) -> Transaction:
        arguments.instance("message", message, Message)
        with self._tracer.sending([message], self.group, kind="transaction") as span:
            untraced = self._untraced._begin_transaction  # noqa: SLF001 - its own
            begun: Transaction = await untraced(span.messages[0], check_after, options)
            span.stored([begun.result])
        return begun


def _end(span: MessageSpan, done: Future[SendResult]) -> None:
    error = done.exception()
    if error is None:
        span.stored([done.result()])
    span.__exit__(None if error is None else type(error), error, None)
