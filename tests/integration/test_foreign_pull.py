"""What RocketMQ's clients do to consume, command by command, over sockets."""

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
from tests.integration.foreign import Foreign
from tests.polling import poll_until

OFFSETS = ("nextBeginOffset", "minOffset", "maxOffset")


@pytest.fixture
def queue(services: Services, admin: Admin) -> MessageQueue:
    """A queue of the topic "t"."""
    return MessageQueue("t", "broker-a", 0)


@pytest.fixture
def producer(mq: Connection, queue: MessageQueue) -> Iterator[Producer]:
    with Producer(mq, "p") as made:
        yield made


@pytest.fixture
def foreign(services: Services, queue: MessageQueue) -> Iterator[Foreign]:
    with Foreign(services.brokers["broker-a"].address) as made:
        yield made


def send(producer: Producer, queue: MessageQueue, *bodies: bytes, tags: str | None = None) -> None:
    for body in bodies:
        producer.send(Message("t", body, tags=tags), queue=queue)


def pull(offset: int, **changes: Any) -> PullMessage:
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


def locked(answer: Command) -> list[int]:
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
def test_the_answers_of_a_pull(
    producer: Producer, queue: MessageQueue, foreign: Foreign, offset: int, code: int, next_offset: int, found: int
) -> None:
    send(producer, queue, b"0", b"1", b"2")
    answer = foreign.ask(pull(offset).command())
    assert answer.code == code
    assert [answer.fields[name] for name in OFFSETS] == [str(next_offset), "0", "3"]
    assert answer.fields["suggestWhichBrokerId"] == "0"
    assert [record.body for record in read_records(answer)] == [b"%d" % n for n in range(3)][3 - found :]


def test_tags_are_compared_on_the_broker(producer: Producer, queue: MessageQueue, foreign: Foreign) -> None:
    for number in range(4):
        send(producer, queue, b"%d" % number, tags="ab"[number % 2])
    answer = foreign.ask(pull(0, subscription="b || c").command())
    assert [record.body for record in read_records(answer)] == [b"1", b"3"]
    answer = foreign.ask(pull(0, subscription="z").command())
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "4")


def test_large_answers_arrive_whole(producer: Producer, queue: MessageQueue, foreign: Foreign) -> None:
    bodies = [bytes([n]) * 300_000 for n in range(20)]
    send(producer, queue, *bodies)
    answer = foreign.ask(pull(0, max_msg_bytes=2**31 - 1).command())
    assert [record.body for record in read_records(answer)] == bodies
    answer = foreign.ask(pull(0).command())
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
def test_refused_pulls(foreign: Foreign, changes: dict[str, Any], code: int) -> None:
    assert foreign.ask(pull(0, **changes).command()).code == code


def test_the_heartbeats_subscription_counts_for_pulls_that_name_none(
    producer: Producer, queue: MessageQueue, foreign: Foreign
) -> None:
    for number in range(4):
        send(producer, queue, b"%d" % number, tags="ab"[number % 2])
    foreign.ask(heartbeat(version=7, t="a"))
    answer = foreign.ask(pull(0, sys_flag=0, sub_version=7).command())
    assert [record.body for record in read_records(answer)] == [b"0", b"2"]
    assert foreign.ask(pull(0, sys_flag=0, sub_version=8).command()).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    other_topic = pull(0, sys_flag=0, topic="%RETRY%g").command()
    assert foreign.ask(other_topic).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


@pytest.mark.parametrize("header", [PullMessage, LitePullMessage])
def test_a_parked_pull_waits_for_what_it_wants(
    producer: Producer, queue: MessageQueue, foreign: Foreign, header: type[PullMessage]
) -> None:
    asked = pull(0, sys_flag=HAS_SUBSCRIPTION | MAY_PARK, suspend_timeout_millis=15_000, subscription="b")
    opaque = foreign.send(Command(header.CODE, asked.fields()))
    foreign.ask(GetMaxOffset(queue.topic, queue.queue_id).command())  # answered in order: the pull is parked now
    send(producer, queue, b"not this", tags="a")
    assert not foreign.has_answer(opaque)
    send(producer, queue, b"this", tags="b")
    answer = foreign.answer(opaque)
    assert [record.body for record in read_records(answer)] == [b"this"]
    assert answer.fields["nextBeginOffset"] == "2"


