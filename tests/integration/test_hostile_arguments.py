"""Test every public call with hostile values, one argument at a time: it works or raises a typed error.

The calls go to real services, so a value that passes a check reaches the wire and the broker. No call may end a thread
or break a later, ordinary call.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from raymq.client import (
    Admin,
    Connection,
    InvalidInput,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    QueueNotFound,
    RayMQError,
    SimpleConsumer,
)
from raymq.client.pull import pull_consumer_engine as pulling

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)
HOSTILE: list[Any] = [
    *(None, "", "x", "\ud800", "[/red]", "\x01", b"x", "4", True, False),
    *(0, -1, 1.5, 2**31, 2**63, 2**70, 1e12, 1e300, math.nan, math.inf, -math.inf),
    *([], ["x"], [None], {}, {"x": 1}, (), ("t", "broker-a", 0), object(), 1j),
    *(MessageQueue("t", "broker-a", 0.0), MessageQueue("t", "nobody", 0), MessageQueue("t", "broker-a", 99)),  # type: ignore[arg-type]
]
#: Arguments for which large valid values only make the call wait.
WAITS = {"await_duration", "timeout"}


def try_hostile_values(call: Callable[..., Any], **base: Any) -> None:
    """Call with valid arguments, then with every hostile value in place of each argument."""
    call(**base)
    for name in base:
        for value in HOSTILE:
            if name in WAITS and isinstance(value, int | float) and value == value and value > 5:  # noqa: PLR0124
                with pytest.raises(InvalidInput):
                    call(**{**base, name: value})
                continue
            with contextlib.suppress(RayMQError, TypeError):
                made = call(**{**base, name: value})
                if isinstance(made, Producer | PushConsumer | SimpleConsumer | PullConsumer):
                    made.close()


def assert_refused(call: Callable[..., Any], *given: Any, **named: Any) -> None:
    with pytest.raises((InvalidInput, TypeError)):
        call(*given, **named)


def test_sends_with_hostile_arguments(mq: Connection, admin: Admin) -> None:
    with Producer(mq, "p", timeout=1.0) as producer:
        try_hostile_values(lambda **given: Message("t", b"x", **given), tags="a", keys=["k"], properties={"a": "b"})
        try_hostile_values(lambda **given: Message("t", b"x", **given), delay_level=0, unique_key="u")
        try_hostile_values(lambda **given: Message("t", b"x", **given), deliver_at=9.0)
        options = {"queue": QUEUE, "timeout": 1.0, "retries": 0}
        try_hostile_values(lambda **given: producer.send(Message("t", b"x"), **given), **options)
        try_hostile_values(lambda **given: producer.send_async(Message("t", b"x"), **given).result(5), **options)
        try_hostile_values(lambda **given: producer.send_oneway(Message("t", b"x"), **given), **options)
        try_hostile_values(lambda **given: producer.send(Message("t", b"x"), **given), sharding_key="k")
        for send in (producer.send, producer.send_async, producer.send_oneway):
            try_hostile_values(send, message=Message("t", b"x"))
            assert_refused(send, None)
        try_hostile_values(producer.send_batch, messages=[Message("t", b"x")])
        assert_refused(producer.send_batch, None)
        assert_refused(producer.send_batch, [None])
        table = pa.table({"b": ["x"]})
        try_hostile_values(producer.send_table, topic="t", table=table, body="b")
        try_hostile_values(producer.flush, timeout=1.0)
        with pytest.raises(QueueNotFound):
            producer.send_oneway(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 99))
        assert producer.send(Message("t", b"x"), retries=10**9).queue.topic == "t"


@pytest.mark.parametrize(
    "given",
    [
        {"timeout": math.inf},
        {"timeout": 1e12},
        {"buffer_bytes": math.nan},
        {"buffer_bytes": True},
        {"linger": math.nan},
        {"retries": True},
        {"idempotent": 1},
        {"outbox": 7},
    ],
)
def test_producer_refuses_invalid_options(mq: Connection, given: dict[str, Any]) -> None:
    assert_refused(Producer, mq, "p", **given)


@pytest.mark.parametrize(
    "given",
    [
        {"subscriptions": "t"},
        {"subscriptions": ["t"]},
        {"listener": None},
        {"trace": 5},
        {"threads": True},
        {"rate_limit": math.inf},
        {"consume_timestamp": math.nan},
        {"consume_timestamp": math.inf},
        {"consume_timestamp": "yesterday"},
        {"consume_timeout": math.inf},
        {"hang_after": math.nan},
        {"batch_size": 1.0},
        {"ordered": "yes"},
        {"strategy": []},
    ],
)
def test_push_consumer_refuses_invalid_options(mq: Connection, given: dict[str, Any]) -> None:
    assert_refused(PushConsumer, **{"mq": mq, "group": "g", "subscriptions": {"t": "*"}, "listener": print, **given})


def test_pulls_with_hostile_arguments(mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "CONTROL_SECONDS", 0.3)  # seconds of waiting for an unknown broker
    with Producer(mq, "p") as producer, PullConsumer(mq, "g") as consumer:
        producer.send(Message("t", b"x"), queue=QUEUE)
        try_hostile_values(consumer.queues, topic="t")
        for call in (consumer.offsets, consumer.committed, consumer.position):
            try_hostile_values(call, queue=QUEUE)
        try_hostile_values(consumer.seek, queue=QUEUE, offset=0)
        try_hostile_values(consumer.seek_to_time, queue=QUEUE, timestamp=0.0)
        consumer.seek(QUEUE, 0)
        try_hostile_values(consumer.poll, queue=QUEUE, max_messages=1, timeout=0.1)
        try_hostile_values(consumer.fetch_table, queue=QUEUE, max_messages=1, timeout=0.1)
        try_hostile_values(consumer.commit, queue=QUEUE, offset=0)
        for offset in (1.5, True, 2**70):
            assert_refused(consumer.seek, QUEUE, offset)
            assert_refused(consumer.commit, QUEUE, offset)
        consumer.seek(QUEUE, 0)
        assert consumer.poll(QUEUE, 1)[0].body == b"x"


def test_pops_with_hostile_arguments(mq: Connection, admin: Admin) -> None:
    with Producer(mq, "p") as producer, SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        producer.send(Message("t", b"x"), queue=QUEUE)
        [message] = consumer.receive(1)
        try_hostile_values(consumer.receive, max_messages=1, invisible_duration=1.0, await_duration=0.0)
        try_hostile_values(consumer.change_invisible_duration, message=message, seconds=1.0)
        try_hostile_values(consumer.ack, message=message)
        for value in ("x", None, 7, ["x"]):
            assert_refused(consumer.ack, value)
    assert_refused(SimpleConsumer, mq, "g", ["t"])
    assert_refused(SimpleConsumer, mq, "g", {"t": "*"}, max_reconsume_times=True)


def test_admin_calls_with_hostile_arguments(mq: Connection, admin: Admin) -> None:
    with Producer(mq, "p") as producer:
        sent = producer.send(Message("t", b"x", keys="k"))
    with PullConsumer(mq, "g"):
        pass
    try_hostile_values(admin.create_topic, topic="u", queues=1, ordered=False)
    for queues in ("4", 1.5, True, 0, 2**40):
        assert_refused(admin.create_topic, "v", queues)
    try_hostile_values(admin.update_topic, topic="u", queues=1, permission=6, ordered=False)
    try_hostile_values(admin.topic_stats, topic="t")
    try_hostile_values(admin.group_progress, group="g")
    try_hostile_values(admin.reset_offset_by_time, group="g", topic="t", timestamp=0.0)
    try_hostile_values(admin.query_by_id, message_id=sent.message_id)
    try_hostile_values(admin.query_by_unique_key, topic="t", unique_key=sent.unique_key)
    try_hostile_values(admin.query_by_key, topic="t", key="k", begin=0.0, end=2e9, limit=1)
    try_hostile_values(admin.dlq_list, group="g", limit=1)
    try_hostile_values(admin.dlq_redrive, group="g", ids=[], rate=1.0, dry_run=True)
    for rate in (math.inf, math.nan, 0, "x"):
        assert_refused(admin.dlq_redrive, "g", None, rate)
    try_hostile_values(lambda **given: list(admin.query_messages(**given)), topic="t", key="k", begin=0.0, end=2e9)
    try_hostile_values(lambda **given: list(admin.tail(**given, follow=False)), topic="t", start="earliest", tags="*")
    try_hostile_values(
        admin.read_table, topic="t", start="earliest", end="latest", tags="*", columns=["body"], max_rows=1
    )
    try_hostile_values(admin.dlq_delete, group="g", ids=[])
    try_hostile_values(admin.forget_topic, group="g", topic="t")
    try_hostile_values(admin.delete_group, group="g", dead_letters=False, dry_run=True)
    assert "t" in admin.topics()
