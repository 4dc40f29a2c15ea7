"""Test the code of Spark's Python workers, plain callables, over real brokers without Spark."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from raymq.actors.sending.sender import queue_of_sharding_key
from raymq.client import Admin, Connection, ConsumeFrom, Message, MessageQueue, Producer, PullConsumer, PushConsumer
from raymq.client.bulk import range_reader
from raymq.client.bulk.staged_write import StagedWrite
from raymq.client.bulk.staged_writer import StagedWriter
from raymq.client.errors import InvalidInput, OffsetOutOfRange, RayMQError
from raymq.client.requests.fetch_request import fetch
from raymq.client.task_connection import shared_connection
from raymq.spark_bridge.fetch_ranges import FetchRanges
from raymq.spark_bridge.offset_ranges import OffsetRange, fetch_topic_epochs, plan
from raymq.spark_bridge.offset_ranges import commit as commit_ranges
from raymq.spark_bridge.row_staging import StageRows
from raymq.storage.records.record_table import records_from_table
from raymq.storage.records.unique_key_generator import UniqueKeyGenerator
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration

SCHEMA_OF_BODIES = pa.schema([("body", pa.binary())])
QUEUES = tuple(MessageQueue("t", broker, number) for broker in ("broker-a", "broker-b") for number in range(2))


def open_write(mq: Connection) -> StagedWrite:
    write = StagedWrite.open(mq, "t", {"broker-a", "broker-b"})
    assert isinstance(write, StagedWrite)
    return write


def stage(write: StagedWrite, tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    """Stage each table by one task; return the staged parts."""
    staged, name_servers = [], tuple(write.mq.name_servers)
    for table in tables:
        task = StageRows(
            name_servers, write.transaction, QUEUES, tuple(table.column_names), coordinator=write.coordinator
        )
        for batch in task(iter(table.to_batches(max_chunksize=64))):
            staged += batch.to_pylist()
    return staged


def commit(write: StagedWrite, staged: list[dict[str, Any]]) -> None:
    write.commit([(row["part"], row["broker"], row["rows"]) for row in staged])


def write(mq: Connection, *tables: pa.Table) -> None:
    begun = open_write(mq)
    commit(begun, stage(begun, tables))


def client_threads() -> set[threading.Thread]:
    """Return the threads of the open connections."""
    return {thread for thread in threading.enumerate() if thread.name == "raymq-client"}


def read_bodies(mq: Connection) -> dict[MessageQueue, list[bytes]]:
    found = {}
    with PullConsumer(mq, group="looks") as consumer:
        for queue in QUEUES:
            consumer.seek(queue, 0)
            found[queue] = [message.body for message in consumer.poll(queue, max_messages=1_000, timeout=0.0)]
    return found


def test_tasks_share_one_connection_and_empty_ones_open_none(mq: Connection, admin: Admin) -> None:
    """Cover a regression: 500 partitions of 100 rows opened 500 connections."""
    begun = open_write(mq)
    before = client_threads()
    empty = pa.table({"body": pa.array([], pa.binary())})
    assert stage(begun, [empty] * 20) == []
    assert client_threads() == before
    grown = []
    for number in range(20):
        stage(begun, [pa.table({"body": [b"%d" % number]})])
        grown.append(len(client_threads() - before))
    assert grown[-1] == grown[0] <= 1
    shared = shared_connection(tuple(mq.name_servers))
    assert shared is shared_connection(tuple(mq.name_servers))
    assert shared is not shared_connection(("127.0.0.1:1",))


def test_task_finds_broker_at_new_address(services: Services, mq: Connection, admin: Admin) -> None:
    table = pa.table({"body": [b"x"] * 40, "keys": [f"k{n}" for n in range(40)]})
    write(mq, table)
    was = services.brokers["broker-b"].address
    services.stop_broker("broker-b")
    services.start_broker("broker-b", host="127.0.0.2")
    assert services.brokers["broker-b"].address != was
    write(mq, table)  # cached routes are used for as long as a task waits
    assert sum(map(len, read_bodies(mq).values())) == 80


def test_rows_of_one_key_keep_producer_queue_and_order(mq: Connection, admin: Admin) -> None:
    keys = [f"k{n % 23}" for n in range(1_000)]
    write(mq, pa.table({"body": [b"%04d" % n for n in range(1_000)], "sharding_key": keys}))
    by_queue: dict[MessageQueue, dict[str, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for n, key in enumerate(keys):
        by_queue[queue_of_sharding_key(sorted(QUEUES), key)][key].append(b"%04d" % n)
    found = read_bodies(mq)
    assert sum(map(len, found.values())) == 1_000
    for queue, bodies in found.items():
        for key, expected in by_queue[queue].items():
            assert [body for body in bodies if keys[int(body)] == key] == expected


def test_timed_rows_are_delivered_on_time_after_commit(mq: Connection, admin: Admin) -> None:
    now = time.time()
    table = pa.table(
        {
            "body": [b"at once", b"soon", b"late", b"level", b"past"],
            "deliver_at": [None, now + 1.5, now + 3_600.0, None, now - 60.0],
            "delay_level": [0, None, None, 2, None],
            "keys": ["k"] * 5,
        }
    )
    begun = open_write(mq)
    staged = stage(begun, [table])
    taker = RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker, consume_from=ConsumeFrom.FIRST):
        committed = time.time()
        commit(begun, staged)
        poll_until(lambda: len(taker.bodies) == 4, 20)
        commit(begun, staged)
    assert Counter(taker.bodies) == Counter([b"at once", b"soon", b"level", b"past"])
    stored = {message.body: message.store_timestamp for message in taker.taken}
    assert stored[b"soon"] >= now + 1.5
    assert stored[b"level"] >= committed + 1.0, "its wait begins with the commit"
    assert stored[b"at once"] < now + 1.5
    (queue,) = {message.queue for message in taker.taken}
    assert queue == queue_of_sharding_key(sorted(QUEUES), "k")
    assert {tuple(message.keys) for message in taker.taken} == {("k",)}


def test_staging_refuses_delivery_time_beyond_40_days(mq: Connection, admin: Admin) -> None:
    table = pa.table({"body": [b"x"], "deliver_at": [time.time() + 41 * 86_400]})
    begun = open_write(mq)
    with pytest.raises(InvalidInput, match="40 days"):
        stage(begun, [table])


def fill_queues(mq: Connection, count: int) -> list[OffsetRange]:
    """Send `count` numbered messages to each queue; return the ranges that hold them."""
    with Producer(mq, "fills") as producer:
        for queue in QUEUES:
            messages = [
                Message("t", b"%d" % n * 300, tags=f"tag{n % 4}", keys=[f"k{n}"], properties={"n": str(n)})
                for n in range(count)
            ]
            producer.send_batch(messages, queue=queue)
    return [OffsetRange(queue, 0, count) for queue in QUEUES]


def read(mq: Connection, ranges: list[OffsetRange], columns: list[str], **selection: Any) -> list[dict[str, Any]]:
    schema = pa.schema([(name, TYPES[name]) for name in columns])
    fetch = FetchRanges(tuple(mq.name_servers), tuple(ranges), schema, None, **selection)
    numbers = pa.RecordBatch.from_arrays([pa.array(range(len(ranges)))], ["id"])
    return [row for batch in fetch(iter([numbers])) for row in batch.to_pylist()]


TYPES = {
    "offset": pa.int64(),
    "keys": pa.list_(pa.string()),
    "tags": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "body": pa.binary(),
    "queue": pa.struct([("broker", pa.string()), ("id", pa.int32())]),
}


@pytest.fixture
def fetched_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the record bytes of each answer."""
    seen: list[int] = []

    async def counted(*arguments: Any, **options: Any) -> Any:
        parts = await fetch(*arguments, **options)
        seen.extend(len(part.records) for part in parts)
        return parts

    monkeypatch.setattr(range_reader, "fetch", counted)
    return seen


