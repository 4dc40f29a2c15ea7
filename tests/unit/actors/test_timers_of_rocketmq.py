"""What a broker of RocketMQ's did with messages that wait for a time, before or after one of ours had the directory."""

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

#: Some years behind the newest of the golden directories.
LATER = 2_000_000_000.0
#: Of those that wait in the directory, by their unique keys: what RocketMQ had delivered, and what was called back.
DELIVERED = {f"7F0000015E9A4E0E2F2A68AB8E{end}" for end in ("D90064", "E20065", "EB0066")}
WITHDRAWN = {"7F0000015E9A4E0E2F2A68AB8D17003D", "7F0000015E9A4E0E2F2A68AB8D4C0048"}


def unique_keys(store: Store, topic: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for queue_id in store.queues(topic):
        with store.read(topic, queue_id, 0, 1_000) as lease:
            found.update(record.unique_key or "" for record in lease.messages())
    return found


def test_what_rocketmq_has_delivered_or_called_back_is_not_delivered_again(tmp_path: Path) -> None:
    directory = golden.unpack("delayed", tmp_path)
    with Store.open(directory, golden.config("delayed")) as store:
        core = BrokerCore("broker-a", store, clock=lambda: LATER)
        waits, before = set(unique_keys(store, TIMER_TOPIC)), unique_keys(store, "delay")
        while core.timers.deliver_due().delivered:
            pass
        found = unique_keys(store, "delay") - before
        core.timers.close()
    assert found == Counter(waits - DELIVERED - WITHDRAWN)


def taken_out(record: Record, topic: str, queue_id: int, **more: str) -> bytes:
    """The copy that RocketMQ makes of a message that it takes out of its timer wheel."""
    told = {**record.properties, names.TIMER_ENQUEUE_MS: "1", names.TIMER_DEQUEUE_MS: "2", **more}
    host = bytes([127, 0, 0, 1, 0, 0, 0, 0])
    return encode(
        topic,
        queue_id,
        record.body,
        encode_properties(told),
        flag=record.flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=host,
    )


def test_what_rocketmq_has_delivered_in_between_is_not_delivered_again(tmp_path: Path) -> None:
    """It has stored one anew, too, so that it waits on under another offset."""
    with closing(TimerBench(tmp_path)) as bench:
        bench.send(b"delivered", b"stored anew", b"waits", b"another", after=10 * HOUR)
        bench.close()
        with Store.open(tmp_path, bench.config, now_ms=bench.now_ms) as store:  # as RocketMQ leaves it
            with store.read(TIMER_TOPIC, 0, 0, 9) as lease:
                delivered, rolled, _, another = lease.messages()
            for copy in (
                taken_out(delivered, "t", 0),
                taken_out(rolled, TIMER_TOPIC, 0, **{names.TIMER_ROLL_TIMES: "1"}),
                taken_out(another, "t", 0, **{names.TIMER_OUT_MS: "7"}),  # one that it is not
            ):
                store.append(copy, np.array([len(copy)], np.int32))
        (tmp_path / "timerwheel").touch()
        bench.open()
        bench.clock.advance(11 * HOUR)
        assert sorted(bench.deliver()) == [b"another", b"stored anew", b"waits"]
        bench.kill()
        bench.clock.advance(DAY)
        assert bench.deliver() == []


def test_a_directory_that_rocketmq_never_had_is_not_looked_through(tmp_path: Path) -> None:
    with closing(TimerBench(tmp_path)) as bench:
        [message] = bench.send(b"0", after=1.0)
        with bench.store.read(TIMER_TOPIC, 0, 0, 1) as lease:
            copy = taken_out(lease.messages()[0], "t", 0)
        bench.store.append(copy, np.array([len(copy)], np.int32))  # as a hostile sender of ready-made records may
        bench.kill()
        bench.clock.advance(2.0)
        assert bench.deliver() == [message.body]
