"""Test send commands of RocketMQ clients over sockets, and the messages that RayMQ's client then reads."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.ports import VIP_DISTANCE
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command, Serialization
from raymq.actors.wire.headers.send_headers import (
    PushReplyMessage,
    SendBatchMessage,
    SendMessage,
    SendMessageV2,
    SendReplyMessage,
    SendReplyMessageV2,
)
from raymq.actors.wire.server import bind
from raymq.client import Admin, Connection, MessageQueue, PullConsumer
from raymq.storage.records.record import encode_properties
from tests.integration.conftest import Services
from tests.integration.foreign_client import ForeignClient
from tests.polling import poll_until
from tests.unit.actors.foreign_intake import member

PROPERTIES = {"UNIQ_KEY": "7F00000156E5251AAF1C0B0A00000000", "KEYS": "k1 k2", "TAGS": "paid", "имя": "значение"}
REPLY_TOPIC = "test_REPLY_TOPIC"


def message(header: type[SendMessage] = SendMessageV2, *, body: bytes = b"body", **changes: Any) -> Command:
    """Return a send command for queue 1 of "t", with changed header fields."""
    values: dict[str, Any] = {
        "producer_group": "p",
        "topic": "t",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 1,
        "sys_flag": 0,
        "born_timestamp": 1_600_000_000_123,
        "flag": 0,
        "properties": encode_properties(PROPERTIES).decode(),
    }
    return header(**values | changes).command(body)


@pytest.fixture
def broker(services: Services, admin: Admin) -> Iterator[ForeignClient]:
    assert admin is not None  # the fixture has created the topic
    with ForeignClient(services.brokers["broker-a"].address) as connection:
        yield connection


def read_messages(mq: Connection, queue_id: int = 1, *, count: int = 1) -> list[Any]:
    """Read the first messages of a queue with RayMQ's client."""
    queue = MessageQueue("t", "broker-a", queue_id)
    with PullConsumer(mq, group="reader") as consumer:
        consumer.seek(queue, "earliest")
        found: list[Any] = []
        poll_until(lambda: found.extend(consumer.poll(queue, 100, 1.0)) or len(found) >= count)
    return found


@pytest.mark.parametrize("serialization", [Serialization.JSON, Serialization.ROCKETMQ])
@pytest.mark.parametrize("header", [SendMessage, SendMessageV2])
def test_message_is_read_by_raymq_client(
    broker: ForeignClient, mq: Connection, header: type[SendMessage], serialization: Serialization
) -> None:
    request = message(header, flag=7)
    request.serialization = serialization
    answer = broker.ask(request)

    assert answer.code == ResponseCode.SUCCESS, answer.remark
    (found,) = read_messages(mq)
    assert answer.fields == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": found.message_id,
        "queueId": "1",
        "queueOffset": "0",
        "transactionId": PROPERTIES["UNIQ_KEY"],
    }
    assert (found.body, found.tags, found.keys) == (b"body", "paid", ["k1", "k2"])
    assert (found.properties, found.unique_key) == ({"имя": "значение"}, PROPERTIES["UNIQ_KEY"])
    assert found.born_timestamp == 1_600_000_000.123
    assert found.system_properties["CLUSTER"] == "test"


def test_born_host_is_client_address(broker: ForeignClient, services: Services) -> None:
    broker.ask(message())
    with services.brokers["broker-a"].store.read("t", 1, 0) as lease:
        assert lease.messages()[0].born_host == broker.address


@pytest.mark.parametrize(("header", "batch"), [(SendBatchMessage, False), (SendMessageV2, True), (SendMessage, True)])
def test_batch_is_stored_in_order(
    broker: ForeignClient, mq: Connection, header: type[SendMessage], batch: bool
) -> None:
    body = b"".join(member(b"%d" % i, {"UNIQ_KEY": f"KEY{i}", "KEYS": f"k{i}"}) for i in range(20))
    answer = broker.ask(message(header, body=body, batch=batch))

    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found = read_messages(mq, count=20)
    assert [(m.body, m.unique_key, m.keys) for m in found] == [(b"%d" % i, f"KEY{i}", [f"k{i}"]) for i in range(20)]
    assert answer.fields["msgId"].split(",") == [m.message_id for m in found]
    assert (answer.fields["queueOffset"], answer.fields["transactionId"]) == ("0", PROPERTIES["UNIQ_KEY"])