def test_unselected_bodies_stay_on_broker(mq: Connection, admin: Admin, fetched_bytes: list[int]) -> None:
    ranges = fill_queues(mq, 500)
    whole = read(mq, ranges, ["queue", "offset", "keys", "properties", "body"])
    with_bodies = sum(fetched_bytes)
    fetched_bytes.clear()
    bare = read(mq, ranges, ["queue", "offset", "keys", "properties"])
    assert bare == [{name: value for name, value in row.items() if name != "body"} for row in whole]
    assert len(bare) == 2_000
    assert sum(fetched_bytes) < with_bodies - 2_000 * 300


def test_broker_evaluates_tag_and_sql_filters(mq: Connection, admin: Admin, fetched_bytes: list[int]) -> None:
    ranges = [OffsetRange(each.queue, 3, 401) for each in fill_queues(mq, 500)]
    chosen = read(mq, ranges, ["offset", "tags"], tags=frozenset({"tag1", "tag3"}))
    expected = [{"offset": n, "tags": f"tag{n % 4}"} for n in range(3, 401) if n % 2] * len(ranges)
    assert chosen == expected
    of_half = sum(fetched_bytes)
    fetched_bytes.clear()
    few = read(mq, ranges, ["offset", "body"], sql="n between 100 and 104 and TAGS <> 'tag1'")
    assert few == [{"offset": n, "body": b"%d" % n * 300} for n in (100, 102, 103, 104)] * len(ranges)
    assert 0 < sum(fetched_bytes) < 20_000 < of_half
    assert read(mq, ranges, ["offset"], sql="n > 400") == [], "400 is the last of the range, which has more behind it"
    assert read(mq, ranges, ["offset"], tags=frozenset({"none"})) == []


