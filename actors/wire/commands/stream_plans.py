"""Streams (ours): a register of which messages each batch of a streaming query reads, and the queues' bounds."""

from __future__ import annotations

from typing import Any, NamedTuple

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.told import number, reader, text


class PlansOfQuery(NamedTuple):
    """What a broker keeps of a query: its plans by the number of the batch, none if it does not know it."""

    query: str
    plans: dict[int, bytes]


class QueueBounds(NamedTuple):
    """What one queue holds: offsets `low`..`high - 1`.

    Attributes:
        kept: up to which offset it is what was read under the epoch that was asked with; None: all of it.
        readable: False for a queue beyond those that the topic has to read; what it holds stays where it is.
    """

    low: int
    high: int
    kept: int | None = None
    readable: bool = True


class TopicBounds(NamedTuple):
    """A topic's queues on one broker, by their ids, with the topic's id there and the broker's recovery epoch.

    A topic that is deleted and made anew has another id; one that RocketMQ made has none, it is empty. `incarnation` is
    what a request that is meant for this very topic names; None: the broker does not say.
    """

    topic_id: str
    epoch: int
    queues: dict[int, QueueBounds]
    incarnation: int | None = None


def stream_plans_command(stream: str, query: str | None) -> Command:
    """STREAM_PLANS: what is planned of a query; without one, of the stream's query that was planned last."""
    fields = {"stream": stream, "query": query or ""}
    return Command(RequestCode.STREAM_PLANS, fields, serialization=Serialization.MSGPACK)


@reader
def read_stream_plans(answer: Command) -> PlansOfQuery:
    """The answer to STREAM_PLANS."""
    plans = answer.fields["plans"]
    return PlansOfQuery(text(answer.fields["query"]), {number(batch): _plan(plan) for batch, plan in plans})


def plan_batch_command(stream: str, query: str, batch: int, plan: bytes) -> Command:
    """PLAN_BATCH: plan a batch, unless it is planned. May be repeated."""
    fields = {"stream": stream, "query": query, "batch": batch}
    return Command(RequestCode.PLAN_BATCH, fields, plan, serialization=Serialization.MSGPACK)


def read_standing(answer: Command) -> bytes:
    """The answer to PLAN_BATCH: the plan that stands."""
    return bytes(answer.body)


def topic_bounds_command(topic: str, epoch: int) -> Command:
    """TOPIC_BOUNDS: what each queue of a topic holds; `epoch` is the recovery epoch that is known, 0 for none."""
    return Command(RequestCode.TOPIC_BOUNDS, {"topic": topic, "epoch": epoch}, serialization=Serialization.MSGPACK)


@reader
def read_topic_bounds(answer: Command) -> TopicBounds:
    """The answer to TOPIC_BOUNDS."""
    queues = {
        number(queue_id): QueueBounds(
            number(low), number(high), None if kept is None else number(kept), readable=bool(readable)
        )
        for queue_id, low, high, kept, readable in answer.fields["queues"]
    }
    incarnation = answer.fields.get("incarnation")
    return TopicBounds(
        text(answer.fields["topicId"]),
        number(answer.fields["epoch"]),
        queues,
        None if incarnation is None else number(incarnation),
    )


def _plan(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"no plan: {type(value).__name__}")
    return value
