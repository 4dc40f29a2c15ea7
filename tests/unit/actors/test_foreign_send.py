"""Test messages sent by RocketMQ clients: storage, refusals, and kinds of messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.broker.core.appending.inbound_message import MessageKind, kind_of
from raymq.actors.errors import (
    GroupNotFound,
    InvalidInput,
    MessageIllegal,
    PermissionDenied,
    RayMQError,
    StoreFull,
    TopicNotFound,
)
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.records.record import pack_host
from raymq.storage.tables.topic_config import TopicConfig
from tests.unit.actors.foreign_intake import BORN_HOST, CLUSTER, UNIQUE_KEY, Intake

HALF = {"TRAN_MSG": "true"}


@pytest.fixture
def intake(tmp_path: Path) -> Iterator[Intake]:
    made = Intake(tmp_path)
    yield made
    made.store.close()


def test_all_fields_of_message_are_stored(intake: Intake) -> None:
    told = {"UNIQ_KEY": UNIQUE_KEY, "KEYS": "k1 ключ", "TAGS": "тег", "WAIT": "true", "имя": "значение \U0001f600"}
    accepted = intake.accept(
        queue_id=2, properties=dict(told), flag=0x1234, sys_flag=0x1 | 2 << 8, body=b"\x00packed", reconsume_times=3
    )

    (record,) = intake.records(queue_id=2)
    assert record.properties == {**told, "CLUSTER": CLUSTER}
    assert (record.body, record.flag, record.sys_flag) == (b"\x00packed", 0x1234, 0x201)
    assert (record.born_timestamp_ms, record.born_host) == (1_600_000_000_123, "10.1.2.3:12345")
    assert (record.reconsume_times, record.store_host) == (3, "10.9.8.7:10911")
    assert (accepted.topic, accepted.queue_id, accepted.queue_offset) == ("t", 2, 0)
    assert (accepted.message_id, accepted.unique_key) == (record.message_id, UNIQUE_KEY)
    assert (accepted.messages, accepted.size) == (1, record.size)


def test_offsets_count_per_queue(intake: Intake) -> None:
    assert [intake.accept(queue_id=queue_id).queue_offset for queue_id in (0, 1, 0, 0)] == [0, 0, 1, 2]


def test_missing_unique_key_is_generated(intake: Intake) -> None:
    keys = [intake.accept(properties=dict(told)).unique_key for told in ({}, {"UNIQ_KEY": ""}, {})]
    assert len(set(keys)) == 3
    assert [record.unique_key for record in intake.records()] == keys


def test_ipv6_sender_address_is_stored(intake: Intake) -> None:
    accepted = intake.accept(born_host=pack_host("fe80::1", 80), properties={"UNIQ_KEY": "A" * 56})
    (record,) = intake.records()
    assert record.born_host == "[fe80:0:0:0:0:0:0:1]:80"
    assert record.sys_flag == 0x10
    assert record.message_id == accepted.message_id
    assert accepted.unique_key == "A" * 56


def test_oversized_body_error_names_limit_and_setting(intake: Intake) -> None:
    with pytest.raises(MessageIllegal, match=r"1 to 4000 bytes; got 4001 .*raise max_message_bytes"):
        intake.accept(body=b"x" * 4_001)


@pytest.mark.parametrize(("asked", "got"), [(-1, 3), (-99, 3), (0, 0), (3, 3)])
def test_negative_queue_id_chooses_any_queue(intake: Intake, asked: int, got: int) -> None:
    assert intake.accept(queue_id=asked).queue_id == got


def test_read_only_queue_accepts_messages(intake: Intake) -> None:
    intake.store.topic_configs.put(TopicConfig("shrinking", read_queues=8, write_queues=2))
    assert intake.accept(topic="shrinking", queue_id=7).queue_id == 7
    assert intake.accept(topic="shrinking", queue_id=-1).queue_id == 1


def test_multi_tag_topic_marks_its_messages(intake: Intake) -> None:
    intake.store.topic_configs.put(TopicConfig("tags", 1, 1, others={"topicFilterType": "MULTI_TAG"}))
    intake.accept(topic="tags")
    assert intake.records("tags")[0].sys_flag == 0x2


LONG = "x" * 32_767
REFUSED: dict[str, tuple[dict[str, Any], type[RayMQError], str]] = {
    "a blank topic": ({"topic": ""}, InvalidInput, "INVALID_PARAMETER"),
    "a topic with a space": ({"topic": "no good"}, InvalidInput, "INVALID_PARAMETER"),
    "a topic that is a path": ({"topic": "../../etc"}, InvalidInput, "INVALID_PARAMETER"),
    "a topic of 128 characters": ({"topic": "t" * 128}, InvalidInput, "INVALID_PARAMETER"),
    "a retry topic of 256 characters": ({"topic": "%RETRY%" + "g" * 249}, InvalidInput, "INVALID_PARAMETER"),
    "a queue that is not there": ({"queue_id": 4}, InvalidInput, "INVALID_PARAMETER"),
    "a queue beyond all numbers": ({"queue_id": 1 << 70}, InvalidInput, "INVALID_PARAMETER"),
    "the schedule topic": ({"topic": SCHEDULE_TOPIC}, PermissionDenied, "NO_PERMISSION"),
    "the half topic": ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, PermissionDenied, "NO_PERMISSION"),
    "the self-test topic": ({"topic": "SELF_TEST_TOPIC"}, PermissionDenied, "NO_PERMISSION"),
    "an unknown topic": ({"topic": "unknown"}, TopicNotFound, "TOPIC_NOT_EXIST"),
    "an unknown group's retry": ({"topic": "%RETRY%unknown"}, GroupNotFound, "SUBSCRIPTION_GROUP_NOT_EXIST"),
    "no body": ({"body": b""}, MessageIllegal, "MESSAGE_ILLEGAL"),
    "a body too long": ({"body": bytes(4_001)}, MessageIllegal, "MESSAGE_ILLEGAL"),
    "properties too long": ({"properties": {"p": LONG}}, MessageIllegal, "MESSAGE_ILLEGAL"),
    "properties too long with ours": ({"properties": {"p": LONG[:-10]}}, MessageIllegal, "MESSAGE_ILLEGAL"),
    "a separator in a value": ({"properties": {"p": "a\x01b"}}, MessageIllegal, "MESSAGE_ILLEGAL"),
    "a zero byte in a value": ({"properties": {"p": "a\0b"}}, MessageIllegal, "MESSAGE_ILLEGAL"),
    "a zero byte in a name": ({"properties": {"p\0": "a"}}, MessageIllegal, "MESSAGE_ILLEGAL"),
    "a flag beyond its field": ({"flag": 1 << 31}, MessageIllegal, "MESSAGE_ILLEGAL"),
    "a sys flag beyond its field": ({"sys_flag": 1 << 31}, MessageIllegal, "MESSAGE_ILLEGAL"),
    "a born time beyond its field": ({"born_timestamp_ms": 1 << 63}, MessageIllegal, "MESSAGE_ILLEGAL"),
    "a prepared message without a transaction": ({"sys_flag": 4}, MessageIllegal, "MESSAGE_ILLEGAL"),
    "a rolled back message": ({"sys_flag": 12}, MessageIllegal, "MESSAGE_ILLEGAL"),
    "a delay level that is no number": ({"properties": {"DELAY": "soon"}}, MessageIllegal, "MESSAGE_ILLEGAL"),
    "a delayed transaction": ({"properties": HALF | {"DELAY": "3"}, "sys_flag": 4}, MessageIllegal, "MESSAGE_ILLEGAL"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_message_changes_nothing(intake: Intake, name: str) -> None:
    changes, error, code = REFUSED[name]
    before = intake.state()
    with pytest.raises(error) as refused:
        intake.accept(**changes)
    assert type(refused.value) is error
    assert refused.value.wire_code == code
    assert intake.state() == before


def test_topic_without_write_permission_denies_message(intake: Intake) -> None:
    intake.store.topic_configs.put(TopicConfig("read-only", 1, 1, perm=4))
    before = intake.state()
    with pytest.raises(PermissionDenied):
        intake.accept(topic="read-only")
    assert intake.state() == before


def test_full_disk_raises_store_full(intake: Intake) -> None:
    intake.store._writer._disk_checked_at = float("inf")
    intake.store._writer._disk_full = "full"
    with pytest.raises(StoreFull) as refused:
        intake.accept()
    assert refused.value.wire_code == "SERVICE_NOT_AVAILABLE"


class TestAutoCreatedTopics:
    @pytest.fixture
    def creating(self, tmp_path: Path) -> Iterator[Intake]:
        made = Intake(tmp_path, auto_create_topics=True)
        yield made
        made.store.close()

    @pytest.mark.parametrize(("asked", "queues"), [(1, 1), (4, 4), (8, 8), (100, 8)])
    def test_queue_count_is_limited_by_default_topic(self, creating: Intake, asked: int, queues: int) -> None:
        creating.accept(topic="new", queue_id=0, default_queues=asked)
        config = creating.core.topic("new")
        assert (config.read_queues, config.write_queues, config.perm) == (queues, queues, 6)
        assert len(creating.records("new")) == 1

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"default_topic": "no-such-model"}, TopicNotFound),
            ({"default_topic": "t"}, TopicNotFound),
            ({"default_queues": 0}, InvalidInput),
            ({"default_queues": -1}, InvalidInput),
            ({"queue_id": 4}, InvalidInput),
            ({"body": b""}, MessageIllegal),
            ({"flag": 1 << 31}, MessageIllegal),
            ({"properties": HALF | {"DELAY": "3"}}, MessageIllegal),
        ],
    )
    def test_refused_message_creates_no_topic(
        self, creating: Intake, changes: dict[str, Any], error: type[Exception]
    ) -> None:
        before = creating.state()
        with pytest.raises(error):
            creating.accept(topic="new", **changes)
        assert creating.state() == before

    def test_disabled_auto_creation_creates_no_topic(self, intake: Intake) -> None:
        assert "TBW102" not in intake.core.topics
        for model in ("TBW102", CLUSTER):
            with pytest.raises(TopicNotFound):
                intake.accept(topic="new", default_topic=model)


@pytest.mark.parametrize(
    ("told", "reconsume_times", "kind"),
    [
        ({}, 0, MessageKind.NORMAL),
        ({"DELAY": "0"}, 0, MessageKind.NORMAL),
        ({"DELAY": "-1"}, 0, MessageKind.NORMAL),
        ({"DELAY": "3"}, 0, MessageKind.LEVEL),
        ({"TIMER_DELIVER_MS": "5"}, 0, MessageKind.TIMER),
        ({"TIMER_DELAY_MS": "5"}, 0, MessageKind.TIMER),
        ({"TIMER_DELAY_SEC": "5"}, 0, MessageKind.TIMER),
        ({"TIMER_DELAY_SEC": "5", "DELAY": "1"}, 0, MessageKind.LEVEL),
        ({"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "5"}, 0, MessageKind.NORMAL),
        ({"TRAN_MSG": "true"}, 0, MessageKind.HALF),
        ({"TRAN_MSG": "TRUE"}, 0, MessageKind.HALF),
        ({"TRAN_MSG": "false"}, 0, MessageKind.NORMAL),
        ({"TRAN_MSG": "true", "DELAY": "2"}, 0, MessageKind.HALF),
        ({"TRAN_MSG": "true", "DELAY": "2"}, 1, MessageKind.LEVEL),
        ({"TRAN_MSG": "true"}, 1, MessageKind.HALF),
    ],
)
def test_message_kind_follows_properties(told: dict[str, str], reconsume_times: int, kind: MessageKind) -> None:
    assert kind_of(told, reconsume_times) is kind


class TestDelayLevels:
    def test_message_is_delivered_after_its_level(self, intake: Intake) -> None:
        told = {"UNIQ_KEY": UNIQUE_KEY, "DELAY": "2", "TIMER_DELAY_SEC": "7", "TAGS": "a"}
        accepted = intake.accept(queue_id=3, properties=told)

        (waiting,) = intake.records(SCHEDULE_TOPIC, 1)
        assert (accepted.topic, accepted.queue_id) == ("t", 3)
        assert accepted.message_id == waiting.message_id
        assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("t", "3")
        assert intake.records(queue_id=3) == []
        intake.clock.advance(5.0)
        intake.core.schedule.deliver_due()
        (record,) = intake.records(queue_id=3)
        assert (record.unique_key, record.tags, record.born_host) == (UNIQUE_KEY, "a", "10.1.2.3:12345")
        assert record.properties["DELAY"] == "2"
        assert "TIMER_DELAY_SEC" not in record.properties

    def test_level_above_table_uses_last_level(self, intake: Intake) -> None:
        intake.accept(properties={"DELAY": "99"})
        assert intake.records(SCHEDULE_TOPIC, 3)[0].properties["DELAY"] == "4"

    def test_forged_delivery_property_is_dropped(self, intake: Intake) -> None:
        intake.accept(properties={"RAYMQ_DELIVERED_FROM": "1:99"})
        intake.accept(properties={"RAYMQ_DELIVERED_FROM": "garbage", "DELAY": "1"})
        for topic in ("t", SCHEDULE_TOPIC):
            assert "RAYMQ_DELIVERED_FROM" not in intake.records(topic)[0].properties


class TestClientRetries:
    @pytest.fixture(autouse=True)
    def group(self, intake: Intake) -> None:
        intake.core.ensure_group("g")

    def test_retry_is_delivered_after_its_level(self, intake: Intake) -> None:
        told = {"DELAY": "1", "RETRY_TOPIC": "t", "UNIQ_KEY": UNIQUE_KEY}
        intake.accept(topic="%RETRY%g", properties=told, reconsume_times=16)
        intake.clock.advance(1.0)
        intake.core.schedule.deliver_due()
        (record,) = intake.records("%RETRY%g")
        assert (record.reconsume_times, record.properties["RETRY_TOPIC"]) == (16, "t")

    @pytest.mark.parametrize(
        ("times", "limit", "dead"), [(17, None, True), (16, None, False), (3, 2, True), (2, 2, False), (17, 20, False)]
    )
    def test_exhausted_retry_goes_to_dead_letter_queue(
        self, intake: Intake, times: int, limit: int | None, dead: bool
    ) -> None:
        intake.accept(topic="%RETRY%g", properties={"DELAY": "1"}, reconsume_times=times, max_reconsume_times=limit)
        letters = intake.records("%DLQ%g")
        assert [record.reconsume_times for record in letters] == [times] * dead
        assert [record.properties["DELAY"] for record in letters] == ["0"] * dead
        assert len(intake.records(SCHEDULE_TOPIC)) == (not dead)

    def test_retry_of_ordered_consumer_goes_to_dead_letter_queue(self, intake: Intake) -> None:
        intake.core.locks.lock("g", "client", [("t", 0)])
        intake.accept(topic="%RETRY%g", reconsume_times=1)
        assert len(intake.records("%DLQ%g")) == 1


def test_half_message_is_accepted_as_of_its_own_queue(intake: Intake) -> None:
    accepted = intake.accept(queue_id=2, properties=dict(HALF), sys_flag=4)

    (record,) = intake.records("RMQ_SYS_TRANS_HALF_TOPIC")
    assert record.properties["REAL_QID"] == "2"
    assert (accepted.topic, accepted.queue_id, accepted.queue_offset) == ("t", 2, 0)
    assert (accepted.message_id, accepted.recall_handle) == (record.message_id, None)
    assert record.born_host == pack_text(BORN_HOST)


def pack_text(host: bytes) -> str:
    return ".".join(map(str, host[:4])) + f":{int.from_bytes(host[4:], 'big')}"