def test_tags_with_equal_hash_are_distinguished(mq: Connection, admin: Admin) -> None:
    """Read the tags Aa and BB: brokers compare only the Java hash, which is equal."""
    with Producer(mq, "p") as producer:
        producer.send_batch([Message("t", b"x", tags=tag) for tag in ("Aa", "BB") * 5], queue=QUEUES[0])
    found = read(mq, [OffsetRange(QUEUES[0], 0, 10)], ["offset"], tags=frozenset({"BB"}))
    assert [row["offset"] for row in found] == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("selection", [{}, {"tags": frozenset({"tag1"})}, {"sql": "n = 1"}], ids=str)
def test_range_beyond_queue_end_raises_error_with_any_filter(
    mq: Connection, admin: Admin, selection: dict[str, Any]
) -> None:
    fill_queues(mq, 10)
    with pytest.raises(RayMQError, match="ends at 10, before the planned end 11"):
        read(mq, [OffsetRange(QUEUES[0], 0, 11)], ["offset"], **selection)
    with pytest.raises(OffsetOutOfRange):
        read(mq, [OffsetRange(QUEUES[0], 11, 12)], ["offset"], **selection)


def test_range_of_recreated_topic_raises_error(mq: Connection, admin: Admin) -> None:
    """Cover a regression: a kept DataFrame returned messages of a new, equally long topic."""
    planned = fetch_topic_epochs(mq, ["t"])
    ranges = fill_queues(mq, 10)
    assert len(read(mq, ranges, ["offset"], planned=planned)) == 40
    admin.delete_topic("t")
    admin.create_topic("t", queues=2)
    fill_queues(mq, 20)
    with pytest.raises(RayMQError, match="recreated"):
        read(mq, ranges, ["offset"], planned=planned)


def test_topic_recreated_during_read_raises_error(mq: Connection, admin: Admin) -> None:
    """Cover a regression: the read continued in the new topic, which has as many messages."""
    planned = fetch_topic_epochs(mq, ["t"])
    with Producer(mq, "p") as producer:
        producer.send_batch([Message("t", b"o" * 100_000)] * 200, queue=QUEUES[0])
    fetched = FetchRanges(
        (*mq.name_servers,), (OffsetRange(QUEUES[0], 0, 200),), SCHEMA_OF_BODIES, None, planned=planned
    )
    rows = fetched([pa.RecordBatch.from_pydict({"id": [0]})])
    assert next(rows).num_rows < 200
    admin.delete_topic("t")
    admin.create_topic("t", queues=2)
    with Producer(mq, "p") as producer:
        producer.send_batch([Message("t", b"n" * 100_000)] * 200, queue=QUEUES[0])
    with pytest.raises(RayMQError, match="recreated"):
        list(rows)


@pytest.mark.parametrize("lost", [True, False])
def test_power_loss_during_read_raises_error_for_lost_rows(
    services: Services, mq: Connection, admin: Admin, lost: bool
) -> None:
    del admin
    planned = fetch_topic_epochs(mq, ["t"])
    with Producer(mq, "p") as producer:
        producer.send_batch([Message("t", b"o" * 100_000)] * 210, queue=QUEUES[0])
    fetched = FetchRanges(
        (*mq.name_servers,), (OffsetRange(QUEUES[0], 0, 200),), SCHEMA_OF_BODIES, None, planned=planned
    )
    rows = fetched([pa.RecordBatch.from_pydict({"id": [0]})])
    first = next(rows).num_rows
    services.loop.run(lose_from(services, "broker-a", 190 if lost else 205))
    if lost:
        with pytest.raises(RayMQError, match=r"power failure lost the messages of .* from offset 190 on"):
            list(rows)
    else:
        assert first + sum(batch.num_rows for batch in rows) == 200


def fetch_skipping_losses(mq: Connection, *ranges: OffsetRange, planned: Any = None) -> FetchRanges:
    return FetchRanges((*mq.name_servers,), ranges, SCHEMA_OF_BODIES, None, planned=planned, skip_losses=True)


