"""Test push consumers against real services over real sockets, without Ray."""

from __future__ import annotations

import time

import pytest

from raymq.client import (
    Admin,
    Connection,
    ConsumeFrom,
    ConsumeResult,
    InvalidInput,
    Message,
    MessageExpired,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    SendStatus,
    SubscriptionMismatch,
    TopicNotFound,
)
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def test_push_consumer_delivers_messages_once_and_commits(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    producer.send_batch([Message("t", b"before-%d" % n) for n in range(50)])
    taker = RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker, batch_size=7):
        producer.send_batch([Message("t", b"after-%d" % n) for n in range(50)])
        poll_until(lambda: len(taker.taken) >= 100, 10)
        owners = {found.owner for queue, found in admin.group_progress("g").items() if queue.topic == "t"}
        assert len(owners) == 1
        assert None not in owners
    assert len(set(taker.bodies)) == len(taker.bodies) == 100
    progress = admin.group_progress("g")
    assert {found.owner for found in progress.values()} == {None}
    assert sum(p.committed_offset or 0 for q, p in progress.items() if q.topic == "t") == 100
    again = RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, again):
        producer.send(Message("t", b"new"))
        poll_until(lambda: again.taken, 10)
    assert again.bodies == [b"new"]


def test_new_group_starts_at_consume_from(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    producer.send(Message("t", b"old"))
    middle = time.time() + 0.01
    poll_until(lambda: time.time() > middle, 1)
    producer.send(Message("t", b"new"))
    for start, timestamp, expected in (
        (ConsumeFrom.FIRST, None, [b"last", b"new", b"old"]),
        (ConsumeFrom.TIMESTAMP, middle, [b"last", b"new"]),
        (ConsumeFrom.LAST, None, [b"last"]),
    ):
        taker = RecordingListener()
        group = f"g-{start.name}"
        with PushConsumer(mq, group, {"t": "*"}, taker, consume_from=start, consume_timestamp=timestamp):
            last = producer.send(Message("t", b"last"))
            poll_until(lambda t=taker: b"last" in t.bodies, 10)  # type: ignore[misc]
            poll_until(lambda t=taker, e=expected: len(t.taken) >= len(e), 10)  # type: ignore[misc]
        assert [body for body in taker.bodies if body != b"last"] == [b for b in expected if b != b"last"]
        assert last.status is SendStatus.SEND_OK


def test_tags_are_filtered(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    taker = RecordingListener()
    tags = ["paid", "shipped", "open", "Aa", "BB", None]
    with PushConsumer(mq, "g", {"t": "paid || Aa"}, taker):
        producer.send_batch([Message("t", str(tag).encode(), tags=tag) for tag in tags])
        poll_until(lambda: len(taker.taken) >= 2, 10)
        poll_until(lambda: _lag(admin, "g") == 0, 10, "filtered messages are passed, too")
    assert taker.bodies == [b"Aa", b"paid"]


def test_failed_message_is_retried_until_dead_letter_queue(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    results = producer.send_batch([Message("t", b"good"), Message("t", b"bad", keys="k", properties={"a": "b"})])
    taker = RecordingListener(lambda message: ConsumeResult.RECONSUME_LATER if message.body == b"bad" else None)
    pull = PullConsumer(mq, "reader")
    with PushConsumer(mq, "g", {"t": "*"}, taker, max_reconsume_times=2):
        queue = poll_until(lambda: _queues(pull, "%DLQ%g"), 20)[0]
        dead = poll_until(lambda: pull.poll(queue, timeout=1.0), 20)[0]
        poll_until(lambda: _lag(admin, "g") == 0, 10)
    assert len(admin.dlq_list("g")) == 1
    assert sorted(taker.deliveries) == [(b"bad", 0), (b"bad", 1), (b"bad", 2), (b"good", 0)]
    assert (dead.topic, dead.message_id, dead.unique_key) == ("t", results[1].message_id, results[1].unique_key)
    assert (dead.keys, dead.properties, dead.queue.topic) == (["k"], {"a": "b"}, "%DLQ%g")


@pytest.mark.parametrize("answer", ["raise", "none", "later", "level", "dead"])
def test_failure_results_are_retried_or_dead_lettered(mq: Connection, admin: Admin, answer: str) -> None:
    deliveries: list[int] = []
    levels: list[str | None] = []

    def listener(messages: list[ReceivedMessage]) -> object:
        deliveries.append(messages[0].reconsume_times)
        levels.append(messages[0].system_properties.get("DELAY"))
        if messages[0].reconsume_times:
            return ConsumeResult.SUCCESS
        if answer == "raise":
            raise ValueError("no")
        return {"none": None, "later": ConsumeResult.RECONSUME_LATER, "level": Retry(2), "dead": Retry(-1)}[answer]

    with PushConsumer(mq, "g", {"t": "*"}, listener):  # type: ignore[arg-type]
        Producer(mq, "p").send(Message("t", b"x"))
        poll_until(lambda: deliveries and _lag(admin, "g") == 0 and _pending(admin) == 0, 20)
        if answer != "dead":
            poll_until(lambda: deliveries == [0, 1], 20)
    assert deliveries == ([0] if answer == "dead" else [0, 1])
    assert levels == ([None] if answer == "dead" else [None, "2" if answer == "level" else "3"])
    assert ("%DLQ%g" in admin.topics(system=True)) == (answer == "dead")


def test_delayed_message_is_not_delivered_early(mq: Connection, admin: Admin) -> None:
    taker = RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker):
        result = Producer(mq, "p").send(Message("t", b"late", delay_level=1))
        assert result.queue.topic == "SCHEDULE_TOPIC_XXXX"
        poll_until(lambda: taker.taken, 10)
    message = taker.taken[0]
    assert message.unique_key == result.unique_key
    assert message.store_timestamp >= admin.query_by_id(result.message_id).store_timestamp + 1.0
    with pytest.raises(InvalidInput):
        Producer(mq, "p").send_batch([Message("t", b"x", delay_level=1)])


def test_members_share_queues_and_take_over(mq: Connection, services: Services, admin: Admin) -> None:
    first, second = RecordingListener(), RecordingListener()
    producer = Producer(mq, "p")
    one = PushConsumer(mq, "g", {"t": "*"}, first)
    one.start()
    with Connection([services.name_server.address]) as other:
        two = PushConsumer(other, "g", {"t": "*"}, second)
        two.start()

        def both_work() -> bool:
            producer.send_batch([Message("t", b"x") for _ in range(4)])
            for queue in PullConsumer(mq, "q").queues("t"):
                producer.send(Message("t", b"x"), queue=queue)
            return bool(first.taken and second.taken)

        poll_until(both_work, 20)
    before = len(first.taken)
    producer.send_batch([Message("t", b"after") for _ in range(20)])
    poll_until(lambda: first.bodies.count(b"after") == 20, 20, "the one that is left takes over")
    assert len(first.taken) > before
    one.shutdown()


def test_different_subscription_in_group_is_refused(mq: Connection, services: Services, admin: Admin) -> None:
    with (
        PushConsumer(mq, "g", {"t": "paid"}, RecordingListener()),
        Connection([services.name_server.address]) as other,
        pytest.raises(SubscriptionMismatch, match=r"shipped.*paid"),
    ):
        PushConsumer(other, "g", {"t": "shipped"}, RecordingListener()).start()


def test_broadcast_reaches_every_member(mq: Connection, services: Services, admin: Admin) -> None:
    takers = [RecordingListener(), RecordingListener(lambda message: ConsumeResult.RECONSUME_LATER)]
    with Connection([services.name_server.address]) as other:
        for connection, taker in zip((mq, other), takers, strict=True):
            PushConsumer(connection, "g", {"t": "*"}, taker, model=MessageModel.BROADCASTING).start()
        Producer(mq, "p").send_batch([Message("t", b"%d" % n) for n in range(10)])
        poll_until(lambda: all(len(taker.deliveries) == 10 for taker in takers), 10)
    assert "%DLQ%g" not in admin.topics(system=True)


def test_broker_restart_loses_no_message(mq: Connection, services: Services, admin: Admin) -> None:
    producer = Producer(mq, "p", timeout=5.0)
    taker = RecordingListener()
    with PushConsumer(mq, "g", {"t": "*"}, taker):
        producer.send_batch([Message("t", b"%d" % n) for n in range(10)])
        services.stop_broker("broker-a")
        results = [producer.send(Message("t", b"%d" % n)) for n in range(10, 20)]
        assert {result.queue.broker for result in results} == {"broker-b"}
        services.start_broker("broker-a")
        poll_until(lambda: len(set(taker.bodies)) == 20, 30)
    assert services.brokers["broker-a"].status().epoch == 2


def test_expired_log_files_are_deleted(
    mq: Connection, services: Services, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(mq, "p", timeout=10.0)
    queue = MessageQueue("t", "broker-a", 0)
    first = producer.send_batch([Message("t", b"x" * 1_000_000) for _ in range(40)], queue=queue)[0]
    store = services.brokers["broker-a"].store
    monkeypatch.setattr(store._age, "now_ms", lambda: int((time.time() + 80 * 3_600) * 1000))

    async def delete() -> int:
        return store.delete_expired(asked=True).log_files

    store.flush()  # only flushed files are deleted
    assert services.loop.run(delete()) > 1
    with pytest.raises(MessageExpired):
        admin.query_by_id(first.message_id)
    low, high = PullConsumer(mq, "g").offsets(queue)
    assert (low > 0, high) == (True, 40)
    with PushConsumer(mq, "late", {"t": "*"}, taker := RecordingListener()):
        poll_until(lambda: len(taker.taken) >= high - low, 20)


def _queues(pull: PullConsumer, topic: str) -> list[MessageQueue]:
    try:
        return pull.queues(topic)
    except TopicNotFound:
        return []


def _lag(admin: Admin, group: str) -> int:
    return sum(found.lag or 0 for found in admin.group_progress(group).values())


def _pending(admin: Admin) -> int:
    """Return the retry topic's lag; messages in the schedule topic count in no lag."""
    return sum(found.lag or 0 for q, found in admin.group_progress("g").items() if q.topic.startswith("%RETRY%"))
