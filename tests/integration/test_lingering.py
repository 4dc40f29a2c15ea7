"""Gathered sends: what travels together, order, bounds, closing, forks and the end of the interpreter."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from inspect import isawaitable
from pathlib import Path

import pytest

from raymq.actors import route_cache
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server import ServerConnection
from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer, SendResult
from raymq.client.errors import (
    BufferFull,
    ClientClosed,
    NotStored,
    PermissionDenied,
    QueueNotFound,
    RayMQError,
    TopicNotFound,
)
from raymq.client.produce.send_options import SendOptions
from tests.integration.conftest import Services
from tests.polling import poll_until

#: Longer than any test: only full batches, flush and close send.
FOREVER = 3.0


def bodies(mq: Connection, topic: str = "t") -> dict[MessageQueue, list[bytes]]:
    found = {}
    with PullConsumer(mq, "reader") as pull:
        for queue in pull.queues(topic):
            pull.seek(queue, 0)
            end = pull.offsets(queue)[1]
            read: list[bytes] = []
            while len(read) < end:
                read += [message.body for message in pull.poll(queue, 1_000, timeout=5.0)]
            found[queue] = read
    return found


def everything(mq: Connection) -> list[bytes]:
    return sorted(body for queue in bodies(mq).values() for body in queue)


def test_gathered_messages_travel_together(mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=FOREVER) as producer:
        messages = [Message("t", b"%03d" % number, tags="x") for number in range(100)]
        futures = [producer.send_async(message) for message in messages]
        assert not futures[0].done()
        assert producer.flush()
        results = [future.result(0) for future in futures]
    assert [result.unique_key for result in results] == [message.unique_key for message in messages]
    assert len({result.queue for result in results}) == 1
    assert [result.queue_offset for result in results] == list(range(100))
    assert bodies(mq)[results[0].queue] == [message.body for message in messages]


def test_the_linger_time_alone_sends_too(mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=0.02) as producer:
        assert producer.send_async(Message("t", b"x")).result(5).queue_offset == 0


def test_full_batches_do_not_wait(mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=FOREVER) as producer:
        futures = [producer.send_async(Message("t", bytes(300_000))) for _ in range(4)]
        began = time.monotonic()
        assert all(future.result(FOREVER) for future in futures)
        assert time.monotonic() - began < FOREVER / 2


def test_asyncio_sends_are_gathered(mq: Connection, admin: Admin) -> None:
    del admin

    async def send() -> list[int]:
        results = await asyncio.gather(*(producer.asend(Message("t", b"x")) for _ in range(20)))
        return [result.queue_offset for result in results]

    with Producer(mq, "p", linger=0.02) as producer:
        assert asyncio.run(send()) == list(range(20))


def test_sharding_keys_and_chosen_queues_keep_their_order(mq: Connection, admin: Admin) -> None:
    del admin
    chosen = MessageQueue("t", "broker-b", 1)
    with Producer(mq, "p", linger=0.002) as producer:
        keyed = {f"k{number % 7}": [] for number in range(7)}  # type: ignore[var-annotated]
        for number in range(1_000):
            key = f"k{number % 7}"
            keyed[key].append(producer.send_async(Message("t", b"%s:%d" % (key.encode(), number)), sharding_key=key))
            producer.send_async(Message("t", b"q:%d" % number), queue=chosen)
        assert producer.flush()
    found = bodies(mq)
    assert [body for body in found[chosen] if body.startswith(b"q:")] == [b"q:%d" % number for number in range(1_000)]
    for key, futures in keyed.items():
        (queue,) = {future.result().queue for future in futures}
        expected = [b"%s:%d" % (key.encode(), number) for number in range(1_000) if f"k{number % 7}" == key]
        assert [body for body in found[queue] if body.startswith(key.encode())] == expected


def test_messages_without_a_key_on_the_same_terms_leave_those_with_one_their_queues(
    mq: Connection, admin: Admin
) -> None:
    """They were gathered with them, and each key was taken for that of another message."""
    del admin
    with Producer(mq, "p", linger=0.05) as producer:
        queue_of = {f"k{n}": producer.send(Message("t", b"x"), sharding_key=f"k{n}").queue for n in range(8)}
        sent = [
            (key, producer.send_async(Message("t", str(key).encode()), sharding_key=key))
            for key in (None, *queue_of, None, *queue_of)
        ]
        results = [(key, future.result(20)) for key, future in sent]
    assert [result.queue for key, result in results if key is not None] == [*queue_of.values()] * 2
    found = bodies(mq)
    assert all(found[result.queue][result.queue_offset] == str(key).encode() for key, result in results)


@pytest.mark.parametrize("to", [{"sharding_key": "k"}, {"queue": MessageQueue("t", "broker-a", 1)}])
def test_a_key_and_a_queue_keep_their_order_over_messages_on_different_terms(
    mq: Connection, admin: Admin, to: SendOptions
) -> None:
    """What is on other terms is gathered apart, and went behind what was sent after it."""
    del admin
    with Producer(mq, "p", linger=0.05) as producer:
        sent = []
        for number in range(40):
            options: SendOptions = {**to, "timeout": (9.0, 10.0, 11.0)[number % 7 % 3]}
            sent.append(producer.send_async(Message("t", b"%d" % number), **options))
        assert producer.flush()
        (queue,) = {future.result().queue for future in sent}
    assert bodies(mq)[queue] == [b"%d" % number for number in range(40)]


class SlowRoutes:
    """A name server whose answers about routes wait, each as long as `seconds` says, which is told how many came."""

    def __init__(self, services: Services, seconds: Callable[[int], float]) -> None:
        server = services.name_server._server
        known = server.handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC]
        self.asked = 0
        self.release = asyncio.Event()

        async def answer(connection: ServerConnection, request: Command) -> Command | None:
            self.asked += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self.release.wait(), seconds(self.asked))
            answer = known(connection, request)
            return await answer if isawaitable(answer) else answer

        server.handlers = {**server.handlers, RequestCode.GET_ROUTEINFO_BY_TOPIC: answer}


def test_keys_keep_their_order_while_a_route_is_asked_for(services: Services, mq: Connection, admin: Admin) -> None:
    """The question of a batch may take longer than that of the next one, which must not overtake it."""
    del admin
    with Producer(mq, "p", linger=0.001, timeout=FOREVER) as producer:
        producer.send(Message("t", b"x"), sharding_key="k")
        slow = SlowRoutes(services, lambda turn: 0.5 if turn == 1 else 0.0)
        mq.routes.forget("t")
        first = producer.send_async(Message("t", b"1"), sharding_key="k")
        poll_until(lambda: slow.asked)
        later = [producer.send_async(Message("t", b"%d" % number), sharding_key="k") for number in range(2, 5)]
        offsets = [future.result().queue_offset for future in (first, *later)]
        assert offsets == sorted(offsets)


def test_a_name_server_that_hangs_leaves_keys_time_to_be_sent(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of the routes stays in use, and most of the budget is the brokers'."""
    del admin
    with Producer(mq, "p", linger=0.001, timeout=1.5) as producer:
        sent = [producer.send_async(Message("t", b"x"), sharding_key="k").result()]
        slow = SlowRoutes(services, lambda _: 60.0)
        monkeypatch.setattr(route_cache, "ROUTE_SECONDS", 0.0)
        sent.append(producer.send_async(Message("t", b"x"), sharding_key="k").result())
        assert slow.asked
        services.loop.run(_set(slow.release))
    assert [each.queue_offset for each in sent] == [0, 1]


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_a_part_that_fails_takes_no_other_along(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=FOREVER, timeout=FOREVER, retries=0) as producer:
        producer.send(Message("t", b"before"), sharding_key="k")
        futures = [producer.send_async(Message("t", b"x"), sharding_key=f"k{number}") for number in range(20)]
        services.stop_broker("broker-a")
        assert producer.flush()
        outcomes = [future.exception() for future in futures]
    assert None in outcomes
    assert NotStored in map(type, outcomes)
    services.start_broker("broker-a")
    assert everything(mq) == [b"before"] + [b"x"] * outcomes.count(None)