def test_a_parked_pull_ends_at_its_time(producer: Producer, queue: MessageQueue, foreign: Foreign) -> None:
    asked = pull(0, sys_flag=HAS_SUBSCRIPTION | MAY_PARK, suspend_timeout_millis=300)
    assert foreign.ask(asked.command()).code == ResponseCode.PULL_NOT_FOUND
    asked = pull(0, sys_flag=HAS_SUBSCRIPTION | MAY_PARK, suspend_timeout_millis=600, subscription="b")
    opaque = foreign.send(asked.command())
    send(producer, queue, b"not this", tags="a")
    answer = foreign.answer(opaque)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "1")


def test_the_end_of_a_connection_frees_its_parked_pulls(services: Services, queue: MessageQueue) -> None:
    broker = services.brokers["broker-a"]
    asked = pull(0, sys_flag=HAS_SUBSCRIPTION | MAY_PARK, suspend_timeout_millis=30_000)
    with Foreign(broker.address) as killed:
        for _ in range(100):
            killed.send(asked.command())
        poll_until(lambda: len(broker.polls) == 100, 5)
    poll_until(lambda: len(broker.polls) == 0, 1)


def test_a_deleted_topic_ends_what_is_parked_there(services: Services, queue: MessageQueue, foreign: Foreign) -> None:
    broker = services.brokers["broker-a"]
    opaque = foreign.send(pull(0, sys_flag=HAS_SUBSCRIPTION | MAY_PARK, suspend_timeout_millis=30_000).command())
    poll_until(lambda: len(broker.polls) == 1, 5)

    async def delete() -> None:
        broker.core.topics.delete("t")
        broker.polls.arrived([("t", 0)])

    services.loop.run(delete())
    assert foreign.answer(opaque).code == ResponseCode.TOPIC_NOT_EXIST


def test_offsets(producer: Producer, queue: MessageQueue, foreign: Foreign) -> None:
    send(producer, queue, b"0", b"1", b"2")
    ask = QueryConsumerOffset("g", "t", 0)
    assert foreign.ask(UpdateConsumerOffset("g", "t", 0, 1).command()).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert foreign.ask(ask.command()).fields["offset"] == "0", "a young queue"
    strict = QueryConsumerOffset("g", "t", 0, set_zero_if_not_found=False)
    assert foreign.ask(strict.command()).code == ResponseCode.QUERY_NOT_FOUND
    foreign.ask(heartbeat(t="*"))
    foreign.send(UpdateConsumerOffset("g", "t", 0, 2).command(), oneway=True)
    assert foreign.ask(ask.command()).fields["offset"] == "2"
    foreign.ask(UpdateConsumerOffset("g", "t", 0, 1).command())
    assert foreign.ask(ask.command()).fields["offset"] == "1"
    assert foreign.ask(UpdateConsumerOffset("g", "x", 0, 1).command()).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_pull_commits_an_offset(producer: Producer, queue: MessageQueue, foreign: Foreign) -> None:
    send(producer, queue, b"0", b"1", b"2")
    foreign.ask(pull(2, sys_flag=HAS_SUBSCRIPTION | COMMIT_OFFSET, commit_offset=2).command())
    assert foreign.ask(QueryConsumerOffset("g", "t", 0).command()).fields["offset"] == "2"


@pytest.mark.parametrize("group", ["g", "new"])
def test_a_pull_whose_commit_finds_no_room_gets_its_messages(
    producer: Producer, queue: MessageQueue, foreign: Foreign, group: str
) -> None:
    send(producer, queue, b"0", b"1", b"2")
    foreign.ask(heartbeat(t="*"))
    committing = pull(2, consumer_group=group, sys_flag=HAS_SUBSCRIPTION | COMMIT_OFFSET, commit_offset=2).command()
    disk = FailingDisk(1, "write")
    with replaced(disk):
        disk.chance = 1.0
        answer = foreign.ask(committing)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.SUCCESS, "3")
    assert foreign.ask(QueryConsumerOffset(group, "t", 0).command()).fields["offset"] == "0", "not committed"
    foreign.ask(committing)
    assert foreign.ask(QueryConsumerOffset(group, "t", 0).command()).fields["offset"] == "2"


