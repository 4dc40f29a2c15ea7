"""Test the commands that RocketMQ's clients use to consume, over sockets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from raymq.actors.protocol import SESSION_GRACE_SECONDS
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.commands.lock_commands import lock_command, read_locked, unlock_command
from raymq.actors.wire.commands.query_commands import read_records
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers.group_headers import (
    GetConsumerListByGroup,
    QueryConsumerOffset,
    UnregisterClient,
    UpdateConsumerOffset,
)
from raymq.actors.wire.headers.pull_headers import (
    COMMIT_OFFSET,
    HAS_SUBSCRIPTION,
    MAY_PARK,
    LitePullMessage,
    PullMessage,
)
from raymq.actors.wire.headers.query_headers import GetMaxOffset
from raymq.client import Admin, Connection, Message, MessageQueue, Producer
from raymq.storage.files.file_calls import replaced
from tests.fuzz.failing_disk import FailingDisk
from tests.integration.conftest import Services
from tests.integration.foreign_client import ForeignClient
from tests.polling import poll_until

OFFSETS = ("nextBeginOffset", "minOffset", "maxOffset")


@pytest.fixture
def queue(services: Services, admin: Admin) -> MessageQueue:
    """Return a queue of the topic "t"."""
    return MessageQueue("t", "broker-a", 0)


@pytest.fixture
def producer(mq: Connection, queue: MessageQueue) -> Iterator[Producer]:
    with Producer(mq, "p") as made:
        yield made


@pytest.fixture
def foreign_client(services: Services, queue: MessageQueue) -> Iterator[ForeignClient]:
    with ForeignClient(services.brokers["broker-a"].address) as made:
        yield made


def send(producer: Producer, queue: MessageQueue, *bodies: bytes, tags: str | None = None) -> None:
    for body in bodies:
        producer.send(Message("t", body, tags=tags), queue=queue)


def pull_header(offset: int, **changes: Any) -> PullMessage:
    fields: dict[str, Any] = {
        "consumer_group": "g",
        "topic": "t",
        "queue_id": 0,
        "queue_offset": offset,
        "max_msg_nums": 32,
        "sys_flag": HAS_SUBSCRIPTION,
        "subscription": "*",
    }
    return PullMessage(**{**fields, **changes})


def heartbeat(client_id: str = "x", group: str = "g", version: int = 0, **topics: str) -> Command:
    subscriptions = [{"topic": t, "subString": s, "subVersion": version} for t, s in topics.items()]
    consumer = {"groupName": group, "messageModel": "CLUSTERING", "subscriptionDataSet": subscriptions}
    body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "p"}]}
    return Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode())


def locked_queue_ids(answer: Command) -> list[int]:
    return sorted(queue.queue_id for queue in read_locked(answer))


@pytest.mark.parametrize(
    ("offset", "code", "next_offset", "found"),
    [
        (0, ResponseCode.SUCCESS, 3, 3),
        (2, ResponseCode.SUCCESS, 3, 1),
        (3, ResponseCode.PULL_NOT_FOUND, 3, 0),
        (4, ResponseCode.PULL_OFFSET_MOVED, 3, 0),
        (-1, ResponseCode.PULL_OFFSET_MOVED, 0, 0),
    ],
)
def test_pull_answers(
    producer: Producer,
    queue: MessageQueue,
    foreign_client: ForeignClient,
    offset: int,
    code: int,
    next_offset: int,
    found: int,
) -> None:
    send(producer, queue, b"0", b"1", b"2")
    answer = foreign_client.ask(pull_header(offset).command())
    assert answer.code == code
    assert [answer.fields[name] for name in OFFSETS] == [str(next_offset), "0", "3"]
    assert answer.fields["suggestWhichBrokerId"] == "0"
    assert [record.body for record in read_records(answer)] == [b"%d" % n for n in range(3)][3 - found :]


def test_broker_filters_by_tag(producer: Producer, queue: MessageQueue, foreign_client: ForeignClient) -> None:
    for number in range(4):
        send(producer, queue, b"%d" % number, tags="ab"[number % 2])
    answer = foreign_client.ask(pull_header(0, subscription="b || c").command())
    assert [record.body for record in read_records(answer)] == [b"1", b"3"]
    answer = foreign_client.ask(pull_header(0, subscription="z").command())
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "4")


def test_large_pull_answers_arrive_complete(
    producer: Producer, queue: MessageQueue, foreign_client: ForeignClient
) -> None:
    bodies = [bytes([n]) * 300_000 for n in range(20)]
    send(producer, queue, *bodies)
    answer = foreign_client.ask(pull_header(0, max_msg_bytes=2**31 - 1).command())
    assert [record.body for record in read_records(answer)] == bodies
    answer = foreign_client.ask(pull_header(0).command())
    assert len(read_records(answer)) == 1, "256 KiB by default, and at least one"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue_id": 99}, ResponseCode.INVALID_PARAMETER),
        ({"consumer_group": "not a group"}, ResponseCode.INVALID_PARAMETER),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"expression_type": "SQL92", "subscription": "a >"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"sys_flag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
    ],
)
def test_invalid_pulls_are_refused(foreign_client: ForeignClient, changes: dict[str, Any], code: int) -> None:
    assert foreign_client.ask(pull_header(0, **changes).command()).code == code


def test_pull_uses_subscription_of_heartbeat(
    producer: Producer, queue: MessageQueue, foreign_client: ForeignClient
) -> None:
    for number in range(4):
        send(producer, queue, b"%d" % number, tags="ab"[number % 2])
    foreign_client.ask(heartbeat(version=7, t="a"))
    answer = foreign_client.ask(pull_header(0, sys_flag=0, sub_version=7).command())
    assert [record.body for record in read_records(answer)] == [b"0", b"2"]
    assert (
        foreign_client.ask(pull_header(0, sys_flag=0, sub_version=8).command()).code
        == ResponseCode.SUBSCRIPTION_NOT_LATEST
    )
    other_topic = pull_header(0, sys_flag=0, topic="%RETRY%g").command()
    assert foreign_client.ask(other_topic).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


@pytest.mark.parametrize("header", [PullMessage, LitePullMessage])
def test_parked_pull_waits_for_matching_message(
    producer: Producer, queue: MessageQueue, foreign_client: ForeignClient, header: type[PullMessage]
) -> None:
    request = pull_header(0, sys_flag=HAS_SUBSCRIPTION | MAY_PARK, suspend_timeout_millis=15_000, subscription="b")
    opaque = foreign_client.send(Command(header.CODE, request.fields()))
    foreign_client.ask(
        GetMaxOffset(queue.topic, queue.queue_id).command()
    )  # requests are answered in order, so the pull is parked now
    send(producer, queue, b"not this", tags="a")
    assert not foreign_client.has_answer(opaque)
    send(producer, queue, b"this", tags="b")
    answer = foreign_client.answer(opaque)
    assert [record.body for record in read_records(answer)] == [b"this"]
    assert answer.fields["nextBeginOffset"] == "2"


def test_parked_pull_ends_at_its_timeout(
    producer: Producer, queue: MessageQueue, foreign_client: ForeignClient
) -> None:
    request = pull_header(0, sys_flag=HAS_SUBSCRIPTION | MAY_PARK, suspend_timeout_millis=300)
    assert foreign_client.ask(request.command()).code == ResponseCode.PULL_NOT_FOUND
    request = pull_header(0, sys_flag=HAS_SUBSCRIPTION | MAY_PARK, suspend_timeout_millis=600, subscription="b")
    opaque = foreign_client.send(request.command())
    send(producer, queue, b"not this", tags="a")
    answer = foreign_client.answer(opaque)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "1")


def test_closed_connection_frees_its_parked_pulls(services: Services, queue: MessageQueue) -> None:
    broker = services.brokers["broker-a"]
    request = pull_header(0, sys_flag=HAS_SUBSCRIPTION | MAY_PARK, suspend_timeout_millis=30_000)
    with ForeignClient(broker.address) as killed:
        for _ in range(100):
            killed.send(request.command())
        poll_until(lambda: len(broker.polls) == 100, 5)
    poll_until(lambda: len(broker.polls) == 0, 1)


def test_topic_deletion_ends_parked_pulls(
    services: Services, queue: MessageQueue, foreign_client: ForeignClient
) -> None:
    broker = services.brokers["broker-a"]
    opaque = foreign_client.send(
        pull_header(0, sys_flag=HAS_SUBSCRIPTION | MAY_PARK, suspend_timeout_millis=30_000).command()
    )
    poll_until(lambda: len(broker.polls) == 1, 5)

    async def delete() -> None:
        broker.core.topics.delete("t")
        broker.polls.arrived([("t", 0)])

    services.loop.run(delete())
    assert foreign_client.answer(opaque).code == ResponseCode.TOPIC_NOT_EXIST


def test_offset_commits_and_queries(producer: Producer, queue: MessageQueue, foreign_client: ForeignClient) -> None:
    send(producer, queue, b"0", b"1", b"2")
    query = QueryConsumerOffset("g", "t", 0)
    assert (
        foreign_client.ask(UpdateConsumerOffset("g", "t", 0, 1).command()).code
        == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    )
    assert foreign_client.ask(query.command()).fields["offset"] == "0", "a young queue"
    strict = QueryConsumerOffset("g", "t", 0, set_zero_if_not_found=False)
    assert foreign_client.ask(strict.command()).code == ResponseCode.QUERY_NOT_FOUND
    foreign_client.ask(heartbeat(t="*"))
    foreign_client.send(UpdateConsumerOffset("g", "t", 0, 2).command(), oneway=True)
    assert foreign_client.ask(query.command()).fields["offset"] == "2"
    foreign_client.ask(UpdateConsumerOffset("g", "t", 0, 1).command())
    assert foreign_client.ask(query.command()).fields["offset"] == "1"
    assert foreign_client.ask(UpdateConsumerOffset("g", "x", 0, 1).command()).code == ResponseCode.TOPIC_NOT_EXIST


def test_pull_commits_offset(producer: Producer, queue: MessageQueue, foreign_client: ForeignClient) -> None:
    send(producer, queue, b"0", b"1", b"2")
    foreign_client.ask(pull_header(2, sys_flag=HAS_SUBSCRIPTION | COMMIT_OFFSET, commit_offset=2).command())
    assert foreign_client.ask(QueryConsumerOffset("g", "t", 0).command()).fields["offset"] == "2"


@pytest.mark.parametrize("group", ["g", "new"])
def test_pull_succeeds_when_its_commit_fails(
    producer: Producer, queue: MessageQueue, foreign_client: ForeignClient, group: str
) -> None:
    send(producer, queue, b"0", b"1", b"2")
    foreign_client.ask(heartbeat(t="*"))
    committing = pull_header(
        2, consumer_group=group, sys_flag=HAS_SUBSCRIPTION | COMMIT_OFFSET, commit_offset=2
    ).command()
    disk = FailingDisk(1, "write")
    with replaced(disk):
        disk.chance = 1.0
        answer = foreign_client.ask(committing)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.SUCCESS, "3")
    assert foreign_client.ask(QueryConsumerOffset(group, "t", 0).command()).fields["offset"] == "0", "not committed"
    foreign_client.ask(committing)
    assert foreign_client.ask(QueryConsumerOffset(group, "t", 0).command()).fields["offset"] == "2"


def test_reset_reaches_parked_pull(
    services: Services, producer: Producer, queue: MessageQueue, foreign_client: ForeignClient
) -> None:
    broker = services.brokers["broker-a"]
    send(producer, queue, b"0", b"1", b"2")
    flags = HAS_SUBSCRIPTION | MAY_PARK | COMMIT_OFFSET
    opaque = foreign_client.send(
        pull_header(3, sys_flag=flags, commit_offset=3, suspend_timeout_millis=30_000).command()
    )
    poll_until(lambda: len(broker.polls) == 1, 5)

    async def reset() -> None:
        broker.core.reset_offset("g", "t", 0, 1)

    services.loop.run(reset())
    answer = foreign_client.answer(opaque)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    assert foreign_client.ask(QueryConsumerOffset("g", "t", 0).command()).fields["offset"] == "1"


def test_heartbeats_create_group_and_notify_members(services: Services, queue: MessageQueue) -> None:
    address = services.brokers["broker-a"].address
    members = GetConsumerListByGroup("g")
    with ForeignClient(address) as first, ForeignClient(address) as second:
        assert first.ask(members.command()).code == ResponseCode.SYSTEM_ERROR
        answer = first.ask(heartbeat("x", t="*"))
        assert answer.fields["IS_SUPPORT_HEART_BEAT_V2"] == "true"
        route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%g"})
        with ForeignClient(services.name_server.address) as asks:
            assert asks.ask(route).code == ResponseCode.SUCCESS, "the retry topic is in the route by now"
        first.pushed.clear()
        second.ask(heartbeat("y", t="*"))
        notification = first.next_push()
        assert (notification.code, notification.fields["consumerGroup"]) == (
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            "g",
        )
        assert json.loads(first.ask(members.command()).body) == {"consumerIdList": ["x", "y"]}
        first.pushed.clear()
        second.ask(UnregisterClient("y", producer_group="p", consumer_group="g").command())
        assert first.next_push().fields["consumerGroup"] == "g"
        second.ask(heartbeat("y", t="other"))
        assert first.next_push().fields["consumerGroup"] == "g"
        second.close()
        left = members.command()
        poll_until(lambda: json.loads(first.ask(left).body) == {"consumerIdList": ["x"]}, SESSION_GRACE_SECONDS + 2)
        assert first.next_push().fields["consumerGroup"] == "g"


def test_first_group_member_is_notified_after_delay(foreign_client: ForeignClient) -> None:
    foreign_client.ask(heartbeat("x", t="*"))
    begun = time.monotonic()
    assert foreign_client.next_push().fields["consumerGroup"] == "g"
    assert time.monotonic() - begun > 1


def test_malformed_heartbeats_are_refused(foreign_client: ForeignClient) -> None:
    for body in (b"", b"[]", b"{}", b'{"clientID":"x","consumerDataSet":[1]}', b'{"clientID":"x","consumerDataSet":1}'):
        assert foreign_client.ask(Command(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.INVALID_PARAMETER


def test_queue_locks_end_with_their_client(services: Services, queue: MessageQueue) -> None:
    address = services.brokers["broker-a"].address
    other = MessageQueue("t", "broker-a", 1)
    with ForeignClient(address) as first, ForeignClient(address) as second:
        first.ask(heartbeat("x", t="*"))
        second.ask(heartbeat("y", t="*"))
        assert locked_queue_ids(first.ask(lock_command("x", "g", [queue, other]))) == [0, 1]
        assert locked_queue_ids(second.ask(lock_command("y", "g", [queue, other]))) == []
        first.send(unlock_command("x", "g", [other]), oneway=True)
        first.ask(GetConsumerListByGroup("g").command())
        assert locked_queue_ids(second.ask(lock_command("y", "g", [queue, other]))) == [1]
        first.close()
        again = lock_command("y", "g", [queue, other])
        poll_until(lambda: locked_queue_ids(second.ask(again)) == [0, 1], SESSION_GRACE_SECONDS + 2)


@pytest.mark.parametrize(
    ("kind", "expression", "code"),
    [
        ("TAG", "a || b", ResponseCode.SUCCESS),
        (None, "*", ResponseCode.SUCCESS),
        ("SQL92", "a > 1", ResponseCode.SUCCESS),
        ("SQL92", "a >", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
def test_client_filter_is_checked(foreign_client: ForeignClient, kind: str | None, expression: str, code: int) -> None:
    subscription_data = {"topic": "t", "subString": expression, "expressionType": kind}
    body = json.dumps({"clientId": "x", "group": "g", "subscriptionData": subscription_data}).encode()
    assert foreign_client.ask(Command(RequestCode.CHECK_CLIENT_CONFIG, body=body)).code == code


def test_unknown_queues_leave_no_state(services: Services, queue: MessageQueue) -> None:
    broker = services.brokers["broker-a"]
    unknown = MessageQueue("t", "broker-a", 77)
    with ForeignClient(broker.address) as client:
        client.ask(heartbeat("x", t="*"))
        assert locked_queue_ids(
            client.ask(lock_command("x", "g", [unknown, queue, MessageQueue("made-up", "broker-a", 0)]))
        ) == [0]
        for topic, queue_id in (("made-up", 0), ("t", 77), ("t", -1)):
            fields = {"consumerGroup": "g", "topic": topic, "queueId": queue_id, "queueOffset": 0, "maxMsgNums": 1}
            fields |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}
            assert client.ask(Command(RequestCode.PULL_MESSAGE, fields)).code != ResponseCode.SUCCESS
    assert not broker.groups.owners("g")
