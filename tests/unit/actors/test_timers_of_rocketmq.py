"""Test timed messages that a RocketMQ broker delivered or recalled in the same directory."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.naming import TIMER_TOPIC
from raymq.storage.records import property_names as names
from raymq.storage.records.record import Record, encode, encode_properties
from raymq.storage.store import Store
from tests import golden_stores as golden
from tests.unit.actors.timer_bench import DAY, HOUR, TimerBench

#: Some years after the newest of the golden directories.
LATER = 2_000_000_000.0
#: Unique keys of timed messages in the directory: those that RocketMQ had delivered, and the recalled ones.
DELIVERED = {f"7F0000015E9A4E0E2F2A68AB8E{end}" for end in ("D90064", "E20065", "EB0066")}
WITHDRAWN = {"7F0000015E9A4E0E2F2A68AB8D17003D", "7F0000015E9A4E0E2F2A68AB8D4C0048"}


def unique_keys(store: Store, topic: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for queue_id in store.queues(topic):
        with store.read(topic, queue_id, 0, 1_000) as lease:
            found.update(record.unique_key or "" for record in lease.messages())
    return found


def test_messages_done_by_rocketmq_are_not_redelivered(tmp_path: Path) -> None:
    directory = golden.unpack("delayed", tmp_path)
    with Store.open(directory, golden.config("delayed")) as store:
        core = BrokerCore("broker-a", store, clock=lambda: LATER)
        waits, before = set(unique_keys(store, TIMER_TOPIC)), unique_keys(store, "delay")
        while core.timers.deliver_due().delivered:
            pass
        found = unique_keys(store, "delay") - before
        core.timers.close()
    assert found == Counter(waits - DELIVERED - WITHDRAWN)


def rocketmq_copy(record: Record, topic: str, queue_id: int, **more: str) -> bytes:
    """Encode the copy that RocketMQ makes of a message from its timer wheel."""
    copy_properties = {**record.properties, names.TIMER_ENQUEUE_MS: "1", names.TIMER_DEQUEUE_MS: "2", **more}
    host = bytes([127, 0, 0, 1, 0, 0, 0, 0])
    return encode(
        topic,
        queue_id,
        record.body,
        encode_properties(copy_properties),
        flag=record.flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=host,
    )


def test_later_rocketmq_deliveries_are_not_repeated(tmp_path: Path) -> None:
    """Cover a message that RocketMQ stored again under another offset."""
    with closing(TimerBench(tmp_path)) as bench:
        bench.send(b"delivered", b"stored anew", b"waits", b"another", after=10 * HOUR)
        bench.close()
        with Store.open(tmp_path, bench.config, now_ms=bench.now_ms) as store:  # as RocketMQ leaves it
            with store.read(TIMER_TOPIC, 0, 0, 9) as lease:
                delivered, rolled, _, another = lease.messages()
            for copy in (
                rocketmq_copy(delivered, "t", 0),
                rocketmq_copy(rolled, TIMER_TOPIC, 0, **{names.TIMER_ROLL_TIMES: "1"}),
                rocketmq_copy(another, "t", 0, **{names.TIMER_OUT_MS: "7"}),  # a copy with another due time
            ):
                store.append(copy, np.array([len(copy)], np.int32))
        (tmp_path / "timerwheel").touch()
        bench.open()
        bench.clock.advance(11 * HOUR)
        assert sorted(bench.deliver()) == [b"another", b"stored anew", b"waits"]
        bench.kill()
        bench.clock.advance(DAY)
        assert bench.deliver() == []


def test_directory_never_used_by_rocketmq_is_not_scanned(tmp_path: Path) -> None:
    with closing(TimerBench(tmp_path)) as bench:
        [message] = bench.send(b"0", after=1.0)
        with bench.store.read(TIMER_TOPIC, 0, 0, 1) as lease:
            copy = rocketmq_copy(lease.messages()[0], "t", 0)
        bench.store.append(copy, np.array([len(copy)], np.int32))  # as a hostile sender of encoded records may
        bench.kill()
        bench.clock.advance(2.0)
        assert bench.deliver() == [message.body]