def test_a_reset_reaches_a_parked_pull(
    services: Services, producer: Producer, queue: MessageQueue, foreign: Foreign
) -> None:
    broker = services.brokers["broker-a"]
    send(producer, queue, b"0", b"1", b"2")
    flags = HAS_SUBSCRIPTION | MAY_PARK | COMMIT_OFFSET
    opaque = foreign.send(pull(3, sys_flag=flags, commit_offset=3, suspend_timeout_millis=30_000).command())
    poll_until(lambda: len(broker.polls) == 1, 5)

    async def reset() -> None:
        broker.core.reset_offset("g", "t", 0, 1)

    services.loop.run(reset())
    answer = foreign.answer(opaque)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    assert foreign.ask(QueryConsumerOffset("g", "t", 0).command()).fields["offset"] == "1"


def test_heartbeats_make_the_group_and_tell_its_members(services: Services, queue: MessageQueue) -> None:
    address = services.brokers["broker-a"].address
    members = GetConsumerListByGroup("g")
    with Foreign(address) as first, Foreign(address) as second:
        assert first.ask(members.command()).code == ResponseCode.SYSTEM_ERROR
        answer = first.ask(heartbeat("x", t="*"))
        assert answer.fields["IS_SUPPORT_HEART_BEAT_V2"] == "true"
        route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%g"})
        with Foreign(services.name_server.address) as asks:
            assert asks.ask(route).code == ResponseCode.SUCCESS, "the retry topic is in the route by now"
        first.pushed.clear()
        second.ask(heartbeat("y", t="*"))
        told = first.next_push()
        assert (told.code, told.fields["consumerGroup"]) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, "g")
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


def test_the_first_member_of_a_group_is_told_late(foreign: Foreign) -> None:
    foreign.ask(heartbeat("x", t="*"))
    begun = time.monotonic()
    assert foreign.next_push().fields["consumerGroup"] == "g"
    assert time.monotonic() - begun > 1


def test_heartbeats_that_are_none(foreign: Foreign) -> None:
    for body in (b"", b"[]", b"{}", b'{"clientID":"x","consumerDataSet":[1]}', b'{"clientID":"x","consumerDataSet":1}'):
        assert foreign.ask(Command(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.INVALID_PARAMETER


def test_queue_locks_fall_with_their_client(services: Services, queue: MessageQueue) -> None:
    address = services.brokers["broker-a"].address
    other = MessageQueue("t", "broker-a", 1)
    with Foreign(address) as first, Foreign(address) as second:
        first.ask(heartbeat("x", t="*"))
        second.ask(heartbeat("y", t="*"))
        assert locked(first.ask(lock_command("x", "g", [queue, other]))) == [0, 1]
        assert locked(second.ask(lock_command("y", "g", [queue, other]))) == []
        first.send(unlock_command("x", "g", [other]), oneway=True)
        first.ask(GetConsumerListByGroup("g").command())
        assert locked(second.ask(lock_command("y", "g", [queue, other]))) == [1]
        first.close()
        again = lock_command("y", "g", [queue, other])
        poll_until(lambda: locked(second.ask(again)) == [0, 1], SESSION_GRACE_SECONDS + 2)


@pytest.mark.parametrize(
    ("kind", "expression", "code"),
    [
        ("TAG", "a || b", ResponseCode.SUCCESS),
        (None, "*", ResponseCode.SUCCESS),
        ("SQL92", "a > 1", ResponseCode.SUCCESS),
        ("SQL92", "a >", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
def test_a_clients_filter_is_checked(foreign: Foreign, kind: str | None, expression: str, code: int) -> None:
    told = {"topic": "t", "subString": expression, "expressionType": kind}
    body = json.dumps({"clientId": "x", "group": "g", "subscriptionData": told}).encode()
    assert foreign.ask(Command(RequestCode.CHECK_CLIENT_CONFIG, body=body)).code == code


def test_nothing_is_remembered_of_queues_that_are_not_there(services: Services, queue: MessageQueue) -> None:
    broker = services.brokers["broker-a"]
    away = MessageQueue("t", "broker-a", 77)
    with Foreign(broker.address) as client:
        client.ask(heartbeat("x", t="*"))
        assert locked(client.ask(lock_command("x", "g", [away, queue, MessageQueue("made-up", "broker-a", 0)]))) == [0]
        for topic, queue_id in (("made-up", 0), ("t", 77), ("t", -1)):
            fields = {"consumerGroup": "g", "topic": topic, "queueId": queue_id, "queueOffset": 0, "maxMsgNums": 1}
            fields |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}
            assert client.ask(Command(RequestCode.PULL_MESSAGE, fields)).code != ResponseCode.SUCCESS
    assert not broker.groups.owners("g")
