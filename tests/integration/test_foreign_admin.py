"""Test the commands of RocketMQ's administration tools over sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from raymq.actors.wire import java_properties as properties
from raymq.actors.wire.codes import RequestCode, ResponseCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.headers import admin_headers as headers
from raymq.actors.wire.headers import query_headers, route_headers
from raymq.actors.wire.headers.group_headers import HeartBeat
from raymq.actors.wire.headers.header import Header
from raymq.actors.wire.headers.pull_headers import HAS_SUBSCRIPTION, PullMessage
from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from tests.integration.conftest import Services
from tests.integration.foreign_client import ForeignClient
from tests.polling import poll_until

QUEUE = MessageQueue("t", "broker-a", 0)
CLIENT_ID = "10.0.0.1@java"
RUNTIME_KEYS = [
    "brokerVersionDesc",
    "brokerVersion",
    "bootTimestamp",
    "putTps",
    "getTransferredTps",
    "getTransferedTps",
    "getTotalTps",
    "msgPutTotalTodayNow",
    "msgPutTotalTodayMorning",
    "msgPutTotalYesterdayMorning",
    "msgGetTotalTodayNow",
    "msgGetTotalTodayMorning",
    "msgGetTotalYesterdayMorning",
    "sendThreadPoolQueueSize",
    "sendThreadPoolQueueCapacity",
    "pullThreadPoolQueueSize",
    "pageCacheLockTimeMills",
    "commitLogDiskRatio",
    "runtime",
    "earliestMessageTimeStamp",
    "timerReadBehind",
    "putMessageAverageSize",
    "totalMemKBytes",
]


@pytest.fixture
def broker(services: Services, admin: Admin) -> Iterator[ForeignClient]:
    """Yield a connection to broker-a, where the topic t has 2 queues."""
    with ForeignClient(services.brokers["broker-a"].address) as made:
        yield made


@pytest.fixture
def name_server(services: Services) -> Iterator[ForeignClient]:
    with ForeignClient(services.name_server.address) as made:
        yield made


def json_command(code: RequestCode, value: Any = None) -> Command:
    return Command(code, body=b"" if value is None else json.dumps(value).encode())


def queue_key(queue_id: int, topic: str = "t") -> str:
    return json.dumps({"brokerName": "broker-a", "queueId": queue_id, "topic": topic}, separators=(",", ":"))


def send(mq: Connection, count: int, keys: tuple[str, ...] = ()) -> list[str]:
    with Producer(mq, "p") as producer:
        return [producer.send(Message("t", b"x", keys=keys), queue=QUEUE).message_id for _ in range(count)]


def join_group(broker: ForeignClient, group: str) -> None:
    """Join a consumer group that subscribes to all of t."""
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [{"topic": "t", "subString": "*", "expressionType": "TAG", "subVersion": 1}],
    }
    payload = {"clientID": CLIENT_ID, "producerDataSet": [{"groupName": "makers"}], "consumerDataSet": [consumer]}
    broker.done(HeartBeat().command(json.dumps(payload).encode()))


def forward_and_answer(broker: ForeignClient, question: Command, code: int, answer: bytes) -> Command:
    """Send a request that the broker forwards to this same connection, and answer it."""
    opaque = broker.send(question)
    request = broker.next_push()
    while request.code != code:  # skip notifications about the group's members
        request = broker.next_push()
    response = request.response(ResponseCode.SUCCESS, body=answer)
    broker.reply(response)
    return broker.answer(opaque)


# -- topics ---------------------------------------------------------------------------------------------------------


def test_new_topic_is_routed_before_the_answer(broker: ForeignClient, name_server: ForeignClient) -> None:
    broker.done(headers.UpdateAndCreateTopic("new", 3, 2, 6, order=True, attributes="+message.type=FIFO"))
    route = name_server.json(route_headers.GetRouteInfo("new"))
    assert [(q["brokerName"], q["readQueueNums"], q["writeQueueNums"], q["perm"]) for q in route["queueDatas"]] == [
        ("broker-a", 3, 2, 6)
    ]
    assert route["brokerDatas"][0]["brokerAddrs"].keys() == {"0"}
    config = broker.json(headers.GetTopicConfig("new"))
    assert (config["order"], config["attributes"]) == (True, {"message.type": "FIFO"})
    broker.done(headers.DeleteTopicInBroker("new"))
    request = route_headers.GetRouteInfo("new")  # in its first 2 s the name server answers "retry later" instead
    poll_until(lambda: name_server.refused(request) == ResponseCode.TOPIC_NOT_EXIST)
    assert broker.refused(headers.GetTopicConfig("new")) == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (headers.UpdateAndCreateTopic("no such name", 1, 1), ResponseCode.INVALID_PARAMETER),
        (headers.UpdateAndCreateTopic("SELF_TEST_TOPIC", 1, 1), ResponseCode.INVALID_PARAMETER),
        (headers.UpdateAndCreateTopic("new", 1, 1, attributes="+colour=red"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_invalid_topics_are_refused(broker: ForeignClient, header: Header, code: int) -> None:
    assert broker.refused(header) == code


def test_topic_lists(broker: ForeignClient, name_server: ForeignClient) -> None:
    topics = [{"topicName": f"many{n}", "readQueueNums": n, "writeQueueNums": n, "perm": 6} for n in (1, 2)]
    broker.done(json_command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": topics}))
    table = broker.json(json_command(RequestCode.GET_ALL_TOPIC_CONFIG))["topicConfigTable"]
    assert table["many2"]["writeQueueNums"] == 2
    system = broker.json(json_command(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
    assert {"SCHEDULE_TOPIC_XXXX", "broker-a", "test"} <= set(system)
    assert {"t", "many1"} <= set(
        name_server.json(json_command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))["topicList"]
    )
    assert "t" in name_server.json(route_headers.GetTopicsByCluster("test"))["topicList"]
    assert name_server.json(route_headers.GetTopicsByCluster("other"))["topicList"] == []
    assert name_server.json(json_command(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS))["topicList"] == [
        "broker-a",
        "broker-b",
        "test",
    ]
    assert broker.refused(json_command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {})) == ResponseCode.INVALID_PARAMETER


def test_raymq_admin_lists_only_user_topics(admin: Admin) -> None:
    assert admin.topics() == ["t"]
    assert "broker-a" in admin.topics(system=True)


# -- groups and offsets ---------------------------------------------------------------------------------------------


def test_group_settings_and_deletion(broker: ForeignClient) -> None:
    group = {"groupName": "g", "retryMaxTimes": 5, "retryQueueNums": 2, "consumeBroadcastEnable": False}
    broker.done(json_command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group))
    broker.done(
        json_command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": [{"groupName": "h"}]})
    )
    config = broker.json(headers.GetSubscriptionGroupConfig("g"))
    assert (config["retryMaxTimes"], config["retryQueueNums"], config["consumeBroadcastEnable"]) == (5, 2, False)
    table = broker.json(json_command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))["subscriptionGroupTable"]
    assert {"g", "h"} <= table.keys()
    forbidden = broker.json(headers.UpdateAndGetGroupForbidden("g", "t", False))
    assert forbidden == {"group": "g", "readable": False, "topic": "t"}
    assert broker.json(headers.UpdateAndGetGroupForbidden("g", "t"))["readable"] is False
    pull = PullMessage("g", "t", 0, 0, 32, HAS_SUBSCRIPTION)
    assert broker.refused(pull) == ResponseCode.NO_PERMISSION
    broker.done(headers.DeleteSubscriptionGroup("g", True))
    gone = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert broker.refused(headers.GetConsumeStats("g", strict=True)) == gone
    assert broker.json(headers.GetConsumeStats("g"))["offsetTable"] == {}
    assert broker.json(headers.QueryTopicsByConsumer("g"))["topicList"] == []
    assert broker.json(headers.QuerySubscriptionByConsumer("g", "t"))["subscriptionData"] is None
    assert broker.json(headers.GetSubscriptionGroupConfig("g"))["retryMaxTimes"] == 16, "recreated, as by RocketMQ"


def test_group_progress_and_offset_resets(broker: ForeignClient, mq: Connection) -> None:
    send(mq, 4)
    for name in ("g", "h"):
        broker.done(json_command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": name}))
    moved = broker.json(headers.ResetOffset("t", "g", queue_id=0, offset=3))
    assert moved["offsetTable"] == {queue_key(0): 3}
    stats = broker.json(headers.GetConsumeStats("g"))["offsetTable"]
    assert (stats[queue_key(0)]["brokerOffset"], stats[queue_key(0)]["consumerOffset"]) == (4, 3)
    assert stats[queue_key(0)]["lastTimestamp"] > 0
    assert stats[queue_key(1)] == {
        "brokerOffset": 0,
        "consumerOffset": 0,
        "lastTimestamp": 0,
        "pullOffset": 0,
        "raymqCommitted": None,
        "raymqOwner": None,
        "raymqInFlight": None,
        "raymqReady": None,
        "raymqUnfinishedMillis": None,
    }
    assert queue_key(0, "%RETRY%g") in stats
    assert broker.json(headers.GetConsumeStats("g", "t"))["offsetTable"].keys() == {queue_key(0), queue_key(1)}
    listed = broker.json(headers.GetBrokerConsumeStats())
    assert {"g", "h"} <= {group for item in listed["consumeStatsList"] for group in item}
    broker.done(headers.CloneGroupOffset("g", "h", "t"))
    assert broker.json(headers.GetConsumeStats("h", "t"))["offsetTable"][queue_key(0)]["consumerOffset"] == 3
    assert broker.json(headers.ResetOffset("t", "g", timestamp=0))["offsetTable"] == {queue_key(0): 0, queue_key(1): 0}
    assert broker.json(headers.ResetOffset("t", "g"))["offsetTable"] == {queue_key(0): 4, queue_key(1): 0}
    spans = broker.json(headers.QueryConsumeTimeSpan("t", "g"))["consumeTimeSpanSet"]
    assert spans[0]["maxTimeStamp"] >= spans[0]["minTimeStamp"] > 0
    assert {"g", "h"} <= set(broker.json(headers.QueryTopicConsumeByWho("t"))["groupList"])
    assert "t" in broker.json(headers.QueryTopicsByConsumer("g"))["topicList"]


@pytest.mark.parametrize("running", [True, False])
def test_reset_reaches_raymq_consumers(broker: ForeignClient, mq: Connection, admin: Admin, running: bool) -> None:
    send(mq, 4)
    seen: list[int] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        seen.extend(message.queue_offset for message in messages)
        return ConsumeResult.SUCCESS

    def consumer() -> PushConsumer:
        return PushConsumer(mq, "g", {"t": "*"}, listener)

    def committed() -> int | None:
        return admin.group_progress("g")[QUEUE].committed_offset

    with consumer():
        poll_until(lambda: committed() == 4)
        if running:
            broker.done(headers.ResetOffset("t", "g", timestamp=0))
            poll_until(lambda: len(seen) == 8 and committed() == 4)
    if not running:
        broker.done(headers.ResetOffset("t", "g", timestamp=0))
        with consumer():
            poll_until(lambda: len(seen) == 8 and committed() == 4)
    assert sorted(seen) == sorted([0, 1, 2, 3] * 2)


def test_pull_consumer_commit_overrides_reset(broker: ForeignClient, mq: Connection) -> None:
    send(mq, 4)
    with PullConsumer(mq, "g") as consumer:
        consumer.commit(QUEUE, 4)
        broker.done(headers.ResetOffset("t", "g", timestamp=0))
        consumer.commit(QUEUE, 2)
        assert consumer.committed(QUEUE) == 2


# -- clients --------------------------------------------------------------------------------------------------------


def test_consumer_and_producer_connections(broker: ForeignClient) -> None:
    assert broker.refused(headers.GetConsumerConnectionList("g")) == ResponseCode.CONSUMER_NOT_ONLINE
    assert broker.refused(headers.GetProducerConnectionList("makers")) == ResponseCode.SYSTEM_ERROR
    join_group(broker, "g")
    found = broker.json(headers.GetConsumerConnectionList("g"))
    (connection,) = found["connectionSet"]
    assert (connection["clientId"], connection["language"]) == (CLIENT_ID, "JAVA")
    assert connection["clientAddr"].startswith("127.0.0.1:")
    assert (found["consumeType"], found["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert found["subscriptionTable"]["t"]["subString"] == "*"
    (producer,) = broker.json(headers.GetProducerConnectionList("makers"))["connectionSet"]
    assert producer["clientId"] == CLIENT_ID
    (listed,) = broker.json(json_command(RequestCode.GET_ALL_PRODUCER_INFO))["data"]["makers"]
    assert (listed["clientId"], listed["remoteIP"]) == (CLIENT_ID, connection["clientAddr"])
    assert broker.json(headers.QuerySubscriptionByConsumer("g", "t"))["subscriptionData"]["subString"] == "*"


def test_requests_to_clients_are_forwarded_unchanged(broker: ForeignClient, mq: Connection) -> None:
    (message_id,) = send(mq, 1)
    join_group(broker, "g")
    odd = b'{"mqTable":{{"topic":"t"}:{}}}'  # Java clients write this, which is not valid JSON
    info = headers.GetConsumerRunningInfo("g", CLIENT_ID, jstack_enable=True)
    answer = forward_and_answer(broker, info.command(), RequestCode.GET_CONSUMER_RUNNING_INFO, odd)
    assert (answer.code, bytes(answer.body)) == (ResponseCode.SUCCESS, odd)
    directly = headers.ConsumeMessageDirectly("g", CLIENT_ID, message_id)
    assert (
        bytes(forward_and_answer(broker, directly.command(), RequestCode.CONSUME_MESSAGE_DIRECTLY, b"{}").body) == b"{}"
    )
    payload = b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"a}\\"","queueId":0,"topic":"t"}:8},"x":{}}'
    status = headers.GetConsumerStatus("t", "g").command()
    answer = forward_and_answer(broker, status, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, payload)
    table = b'{{"brokerName":"a}\\"","queueId":0,"topic":"t"}:8}'
    assert bytes(answer.body) == b'{"consumerTable":{"%s":%s}}' % (CLIENT_ID.encode(), table)
    assert broker.refused(headers.GetConsumerRunningInfo("g", "nobody")) == ResponseCode.CONSUMER_NOT_ONLINE
    assert broker.refused(headers.GetConsumerStatus("t", "h")) == ResponseCode.CONSUMER_NOT_ONLINE


# -- the broker itself ----------------------------------------------------------------------------------------------


def test_broker_runtime_info(broker: ForeignClient, mq: Connection) -> None:
    send(mq, 3)
    table = broker.json(json_command(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert set(RUNTIME_KEYS) <= table.keys()
    assert all(isinstance(value, str) for value in table.values())
    assert float(table["putTps"].split()[0]) >= 0
    assert int(table["earliestMessageTimeStamp"]) > 0
    assert table["brokerVersionDesc"] == "V5_3_3"
    status = broker.json(json_command(RequestCode.GET_BROKER_HA_STATUS))
    assert (status["master"], status["masterCommitLogMaxOffset"]) == (True, int(table["commitLogMaxOffset"]))
    unknown = headers.ViewBrokerStats("TOPIC_PUT_NUMS", "silent")
    assert broker.refused(unknown) == ResponseCode.SYSTEM_ERROR


def test_topic_statistics(services: Services, broker: ForeignClient) -> None:
    services.brokers["broker-a"].statistics.put("t", 3, 300)
    counted = broker.json(headers.ViewBrokerStats("TOPIC_PUT_NUMS", "t"))
    assert {window["sum"] for window in counted.values()} == {3}
    assert counted.keys() == {"statsMinute", "statsHour", "statsDay"}
    in_bytes = broker.json(headers.ViewBrokerStats("TOPIC_PUT_SIZE", "t"))
    assert in_bytes["statsMinute"]["sum"] == 300


def test_broker_settings_are_changed_and_kept(services: Services, broker: ForeignClient) -> None:
    def settings(peer: ForeignClient) -> dict[str, str]:
        return properties.read(peer.done(json_command(RequestCode.GET_BROKER_CONFIG)).body)

    def change(lines: bytes) -> Command:
        return Command(RequestCode.UPDATE_BROKER_CONFIG, body=lines)

    before = settings(broker)
    assert (before["brokerName"], before["brokerClusterName"], before["fileReservedTime"]) == ("broker-a", "test", "72")
    version = json.loads(broker.done(json_command(RequestCode.GET_BROKER_CONFIG)).fields["version"])
    assert version["counter"] == 0
    broker.done(change(b"fileReservedTime=48\ndeleteWhen=05\nsomethingElse=1\n"))
    store = services.brokers["broker-a"].store
    assert (store.retention.hours, store.retention.delete_at_hour) == (48.0, "05")
    for bad in (b"fileReservedTime=soon\n", b"deleteWhen=25\n", b"listenPort=1\n"):
        assert broker.refused(change(bad)) == ResponseCode.INVALID_PARAMETER
    services.stop_broker("broker-a")
    services.start_broker("broker-a")
    with ForeignClient(services.brokers["broker-a"].address) as again:
        after = settings(again)
    assert (after["fileReservedTime"], after["deleteWhen"], after["somethingElse"]) == ("48", "05", "1")
    assert services.brokers["broker-a"].store.retention.hours == 48.0


def test_cleanup_commands_succeed(broker: ForeignClient) -> None:
    for code in (
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
    ):
        broker.done(json_command(code))


# -- queries --------------------------------------------------------------------------------------------------------


def test_message_and_offset_queries(broker: ForeignClient, mq: Connection) -> None:
    ids = send(mq, 3, keys=("k",))
    answer = broker.done(query_headers.QueryMessage("t", "k", 2))
    assert int(answer.fields["indexLastUpdateTimestamp"]) > 0
    assert int(answer.fields["indexLastUpdatePhyoffset"]) > 0
    assert len(answer.body) > 2 * 91
    place = int(ids[0][16:], 16)
    assert len(broker.done(query_headers.ViewMessageById(place)).body) > 91
    entries = broker.json(query_headers.QueryConsumeQueue("t", 0, 1, 10))
    assert (entries["minQueueIndex"], entries["maxQueueIndex"], len(entries["queueData"])) == (0, 3, 2)
    assert broker.done(query_headers.GetEarliestStoreTime("t", 0)).fields["timestamp"] != "-1"
    assert broker.done(query_headers.GetEarliestStoreTime("t", 1)).fields["timestamp"] == "-1"
    far = query_headers.FAR_FUTURE_MS
    assert broker.done(query_headers.SearchOffsetByTimestamp("t", 0, far)).fields["offset"] == "3"
    assert broker.done(query_headers.SearchOffsetByTimestamp("t", 0, far, "UPPER")).fields["offset"] == "2"
    assert broker.done(query_headers.SearchOffsetByTimestamp("t", 1, 0)).fields["offset"] == "0"


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (query_headers.QueryMessage("t", "absent"), ResponseCode.QUERY_NOT_FOUND),
        (query_headers.QueryMessage("absent", "k"), ResponseCode.TOPIC_NOT_EXIST),
        (query_headers.ViewMessageById(1 << 40), ResponseCode.QUERY_NOT_FOUND),
        (query_headers.GetMaxOffset("t", 9), ResponseCode.QUERY_NOT_FOUND),
        (query_headers.SearchOffsetByTimestamp("t", 0, 0, "MIDDLE"), ResponseCode.INVALID_PARAMETER),
    ],
)
def test_failed_queries_return_error_codes(broker: ForeignClient, header: Header, code: int) -> None:
    assert broker.refused(header) == code
