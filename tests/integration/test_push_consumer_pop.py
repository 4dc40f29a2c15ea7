"""Test push consumers with mode="pop" against real services over real sockets, without Ray."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from raymq.actors.wire.codes import RequestCode
from raymq.client import (
    Admin,
    Connection,
    ConsumeFrom,
    ConsumeResult,
    InvalidInput,
    Message,
    MessageModel,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    SimpleConsumer,
    Sql,
    SubscriptionMismatch,
)
from raymq.client.push.message_leases import MessageLease, MessageLeases
from raymq.storage.clock import boottime
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until

pytestmark = pytest.mark.integration

SUCCESS = ConsumeResult.SUCCESS


def pop_consumer(
    mq: Connection, group: str, listener: Callable[..., object], topic: str = "t", **how: object
) -> PushConsumer:
    return PushConsumer(mq, group, {topic: "*"}, listener, mode="pop", **how)  # type: ignore[arg-type]


def lag(admin: Admin, group: str) -> int:
    return sum(each.lag or 0 for queue, each in admin.group_progress(group).items() if queue.topic == "t")


def send(mq: Connection, count: int, start: int = 0) -> list[bytes]:
    bodies = [b"%03d" % number for number in range(start, start + count)]
    producer = Producer(mq, "p")
    for body in bodies:
        producer.send(Message("t", body))
    producer.close()
    return bodies


class BlockedListener:
    """Block every call until `may_end` is set."""

    def __init__(self) -> None:
        self.calls: list[ReceivedMessage] = []
        self.may_end = threading.Event()

    def __call__(self, messages: list[ReceivedMessage]) -> ConsumeResult:
        self.calls += messages
        assert self.may_end.wait(60)
        return SUCCESS

    @property
    def bodies(self) -> list[bytes]:
        return sorted(message.body for message in self.calls)


def test_all_messages_are_consumed_once_and_acknowledged(mq: Connection, admin: Admin) -> None:
    bodies = send(mq, 40)
    taker = RecordingListener()
    with pop_consumer(mq, "g", taker, batch_size=7):
        bodies += send(mq, 40, start=40)
        poll_until(lambda: len(taker.taken) >= 80, 20)
        poll_until(lambda: lag(admin, "g") == 0, 10)
    assert taker.bodies == bodies


def test_more_members_than_queues_share_messages(mq: Connection, admin: Admin) -> None:
    bodies = send(mq, 6)
    listeners = [BlockedListener() for _ in range(6)]
    with ExitStack() as members:
        for held in listeners:
            members.enter_context(pop_consumer(mq, "g", held, threads=1))
        poll_until(lambda: all(held.calls for held in listeners), 20)
        for held in listeners:
            held.may_end.set()
        poll_until(lambda: lag(admin, "g") == 0, 10)
    assert sorted(held.bodies[0] for held in listeners) == bodies


def test_calls_start_despite_time_between_clock_reads(
    mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cover a regression: a call aged between two clock reads, and no call followed."""
    looks = itertools.count()
    monkeypatch.setattr(MessageLeases, "young_until", lambda _: None if next(looks) % 2 else boottime() + 0.01)
    send(mq, 12)
    held = BlockedListener()
    with pop_consumer(mq, "g", held, threads=6):
        poll_until(lambda: len(held.calls) == 6, 10)
        held.may_end.set()


def test_slow_message_does_not_block_others(mq: Connection, admin: Admin) -> None:
    bodies = send(mq, 30)
    slow = threading.Event()
    done: list[bytes] = []

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        if messages[0].body == b"000":
            assert slow.wait(60)
        done.append(messages[0].body)
        return SUCCESS

    with pop_consumer(mq, "g", listener, threads=2):
        poll_until(lambda: len(done) == 29, 20)
        slow.set()
        poll_until(lambda: lag(admin, "g") == 0, 10)
    assert sorted(done) == bodies


def test_lease_is_renewed_during_call(mq: Connection, admin: Admin) -> None:
    send(mq, 3)
    held, other = BlockedListener(), RecordingListener()
    with pop_consumer(mq, "g", held, threads=3, lease=0.5):
        poll_until(lambda: len(held.calls) == 3, 10)
        with pop_consumer(mq, "g", other, lease=0.5):
            end = time.monotonic() + 1.2
            poll_until(lambda: time.monotonic() > end, 10)
            held.may_end.set()
            poll_until(lambda: lag(admin, "g") == 0, 10)
    assert other.taken == []
    assert len(held.calls) == 3
    assert not any(message.lease_lost for message in held.calls)


