"""Test `raymq message trace`, `delay list` and `delay recall`, and bodies in the form for people."""

from __future__ import annotations

import time
from typing import Any

import msgpack
import pyarrow as pa
import pytest

from raymq.actors.wire.commands import delay_commands
from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    InvalidInput,
    Message,
    MessageNotFound,
    MessageQueue,
    NotRecallable,
    Producer,
    PushConsumer,
    QueueNotFound,
    RecallStatus,
    SimpleConsumer,
    TopicNotFound,
)
from raymq.client.push.listener import Retry
from tests.integration.conftest import Services
from tests.integration.shell import Shell
from tests.polling import poll_until

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)


def trace(shell: Shell, message_id: str) -> dict[str, Any]:
    found: dict[str, Any] = shell.json("message", "trace", message_id)
    assert found.keys() - {"not_asked"} == {*("message", "stored", "consumed", "retries", "dead_letters", "redrives")}
    return found


def send(mq: Connection, message: Message) -> Any:
    with Producer(mq, "p") as producer:
        return (
            producer.send(message) if message.deliver_at or message.delay_level else producer.send(message, queue=QUEUE)
        )


def test_trace_through_retries_dead_letters_and_redrive(shell: Shell, mq: Connection, admin: Admin) -> None:
    sent = send(mq, Message("t", b"poison"))
    calls = 0

    def fail_until_redriven(messages: list[Any]) -> ConsumeResult:
        nonlocal calls
        calls += 1
        if calls > 2:
            return ConsumeResult.SUCCESS
        raise ValueError("no such account")

    assert trace(shell, sent.message_id)["consumed"] == []
    with PushConsumer(mq, "g", {"t": "*"}, fail_until_redriven, max_reconsume_times=1):
        poll_until(lambda: trace(shell, sent.message_id)["dead_letters"], 20)
        found = trace(shell, sent.message_id)
        assert found["message"]["body"] == "poison"
        assert [(each["state"], each["message_id"]) for each in found["stored"]] == [("stored", sent.message_id)]
        (retry,) = found["retries"]
        assert (retry["group"], retry["reconsume_times"], retry["failure"]) == ("g", 1, "ValueError: no such account")
        assert "no such account" in found["dead_letters"][0]["reason"]
        poll_until(
            lambda: (
                trace(shell, sent.message_id)["consumed"]
                == [{"group": "g", "state": "dead letter", "offset": sent.queue_offset}]
            ),
            10,
        )
        assert trace(shell, sent.unique_key)["dead_letters"] == found["dead_letters"]
        admin.dlq_redrive("g")
        poll_until(lambda: [each["state"] for each in trace(shell, sent.message_id)["redrives"]] == ["finished"], 20)
        assert trace(shell, sent.message_id)["consumed"][0]["state"] == "finished"
    shown = shell.shown("message", "trace", sent.message_id)
    assert "dead letters:" in shown
    assert "ValueError: no such account" in shown
    assert admin.dlq_delete("g") == 1
    assert trace(shell, sent.message_id)["dead_letters"] == []


def test_trace_of_waiting_retry(shell: Shell, mq: Connection, admin: Admin) -> None:
    sent = send(mq, Message("t", b"later"))
    with PushConsumer(mq, "g", {"t": "*"}, lambda _: Retry(delay_level=1)):
        poll_until(lambda: any(each["state"] == "waiting" for each in trace(shell, sent.message_id)["retries"]), 20)


def test_trace_of_popped_messages(shell: Shell, mq: Connection, admin: Admin) -> None:
    sent = [send(mq, Message("t", b"%d" % number)) for number in range(3)]

    def states() -> list[str]:
        return [trace(shell, each.message_id)["consumed"][0]["state"] for each in sent]

    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        received: list[Any] = []
        while len(received) < 2:
            received += consumer.receive(2 - len(received), 30.0)
        assert states() == ["in flight", "in flight", "ready"]
        consumer.ack(received[0])
        assert sorted(states()) == ["finished", "in flight", "ready"]


def test_popped_message_that_failed_for_good_is_a_dead_letter(shell: Shell, mq: Connection, admin: Admin) -> None:
    sent = send(mq, Message("t", b"poison"))
    with PushConsumer(mq, "g", {"t": "*"}, lambda _: Retry(-1), mode="pop"):
        found = poll_until(lambda: (found := trace(shell, sent.message_id))["dead_letters"] and found, 20)
    assert [each["state"] for each in found["consumed"]] == ["dead letter"]


def test_trace_of_unknown_ids(shell: Shell, mq: Connection, admin: Admin, services: Services) -> None:
    for wrong in ("no-such-key", "AC110001" + "0" * 24):
        with pytest.raises(MessageNotFound):
            admin.trace_message(wrong)
    sent = send(mq, Message("t", b"x"))
    assert admin.trace_message(sent.unique_key, topic="t").message.message_id == sent.message_id
    services.stop_broker("broker-b")
    assert trace(shell, sent.unique_key)["not_asked"] == ["broker-b"]