@pytest.mark.parametrize(("topic", "error"), [("none", TopicNotFound), ("forbidden", PermissionDenied)])
def test_keys_of_a_topic_that_cannot_be_sent_to(
    mq: Connection, admin: Admin, topic: str, error: type[RayMQError]
) -> None:
    admin.create_topic("forbidden", queues=2)
    admin.update_topic("forbidden", permission=4)
    with Producer(mq, "p", linger=0.001) as producer:
        futures = [producer.send_async(Message(topic, b"x"), sharding_key=f"k{number}") for number in range(5)]
        assert {type(future.exception(10)) for future in futures} == {error}


def test_keys_make_a_topic_where_sending_may(tmp_path: Path) -> None:
    services = Services(tmp_path, auto_create_topics=True)
    services.start()
    try:
        with Connection([services.name_server.address]) as mq, Producer(mq, "p", linger=0.001) as producer:
            futures = [producer.send_async(Message("new", b"x"), sharding_key=f"k{number}") for number in range(20)]
            assert len({future.result(10).queue for future in futures}) > 1
    finally:
        services.stop()


def test_bad_input_is_refused_by_the_call(mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=FOREVER) as producer:
        with pytest.raises(QueueNotFound):
            producer.send_async(Message("t", b"x"), queue=MessageQueue("u", "broker-a", 0))
        with pytest.raises(TypeError, match="unknown arguments"):
            producer.send_async(Message("t", b"x"), que=None)  # type: ignore[call-arg]
        late = producer.send_async(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 99))
    with pytest.raises(QueueNotFound):
        late.result(0)
    assert everything(mq) == []