def test_oneway_send_is_stored_without_answer(broker: ForeignClient, mq: Connection) -> None:
    one_way = broker.send(message(body=b"one way"), oneway=True)
    refused = broker.send(message(topic="no good"), oneway=True)
    assert broker.ask(message(body=b"after")).code == ResponseCode.SUCCESS
    assert not broker.has_answer(one_way)
    assert not broker.has_answer(refused)
    assert [m.body for m in read_messages(mq, count=2)] == [b"one way", b"after"]


REFUSED: dict[str, tuple[dict[str, Any], ResponseCode]] = {
    "characters": ({"topic": "no good"}, ResponseCode.INVALID_PARAMETER),
    "a path": ({"topic": "../../etc"}, ResponseCode.INVALID_PARAMETER),
    "blank": ({"topic": ""}, ResponseCode.INVALID_PARAMETER),
    "long": ({"topic": "t" * 128}, ResponseCode.INVALID_PARAMETER),
    "queue": ({"queue_id": 99}, ResponseCode.INVALID_PARAMETER),
    "system": ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
    "unknown": ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
    "group": ({"topic": "%RETRY%unknown", "queue_id": 0}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    "empty": ({"body": b""}, ResponseCode.MESSAGE_ILLEGAL),
    "body": ({"body": bytes((4 << 20) + 1)}, ResponseCode.MESSAGE_ILLEGAL),
    "properties": ({"properties": "p\x01" + "x" * 32_767}, ResponseCode.MESSAGE_ILLEGAL),
    "batch": ({"batch": True}, ResponseCode.MESSAGE_ILLEGAL),
    "half": ({"properties": "TRAN_MSG\x01true\x02DELAY\x013\x02", "sys_flag": 4}, ResponseCode.MESSAGE_ILLEGAL),
    "timer": ({"properties": "TIMER_DELAY_SEC\x014000000\x02"}, ResponseCode.MESSAGE_ILLEGAL),
}


def test_invalid_messages_are_refused(broker: ForeignClient, services: Services) -> None:
    store = services.brokers["broker-a"].store
    before = store.max_physical_offset, store.topic_configs.version
    for name, (changes, code) in REFUSED.items():
        answer = broker.ask(message(**changes))
        assert (name, answer.code) == (name, code)
        assert answer.remark
        assert (answer.fields["MSG_REGION"], answer.fields["TRACE_ON"]) == ("DefaultRegion", "true")
    assert (store.max_physical_offset, store.topic_configs.version) == before


@pytest.mark.parametrize(("field", "value"), [(f, None) for f in "abcdefgh"] + [(f, "many") for f in "defghjl"])
def test_malformed_header_is_refused(broker: ForeignClient, services: Services, field: str, value: str | None) -> None:
    request = message()
    request.fields[field] = value
    answer = broker.ask(request)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"<{field}>" in (answer.remark or "")
    assert services.brokers["broker-a"].store.max_physical_offset == 0


def test_send_on_full_disk_is_refused(broker: ForeignClient, services: Services) -> None:
    writer = services.brokers["broker-a"].store._writer
    writer._disk_checked_at, writer._disk_full = float("inf"), "full"
    assert broker.ask(message()).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_delayed_message_is_delivered(broker: ForeignClient, mq: Connection) -> None:
    answer = broker.ask(message(properties="DELAY\x012\x02UNIQ_KEY\x01A\x02"))
    assert (answer.code, answer.fields["queueId"], answer.fields["transactionId"]) == (0, "1", "A")
    assert [m.unique_key for m in read_messages(mq)] == ["A"]


def get_route(services: Services, topic: str) -> Command:
    with ForeignClient(services.name_server.address) as connection:
        return connection.ask(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))