def test_lost_ranges_can_be_skipped(mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    planned = fetch_topic_epochs(mq, ["t"])
    ranges = fill_queues(mq, 10)
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(ranges)))})
    assert sum(batch.num_rows for batch in fetch_skipping_losses(mq, *ranges, planned=planned)([numbers])) == 40
    admin.delete_topic("t")
    assert list(fetch_skipping_losses(mq, *ranges, planned=planned)([numbers])) == []
    admin.create_topic("t", queues=2)
    fill_queues(mq, 20)
    assert list(fetch_skipping_losses(mq, *ranges, planned=planned)([numbers])) == []
    assert len([line for line in caplog.messages if "skipped" in line]) == 8
    there = [OffsetRange(each.queue, 0, 25) for each in ranges]
    now = fetch_topic_epochs(mq, ["t"])
    assert sum(batch.num_rows for batch in fetch_skipping_losses(mq, *there, planned=now)([numbers])) == 80


def test_messages_lost_during_read_can_be_skipped(services: Services, mq: Connection, admin: Admin) -> None:
    planned = fetch_topic_epochs(mq, ["t"])
    with Producer(mq, "p") as producer:
        producer.send_batch([Message("t", b"o" * 100_000)] * 210, queue=QUEUES[0])
    rows = fetch_skipping_losses(mq, OffsetRange(QUEUES[0], 0, 200), planned=planned)(
        [pa.RecordBatch.from_pydict({"id": [0]})]
    )
    first = next(rows).num_rows
    services.loop.run(lose_from(services, "broker-a", 190))
    assert first <= first + sum(batch.num_rows for batch in rows) <= 190
    assert plan(mq, ["t"], {QUEUES[0]: 9_999}, "latest", skip_losses=True) == [OffsetRange(QUEUES[0], 210, 210)]
    admin.delete_topic("t")


def test_group_commit_refuses_offsets_of_recreated_topic(services: Services, mq: Connection, admin: Admin) -> None:
    """Cover a regression: offsets of the old topic were committed in the new one.

    The group never received the first messages of the new topic.
    """
    planned = fetch_topic_epochs(mq, ["t"])
    ranges = fill_queues(mq, 10)
    commit_ranges(mq, ranges, planned, "g")
    services.loop.run(lose_from(services, "broker-a", 8))
    with pytest.raises(RayMQError, match="power failure"):
        commit_ranges(mq, ranges, planned, "other")
    admin.delete_topic("t")
    admin.create_topic("t", queues=2)
    fill_queues(mq, 20)
    with pytest.raises(RayMQError, match="recreated"):
        commit_ranges(mq, ranges, planned, "g")
    assert {each.start for each in plan(mq, ["t"], "group:g", "latest")} == {0}


async def lose_from(services: Services, broker: str, offset: int) -> None:
    """Cut queue 0 of t at `offset`, like a start that finds a shorter log."""
    store = services.brokers[broker].core.store
    store.tables.recovery_epochs.cut(int(store.entries("t", 0, offset, 1, written=True)[0][0]))


def test_power_loss_within_range_raises_error(services: Services, mq: Connection, admin: Admin) -> None:
    planned = fetch_topic_epochs(mq, ["t"])
    ranges = fill_queues(mq, 10)
    services.loop.run(lose_from(services, "broker-b", 6))
    kept = [each for each in ranges if each.queue.broker == "broker-a"] + [OffsetRange(ranges[2].queue, 0, 6)]
    assert len(read(mq, kept, ["offset"], planned=planned)) == 26
    with pytest.raises(RayMQError, match="power failure"):
        read(mq, ranges, ["offset"], planned=planned)


def test_concurrent_staging_reports_failure_at_settle(services: Services, mq: Connection, admin: Admin) -> None:
    begun = open_write(mq)
    keys = [f"k{n}" for n in range(400)]
    staged = stage(begun, [pa.table({"body": [b"x" * 300] * 400, "keys": keys})] * 5)
    assert sum(row["rows"] for row in staged) == 2_000
    begun.abort({"broker-a", "broker-b"})
    rows = pa.table({"body": [b"late"] * 3})
    with pytest.raises(InvalidInput, match="not decided"):
        stage(begun, [rows])
    again = open_write(mq)
    with StagedWriter(mq.name_servers) as writer:
        records, sizes = records_from_table(rows, topic="t", queue_id=0, body="body", unique_keys=UniqueKeyGenerator())
        for number in range(100):
            writer.begin(again.transaction, "p", number, QUEUES[0], records, sizes, coordinator=again.coordinator)
        writer.begin(again.transaction, "p", 1_000_000, QUEUES[0], records, sizes, coordinator=again.coordinator)
        with pytest.raises(InvalidInput, match="number"):
            writer.settle()
    again.commit([("p", "broker-a", 300)])
    assert sum(map(len, read_bodies(mq).values())) == 300