def refusal(producer: Producer) -> BufferFull | None:
    try:
        producer.send_async(Message("t", b"x"))
    except BufferFull as error:
        return error
    return None


def test_a_full_buffer_raises_where_it_was_asked_to(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=0.001, buffer_bytes=1_000, when_full="raise", timeout=2.0) as producer:
        producer.send_async(Message("t", b"x")).result(5)
        release = threading.Event()
        services.loop.loop.call_soon_threadsafe(release.wait, 10.0)  # the brokers stand still
        first = producer.send_async(Message("t", bytes(2_000)))
        try:
            refused = poll_until(lambda: refusal(producer))
            assert isinstance(refused, NotStored)
        finally:
            release.set()
        assert first.result(5)


def hold_up(services: Services, producer: Producer) -> threading.Event:
    """Stop all brokers, once the producer has its routes, until the event is set."""
    producer.send_async(Message("t", b"x")).result(5)
    release = threading.Event()
    services.loop.loop.call_soon_threadsafe(release.wait, 10.0)
    return release


def test_a_buffer_that_stays_full_blocks_for_the_budget_only(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=0.001, buffer_bytes=1_000, timeout=0.3) as producer:
        release = hold_up(services, producer)
        producer.send_async(Message("t", bytes(2_000)), timeout=10.0)
        try:
            began = time.monotonic()
            with pytest.raises(BufferFull):
                producer.send_async(Message("t", b"x"))
            assert time.monotonic() - began > 0.2
        finally:
            release.set()


def test_a_full_buffer_blocks_until_there_is_room(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=0.001, buffer_bytes=1_000, timeout=10.0) as producer:
        release = hold_up(services, producer)
        threading.Timer(0.2, release.set).start()
        futures = [producer.send_async(Message("t", bytes(2_000))) for _ in range(20)]
        assert release.is_set()
        assert all(future.result(10) for future in futures)


def test_closing_sends_what_was_gathered(mq: Connection, admin: Admin) -> None:
    del admin
    producer = Producer(mq, "p", linger=FOREVER)
    future = producer.send_async(Message("t", b"x"))
    producer.close()
    assert future.done()
    with pytest.raises(ClientClosed):
        producer.send_async(Message("t", b"x"))
    producer.close()


