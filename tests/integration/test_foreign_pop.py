"""Test pops, acknowledgements and notifications in the form of RocketMQ clients, over sockets."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.batch_ack_commands import batch_ack_command
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.pop_headers import Notification, PopMessage
from raymq.client import Admin, Connection, InvalidInput, Message, MessageQueue, Producer, RayMQError, SimpleConsumer
from raymq.client.requests.broker_requests import retry_while_unavailable
from tests.integration.conftest import Services
from tests.integration.test_simple_consumer import take
from tests.polling import poll_until

pytestmark = pytest.mark.integration


QUEUE = MessageQueue("t", "broker-a", 0)


def ask(mq: Connection, services: Services, command: Command) -> Command:
    address = services.brokers["broker-a"].address
    return mq.run(retry_while_unavailable(lambda: mq.pool.request(address, command, 10.0)))


def pop_command(**fields: Any) -> Command:
    defaults = {
        "queue_id": -1,
        "max_msg_nums": 8,
        "invisible_time": 1000,
        "poll_time": 0,
        "born_time": 0,
        "init_mode": 0,
    }
    return PopMessage(**{"consumer_group": "g", "topic": "t", **defaults, **fields}).command()


def test_pop_answers_and_refusals(mq: Connection, services: Services, admin: Admin) -> None:
    for fields, code in (
        ({"poll_time": 100}, "POLLING_TIMEOUT"),
        ({"topic": "nowhere"}, "TOPIC_NOT_EXIST"),
        ({"queue_id": 2}, "INVALID_PARAMETER"),
        ({"max_msg_nums": 0}, "INVALID_PARAMETER"),
        ({"invisible_time": 0}, "INVALID_PARAMETER"),
        ({"invisible_time": 12 * 3600 * 1000 + 1}, "INVALID_PARAMETER"),
        ({"consumer_group": "a group"}, "INVALID_PARAMETER"),
        ({"exp_type": "XYZ"}, "SUBSCRIPTION_PARSE_FAILED"),
    ):
        with pytest.raises(RayMQError) as caught:
            ask(mq, services, pop_command(**fields))
        assert caught.value.code == code, fields
    Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(3)], queue=QUEUE)
    answer = ask(mq, services, pop_command(order=True, queue_id=0))
    values = answer.fields
    assert (values["startOffsetInfo"], values["msgOffsetInfo"]) == ("0 0 0", "0 0 0,1,2")
    assert values["orderCountInfo"] == "0 qo0%0 0;0 qo0%1 0;0 qo0%2 0"
    assert (values["reviveQid"], values["invisibleTime"], values["restNum"]) == ("999", "1000", "0")
    for text in ("", "1 2 3", "a b c d e f g h"):
        header = {"consumerGroup": "g", "topic": "t", "queueId": 0, "offset": 0, "extraInfo": text}
        for code in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
            with pytest.raises(RayMQError, match="not a receipt handle"):
                ask(mq, services, Command(code, {**header, "invisibleTime": 1000}))


def test_batch_acknowledgements(mq: Connection, services: Services, admin: Admin) -> None:
    with SimpleConsumer(mq, "g", {"t": "*"}) as consumer:
        Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(20)], queue=QUEUE)
        messages = take(consumer, 20)
        handles = [message.receipt.handle for message in messages if message.receipt is not None]
        command = batch_ack_command("g", "t", handles[::3])
        assert int(ask(mq, services, command).fields["raymqStale"]) == 0
        assert int(ask(mq, services, command).fields["raymqStale"]) == 7
        left = [message for message in messages if message.queue_offset % 3]
        assert consumer.ack(left)
    all_ones = base64.b64encode(b"\xff" * 200_000).decode()
    good = {"c": "g", "t": "t", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": "AQ=="}
    for acks in (None, [1], [{}], [{**good, "b": "!"}], [{**good, "b": all_ones}], [{**good, "so": "x"}]):
        with pytest.raises(InvalidInput):
            ask(mq, services, Command(RequestCode.BATCH_ACK_MESSAGE, body=json.dumps({"acks": acks}).encode()))


def test_notification_reports_new_message(mq: Connection, services: Services, admin: Admin) -> None:
    command = Notification("g", "t", -1, 100, 0).command
    assert ask(mq, services, command()).fields == {"hasMsg": "false", "pollingFull": "false"}
    with ThreadPoolExecutor(1) as pool:
        polls = services.brokers["broker-a"].polls
        waiting = pool.submit(ask, mq, services, Notification("g", "t", -1, 10_000, 0).command())
        poll_until(lambda: len(polls) == 1)
        Producer(mq, "p").send(Message("t", b"x"), queue=QUEUE)
        assert waiting.result(5).fields["hasMsg"] == "true"


def test_ack_answers_parked_ordered_pop(mq: Connection, services: Services, admin: Admin) -> None:
    """Fault 14.16: ten messages, one in flight at a time; each pop parks before the previous message is acked."""
    Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(10)], queue=QUEUE)
    polls = services.brokers["broker-a"].polls
    one = pop_command(order=True, queue_id=0, max_msg_nums=1, invisible_time=60_000, poll_time=60_000)

    def acknowledge(popped: Command) -> None:
        """Acknowledge with a handle built from the answer, as Java clients do."""
        _, _, offset = popped.fields["msgOffsetInfo"].split(" ")
        handle = f"{offset} {popped.fields['popTime']} 60000 999 0 broker-a 0 {offset}"
        fields = {"consumerGroup": "g", "topic": "t", "queueId": 0, "offset": int(offset), "extraInfo": handle}
        ask(mq, services, Command(RequestCode.ACK_MESSAGE, fields))

    popped = ask(mq, services, one)
    with ThreadPoolExecutor(1) as pool:
        for number in range(1, 10):
            waiting = pool.submit(mq.run, mq.pool.request(services.brokers["broker-a"].address, one, 90.0))
            poll_until(lambda: len(polls) == 1)
            assert not waiting.done()
            acknowledge(popped)
            popped = waiting.result(30)
            assert popped.fields["msgOffsetInfo"] == f"0 0 {number}"


def test_queue_assignments(mq: Connection, services: Services, admin: Admin) -> None:
    def assigned(**fields: Any) -> Any:
        values = {"topic": "t", "consumerGroup": "g", "clientId": "me", "strategyName": "AVG"}
        body = json.dumps({**values, "messageModel": "CLUSTERING", **fields}).encode()
        answer = json.loads(bytes(ask(mq, services, Command(RequestCode.QUERY_ASSIGNMENT, body=body)).body))
        found = answer["messageQueueAssignments"]
        if found is None:
            return None
        return [(a["mode"], a["messageQueue"]["brokerName"], a["messageQueue"]["queueId"]) for a in found]

    def set_mode(**fields: Any) -> None:
        body = {"topic": "t", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 8, **fields}
        ask(mq, services, Command(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(body).encode()))

    all_queues = [("PULL", broker, queue_id) for broker in ("broker-a", "broker-b") for queue_id in (0, 1)]
    assert assigned() is None, "the group has no members"
    assert assigned(messageModel="BROADCASTING") == all_queues
    with SimpleConsumer(mq, "g", {"t": "*"}):
        (me,) = services.brokers["broker-a"].groups.members("g")
        assert assigned() == []
        assert assigned(clientId=me) == assigned(clientId=me, strategyName="AVG_BY_CIRCLE") == all_queues
        assert assigned(clientId=me, strategyName="OTHER") is None
        assert assigned(topic="nowhere") is None
        set_mode()
        assert assigned(clientId=me) == [("POP", "broker-a", -1), ("POP", "broker-b", -1)]
        assert assigned(topic="%RETRY%g", clientId=me) == [("PULL", "broker-a", 0), ("PULL", "broker-b", 0)]
        services.stop_broker("broker-a")
        services.start_broker("broker-a")
        poll_until(lambda: assigned(clientId=me) == [("POP", "broker-a", -1), ("POP", "broker-b", -1)], 5)
    for fields, code in (
        ({"mode": "OTHER"}, "INVALID_PARAMETER"),
        ({"topic": "nowhere"}, "TOPIC_NOT_EXIST"),
        ({"topic": "%RETRY%g"}, "NO_PERMISSION"),
    ):
        with pytest.raises(RayMQError) as caught:
            set_mode(**fields)
        assert caught.value.code == code
