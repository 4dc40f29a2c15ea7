"""Record the spans of a test with OpenTelemetry's SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.polling import poll_until

#: OpenTelemetry has one provider per process, so that all tests share this exporter.
_exporter = InMemorySpanExporter()
_processor = SimpleSpanProcessor(_exporter)
#: The providers that have the processor.
_recorded: list[TracerProvider] = []


class Spans:
    """The ended spans of one test."""

    def all(self) -> list[ReadableSpan]:
        return sorted(_exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def wait_for(self, name: str, count: int = 1) -> list[ReadableSpan]:
        poll_until(lambda: len(self.named(name)) >= count, 30)
        return self.named(name)


@contextmanager
def recorded_spans() -> Iterator[Spans]:
    """Record spans within the block."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        trace.set_tracer_provider(provider := TracerProvider())
    if provider not in _recorded:
        provider.add_span_processor(_processor)
        _recorded.append(provider)
    _exporter.clear()
    yield Spans()
    _exporter.clear()


def trace_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def traceparent(span: ReadableSpan) -> str:
    """Return the property of a message that was sent in this span."""
    assert span.context is not None
    return f"00-{trace_id(span):032x}-{span_id(span):016x}-{span.context.trace_flags:02x}"