def test_many_threads(mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=0.002) as producer:

        def send(worker: int) -> None:
            for number in range(500):
                producer.send_async(Message("t", b"%d:%03d" % (worker, number)))

        threads = [threading.Thread(target=send, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert everything(mq) == sorted(b"%d:%03d" % (worker, number) for worker in range(4) for number in range(500))


def run_script(services: Services, lines: str) -> str:
    # A host name has to be looked up: the end of the interpreter must not prevent that.
    address = services.name_server.address.replace("127.0.0.1", "localhost")
    script = f"""
import os, sys
from raymq.client import Connection, Message, Producer
mq = Connection([{address!r}])
producer = Producer(mq, "p", linger=2.0)
{lines}
"""
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_process_that_just_ends_sends_what_it_gathered(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    assert run_script(services, "for n in range(50): producer.send_async(Message('t', b'%02d' % n))") == ""
    assert everything(mq) == [b"%02d" % number for number in range(50)]


def test_what_was_gathered_by_a_producer_that_went_out_of_scope_is_sent(
    services: Services, mq: Connection, admin: Admin
) -> None:
    """Fault 13.16: of what it gathered nothing was stored."""
    del admin
    lines = """
import gc
def work():
    for n in range(5):
        Producer(mq, "q", linger=2.0).send_async(Message('t', b'%02d' % n))
work()
gc.collect()
"""
    assert run_script(services, lines) == ""
    assert everything(mq) == [b"%02d" % number for number in range(5)]


def test_a_producer_that_has_nothing_to_do_any_more_is_let_go(mq: Connection, admin: Admin) -> None:
    del admin
    producer = Producer(mq, "p", linger=0.01)
    producer.send_async(Message("t", b"x")).result(10)
    alive = weakref.ref(producer)
    del producer

    def gone() -> bool:
        gc.collect()
        return alive() is None

    poll_until(gone, 10)


def test_a_process_that_just_ends_waits_for_what_is_under_way(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    lines = """
hasty = Producer(mq, "q")
for n in range(20):
    hasty.send_async(Message('t', b'%02d' % n))
for n in range(20, 30):
    hasty.send_oneway(Message('t', b'%02d' % n))
"""
    assert run_script(services, lines) == ""
    assert everything(mq) == [b"%02d" % number for number in range(30)]


def test_closing_waits_for_what_is_under_way(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=FOREVER) as producer:
        producer.send(Message("t", b"now"))
        release = threading.Event()
        services.loop.loop.call_soon_threadsafe(release.wait, 10.0)  # the brokers stand still
        delayed = producer.send_async(Message("t", b"later", delay_level=1))  # these are not gathered
        assert not producer.flush(0.05)
        threading.Timer(0.1, release.set).start()
    assert delayed.done()
    assert delayed.result().queue.topic == "SCHEDULE_TOPIC_XXXX"


@pytest.mark.parametrize("second", ["the producer", "its connection"])
def test_who_closes_second_waits_for_the_first(services: Services, admin: Admin, second: str) -> None:
    del admin
    mq = Connection([services.name_server.address])
    producer = Producer(mq, "p", linger=FOREVER)
    producer.send(Message("t", b"now"))
    release = threading.Event()
    services.loop.loop.call_soon_threadsafe(release.wait, 10.0)  # the brokers stand still
    futures = [producer.send_async(Message("t", b"%d" % number)) for number in range(20)]
    first = threading.Thread(target=producer.close)
    first.start()
    poll_until(lambda: producer._closed)
    threading.Timer(0.2, release.set).start()
    (producer if second == "the producer" else mq).close()
    assert all(future.done() for future in futures)
    assert [future.result().queue.topic for future in futures] == ["t"] * 20
    first.join()
    mq.close()


def test_a_forked_child_sends_for_itself(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    lines = """
producer.send(Message("t", b"warm"))
producer.send_async(Message("t", b"parent"))
child = os.fork()
if not child:
    producer.send(Message("t", b"child, at once"))
    producer.send_async(Message("t", b"child"))
    producer.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    assert run_script(services, lines) == ""
    assert everything(mq) == [b"child", b"child, at once", b"parent", b"warm"]


def test_a_consumer_that_nobody_refers_to_leaves_its_group_when_the_process_ends(
    services: Services, mq: Connection, admin: Admin
) -> None:
    del admin, mq
    lines = """
import gc, threading
from raymq.client import ConsumeResult, PushConsumer
taken = threading.Event()
def listener(messages):
    taken.set()
    return ConsumeResult.SUCCESS
PushConsumer(mq, "g", {"t": "*"}, listener).start()
gc.collect()
producer.send(Message("t", b"x"))
assert taken.wait(20)
"""
    assert run_script(services, lines) == ""
    for broker in services.brokers.values():
        assert "g" not in broker.groups.consumer_groups(), "it said that it leaves"


def test_nothing_is_taken_that_nobody_sends_any_more(services: Services, admin: Admin) -> None:
    """Threads that send while their connection is closed: what is accepted has an outcome, whatever it is."""
    del admin
    taken: list[Future[SendResult]] = []
    for _ in range(5):
        with Connection([services.name_server.address]) as mq:
            producer = Producer(mq, "p", linger=0.01)
            producer.send(Message("t", b"x"))
            begun = threading.Barrier(3)

            def send(producer: Producer = producer, begun: threading.Barrier = begun) -> None:
                begun.wait()
                with suppress(ClientClosed):
                    while True:
                        taken.append(producer.send_async(Message("t", b"x")))

            threads = [threading.Thread(target=send) for _ in range(2)]
            for thread in threads:
                thread.start()
            begun.wait()
        for thread in threads:
            thread.join(10)
        assert producer._paths.batcher is not None
        with pytest.raises(ClientClosed):  # of a thread that had found the producer open
            producer._paths.batcher.add(Message("t", b"x"))
    assert not wait(taken, 10).not_done