def test_first_message_creates_topic_if_allowed(tmp_path: Path) -> None:
    services = Services(tmp_path, auto_create_topics=True)
    services.start()
    try:
        model = json.loads(bytes(get_route(services, "TBW102").body))
        assert {(data["writeQueueNums"], data["perm"]) for data in model["queueDatas"]} == {(8, 7)}
        with ForeignClient(services.brokers["broker-a"].address) as broker:
            assert broker.ask(message(topic="new", default_topic_queue_nums=3)).code == ResponseCode.SUCCESS
        made = json.loads(bytes(get_route(services, "new").body))
        assert [(data["brokerName"], data["readQueueNums"], data["perm"]) for data in made["queueDatas"]] == [
            ("broker-a", 3, 6)
        ]
    finally:
        services.stop()


def test_messages_are_flushed_before_answer(tmp_path: Path) -> None:
    services = Services(tmp_path, flush="sync")
    services.start()
    try:
        store = services.brokers["broker-a"].store
        with Connection([services.name_server.address]) as mq:
            Admin(mq).create_topic("t")
        with ForeignClient(services.brokers["broker-a"].address) as broker:
            assert broker.ask(message()).code == ResponseCode.SUCCESS
        assert store.flushed_offset == store.max_physical_offset > 0
    finally:
        services.stop()


def vip_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port) - VIP_DISTANCE


def test_vip_channel_survives_restart(services: Services, admin: Admin) -> None:
    assert admin is not None
    host, port = vip_address(services.brokers["broker-a"].address)
    for _ in range(2):
        with ForeignClient(f"{host}:{port}") as channel:
            assert channel.ask(message()).code == ResponseCode.SUCCESS
        services.stop_broker("broker-a")
        services.start_broker("broker-a")
    services.stop_broker("broker-a")
    with bind(host, port) as taken:
        taken.listen()
        services.start_broker("broker-a")
        with ForeignClient(services.brokers["broker-a"].address) as broker:
            assert broker.ask(message()).code == ResponseCode.SUCCESS


def test_system_topics_have_routes_and_are_hidden(services: Services, admin: Admin) -> None:
    assert admin.topics() == ["t"]
    expected = {"test", "broker-a", "broker-b", REPLY_TOPIC, "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT"}
    every = set(admin.topics(system=True))
    assert every > expected
    assert "TBW102" not in every
    for topic in expected:
        assert get_route(services, topic).code == ResponseCode.SUCCESS


