"""Messages of which no copy can be made, over real sockets: nobody waits for them, and somebody is told."""

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
from tests.integration.taker import Taker
from tests.polling import poll_until

pytestmark = pytest.mark.integration

HOST = bytes([127, 0, 0, 1, 0, 0, 0, 0])
#: Properties that no encoder writes: a separator within a value.
FORGED = b"p\x01a\x01b\x02"


def put(services: Services, topic: str, queue_id: int, body: bytes, properties: bytes) -> int:
    """Store what no client of ours sends; its place in broker-a's log."""
    record = encode(topic, queue_id, body, properties, born_timestamp_ms=1, born_host=HOST)
    core = services.brokers["broker-a"].core

    async def append() -> int:
        result = core._append(record, np.array([len(record)], np.int32), (topic, queue_id))
        return int(result.physical_offsets[0])

    return services.loop.run(append())


def set_aside(services: Services, duty: str) -> str:
    broker = services.brokers["broker-a"]

    async def figures() -> dict[str, str]:
        return broker_runtime_info(broker.core, broker.statistics, broker.groups)

    return services.loop.run(figures())[f"setAside_{duty}"]


def fail_on_hostile(message: ReceivedMessage) -> ConsumeResult | Retry | None:
    return ConsumeResult.RECONSUME_LATER if message.body == b"hostile" else None


def committed(services: Services) -> int | None:
    return services.brokers["broker-a"].store.consumer_offsets.get("g", "t", 0)


@pytest.mark.parametrize("cause", ["no copy", "no permission"])
def test_what_can_never_be_sent_back_holds_up_nothing_behind_it(
    services: Services, mq: Connection, admin: Admin, cause: str
) -> None:
    """Fault 13.4: it was retried for ever, and its queue's committed offset stood still."""
    put(services, "t", 0, b"hostile", FORGED if cause == "no copy" else b"")
    for number in range(5):
        put(services, "t", 0, b"sound-%d" % number, b"")
    if cause == "no permission":
        store = services.brokers["broker-a"].store
        services.brokers["broker-a"].core.group("g")
        store.topic_configs.put(TopicConfig("%RETRY%g", 1, 1, perm=4))
    taker = Taker(fail_on_hostile)
    with PushConsumer(mq, "g", {"t": "*"}, taker) as consumer:
        poll_until(lambda: len(taker.taken) == 5, 20, "sound messages")
        poll_until(lambda: consumer.health.set_aside == 1, 20, "somebody to be told")
        poll_until(lambda: committed(services) == 6, 20, "the queue's commit")
    assert set_aside(services, "retry") == "1"


def test_a_broker_starts_and_delivers_with_hostile_messages_waiting(
    services: Services, mq: Connection, admin: Admin
) -> None:
    """Faults 13.1 and 13.2: after a clean stop it did not start any more."""
    waiting = {"REAL_TOPIC": "t", "REAL_QID": "0", "DELAY": "1"}
    services.loop.run(stop_ticking(services))
    put(services, SCHEDULE_TOPIC, 0, b"forged", encode_properties({**waiting, "REAL_QID": "abc"}))
    damaged = put(services, SCHEDULE_TOPIC, 0, b"damaged", encode_properties(waiting))
    put(services, SCHEDULE_TOPIC, 1, b"sound", encode_properties({**waiting, "DELAY": "2"}))
    services.stop_broker("broker-a")
    log = services.directory / "broker-a" / "commitlog" / f"{0:020d}"
    with log.open("r+b") as stream:
        stream.seek(damaged + 88)
        byte = stream.read(1)[0]
        stream.seek(damaged + 88)
        stream.write(bytes([byte ^ 1]))
    services.start_broker("broker-a")
    taker = Taker()
    with PushConsumer(mq, "g", {"t": "*"}, taker), Producer(mq, "p") as producer:
        poll_until(lambda: taker.bodies == [b"sound"], 20, "what waited behind them")
        producer.send(Message("t", b"after", delay_level=1))
        poll_until(lambda: taker.bodies == [b"after", b"sound"], 20, "what came later")
    poll_until(lambda: set_aside(services, "delayLevel") == "2", 20, "the count")


async def stop_ticking(services: Services) -> None:
    """What waits stays until the broker's next start."""
    services._stopped.set()
    broker = services.brokers["broker-a"]
    for duty in broker._duties:
        duty.cancel()


def test_a_pop_with_a_number_that_cannot_be_is_an_error_and_hides_nothing(
    services: Services, mq: Connection, admin: Admin
) -> None:
    """Fault 13.7: an OverflowError deep in a pop; messages that were ready vanished until the restart."""
    put(services, "t", 0, b"a", b"")
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


def test_a_delayed_message_without_room_for_its_copies_is_refused(mq: Connection, admin: Admin) -> None:
    """Fault 13.1: it was acknowledged, and stopped its level."""
    with Producer(mq, "p") as producer:
        for waits in ({"delay_level": 1}, {"deliver_at": time.time() + 1}):
            with pytest.raises(InvalidInput, match="31743 bytes"):
                producer.send(Message("t", b"x", properties={"p": "y" * 32_590}, **waits))
        producer.send(Message("t", b"x", properties={"p": "y" * 32_590}))
