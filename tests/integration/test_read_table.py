"""Test `Admin.read_table`, which reads a topic as an Arrow table without a group."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from raymq.client import (
    Admin,
    Connection,
    GroupNotFound,
    InvalidInput,
    Message,
    MessageQueue,
    OffsetOutOfRange,
    Producer,
    PullConsumer,
    PushConsumer,
    QueueNotFound,
    Retry,
    TopicNotFound,
)
from raymq.storage.records.record_table import SCHEMA
from tests.polling import poll_until

pytestmark = pytest.mark.integration


@pytest.fixture
def topic(mq: Connection, admin: Admin, request: pytest.FixtureRequest) -> str:
    """Create a topic of 4 queues, two of which have 10 messages each."""
    name = f"table-{abs(hash(request.node.nodeid)) % 10**9}"
    admin.create_topic(name, queues=2)
    with Producer(mq, "p") as producer:
        for number in range(20):
            queue = MessageQueue(name, ("broker-a", "broker-b")[number % 2], 0)
            tag = "even" if number % 4 < 2 else "odd"
            producer.send(Message(name, b"%d" % number, tags=tag, keys=f"k{number}"), queue=queue)
    return name


def test_read_table_returns_all_messages(mq: Connection, admin: Admin, topic: str) -> None:
    groups = admin.groups()
    table = admin.read_table(topic)
    assert table.schema.equals(SCHEMA)
    assert sorted(int(body) for body in table["body"].to_pylist()) == list(range(20))
    assert table["broker"].to_pylist() == ["broker-a"] * 10 + ["broker-b"] * 10
    assert table["offset"].to_pylist() == [*range(10), *range(10)]
    assert admin.groups() == groups
    assert asyncio.run(admin.aread_table(topic)).equals(table)
    assert sum(each.max_offset for each in admin.topic_stats(topic).values()) == 20


def test_read_table_selects_rows_and_columns(mq: Connection, admin: Admin, topic: str) -> None:
    a, b = (MessageQueue(topic, broker, 0) for broker in ("broker-a", "broker-b"))
    assert admin.read_table(topic, max_rows=13).num_rows == 13
    assert admin.read_table(topic, max_rows=0).num_rows == 0
    some = admin.read_table(topic, columns=["offset", "broker"], tags="odd")
    assert some.column_names == ["offset", "broker"]
    assert some.num_rows == 10
    assert admin.read_table(topic, tags="odd || even", max_rows=3, columns=["tags"])["tags"].to_pylist()[0] == "even"
    part = admin.read_table(topic, start={a: 2, b: 9}, end={a: 5, b: 10})
    assert part["offset"].to_pylist() == [2, 3, 4, 9]
    assert admin.read_table(topic, start={a: 7})["offset"].to_pylist() == [7, 8, 9]
    assert admin.read_table(topic, start="latest").num_rows == 0
    assert admin.read_table(topic, start=time.time() - 3_600).num_rows == 20
    assert admin.read_table(topic, end=datetime.now(UTC) - timedelta(hours=1)).num_rows == 0
    with PullConsumer(mq, f"{topic}-g") as consumer:
        consumer.commit(a, 8)
    assert admin.read_table(topic, start=f"group:{topic}-g").num_rows == 12


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"topic": "none-such"}, TopicNotFound),
        ({"start": "group:none-such"}, GroupNotFound),
        ({"start": {MessageQueue("t", "broker-a", 9): 0}}, QueueNotFound),
        ({"start": 1_764_300_000_000}, InvalidInput),
        ({"end": "soon"}, InvalidInput),
        ({"columns": ["queue"]}, InvalidInput),
        ({"columns": []}, InvalidInput),
        ({"columns": "body"}, InvalidInput),
        ({"columns": ["body", "body"]}, InvalidInput),
        ({"max_rows": -1}, InvalidInput),
        ({"tags": ""}, InvalidInput),
        ({"start": {MessageQueue("t", "broker-a", 0): 1_000_000}}, OffsetOutOfRange),
    ],
)
def test_read_table_refuses_invalid_arguments(admin: Admin, given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        admin.read_table(**{"topic": "t", **given})


def test_read_table_leaves_out_deleted_dead_letters(mq: Connection, admin: Admin, topic: str) -> None:
    group = f"{topic}-g"
    with PullConsumer(mq, group):
        table = admin.read_table(f"%DLQ%{group}")
        assert (table.num_rows, table.schema) == (0, SCHEMA)
    with pytest.raises(TopicNotFound):
        admin.read_table("%DLQ%none-such")
    with PushConsumer(mq, group, {topic: "*"}, lambda messages: Retry(-1)):
        poll_until(lambda: len(admin.dlq_list(group)) == 20, 20)
    letters = admin.dlq_list(group)
    assert admin.dlq_delete(group, [letter.message_id for letter in letters[3:15]]) == 12
    left = admin.read_table(f"%DLQ%{group}")
    kept = {letter.body for letter in (*letters[:3], *letters[15:])}
    assert set(left["body"].to_pylist()) == kept


def test_table_converts_to_pandas_polars_and_duckdb(admin: Admin, topic: str) -> None:
    pandas, polars, duckdb = (pytest.importorskip(name) for name in ("pandas", "polars", "duckdb"))
    orders = admin.read_table(topic, columns=["offset", "tags", "body"])
    assert len(orders.to_pandas()) == len(pandas.DataFrame.from_records(orders.to_pylist())) == 20
    assert polars.from_arrow(orders).group_by("tags").len()["len"].to_list() == [10, 10]
    assert duckdb.sql("select tags, count(*) from orders group by tags order by tags").fetchall() == [
        *(("even", 10), ("odd", 10))
    ]
    assert pa.RecordBatchReader.from_stream(orders).read_all().num_rows == 20


def test_tail_without_follow_ends_at_initial_end(
    mq: Connection, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave out messages that arrive later, even within the same answer."""
    monkeypatch.setattr("raymq.client.admin.topic_reader._AT_ONCE", 3)
    tail_messages = admin.tail(topic, "earliest", follow=False)
    first = next(tail_messages)
    with Producer(mq, "p") as producer:
        producer.send(Message(topic, b"late"), queue=first.queue)
    assert sorted(int(message.body) for message in [first, *tail_messages]) == list(range(20))
