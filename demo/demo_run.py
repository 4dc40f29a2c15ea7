"""Run the demo: topic, consumer, retries, dead letters, query by key, Spark, stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from raymq import cluster
from raymq.client import Admin, Connection, Producer, PullConsumer, PushConsumer
from raymq.cluster import ray_runtime
from raymq.demo.counts import Counts
from raymq.demo.demo_input import InputPlan, message_key, read
from raymq.demo.demo_messaging import DeadLetterReader, RowListener, as_message, produce, wait_until
from raymq.demo.demo_output import DemoOutput

TOPIC = "events"
SUMMARY_TOPIC = "summary"
GROUP = "demo"
DLQ_TOPIC = f"%DLQ%{GROUP}"
NAMESPACE = "raymq-demo"
#: Two retries with delays of seconds: levels 3 and 4 are the delays before the first and the second retry.
MAX_RECONSUME_TIMES = 2
CONFIG = {"delay_levels": "1s 5s 1s 2s", "index_slots": 100_000, "index_entries": 1_000_000}
#: The demo fails if nothing changes for this long.
STALL_SECONDS = 30.0


@dataclass(slots=True)
class DemoResult:
    """The results of the demo."""

    counts: Counts
    problems: list[str] = field(default_factory=list)
    duplicates: int = 0
    retries: int = 0
    streamed: int = 0
    summary: list[dict[str, Any]] = field(default_factory=list)


def run(
    plan: InputPlan, directory: Path, tag_column: str | None, measure: str | None, screen: DemoOutput
) -> DemoResult:
    """Run the demo in `directory`; inconsistencies are in the result's `problems`."""
    outcome = DemoResult(Counts(rows=plan.rows))
    with _cluster(directory, screen) as mq, Admin(mq) as admin:
        admin.create_topic(TOPIC, queues=4)
        admin.create_topic(SUMMARY_TOPIC, queues=1)
        _messages(mq, plan, tag_column, outcome, screen)
        _query(admin, plan, outcome, screen)
        _spark(mq, measure, outcome, screen, directory)
    outcome.problems += outcome.counts.differences()
    outcome.counts.ok = not outcome.problems
    return outcome


@contextmanager
def _cluster(directory: Path, screen: DemoOutput) -> Iterator[Connection]:
    """Start a Ray and a cluster for the demo; stop both when the block ends."""
    with screen.step("starting Ray, 2 brokers, name server, scheduler"):
        ray_runtime.start_embedded()
    try:
        with cluster.start(brokers=2, root=directory, namespace=NAMESPACE, config=CONFIG) as mq:
            for broker in Admin(mq).cluster_info().brokers:
                screen.say(f"{broker.name} pid {broker.pid} at {broker.address}, store {broker.store}")
            yield mq
    finally:
        ray.shutdown()


def _messages(mq: Connection, plan: InputPlan, tag_column: str | None, outcome: DemoResult, screen: DemoOutput) -> None:
    counts = outcome.counts
    listener = RowListener(plan.rule)
    with (
        Producer(mq, "demo-input") as producer,
        PullConsumer(mq, "demo-dead-letters") as pull,
        PushConsumer(
            mq, GROUP, {TOPIC: "*"}, listener, max_reconsume_times=MAX_RECONSUME_TIMES, threads=4, batch_size=32
        ),
        screen.bars(plan.rows) as bars,
    ):
        dead = DeadLetterReader(pull, DLQ_TOPIC)

        def rows() -> Iterator[Any]:
            for record in read(plan):
                counts.dirty += record.dirty
                yield as_message(TOPIC, record, tag_column)

        def poll() -> int:
            counts.consumed = listener.consumed
            bars.show(counts.sent, counts.consumed, listener.retries, counts.dead_letters, counts.dirty)
            return listener.deliveries + counts.dead_letters

        def done() -> bool:
            if listener.consumed + counts.dirty >= plan.rows:
                counts.dead_letters = dead.poll()
            return listener.consumed + counts.dead_letters >= plan.rows

        for sent in produce(producer, rows()):
            counts.sent += sent
            poll()
        if not wait_until(done, poll, STALL_SECONDS):
            outcome.problems.append(f"no progress for {STALL_SECONDS:.0f} s")
        poll()
    outcome.duplicates = listener.duplicates
    outcome.retries = listener.retries


def _query(admin: Admin, plan: InputPlan, outcome: DemoResult, screen: DemoOutput) -> None:
    record = next((record for record in read(plan) if record.key), None)
    if record is None:
        return
    key = message_key(record.key)
    found = admin.query_by_key(TOPIC, key, limit=1_000)
    if record.body not in [message.body for message in found]:
        outcome.problems.append(f"no message was found by the key {key}")
        return
    screen.say(f"query by key {key!r}: {len(found)} message(s), the newest is {found[0].message_id}")


def _spark(mq: Connection, measure: str | None, outcome: DemoResult, screen: DemoOutput, directory: Path) -> None:
    with screen.step("starting Spark on Ray through RayDP"):
        from raymq.demo.analysis import analyse, read_summary
        from raymq.demo.stream_step import stream_rows
        from raymq.spark_bridge import SparkBridge

        bridge = SparkBridge(mq, memory="512m")
    with bridge:
        with screen.step("Spark: both topics as DataFrames, an aggregate into topic summary"):
            dead_topic = DLQ_TOPIC if outcome.counts.dead_letters else None
            found = analyse(bridge, TOPIC, dead_topic, SUMMARY_TOPIC, measure)
        outcome.counts.spark_rows = found.rows
        outcome.counts.spark_dead_letters = found.dead_letters
        outcome.summary = found.summary
        if read_summary(mq, SUMMARY_TOPIC) != found.summary:
            outcome.problems.append("the summary in its topic differs from the one that Spark wrote")
        screen.say(f"PullConsumer: {len(found.summary)} summaries read back from topic {SUMMARY_TOPIC}")
        with screen.step("Spark: topic events as a stream, each row once by its state"):
            outcome.streamed, batches = stream_rows(bridge, TOPIC, outcome.counts.sent, directory / "stream")
        if outcome.streamed != outcome.counts.rows:
            outcome.problems.append(f"{outcome.streamed} of {outcome.counts.rows} rows were streamed")
        screen.say(f"the stream was read in {batches} batches")