def test_delayed_messages_are_listed_and_recalled(shell: Shell, mq: Connection, admin: Admin) -> None:
    assert shell.json("delay", "list") == []
    assert "no message waits" in shell.shown("delay", "list")
    due = time.time() + 600
    timed = [send(mq, Message("t", b"%d" % number, deliver_at=due + number)) for number in range(3)]
    admin.create_topic("other", queues=1)
    with Producer(mq, "p") as producer:
        producer.send(Message("other", b"o", deliver_at=due - 100))
    listed = shell.json("delay", "list")
    assert [each["topic"] for each in listed] == ["other", "t", "t", "t"]
    assert [each["body"] for each in shell.json("delay", "list", "--topic", "t")] == ["0", "1", "2"]
    assert [each["body"] for each in shell.json("delay", "list", "--topic", "t", "--limit", "1")] == ["0"]
    assert admin.delayed_messages("t", 2).truncated
    for level in (3, 4):
        for _ in range(3):
            send(mq, Message("t", b"level", delay_level=level))
    assert len(admin.delayed_messages("t", 2)) == 2
    poll_until(lambda: len(admin.delayed_messages("t")) == 3, 20)
    assert not admin.delayed_messages("t", 3).truncated
    assert listed[1]["deliver_at"] == pytest.approx(due, abs=0.002)
    assert listed[1]["unique_key"] == timed[0].unique_key
    assert trace(shell, timed[0].unique_key)["stored"][0]["state"] == "waiting"
    assert "yes" in shell.shown("delay", "list", "--topic", "t")

    assert shell.json("delay", "recall", listed[1]["recall_handle"])["status"] == "WITHDRAWN"
    assert shell.json("delay", "recall", timed[1].unique_key)["status"] == "WITHDRAWN"
    assert admin.recall(timed[2].recall_handle) is RecallStatus.WITHDRAWN
    assert [each["topic"] for each in shell.json("delay", "list")] == ["other"]
    assert trace(shell, timed[0].unique_key)["stored"][0]["state"] == "recalled"
    assert shell.exit_code("delay", "recall", "no-such-id") == 1


def test_waiting_retries_are_listed_and_not_recalled(mq: Connection, admin: Admin) -> None:
    send(mq, Message("t", b"again"))
    with PushConsumer(mq, "g", {"t": "*"}, lambda _: Retry(delay_level=1)):
        poll_until(lambda: any(each.retry_of == "g" for each in admin.delayed_messages()), 20)
        (waiting,) = admin.delayed_messages("%RETRY%g") or [None]
        if waiting is not None:
            assert (waiting.message.topic, waiting.recall_handle) == ("t", None)
    levels = send(mq, Message("t", b"level", delay_level=4))
    with pytest.raises((NotRecallable, MessageNotFound)):
        admin.recall(levels.unique_key)


def test_bodies_are_shown_decoded(shell: Shell, mq: Connection, admin: Admin) -> None:
    table = pa.table({"price": [1, 2]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed = send(mq, Message("t", msgpack.packb({"a": 1}), properties={"content-type": "application/msgpack"}))
    arrow = send(
        mq,
        Message("t", sink.getvalue().to_pybytes(), properties={"content-type": "application/vnd.apache.arrow.stream"}),
    )
    shown = shell.shown("message", "tail", "t", "--from", "earliest")
    assert '{"a": 1}' in shown
    assert '[{"price": 1}, {"price": 2}]' in shown
    assert '{"a": 1}' in shell.shown("message", "get", packed.message_id)
    assert "body (arrow of 2 rows)" in shell.shown("message", "trace", arrow.message_id)
    assert "body_base64" in shell.json("message", "get", packed.message_id)


@pytest.mark.parametrize("begin", [7, "x", [0, 1], [0, 1, "x"], [2, 0, 0], [0, 1, 1 << 63], [True, 0, 0]])
def test_broker_refuses_wrong_positions(mq: Connection, services: Services, begin: Any) -> None:
    command = delay_commands.delayed_command(None, None, 10)
    command.fields["begin"] = begin
    with pytest.raises(InvalidInput, match="a position that an answer has named"):
        mq.run(mq.pool.request(services.brokers["broker-a"].address, command, 5.0))


@pytest.mark.parametrize("begin", [[0, -5, 0], [0, 99, 0], [0, 1, 1 << 62], [1, 1 << 62, 0], [1, -1, -1]])
def test_positions_behind_the_end_give_an_empty_page(mq: Connection, services: Services, begin: list[int]) -> None:
    command = delay_commands.delayed_command(None, begin, 10)
    answer = mq.run(mq.pool.request(services.brokers["broker-a"].address, command, 5.0))
    assert delay_commands.read_delayed(answer) == ([], None)


def test_states_of_unknown_queues_are_refused(mq: Connection, admin: Admin, services: Services) -> None:
    for command, error in (
        (delay_commands.message_states_command("none", 0, 0), TopicNotFound),
        (delay_commands.message_states_command("t", 99, 0), QueueNotFound),
    ):
        with pytest.raises(error):
            mq.run(mq.pool.request(services.brokers["broker-a"].address, command, 5.0))
