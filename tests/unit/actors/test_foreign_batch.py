"""Test batches of RocketMQ clients: messages keep their own keys, or none is stored."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.broker.core.appending.batch_body import BatchMember, split_steps
from raymq.actors.errors import InvalidInput, MessageIllegal, PermissionDenied, RayMQError, TopicNotFound
from raymq.storage.cooperative_steps import run_steps
from tests.unit.actors.foreign_intake import CLUSTER, Intake, member

BATCH = {"UNIQ_KEY": "BATCH", "WAIT": "true"}


@pytest.fixture
def intake(tmp_path: Path) -> Iterator[Intake]:
    made = Intake(tmp_path)
    yield made
    made.store.close()


# Twelve are appended one by one, thirteen by NumPy.
@pytest.mark.parametrize("count", [1, 2, 12, 13, 40])
def test_each_message_keeps_its_fields(intake: Intake, count: int) -> None:
    told = [{"UNIQ_KEY": f"KEY{i:02}", "KEYS": f"k{i}", "TAGS": "even" if i % 2 == 0 else "odd"} for i in range(count)]
    members = [member(f"body {i}".encode(), told[i], flag=i) for i in range(count)]
    accepted = intake.accept_batch(*members, queue_id=1, properties=dict(BATCH), sys_flag=2, reconsume_times=1)

    records = intake.records(queue_id=1)
    assert [record.body for record in records] == [f"body {i}".encode() for i in range(count)]
    assert [record.properties for record in records] == [{"WAIT": "true", **own, "CLUSTER": CLUSTER} for own in told]
    assert [(record.flag, record.queue_offset) for record in records] == [(i, i) for i in range(count)]
    assert {(r.sys_flag, r.born_host, r.reconsume_times) for r in records} == {(2, "10.1.2.3:12345", 1)}
    assert accepted.message_id.split(",") == [record.message_id for record in records]
    assert (accepted.queue_id, accepted.queue_offset, accepted.unique_key) == (1, 0, "BATCH")
    assert (accepted.messages, accepted.size) == (count, sum(record.size for record in records))
    assert len(run_steps(intake.core.search("t", told[-1]["UNIQ_KEY"], 0, 1 << 60, 10))) == 1


def test_message_properties_override_batch_properties(intake: Intake) -> None:
    intake.accept_batch(
        member(b"a", {"UNIQ_KEY": "A", "p": "own"}),
        member(b"b", {"UNIQ_KEY": "B"}),
        member(b"c", {"UNIQ_KEY": "C", "CLUSTER": "elsewhere"}),
        properties={"p": "all", "UNIQ_KEY": "BATCH"},
    )
    first, second, third = intake.records()
    assert first.properties == {"p": "own", "UNIQ_KEY": "A", "CLUSTER": CLUSTER}
    assert second.properties == {"p": "all", "UNIQ_KEY": "B", "CLUSTER": CLUSTER}
    assert third.properties == {"p": "all", "UNIQ_KEY": "C", "CLUSTER": CLUSTER}


@pytest.mark.parametrize(
    "told",
    [b"", b"p\x01v\x02", b"p\x01v", b"MY_UNIQ_KEY\x01v", b"UNIQ_KEY\x01\x02", b"UNIQ_KEY\x01", b"UNIQ_KEY", b"no pair"],
)
def test_missing_unique_key_is_generated(intake: Intake, told: bytes) -> None:
    intake.accept_batch(member(b"a", told), member(b"b", told))
    first, second = intake.records()
    assert first.unique_key
    assert second.unique_key
    assert first.unique_key != second.unique_key
    assert {**first.properties, "UNIQ_KEY": ""} == {**second.properties, "UNIQ_KEY": ""}


def test_properties_without_last_separator_are_read(intake: Intake) -> None:
    intake.accept_batch(member(b"a", b"UNIQ_KEY\x01A\x02p\x01v"))
    assert intake.records()[0].properties == {"UNIQ_KEY": "A", "p": "v", "CLUSTER": CLUSTER}


def test_forged_delivery_property_is_dropped(intake: Intake) -> None:
    forged = {"RAYMQ_DELIVERED_FROM": "1:99", "p": "v"}
    intake.accept_batch(member(b"a", {"UNIQ_KEY": "A", **forged}), properties=dict(forged))
    assert intake.records()[0].properties == {"UNIQ_KEY": "A", "p": "v", "CLUSTER": CLUSTER}


def test_body_may_look_like_properties(intake: Intake) -> None:
    body = b"\x02DELAY\x013\x02TRAN_MSG\x01true\x02"
    intake.accept_batch(member(body, {"UNIQ_KEY": "A"}))
    assert intake.records()[0].body == body


GOOD = member(b"good", {"UNIQ_KEY": "A"})
REFUSED: dict[str, tuple[list[bytes], dict[str, Any], type[RayMQError]]] = {
    "nothing": ([], {}, MessageIllegal),
    "a cut one": ([GOOD, GOOD[:-1]], {}, MessageIllegal),
    "bytes behind the last": ([GOOD, b"\x00"], {}, MessageIllegal),
    "zeros": ([GOOD, bytes(64)], {}, MessageIllegal),
    "garbage": ([b"\xff" * 64], {}, MessageIllegal),
    "an empty body": ([GOOD, member(b"", {})], {}, MessageIllegal),
    "too many bytes": ([GOOD] * 130, {}, MessageIllegal),
    "properties too long": ([member(b"b", {"p": "x" * 3_000})], {"properties": {"q": "x" * 32_000}}, MessageIllegal),
    "a zero byte": ([GOOD, member(b"b", {"p": "a\0b"})], {}, MessageIllegal),
    "a zero byte of all": ([GOOD], {"properties": {"p": "a\0b"}}, MessageIllegal),
    "a delayed one": ([GOOD, member(b"b", {"DELAY": "1"})], {}, MessageIllegal),
    "one for a time": ([GOOD, member(b"b", {"TIMER_DELIVER_MS": "1"})], {}, MessageIllegal),
    "one of a transaction": ([GOOD, member(b"b", {"TRAN_MSG": "true"})], {}, MessageIllegal),
    "a delayed batch": ([GOOD], {"properties": {"DELAY": "1"}}, MessageIllegal),
    "a prepared batch": ([GOOD], {"properties": {"TRAN_MSG": "true"}, "sys_flag": 4}, MessageIllegal),
    "a retry": ([GOOD], {"topic": "%RETRY%g"}, MessageIllegal),
    "a path": ([GOOD], {"topic": "../x"}, InvalidInput),
    "an unknown topic": ([GOOD], {"topic": "unknown"}, TopicNotFound),
    "a system topic": ([GOOD], {"topic": "SCHEDULE_TOPIC_XXXX"}, PermissionDenied),
    "an unknown queue": ([GOOD], {"queue_id": 4}, InvalidInput),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_message_refuses_whole_batch(intake: Intake, name: str) -> None:
    members, changes, error = REFUSED[name]
    before = intake.state()
    with pytest.raises(error) as refused:
        intake.accept_batch(*members, **changes)
    assert type(refused.value) is error
    assert intake.state() == before
    assert intake.records() == []


class TestSplitting:
    def test_split_returns_members(self) -> None:
        packed = member(b"a", b"x", flag=7) + member(b"bc", b"")
        assert run_steps(split_steps(packed)) == [BatchMember(7, b"a", b"x"), BatchMember(0, b"bc", b"")]

    @pytest.mark.parametrize("at", [0, 16])
    @pytest.mark.parametrize("value", [-(1 << 31), -1, 0, 1, 21, 1 << 20, (1 << 31) - 1])
    def test_wrong_lengths_raise_message_illegal(self, at: int, value: int) -> None:
        packed = bytearray(GOOD + GOOD)
        struct.pack_into(">i", packed, at, value)
        with pytest.raises(MessageIllegal):
            run_steps(split_steps(bytes(packed)))

    def test_truncated_batch_raises_message_illegal(self) -> None:
        for end in range(len(GOOD)):
            with pytest.raises(MessageIllegal):
                run_steps(split_steps(GOOD[:end]))
