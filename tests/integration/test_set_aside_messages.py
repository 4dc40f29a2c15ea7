"""Test messages that cannot be copied: brokers and consumers set them aside and continue."""

from __future__ import annotations

import time

import numpy as np
import pytest

from raymq.actors.broker.core.broker_runtime_info import broker_runtime_info
from raymq.actors.errors import ProtocolError
from raymq.actors.wire.headers.pop_headers import FROM_MIN, PopMessage
from raymq.client import Admin, Connection, ConsumeResult, InvalidInput, Message, Producer, PushConsumer, Retry
from raymq.client.message import ReceivedMessage
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.records.record import encode, encode_properties
from raymq.storage.tables.topic_config import TopicConfig
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration

HOST = bytes([127, 0, 0, 1, 0, 0, 0, 0])
#: Properties that no encoder writes: a separator within a value.
FORGED = b"p\x01a\x01b\x02"


def store_record(services: Services, topic: str, queue_id: int, body: bytes, properties: bytes) -> int:
    """Store a record that no RayMQ client sends; return its offset in broker-a's log."""
    record = encode(topic, queue_id, body, properties, born_timestamp_ms=1, born_host=HOST)
    core = services.brokers["broker-a"].core

    async def append() -> int:
        result = core._append(record, np.array([len(record)], np.int32), (topic, queue_id))
        return int(result.physical_offsets[0])

    return services.loop.run(append())


def set_aside_count(services: Services, duty: str) -> str:
    broker = services.brokers["broker-a"]

    async def figures() -> dict[str, str]:
        return broker_runtime_info(broker.core, broker.statistics, broker.groups)

    return services.loop.run(figures())[f"setAside_{duty}"]


def fail_on_hostile(message: ReceivedMessage) -> ConsumeResult | Retry | None:
    return ConsumeResult.RECONSUME_LATER if message.body == b"hostile" else None


def committed_offset(services: Services) -> int | None:
    return services.brokers["broker-a"].store.consumer_offsets.get("g", "t", 0)


@pytest.mark.parametrize("cause", ["no copy", "no permission"])
def test_unreturnable_message_does_not_block_its_queue(
    services: Services, mq: Connection, admin: Admin, cause: str
) -> None:
    """Cover fault 13.4: endless retries stopped the committed offset of the queue."""
    store_record(services, "t", 0, b"hostile", FORGED if cause == "no copy" else b"")
    for number in range(5):
        store_record(services, "t", 0, b"sound-%d" % number, b"")
    if cause == "no permission":
        store = services.brokers["broker-a"].store
        services.brokers["broker-a"].core.group("g")
        store.topic_configs.put(TopicConfig("%RETRY%g", 1, 1, perm=4))
    taker = RecordingListener(fail_on_hostile)
    with PushConsumer(mq, "g", {"t": "*"}, taker) as consumer:
        poll_until(lambda: len(taker.taken) == 5, 20, "sound messages")
        poll_until(lambda: consumer.health.set_aside == 1, 20, "somebody to be told")
        poll_until(lambda: committed_offset(services) == 6, 20, "the queue's commit")
    assert set_aside_count(services, "retry") == "1"


def test_broker_restarts_with_malformed_scheduled_messages(services: Services, mq: Connection, admin: Admin) -> None:
    """Cover faults 13.1 and 13.2: the broker did not restart after a clean stop."""
    waiting = {"REAL_TOPIC": "t", "REAL_QID": "0", "DELAY": "1"}
    services.loop.run(stop_scheduler(services))
    store_record(services, SCHEDULE_TOPIC, 0, b"forged", encode_properties({**waiting, "REAL_QID": "abc"}))
    damaged = store_record(services, SCHEDULE_TOPIC, 0, b"damaged", encode_properties(waiting))
    store_record(services, SCHEDULE_TOPIC, 1, b"sound", encode_properties({**waiting, "DELAY": "2"}))
    services.stop_broker("broker-a")
    log = services.directory / "broker-a" / "commitlog" / f"{0:020d}"
    with log.open("r+b") as stream:
        stream.seek(damaged + 88)
        byte = stream.read(1)[0]
        stream.seek(damaged + 88)
        stream.write(bytes([byte ^ 1]))
    services.start_broker("broker-a")
    taker = RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker), Producer(mq, "p") as producer:
        poll_until(lambda: taker.bodies == [b"sound"], 20, "what waited behind them")
        producer.send(Message("t", b"after", delay_level=1))
        poll_until(lambda: taker.bodies == [b"after", b"sound"], 20, "what came later")
    poll_until(lambda: set_aside_count(services, "delayLevel") == "2", 20, "the count")


async def stop_scheduler(services: Services) -> None:
    """Stop the scheduler: scheduled messages wait for the broker's next start."""
    services._stopped.set()
    broker = services.brokers["broker-a"]
    for duty in broker._duties:
        duty.cancel()


def test_pop_with_out_of_range_number_hides_no_message(services: Services, mq: Connection, admin: Admin) -> None:
    """Cover fault 13.7: an OverflowError in a pop hid ready messages until the restart."""
    store_record(services, "t", 0, b"a", b"")
    address = services.brokers["broker-a"].address

    def pop(**changes: int) -> int:
        header = PopMessage(
            **{
                "consumer_group": "g",
                "topic": "t",
                "queue_id": 0,
                "max_msg_nums": 8,
                "invisible_time": 1_000,
                "poll_time": 0,
                "born_time": 0,
                "init_mode": FROM_MIN,
                **changes,
            }
        )

        async def ask() -> int:
            answer = await mq.pool.request(address, header.command(), 5.0)
            return len(answer.body)

        return mq.run(ask())

    for name, number in (
        ("max_reconsume_times", 2**70),
        ("max_reconsume_times", 2**31),
        ("queue_id", -(2**31) - 1),
        ("invisible_time", 2**63),
        ("born_time", -(2**70)),
    ):
        with pytest.raises(ProtocolError):
            pop(**{name: number})
    assert pop(max_reconsume_times=2**31 - 1) > 0


def test_delayed_message_too_large_for_copies_is_refused(mq: Connection, admin: Admin) -> None:
    """Cover fault 13.1: such a message was acknowledged and then blocked its delay level."""
    with Producer(mq, "p") as producer:
        for waits in ({"delay_level": 1}, {"deliver_at": time.time() + 1}):
            with pytest.raises(InvalidInput, match="31743 bytes"):
                producer.send(Message("t", b"x", properties={"p": "y" * 32_590}, **waits))
        producer.send(Message("t", b"x", properties={"p": "y" * 32_590}))
