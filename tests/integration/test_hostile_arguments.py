"""Every public call with hostile values, one argument at a time: it works or it is a typed error, and nothing else.

The calls go to real services, so that what a check lets pass reaches the wire and the broker. Nothing of it may end a
thread or keep a later, ordinary call from working.
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
#: What takes its time by right when the value is a good one, and would only wait here.
WAITS = {"await_duration", "timeout"}


def walk(call: Callable[..., Any], **base: Any) -> None:
    """Call it as it should be, then with every hostile value in the place of each argument."""
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


def refused(call: Callable[..., Any], *given: Any, **named: Any) -> None:
    with pytest.raises((InvalidInput, TypeError)):
        call(*given, **named)


def test_sends(mq: Connection, admin: Admin) -> None:
    with Producer(mq, "p", timeout=1.0) as producer:
        walk(lambda **given: Message("t", b"x", **given), tags="a", keys=["k"], properties={"a": "b"})
        walk(lambda **given: Message("t", b"x", **given), delay_level=0, unique_key="u")
        walk(lambda **given: Message("t", b"x", **given), deliver_at=9.0)
        options = {"queue": QUEUE, "timeout": 1.0, "retries": 0}
        walk(lambda **given: producer.send(Message("t", b"x"), **given), **options)
        walk(lambda **given: producer.send_async(Message("t", b"x"), **given).result(5), **options)
        walk(lambda **given: producer.send_oneway(Message("t", b"x"), **given), **options)
        walk(lambda **given: producer.send(Message("t", b"x"), **given), sharding_key="k")
        for send in (producer.send, producer.send_async, producer.send_oneway):
            walk(send, message=Message("t", b"x"))
            refused(send, None)
        walk(producer.send_batch, messages=[Message("t", b"x")])
        refused(producer.send_batch, None)
        refused(producer.send_batch, [None])
        table = pa.table({"b": ["x"]})
        walk(producer.send_table, topic="t", table=table, body="b")
        walk(producer.flush, timeout=1.0)
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
def test_a_producer_refuses(mq: Connection, given: dict[str, Any]) -> None:
    refused(Producer, mq, "p", **given)


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
def test_a_push_consumer_refuses(mq: Connection, given: dict[str, Any]) -> None:
    refused(PushConsumer, **{"mq": mq, "group": "g", "subscriptions": {"t": "*"}, "listener": print, **given})


def test_pulling(mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "CONTROL_SECONDS", 0.3)  # a broker that nobody knows is asked for so long
    with Producer(mq, "p") as producer, PullConsumer(mq, "g") as consumer:
        producer.send(Message("t", b"x"), queue=QUEUE)
        walk(consumer.queues, topic="t")
        for call in (consumer.offsets, consumer.committed, consumer.position):
            walk(call, queue=QUEUE)
        walk(consumer.seek, queue=QUEUE, offset=0)
        walk(consumer.seek_to_time, queue=QUEUE, timestamp=0.0)
        consumer.seek(QUEUE, 0)
        walk(consumer.poll, queue=QUEUE, max_messages=1, timeout=0.1)
        walk(consumer.fetch_table, queue=QUEUE, max_messages=1, timeout=0.1)
        walk(consumer.commit, queue=QUEUE, offset=0)
        for offset in (1.5, True, 2**70):
            refused(consumer.seek, QUEUE, offset)
            refused(consumer.commit, QUEUE, offset)
        consumer.seek(QUEUE, 0)
        assert consumer.poll(QUEUE, 1)[0].body == b"x"


def test_popping(mq: Connection, admin: Admin) -> None:
    with Producer(mq, "p") as producer, SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        producer.send(Message("t", b"x"), queue=QUEUE)
        [message] = consumer.receive(1)
        walk(consumer.receive, max_messages=1, invisible_duration=1.0, await_duration=0.0)
        walk(consumer.change_invisible_duration, message=message, seconds=1.0)
        walk(consumer.ack, message=message)
        for value in ("x", None, 7, ["x"]):
            refused(consumer.ack, value)
    refused(SimpleConsumer, mq, "g", ["t"])
    refused(SimpleConsumer, mq, "g", {"t": "*"}, max_reconsume_times=True)


def test_administration(mq: Connection, admin: Admin) -> None:
    with Producer(mq, "p") as producer:
        sent = producer.send(Message("t", b"x", keys="k"))
    with PullConsumer(mq, "g"):
        pass
    walk(admin.create_topic, topic="u", queues=1, ordered=False)
    for queues in ("4", 1.5, True, 0, 2**40):
        refused(admin.create_topic, "v", queues)
    walk(admin.update_topic, topic="u", queues=1, permission=6, ordered=False)
    walk(admin.topic_stats, topic="t")
    walk(admin.group_progress, group="g")
    walk(admin.reset_offset_by_time, group="g", topic="t", timestamp=0.0)
    walk(admin.query_by_id, message_id=sent.message_id)
    walk(admin.query_by_unique_key, topic="t", unique_key=sent.unique_key)
    walk(admin.query_by_key, topic="t", key="k", begin=0.0, end=2e9, limit=1)
    walk(admin.dlq_list, group="g", limit=1)
    walk(admin.dlq_redrive, group="g", ids=[], rate=1.0, dry_run=True)
    for rate in (math.inf, math.nan, 0, "x"):
        refused(admin.dlq_redrive, "g", None, rate)
    walk(lambda **given: list(admin.query_messages(**given)), topic="t", key="k", begin=0.0, end=2e9)
    walk(lambda **given: list(admin.tail(**given, follow=False)), topic="t", start="earliest", tags="*")
    walk(admin.read_table, topic="t", start="earliest", end="latest", tags="*", columns=["body"], max_rows=1)
    walk(admin.dlq_delete, group="g", ids=[])
    walk(admin.forget_topic, group="g", topic="t")
    walk(admin.delete_group, group="g", dead_letters=False, dry_run=True)
    assert "t" in admin.topics()
