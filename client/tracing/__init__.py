"""Trace messages with OpenTelemetry, on connections with `tracing=True`.

What is in it, in the order to read it:
    trace_properties: the trace context in a message's properties; it needs no OpenTelemetry.
    span_attributes: the attributes of spans, by the semantic conventions of messaging.
    message_tracer: the spans; the only module that imports OpenTelemetry.
"""
