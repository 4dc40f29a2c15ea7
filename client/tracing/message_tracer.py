"""Make the spans of messages.

This is the only module of the client that imports OpenTelemetry. `Connection` imports it if it traces. The program
brings the SDK and the exporter; without them there are no spans, and a trace context of the caller is still passed on.
An error of a span is logged and otherwise ignored: a trace must not make a send or a listener call fail. So every call
of OpenTelemetry, which runs the program's span processors, is within `_unharmed`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry import context as span_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.client.message import Message, ReceivedMessage
from raymq.client.results import SendResult
from raymq.client.tracing import span_attributes, trace_properties
from raymq.client.tracing.span_attributes import Attributes
from raymq.client.tracing.trace_properties import TracedEntry
from raymq.storage.version import VERSION

#: A span has at most this many links, which is the SDK's own limit. Of a larger batch the first messages are linked.
MAX_LINKS: Final = 128

_w3c: Final = TraceContextTextMapPropagator()
_log = logging.getLogger(__name__)


class _Unharmed(contextlib.ContextDecorator):
    """Log an error instead of raising it; the process's first as a warning."""

    def __init__(self) -> None:
        self._warned = False

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        level, self._warned = logging.DEBUG if self._warned else logging.WARNING, True
        with contextlib.suppress(Exception):  # a fault of the program's own logging
            _log.log(level, "an error of a span is ignored; the next ones are logged as DEBUG", exc_info=error)
        return True


_unharmed: Final = _Unharmed()


class MessageSpan:
    """A span of an operation on messages.

    As a context manager it ends with the block. No method raises.

    Attributes:
        messages: of a send: the messages to send, which carry the span's context.
    """

    def __init__(self, span: Span, messages: Sequence[Message] = ()) -> None:
        self._span = span
        self.messages = messages
        self._token: Any = None

    @property
    def carrier(self) -> dict[str, str]:
        """Return the span's context as properties of a message, {} if nothing is traced."""
        carrier: dict[str, str] = {}
        with _unharmed:
            _w3c.inject(carrier, trace.set_span_in_context(self._span, Context()))
        return carrier

    @_unharmed
    def set_attribute(self, name: str, value: str | int) -> None:
        """Set an attribute."""
        self._span.set_attribute(name, value)

    def rows(self, count: int) -> None:
        """Set the number of messages."""
        self.set_attribute(span_attributes.BATCH_COUNT, count)

    @_unharmed
    def stored(self, results: Sequence[SendResult]) -> None:
        """Record the result of a send."""
        if len(results) == 1 and self._span.is_recording():
            self._span.set_attributes(span_attributes.of_result(results[0]))

    @_unharmed
    def rename(self, name: str, message: ReceivedMessage) -> None:
        """Rename the span of an operation on `message`, whose outcome is known now."""
        self._span.update_name(f"{name} {_topic([message])}")
        self._span.set_attribute(span_attributes.OPERATION_NAME, name)

    @_unharmed
    def failed(self, error_type: str, reason: str) -> None:
        """Record a failure."""
        self._span.set_attribute(span_attributes.ERROR_TYPE, error_type)
        self._span.set_status(StatusCode.ERROR, reason)

    def raised(self, error: BaseException) -> None:
        """Record a failure by an exception."""
        text = ""
        with _unharmed:  # the user's exception class makes the text
            text = f": {error}"
        self.failed(span_attributes.of_error(error), type(error).__name__ + text)

    @_unharmed
    def record_exception(self, error: BaseException) -> None:
        """Record an exception with its traceback, which alone makes the span no failed one."""
        self._span.record_exception(error)

    def activate(self) -> Self:
        """Make it the current span until `__exit__`, the parent of later spans."""
        with _unharmed:
            self._token = span_context.attach(trace.set_span_in_context(self._span))
        return self

    @_unharmed
    def end(self, ended_ns: int | None = None) -> None:
        """End it, at a time in ns or now."""
        self._span.end(ended_ns)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            with _unharmed:
                span_context.detach(self._token)
        if error is not None:
            self.raised(error)
        self.end()