class TestReplies:
    @pytest.fixture
    def requester(self, services: Services) -> Iterator[ForeignClient]:
        """Yield a client that has sent its heartbeat."""
        beat = {"clientID": "asker", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": []}
        with ForeignClient(services.brokers["broker-a"].address) as connection:
            answer = connection.ask(Command(RequestCode.HEART_BEAT, body=json.dumps(beat).encode()))
            assert answer.code == ResponseCode.SUCCESS
            yield connection

    @pytest.mark.parametrize("header", [SendReplyMessage, SendReplyMessageV2])
    def test_reply_is_pushed_and_stored(
        self, requester: ForeignClient, broker: ForeignClient, services: Services, header: type[SendMessage]
    ) -> None:
        reply_properties = "REPLY_TO_CLIENT\x01asker\x02CORRELATION_ID\x01c1\x02UNIQ_KEY\x01A\x02"
        opaque = broker.send(
            message(header, topic=REPLY_TOPIC, queue_id=0, body=b"re", properties=reply_properties, sys_flag=1)
        )
        pushed = requester.next_push()

        assert pushed.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        assert not pushed.is_oneway
        push = PushReplyMessage.read(pushed)
        assert bytes(pushed.body) == b"re"
        assert push.properties.startswith(reply_properties)
        assert "PUSH_REPLY_TIME\x01" in push.properties
        assert (push.topic, push.sys_flag, push.born_timestamp) == (REPLY_TOPIC, 1, 1_600_000_000_123)
        assert push.store_host == services.brokers["broker-a"].address
        assert abs(push.store_timestamp / 1000 - time.time()) < 60
        assert not broker.has_answer(opaque)

        requester.respond(pushed.response(ResponseCode.SUCCESS))
        answer = broker.answer(opaque)
        assert answer.code == ResponseCode.SUCCESS
        with services.brokers["broker-a"].store.read(REPLY_TOPIC, 0, 0) as lease:
            (kept,) = lease.messages()
        assert (kept.body, kept.message_id) == (b"re", answer.fields["msgId"])
        assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("0", "0")

    def test_empty_reply_is_pushed(self, requester: ForeignClient, broker: ForeignClient) -> None:
        reply_properties = "REPLY_TO_CLIENT\x01asker\x02"
        opaque = broker.send(
            message(SendReplyMessage, topic=REPLY_TOPIC, queue_id=0, body=b"", properties=reply_properties)
        )
        requester.respond(requester.next_push().response(ResponseCode.SUCCESS))
        answer = broker.answer(opaque)
        assert (answer.code, answer.fields["msgId"]) == (ResponseCode.SUCCESS, "0")

    def test_reply_refused_by_client_is_an_error(self, requester: ForeignClient, broker: ForeignClient) -> None:
        reply_properties = "REPLY_TO_CLIENT\x01asker\x02"
        opaque = broker.send(message(SendReplyMessageV2, topic=REPLY_TOPIC, queue_id=0, properties=reply_properties))
        requester.respond(requester.next_push().response(ResponseCode.SYSTEM_ERROR, remark="too late"))
        answer = broker.answer(opaque)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "too late" in (answer.remark or "")

    def test_reply_to_disconnecting_client_is_an_error(self, requester: ForeignClient, broker: ForeignClient) -> None:
        reply_properties = "REPLY_TO_CLIENT\x01asker\x02"
        opaque = broker.send(message(SendReplyMessageV2, topic=REPLY_TOPIC, queue_id=0, properties=reply_properties))
        requester.next_push()
        requester.close()
        assert broker.answer(opaque).code == ResponseCode.SYSTEM_ERROR

    def test_reply_reaches_client_before_its_heartbeat(self, broker: ForeignClient, services: Services) -> None:
        """Fault 14.17: rocketmq-client-go's first heartbeat comes up to 30 s after its first request."""
        reply_properties = "REPLY_TO_CLIENT\x01late\x02CORRELATION_ID\x01c1\x02"
        address = services.brokers["broker-a"].address
        with ForeignClient(address) as late, ForeignClient(address) as forwarding:
            late.done(message(properties=reply_properties))
            forwarding.done(
                message(properties=reply_properties)
            )  # the sender of a forwarded request is not the requester
            reply = message(SendReplyMessageV2, topic=REPLY_TOPIC, queue_id=0, body=b"re", properties=reply_properties)
            opaque = broker.send(reply)
            pushed = late.next_push()
            assert bytes(pushed.body) == b"re"
            late.respond(pushed.response(ResponseCode.SUCCESS))
            assert broker.answer(opaque).code == ResponseCode.SUCCESS
        poll_until(lambda: broker.ask(reply).code == ResponseCode.SYSTEM_ERROR, 5, "it has gone")

    @pytest.mark.parametrize("reply_properties", ["", "REPLY_TO_CLIENT\x01nobody\x02"])
    def test_reply_to_unknown_client_is_an_error(self, broker: ForeignClient, reply_properties: str) -> None:
        answer = broker.ask(message(SendReplyMessageV2, topic=REPLY_TOPIC, queue_id=0, properties=reply_properties))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark
        assert answer.fields["TRACE_ON"] == "true"

    def test_reply_to_invalid_topic_is_refused(self, broker: ForeignClient) -> None:
        answer = broker.ask(message(SendReplyMessageV2, topic="no good"))
        assert answer.code == ResponseCode.INVALID_PARAMETER
