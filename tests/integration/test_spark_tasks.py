"""What runs in Spark's Python workers, over real brokers and without Spark: its entry points are plain callables."""

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
from raymq.spark_bridge.offset_ranges import OffsetRange, fetch_topic_epochs, plan
from raymq.spark_bridge.offset_ranges import commit as commit_ranges
from raymq.spark_bridge.worker_tasks import FetchRanges, StageRows
from raymq.storage.records.record_table import records_from_table
from raymq.storage.records.unique_key_generator import UniqueKeyGenerator
from tests.integration.conftest import Services
from tests.integration.taker import Taker
from tests.polling import poll_until

pytestmark = pytest.mark.integration

SCHEMA_OF_BODIES = pa.schema([("body", pa.binary())])
QUEUES = tuple(MessageQueue("t", broker, number) for broker in ("broker-a", "broker-b") for number in range(2))


def opened(mq: Connection) -> StagedWrite:
    write = StagedWrite.open(mq, "t", {"broker-a", "broker-b"})
    assert isinstance(write, StagedWrite)
    return write


def stage(write: StagedWrite, tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    """One task for each table; what they say that they staged."""
    staged, name_servers = [], tuple(write.mq.name_servers)
    for table in tables:
        task = StageRows(name_servers, write.transaction, QUEUES, tuple(table.column_names), home=write.home)
        for batch in task(iter(table.to_batches(max_chunksize=64))):
            staged += batch.to_pylist()
    return staged


def commit(write: StagedWrite, staged: list[dict[str, Any]]) -> None:
    write.commit([(row["part"], row["broker"], row["rows"]) for row in staged])


def write(mq: Connection, *tables: pa.Table) -> None:
    begun = opened(mq)
    commit(begun, stage(begun, tables))


def loops() -> set[threading.Thread]:
    """The threads of the connections that are open."""
    return {thread for thread in threading.enumerate() if thread.name == "raymq-client"}


def held(mq: Connection) -> dict[MessageQueue, list[bytes]]:
    found = {}
    with PullConsumer(mq, group="looks") as consumer:
        for queue in QUEUES:
            consumer.seek(queue, 0)
            found[queue] = [message.body for message in consumer.poll(queue, max_messages=1_000, timeout=0.0)]
    return found


def test_tasks_of_one_process_share_a_connection_and_open_none_for_no_rows(mq: Connection, admin: Admin) -> None:
    """500 partitions of 100 rows opened 500 connections."""
    begun = opened(mq)
    before = loops()
    empty = pa.table({"body": pa.array([], pa.binary())})
    assert stage(begun, [empty] * 20) == []
    assert loops() == before
    grown = []
    for number in range(20):
        stage(begun, [pa.table({"body": [b"%d" % number]})])
        grown.append(len(loops() - before))
    assert grown[-1] == grown[0] <= 1
    shared = shared_connection(tuple(mq.name_servers))
    assert shared is shared_connection(tuple(mq.name_servers))
    assert shared is not shared_connection(("127.0.0.1:1",))


def test_a_task_finds_a_broker_that_came_back_elsewhere(services: Services, mq: Connection, admin: Admin) -> None:
    table = pa.table({"body": [b"x"] * 40, "keys": [f"k{n}" for n in range(40)]})
    write(mq, table)
    was = services.brokers["broker-b"].address
    services.stop_broker("broker-b")
    services.start_broker("broker-b", host="127.0.0.2")
    assert services.brokers["broker-b"].address != was
    write(mq, table)  # what is known of routes is good for as long as a task is patient
    assert sum(map(len, held(mq).values())) == 80


def test_rows_of_a_key_lie_in_a_producers_queue_in_their_order(mq: Connection, admin: Admin) -> None:
    keys = [f"k{n % 23}" for n in range(1_000)]
    write(mq, pa.table({"body": [b"%04d" % n for n in range(1_000)], "sharding_key": keys}))
    by_queue: dict[MessageQueue, dict[str, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for n, key in enumerate(keys):
        by_queue[queue_of_sharding_key(sorted(QUEUES), key)][key].append(b"%04d" % n)
    found = held(mq)
    assert sum(map(len, found.values())) == 1_000
    for queue, bodies in found.items():
        for key, expected in by_queue[queue].items():
            assert [body for body in bodies if keys[int(body)] == key] == expected


def test_what_is_staged_for_later_comes_at_its_time_and_not_before(mq: Connection, admin: Admin) -> None:
    now = time.time()
    table = pa.table(
        {
            "body": [b"at once", b"soon", b"late", b"level", b"past"],
            "deliver_at": [None, now + 1.5, now + 3_600.0, None, now - 60.0],
            "delay_level": [0, None, None, 2, None],
            "keys": ["k"] * 5,
        }
    )
    begun = opened(mq)
    staged = stage(begun, [table])
    taker = Taker()
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


def test_a_time_that_is_too_far_ahead_is_refused_when_it_is_staged(mq: Connection, admin: Admin) -> None:
    table = pa.table({"body": [b"x"], "deliver_at": [time.time() + 41 * 86_400]})
    begun = opened(mq)
    with pytest.raises(InvalidInput, match="40 days"):
        stage(begun, [table])


def filled(mq: Connection, count: int) -> list[OffsetRange]:
    """Messages n of each queue: body, tag and property say n; the ranges that hold all of them."""
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
    """How many bytes of records each answer brought."""
    seen: list[int] = []

    async def counted(*arguments: Any, **options: Any) -> Any:
        parts = await fetch(*arguments, **options)
        seen.extend(len(part.records) for part in parts)
        return parts

    monkeypatch.setattr(range_reader, "fetch", counted)
    return seen


def test_bodies_that_are_not_selected_do_not_leave_the_broker(
    mq: Connection, admin: Admin, fetched_bytes: list[int]
) -> None:
    ranges = filled(mq, 500)
    whole = read(mq, ranges, ["queue", "offset", "keys", "properties", "body"])
    with_bodies = sum(fetched_bytes)
    fetched_bytes.clear()
    bare = read(mq, ranges, ["queue", "offset", "keys", "properties"])
    assert bare == [{name: value for name, value in row.items() if name != "body"} for row in whole]
    assert len(bare) == 2_000
    assert sum(fetched_bytes) < with_bodies - 2_000 * 300


def test_tags_and_conditions_are_looked_at_by_the_broker(
    mq: Connection, admin: Admin, fetched_bytes: list[int]
) -> None:
    ranges = [OffsetRange(each.queue, 3, 401) for each in filled(mq, 500)]
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


def test_tags_of_the_same_hash_are_told_apart(mq: Connection, admin: Admin) -> None:
    """The tags Aa and BB have one Java hash, which is all that the broker compares."""
    with Producer(mq, "p") as producer:
        producer.send_batch([Message("t", b"x", tags=tag) for tag in ("Aa", "BB") * 5], queue=QUEUES[0])
    found = read(mq, [OffsetRange(QUEUES[0], 0, 10)], ["offset"], tags=frozenset({"BB"}))
    assert [row["offset"] for row in found] == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("selection", [{}, {"tags": frozenset({"tag1"})}, {"sql": "n = 1"}], ids=str)
def test_a_range_that_is_not_there_is_an_error_also_with_a_filter(
    mq: Connection, admin: Admin, selection: dict[str, Any]
) -> None:
    filled(mq, 10)
    with pytest.raises(RayMQError, match="ends at 10, before the planned end 11"):
        read(mq, [OffsetRange(QUEUES[0], 0, 11)], ["offset"], **selection)
    with pytest.raises(OffsetOutOfRange):
        read(mq, [OffsetRange(QUEUES[0], 11, 12)], ["offset"], **selection)


def test_a_range_of_a_topic_that_was_made_anew_is_an_error(mq: Connection, admin: Admin) -> None:
    """A DataFrame that was kept gave the messages of another topic, which has as many."""
    planned = fetch_topic_epochs(mq, ["t"])
    ranges = filled(mq, 10)
    assert len(read(mq, ranges, ["offset"], planned=planned)) == 40
    admin.delete_topic("t")
    admin.create_topic("t", queues=2)
    filled(mq, 20)
    with pytest.raises(RayMQError, match="recreated"):
        read(mq, ranges, ["offset"], planned=planned)


def test_a_topic_that_is_made_anew_amid_a_read_is_an_error(mq: Connection, admin: Admin) -> None:
    """Behind the part that had come the read went on in the new topic, which has as many messages."""
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
def test_a_loss_of_power_amid_a_read_is_an_error_if_it_took_some_of_the_range(
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


def skipping(mq: Connection, *ranges: OffsetRange, planned: Any = None) -> FetchRanges:
    return FetchRanges((*mq.name_servers,), ranges, SCHEMA_OF_BODIES, None, planned=planned, skip_losses=True)


def test_ranges_that_are_gone_may_be_skipped(mq: Connection, admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    planned = fetch_topic_epochs(mq, ["t"])
    ranges = filled(mq, 10)
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(ranges)))})
    assert sum(batch.num_rows for batch in skipping(mq, *ranges, planned=planned)([numbers])) == 40
    admin.delete_topic("t")
    assert list(skipping(mq, *ranges, planned=planned)([numbers])) == []
    admin.create_topic("t", queues=2)
    filled(mq, 20)
    assert list(skipping(mq, *ranges, planned=planned)([numbers])) == []
    assert len([line for line in caplog.messages if "skipped" in line]) == 8
    there = [OffsetRange(each.queue, 0, 25) for each in ranges]
    now = fetch_topic_epochs(mq, ["t"])
    assert sum(batch.num_rows for batch in skipping(mq, *there, planned=now)([numbers])) == 80


def test_messages_that_go_amid_a_read_may_be_skipped(services: Services, mq: Connection, admin: Admin) -> None:
    planned = fetch_topic_epochs(mq, ["t"])
    with Producer(mq, "p") as producer:
        producer.send_batch([Message("t", b"o" * 100_000)] * 210, queue=QUEUES[0])
    rows = skipping(mq, OffsetRange(QUEUES[0], 0, 200), planned=planned)([pa.RecordBatch.from_pydict({"id": [0]})])
    first = next(rows).num_rows
    services.loop.run(lose_from(services, "broker-a", 190))
    assert first <= first + sum(batch.num_rows for batch in rows) <= 190
    assert plan(mq, ["t"], {QUEUES[0]: 9_999}, "latest", skip_losses=True) == [OffsetRange(QUEUES[0], 210, 210)]
    admin.delete_topic("t")


def test_a_group_does_not_go_on_in_another_topic_than_was_read(
    services: Services, mq: Connection, admin: Admin
) -> None:
    """What was read of the old topic was committed in the new one, whose first messages the group never saw."""
    planned = fetch_topic_epochs(mq, ["t"])
    ranges = filled(mq, 10)
    commit_ranges(mq, ranges, planned, "g")
    services.loop.run(lose_from(services, "broker-a", 8))
    with pytest.raises(RayMQError, match="power failure"):
        commit_ranges(mq, ranges, planned, "other")
    admin.delete_topic("t")
    admin.create_topic("t", queues=2)
    filled(mq, 20)
    with pytest.raises(RayMQError, match="recreated"):
        commit_ranges(mq, ranges, planned, "g")
    assert {each.start for each in plan(mq, ["t"], "group:g", "latest")} == {0}


async def lose_from(services: Services, broker: str, offset: int) -> None:
    """What an opening does that finds the log shorter than it was: queue 0 of t lacks what is stored there."""
    store = services.brokers[broker].core.store
    epochs = store._parts.epochs
    epochs.cut(int(store.entries("t", 0, offset, 1, written=True)[0][0]))
    store.epoch = epochs.current


def test_a_range_of_which_a_loss_of_power_took_some_is_an_error(
    services: Services, mq: Connection, admin: Admin
) -> None:
    planned = fetch_topic_epochs(mq, ["t"])
    ranges = filled(mq, 10)
    services.loop.run(lose_from(services, "broker-b", 6))
    kept = [each for each in ranges if each.queue.broker == "broker-a"] + [OffsetRange(ranges[2].queue, 0, 6)]
    assert len(read(mq, kept, ["offset"], planned=planned)) == 26
    with pytest.raises(RayMQError, match="power failure"):
        read(mq, ranges, ["offset"], planned=planned)


def test_chunks_are_staged_beside_each_other_and_a_failure_is_told_at_the_latest_when_all_are_waited_for(
    services: Services, mq: Connection, admin: Admin
) -> None:
    begun = opened(mq)
    keys = [f"k{n}" for n in range(400)]
    staged = stage(begun, [pa.table({"body": [b"x" * 300] * 400, "keys": keys})] * 5)
    assert sum(row["rows"] for row in staged) == 2_000
    begun.abort({"broker-a", "broker-b"})
    rows = pa.table({"body": [b"late"] * 3})
    with pytest.raises(InvalidInput, match="not decided"):
        stage(begun, [rows])
    again = opened(mq)
    with StagedWriter(mq.name_servers) as writer:
        records, sizes = records_from_table(rows, topic="t", queue_id=0, body="body", unique_keys=UniqueKeyGenerator())
        for number in range(100):
            writer.begin(again.transaction, "p", number, QUEUES[0], records, sizes, home=again.home)
        writer.begin(again.transaction, "p", 1_000_000, QUEUES[0], records, sizes, home=again.home)
        with pytest.raises(InvalidInput, match="number"):
            writer.settle()
    again.commit([("p", "broker-a", 300)])
    assert sum(map(len, held(mq).values())) == 300
