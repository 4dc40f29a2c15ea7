"""One trace from a send to a redrive, in OTLP's JSON with numbers as ids.

It prints:
    {"spanId": 1, "parentSpanId": null, "name": "send payments", "kind": 4, "error": null}
    {"spanId": 2, "parentSpanId": 1, "name": "process payments", "kind": 5, "error": "ValueError"}
    {"spanId": 3, "parentSpanId": 1, "name": "retry payments", "kind": 3, "error": null}
    {"spanId": 4, "parentSpanId": 1, "name": "process payments", "kind": 5, "error": "ValueError"}
    {"spanId": 5, "parentSpanId": 1, "name": "dead_letter payments", "kind": 3, "error": null}
    {"spanId": 6, "parentSpanId": 1, "name": "redrive payments", "kind": 3, "error": null}
    {"spanId": 7, "parentSpanId": 1, "name": "process payments", "kind": 5, "error": null}
    traces: 1
"""

import json
import time

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from raymq import cluster
from raymq.client import Admin, Connection, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage


def main(mq: Connection) -> None:
    """Run against any cluster."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):  # a program sets it once, at its start
        trace.set_tracer_provider(provider := TracerProvider())
    provider.add_span_processor(SimpleSpanProcessor(ended := InMemorySpanExporter()))  # or OTLPSpanExporter
    repaired: list[str] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        if messages[0].topic not in repaired:
            raise ValueError("no such account")
        return ConsumeResult.SUCCESS

    with cluster.connect(name_servers=mq.name_servers, tracing=True) as traced, Admin(traced) as admin:
        admin.create_topic("payments", queues=1)
        with Producer(traced, "p") as p, PushConsumer(traced, "g", {"payments": "*"}, listener, max_reconsume_times=1):
            p.send(Message("payments", b"5 euros"))
            while len(ended.get_finished_spans()) < 5:  # until it is a dead letter
                time.sleep(0.1)
            repaired.append("payments")
            admin.dlq_redrive("g")
            while len(ended.get_finished_spans()) < 7:
                time.sleep(0.1)
    spans = sorted(ended.get_finished_spans(), key=lambda span: span.start_time or 0)
    ids: dict[int | None, int | None] = {None: None} | {s.context.span_id: n for n, s in enumerate(spans, 1)}
    for span in spans:
        own, parent = ids[span.context.span_id], ids[span.parent and span.parent.span_id]
        shown = {"spanId": own, "parentSpanId": parent, "name": span.name, "kind": span.kind.value + 1}
        print(json.dumps({**shown, "error": span.attributes.get("error.type")}))
    print("traces:", len({span.context.trace_id for span in spans}))


if __name__ == "__main__":
    with cluster.start(brokers=1) as local:
        main(local)