class MessageTracer:
    """The spans of one connection. Thread-safe."""

    def __init__(self, pool: ConnectionPool, namespace: str | None) -> None:
        self._tracer = trace.get_tracer("raymq", VERSION)
        self._pool = pool
        self._namespace = namespace

    def sending(
        self, messages: Sequence[Message], group: str, *, is_batch: bool = False, kind: str | None = None
    ) -> MessageSpan:
        """Begin the span of a send of messages of one topic.

        The messages of the span are to be sent.

        It is a child of the current span. If there is none, it is a child of the context that a single message carries
        already. `kind` is RocketMQ's message type.
        """
        parent = None
        if not is_batch and not _current().is_valid:
            parent = _extracted(trace_properties.carried_context(messages[0].properties, {}))
        begun = self._begin(
            f"send {messages[0].topic}",
            SpanKind.PRODUCER,
            lambda: span_attributes.of_sent(messages, group, is_batch=is_batch, kind=kind),
            parent,
        )
        begun.messages = messages
        with _unharmed:
            carrier = begun.carrier
            begun.messages = [trace_properties.with_context(message, carrier) for message in messages]
        return begun

    def sending_rows(self, topic: str, group: str | None, more: Attributes | None = None) -> MessageSpan:
        """Begin the span of a send of the rows of a table.

        `MessageSpan.rows` sets their number.
        """

        def attributes() -> Attributes:
            return span_attributes.of_rows(topic, group) | (more or {})

        return self._begin(f"send {topic}", SpanKind.PRODUCER, attributes, None)

    def processing(
        self, messages: Sequence[ReceivedMessage], group: str | None, more: Attributes | None = None
    ) -> MessageSpan:
        """Begin the span of processing one topic's messages, and make it the current one.

        For one message it is a child of the sender's span, for several it has a link to each of them.
        """
        parent, links = self._origins(messages)
        return self._begin(
            f"process {_topic(messages)}",
            SpanKind.CONSUMER,
            lambda: span_attributes.of_received("process", "process", messages, group) | (more or {}),
            parent if len(messages) == 1 else None,
            links,
        ).activate()

    def received(self, messages: Sequence[ReceivedMessage], group: str, began_ns: int) -> None:
        """Record that a call which began at `began_ns` has received these messages, of any topics."""
        by_topic: dict[str, list[ReceivedMessage]] = {}
        for message in messages:
            by_topic.setdefault(_topic([message]), []).append(message)
        for topic, of_topic in by_topic.items():
            parent, links = self._origins(of_topic)
            if len(of_topic) > 1 or _current().is_valid:
                parent = None
            attributes = _of_received(of_topic, "receive", "receive", group)
            self._begin(f"receive {topic}", SpanKind.CLIENT, attributes, parent, links, began_ns).end()

    def settling(self, name: str, message: ReceivedMessage, group: str) -> MessageSpan:
        """Begin the span of the end of a delivery, such as "retry".

        It continues the trace of the message.
        """
        parent, _ = self._origins([message])
        attributes = _of_received([message], name, "settle", group)
        return self._begin(f"{name} {_topic([message])}", SpanKind.CLIENT, attributes, parent)

    def redrivable(self, message: ReceivedMessage) -> TracedEntry:
        """Return what `redriven` needs of a dead letter."""
        return TracedEntry(message.topic, message.message_id, trace_properties.received_context(message))

    def redriven(self, entry: TracedEntry, group: str, began_ns: int) -> None:
        """Record a redrive by a request that began at `began_ns`.

        The span continues the trace of the message, and has a link to the current span.
        """
        current = _current()
        links = [Link(current)] if current.is_valid else []

        def attributes() -> Attributes:
            return span_attributes.of_redriven(entry.topic, entry.message_id, group)

        parent = _extracted(entry.carrier)
        self._begin(f"redrive {entry.topic}", SpanKind.CLIENT, attributes, parent, links, began_ns).end()

    def ending(self, name: str, message: Message) -> MessageSpan:
        """Begin the span of the end of a transaction, such as "commit".

        It continues the trace of the message.
        """

        def attributes() -> Attributes:
            return span_attributes.operation(name, "settle", message.topic)

        parent = _extracted(trace_properties.carried_context(message.properties, {}))
        return self._begin(f"{name} {message.topic}", SpanKind.CLIENT, attributes, parent)

    def planned_read(self, topics: Iterable[str], count: int, began_ns: int) -> None:
        """Record that a read of so many messages was planned, which began at `began_ns`."""
        names = ",".join(topics)

        def attributes() -> Attributes:
            return span_attributes.operation("receive", "receive", names) | {span_attributes.BATCH_COUNT: count}

        self._begin(f"receive {names}", SpanKind.CLIENT, attributes, None, (), began_ns).end()

    def ran_batch(
        self, name: str, more: Attributes, began_and_ended_ns: tuple[int, int], carriers: Iterable[Mapping[str, str]]
    ) -> None:
        """Record that a batch of a stream ran between two times.

        It has links to the contexts that are carried.
        """
        began_ns, ended_ns = began_and_ended_ns
        contexts = [context for context in map(_extracted, carriers) if context is not None]
        links = [Link(_current(context)) for context in contexts]

        def attributes() -> Attributes:
            return span_attributes.operation("process", "process", name) | more

        self._begin(f"process {name}", SpanKind.CONSUMER, attributes, None, links, began_ns).end(ended_ns)

    def _begin(
        self,
        name: str,
        kind: SpanKind,
        attributes: Callable[[], Attributes],
        parent: Context | None,
        links: Sequence[Link] = (),
        began_ns: int | None = None,
    ) -> MessageSpan:
        """Begin a span.

        `parent` None is the current span. One that cannot be begun records nothing.
        """
        span: Span = trace.INVALID_SPAN
        with _unharmed:
            span = self._tracer.start_span(name, parent, kind, links=links, start_time=began_ns)
            if span.is_recording():
                span.set_attribute(span_attributes.CLIENT_ID, f"{self._pool.local_host}@{os.getpid()}")
                if self._namespace is not None:
                    span.set_attribute(span_attributes.NAMESPACE, self._namespace)
                span.set_attributes(attributes())
        return MessageSpan(span)

    def _origins(self, messages: Sequence[ReceivedMessage]) -> tuple[Context | None, list[Link]]:
        """Return the context of the first message's sender, and links to all senders."""
        parent: Context | None = None
        contexts: dict[tuple[int, int], SpanContext] = {}
        with _unharmed:
            for message in messages[:MAX_LINKS]:
                context = _extracted(trace_properties.received_context(message))
                if context is not None:
                    sender = _current(context)
                    contexts[sender.trace_id, sender.span_id] = sender
                    parent = parent or context
        return parent, [Link(each) for each in contexts.values()]


def _of_received(messages: Sequence[ReceivedMessage], name: str, kind: str, group: str) -> Callable[[], Attributes]:
    return lambda: span_attributes.of_received(name, kind, messages, group)


def _current(context: Context | None = None) -> SpanContext:
    """Return the context of the current span, or of the one in `context`."""
    with _unharmed:
        return trace.get_current_span(context).get_span_context()
    return trace.INVALID_SPAN_CONTEXT


def _extracted(carrier: Mapping[str, str]) -> Context | None:
    """Return the context that properties carry, None if there is none."""
    if not carrier:
        return None
    with _unharmed:
        context = _w3c.extract(carrier, Context())
        return context if _current(context).is_valid else None
    return None


def _topic(messages: Sequence[ReceivedMessage]) -> str:
    """Return the first message's topic, or its queue's if its record is unreadable."""
    try:
        return messages[0].topic
    except Exception:  # noqa: BLE001 - a message that cannot be read still has to be processed
        return messages[0].queue.topic