def test_lease_renewals_share_one_request(mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = next(iter(admin.topic_stats("t")))
    producer = Producer(mq, "p")
    for _ in range(10):
        producer.send(Message("t", b"x"), queue=queue)
    held = BlockedListener()
    with pop_consumer(mq, "g", held, threads=10, lease=0.6):
        poll_until(lambda: len(held.calls) == 10, 10)
        requests: list[float] = []
        ask = mq.pool.request

        async def counted(address: str, command: object, *rest: object, **more: object) -> object:
            if command.code == RequestCode.SETTLE_DELIVERIES:  # type: ignore[attr-defined]
                requests.append(time.monotonic())
            return await ask(address, command, *rest, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(mq.pool, "request", counted)
        end = time.monotonic() + 1.0
        poll_until(lambda: time.monotonic() > end, 10)
        assert 2 <= len(requests) <= 6, "not one for each of ten messages"
        held.may_end.set()


def test_free_thread_needs_one_request_per_message(
    mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = next(iter(admin.topic_stats("t")))
    with Producer(mq, "p") as producer:
        producer.send_batch([Message("t", b"%d" % number) for number in range(40)], queue=queue)
    requests: Counter[int] = Counter()
    ask = mq.pool.request

    async def counted(address: str, command: object, *rest: object, **more: object) -> object:
        requests[command.code] += 1  # type: ignore[attr-defined]
        return await ask(address, command, *rest, **more)  # type: ignore[arg-type]

    def listener(_: list[ReceivedMessage]) -> ConsumeResult:
        time.sleep(0.005)  # quick calls have further messages lent ahead
        return SUCCESS

    monkeypatch.setattr(mq.pool, "request", counted)
    with pop_consumer(mq, "g", listener, threads=1):
        poll_until(lambda: lag(admin, "g") == 0, 20)
    assert requests[RequestCode.POP_MESSAGE] <= 50, "those that find nothing are not repeated"
    assert requests[RequestCode.SETTLE_DELIVERIES] <= 45, "acknowledgements only"


def test_lost_lease_is_visible_on_message(mq: Connection, admin: Admin) -> None:
    send(mq, 1)
    held = BlockedListener()
    with pop_consumer(mq, "g", held, lease=0.5):
        (message,) = poll_until(lambda: held.calls, 10)
        assert not message.lease_lost
        admin.reset_offset_by_time("g", "t", 0.0)
        poll_until(lambda: message.lease_lost, 10)
        assert len(held.calls) == 1, "no second call with it runs while the first one does"
        held.may_end.set()
        poll_until(lambda: lag(admin, "g") == 0, 10)


def test_failed_message_is_retried_then_dead_lettered(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    producer.send_batch([Message("t", b"good"), Message("t", b"bad", keys="k", properties={"a": "b"})])
    taker = RecordingListener(lambda message: ConsumeResult.RECONSUME_LATER if message.body == b"bad" else None)
    with pop_consumer(mq, "g", taker, max_reconsume_times=2):
        poll_until(lambda: admin.dlq_list("g"), 20)
    (dead,) = admin.dlq_list("g")
    assert sorted(taker.deliveries) == [(b"bad", 0), (b"bad", 1), (b"bad", 2), (b"good", 0)]
    assert (dead.topic, dead.body, dead.keys, dead.properties) == ("t", b"bad", ["k"], {"a": "b"})


def test_negative_retry_moves_message_to_dead_letters(mq: Connection, admin: Admin) -> None:
    send(mq, 1)
    with pop_consumer(mq, "g", lambda _: Retry(-1)):
        (dead,) = poll_until(lambda: admin.dlq_list("g"), 10)
    assert dead.body == b"000"


def test_batch_messages_have_separate_results(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    producer.send_batch([Message("t", b"good"), Message("t", b"later"), Message("t", b"dead")])
    taken: list[tuple[bytes, int]] = []

    def listener(messages: list[ReceivedMessage]) -> list[object]:
        taken.extend((message.body, message.reconsume_times) for message in messages)
        answers = {b"good": SUCCESS, b"later": Retry(1), b"dead": Retry(-1)}
        return [SUCCESS if message.reconsume_times else answers[message.body] for message in messages]

    with pop_consumer(mq, "g", listener, batch_size=8):
        poll_until(lambda: (b"later", 1) in taken and admin.dlq_list("g"), 20)
    assert sorted(taken) == [(b"dead", 0), (b"good", 0), (b"later", 0), (b"later", 1)]
    assert [dead.body for dead in admin.dlq_list("g")] == [b"dead"]


def test_default_prefetch_is_one_call_per_thread(mq: Connection, admin: Admin) -> None:
    bodies = send(mq, 20)
    held = BlockedListener()
    with pop_consumer(mq, "g", held, threads=3), SimpleConsumer(mq, "h", {"t": "*"}):
        poll_until(lambda: len(held.calls) == 3, 10)
        with pop_consumer(mq, "g", other := RecordingListener(), threads=1):
            poll_until(lambda: len(other.taken) >= 14, 10)
            poll_until(lambda: len(other.taken) == 17, 10, "what was lent ahead to a slow member goes to others")
        held.may_end.set()
        poll_until(lambda: lag(admin, "g") == 0, 10)
    assert sorted([*other.bodies, *held.bodies]) == bodies


def test_prefetch_sets_number_of_messages_lent_ahead(mq: Connection, admin: Admin) -> None:
    bodies = send(mq, 20)
    held = BlockedListener()
    with pop_consumer(mq, "g", held, threads=2, prefetch=5):
        poll_until(lambda: len(held.calls) == 2, 10)
        with pop_consumer(mq, "g", other := RecordingListener()):
            poll_until(lambda: len(other.taken) == 13, 10)
            held.may_end.set()
            poll_until(lambda: lag(admin, "g") == 0, 10)
    assert sorted([*other.bodies, *held.bodies]) == bodies
    assert len(held.calls) >= 7


@pytest.mark.parametrize(("prefetch", "most"), [(None, 6), (0, 6), (10, 10)])
def test_messages_lent_ahead_stay_within_prefetch(
    mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch, prefetch: int | None, most: int
) -> None:
    ahead: list[int] = []
    add = MessageLeases.add

    def counted(leases: MessageLeases, *lent: Any) -> MessageLease:
        lease = add(leases, *lent)
        ahead.append(len(leases.ahead))
        return lease

    monkeypatch.setattr(MessageLeases, "add", counted)
    Producer(mq, "p").send_batch([Message("t", b"%d" % number) for number in range(300)])
    taker = RecordingListener()
    with pop_consumer(mq, "g", taker, threads=3, batch_size=2, prefetch=prefetch):
        poll_until(lambda: len(taker.taken) == 300, 20)
        poll_until(lambda: lag(admin, "g") == 0, 10)
    assert most / 2 <= max(ahead) <= most


def test_shutdown_returns_unstarted_messages(mq: Connection, admin: Admin) -> None:
    bodies = send(mq, 10)
    held, other = BlockedListener(), RecordingListener()
    consumer = pop_consumer(mq, "g", held, threads=1, prefetch=20, lease=600.0)
    consumer.start()
    poll_until(lambda: held.calls, 10)
    leaving = threading.Thread(target=consumer.shutdown)
    leaving.start()
    with pop_consumer(mq, "g", other):
        poll_until(lambda: len(other.taken) == 9, 10, "at once, while the call that had begun still runs")
        assert leaving.is_alive()
        held.may_end.set()
        leaving.join(10)
        poll_until(lambda: lag(admin, "g") == 0, 10)
    assert sorted([*held.bodies, *other.bodies]) == bodies
    assert {times for _, times in other.deliveries} == {0}


def test_pause_returns_messages_and_resume_continues(mq: Connection, admin: Admin) -> None:
    taker, other = RecordingListener(), RecordingListener()
    with pop_consumer(mq, "g", taker, lease=600.0) as consumer:
        consumer.pause()
        send(mq, 5)
        with pop_consumer(mq, "g", other):
            poll_until(lambda: len(other.taken) == 5, 10)
        assert taker.taken == []
        consumer.resume()
        send(mq, 5)
        poll_until(lambda: len(taker.taken) == 5, 10)
        poll_until(lambda: lag(admin, "g") == 0, 10)


def test_filters_work_as_in_queue_mode(mq: Connection, admin: Admin) -> None:
    producer = Producer(mq, "p")
    tags = ["paid", "shipped", "open", "Aa", "BB", None]
    producer.send_batch([Message("t", str(tag).encode(), tags=tag) for tag in tags])
    producer.send_batch([Message("t", b"%d" % price, properties={"price": str(price)}) for price in range(5)])
    for group, wanted, expected in (
        ("tags", "paid || Aa", [b"Aa", b"paid"]),
        ("sql", Sql("price > 2"), [b"3", b"4"]),
    ):
        taker = RecordingListener()
        with PushConsumer(mq, group, {"t": wanted}, taker, mode="pop"):
            poll_until(lambda t=taker: len(t.taken) >= 2, 10)  # type: ignore[misc]
            poll_until(lambda g=group: lag(admin, g) == 0, 10)  # type: ignore[misc]
        assert taker.bodies == expected


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
        with pop_consumer(mq, f"g-{start.name}", taker, consume_from=start, consume_timestamp=timestamp):
            producer.send(Message("t", b"last"))
            poll_until(lambda t=taker, e=expected: set(e) <= set(t.bodies), 10)  # type: ignore[misc]
        assert [body for body in taker.bodies if body != b"last"] == [b for b in expected if b != b"last"]


def test_messages_above_rate_limit_stay_on_broker(mq: Connection, admin: Admin) -> None:
    send(mq, 30)
    taker, other = RecordingListener(), RecordingListener()
    begun = time.monotonic()
    with pop_consumer(mq, "g", taker, rate_limit=10.0):
        poll_until(lambda: len(taker.taken) >= 10, 10)
        assert time.monotonic() - begun >= 0.8
        with pop_consumer(mq, "g", other):
            poll_until(lambda: lag(admin, "g") == 0, 10)
    assert len(taker.taken) + len(other.taken) == 30
    assert len(other.taken) >= 5


def test_outage_pauses_consumption_and_keeps_messages(mq: Connection, admin: Admin) -> None:
    send(mq, 30)
    broken = threading.Event()
    taker = RecordingListener(lambda _: None if broken.is_set() else ConsumeResult.RECONSUME_LATER)
    with pop_consumer(mq, "g", taker, on_outage="pause", threads=1, lease=1.0):
        poll_until(lambda: len(taker.deliveries) >= 18, 20)
        end = time.monotonic() + 2.0
        poll_until(lambda: time.monotonic() > end, 10)
        assert len(taker.deliveries) <= 22, "one call at a time is tried"
        broken.set()
        poll_until(lambda: lag(admin, "g") == 0, 30)
    assert admin.dlq_list("g") == []


def test_consume_timeout_and_coroutine_listener(mq: Connection, admin: Admin) -> None:
    send(mq, 1)
    lives: list[int] = []
    never = threading.Event()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        lives.append(messages[0].reconsume_times)
        if not messages[0].reconsume_times:
            never.wait(30)
        return SUCCESS

    with pop_consumer(mq, "g", listener, consume_timeout=0.3):
        poll_until(lambda: lives == [0, 1], 20)
        poll_until(lambda: lag(admin, "g") == 0, 10)
        never.set()

    async def coroutine(messages: list[ReceivedMessage]) -> ConsumeResult:
        lives.append(len(messages))
        return SUCCESS

    send(mq, 1)
    lives.clear()
    with pop_consumer(mq, "g", coroutine):
        poll_until(lambda: lives == [1], 20)
        poll_until(lambda: lag(admin, "g") == 0, 10)


def test_broker_restart_duplicates_no_message(mq: Connection, admin: Admin, services: Services) -> None:
    bodies = send(mq, 12)
    held = BlockedListener()
    with pop_consumer(mq, "g", held, threads=6):
        poll_until(lambda: len(held.calls) == 6, 10)
        for name in ("broker-a", "broker-b"):
            services.crash_broker(name)
        held.may_end.set()
        for name in ("broker-a", "broker-b"):
            services.start_broker(name)
        poll_until(lambda: len(held.calls) >= 12, 30)
        poll_until(lambda: lag(admin, "g") == 0, 30)
    assert Counter(held.bodies) == Counter(bodies)


def test_queue_mode_retries_reach_pop_member(mq: Connection, admin: Admin) -> None:
    send(mq, 1)
    first = RecordingListener(lambda _: Retry(1))
    with PushConsumer(mq, "g", {"t": "*"}, first):
        poll_until(lambda: first.deliveries, 10)
        poll_until(lambda: lag(admin, "g") == 0, 10)
    again = RecordingListener()
    with pop_consumer(mq, "g", again):
        poll_until(lambda: again.taken, 20)
    assert again.deliveries == [(b"000", 1)]


def test_mixed_modes_in_group_are_refused(mq: Connection, admin: Admin) -> None:
    with pop_consumer(mq, "g", RecordingListener()), pytest.raises(SubscriptionMismatch):
        PushConsumer(mq, "g", {"t": "*"}, RecordingListener()).start()


@pytest.mark.parametrize(
    ("field", "how"),
    [
        ("ordered", {"ordered": True}),
        ("model", {"model": MessageModel.BROADCASTING}),
        ("park_failed_keys", {"park_failed_keys": True}),
        ("mode", {"mode": "push"}),
        ("lease", {"lease": 0}),
        ("lease", {"lease": 43_200.1}),
        ("prefetch", {"prefetch": -1}),
        ("prefetch", {"prefetch": 0, "mode": "queue"}),
    ],
)
def test_settings_incompatible_with_pop_are_refused(mq: Connection, field: str, how: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as raised:
        PushConsumer(mq, "g", {"t": "*"}, RecordingListener(), **{"mode": "pop", **how})  # type: ignore[arg-type]
    assert raised.value.field == field
