"""Streams (ours): the register of which messages each batch of a streaming query reads.

A further command returns the bounds of a topic's queues.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.response_validation import number, protocol_checked, text


class QueryPlans(NamedTuple):
    """A broker's plans of a query, by batch number; none if it is unknown."""

    query: str
    plans: dict[int, bytes]


class QueueBounds(NamedTuple):
    """The messages in one queue: offsets `low`..`high - 1`.

    Attributes:
        kept: up to which offset the messages are those that were read under the epoch in the request; None: all are.
        readable: False for a queue beyond the topic's number of read queues; its messages stay stored.
    """

    low: int
    high: int
    kept: int | None = None
    readable: bool = True


class TopicBounds(NamedTuple):
    """The queues of a topic on one broker, by their ids.

    `topic_id` is the topic's id on this broker. A topic that is deleted and recreated has another id; a topic that
    RocketMQ created has an empty id. `epoch` is the broker's recovery epoch. `incarnation` is the number that a request
    for exactly this topic names; None if the broker does not report it.
    """

    topic_id: str
    epoch: int
    queues: dict[int, QueueBounds]
    incarnation: int | None = None


def stream_plans_command(stream: str, query: str | None) -> Command:
    """Return STREAM_PLANS: request the plans of a query.

    If `query` is None, it is the stream's query that was planned last.
    """
    fields = {"stream": stream, "query": query or ""}
    return Command(RequestCode.STREAM_PLANS, fields, serialization=Serialization.MSGPACK)


@protocol_checked
def read_stream_plans(answer: Command) -> QueryPlans:
    """Return the plans in an answer to STREAM_PLANS."""
    plans = answer.fields["plans"]
    return QueryPlans(text(answer.fields["query"]), {number(batch): _plan(plan) for batch, plan in plans})


def plan_batch_command(stream: str, query: str, batch: int, plan: bytes) -> Command:
    """Return PLAN_BATCH: store a batch's plan unless it has one. Repeatable."""
    fields = {"stream": stream, "query": query, "batch": batch}
    return Command(RequestCode.PLAN_BATCH, fields, plan, serialization=Serialization.MSGPACK)


def read_stored_plan(answer: Command) -> bytes:
    """Return the plan in force from an answer to PLAN_BATCH."""
    return bytes(answer.body)


def topic_bounds_command(topic: str, epoch: int) -> Command:
    """Return TOPIC_BOUNDS: request the bounds of a topic's queues.

    `epoch` is the recovery epoch that the client knows, 0 for none.
    """
    return Command(RequestCode.TOPIC_BOUNDS, {"topic": topic, "epoch": epoch}, serialization=Serialization.MSGPACK)


@protocol_checked
def read_topic_bounds(answer: Command) -> TopicBounds:
    """Return the bounds in an answer to TOPIC_BOUNDS."""
    queues = {
        number(queue_id): QueueBounds(
            number(low), number(high), None if valid_to is None else number(valid_to), readable=bool(readable)
        )
        for queue_id, low, high, valid_to, readable in answer.fields["queues"]
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
        raise TypeError(f"not a plan: {type(value).__name__}")
    return value
