"""Test lingering sends: batching, order, buffer limits, close, fork and interpreter exit."""

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

#: A linger time longer than any test: only full batches, flush and close send.
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


def read_all_bodies(mq: Connection) -> list[bytes]:
    return sorted(body for queue in bodies(mq).values() for body in queue)


def test_lingering_messages_share_one_batch(mq: Connection, admin: Admin) -> None:
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


def test_linger_time_sends_partial_batch(mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=0.02) as producer:
        assert producer.send_async(Message("t", b"x")).result(5).queue_offset == 0


def test_full_batches_do_not_wait_for_linger_time(mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=FOREVER) as producer:
        futures = [producer.send_async(Message("t", bytes(300_000))) for _ in range(4)]
        began = time.monotonic()
        assert all(future.result(FOREVER) for future in futures)
        assert time.monotonic() - began < FOREVER / 2


def test_asyncio_sends_are_batched(mq: Connection, admin: Admin) -> None:
    del admin

    async def send() -> list[int]:
        results = await asyncio.gather(*(producer.asend(Message("t", b"x")) for _ in range(20)))
        return [result.queue_offset for result in results]

    with Producer(mq, "p", linger=0.02) as producer:
        assert asyncio.run(send()) == list(range(20))


def test_sharding_keys_and_queues_keep_order(mq: Connection, admin: Admin) -> None:
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


def test_unkeyed_messages_leave_queues_of_keys_unchanged(mq: Connection, admin: Admin) -> None:
    """Cover a regression: keyed and unkeyed messages shared a batch with mixed-up keys."""
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
def test_key_and_queue_order_survives_different_send_options(mq: Connection, admin: Admin, to: SendOptions) -> None:
    """Cover a regression: messages with other options were overtaken by later ones."""
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
    """Delay each route answer of a name server by `seconds(request number)`."""

    def __init__(self, services: Services, seconds: Callable[[int], float]) -> None:
        server = services.name_server._server
        known = server.handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC]
        self.request_count = 0
        self.release = asyncio.Event()

        async def answer(connection: ServerConnection, request: Command) -> Command | None:
            self.request_count += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self.release.wait(), seconds(self.request_count))
            answer = known(connection, request)
            return await answer if isawaitable(answer) else answer

        server.handlers = {**server.handlers, RequestCode.GET_ROUTEINFO_BY_TOPIC: answer}


def test_sharding_key_order_survives_slow_route_lookup(services: Services, mq: Connection, admin: Admin) -> None:
    """Delay the route lookup of one batch, which the next batch must not overtake."""
    del admin
    with Producer(mq, "p", linger=0.001, timeout=FOREVER) as producer:
        producer.send(Message("t", b"x"), sharding_key="k")
        slow = SlowRoutes(services, lambda turn: 0.5 if turn == 1 else 0.0)
        mq.routes.forget("t")
        first = producer.send_async(Message("t", b"1"), sharding_key="k")
        poll_until(lambda: slow.request_count)
        later = [producer.send_async(Message("t", b"%d" % number), sharding_key="k") for number in range(2, 5)]
        offsets = [future.result().queue_offset for future in (first, *later)]
        assert offsets == sorted(offsets)


def test_hanging_name_server_leaves_time_to_send(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep cached routes in use and leave most of the timeout to the brokers."""
    del admin
    with Producer(mq, "p", linger=0.001, timeout=1.5) as producer:
        sent = [producer.send_async(Message("t", b"x"), sharding_key="k").result()]
        slow = SlowRoutes(services, lambda _: 60.0)
        monkeypatch.setattr(route_cache, "ROUTE_SECONDS", 0.0)
        sent.append(producer.send_async(Message("t", b"x"), sharding_key="k").result())
        assert slow.request_count
        services.loop.run(_set(slow.release))
    assert [each.queue_offset for each in sent] == [0, 1]


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_failed_batch_part_leaves_other_parts_stored(services: Services, mq: Connection, admin: Admin) -> None:
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
    assert read_all_bodies(mq) == [b"before"] + [b"x"] * outcomes.count(None)


@pytest.mark.parametrize(("topic", "error"), [("none", TopicNotFound), ("forbidden", PermissionDenied)])
def test_keyed_send_to_unusable_topic_fails(mq: Connection, admin: Admin, topic: str, error: type[RayMQError]) -> None:
    admin.create_topic("forbidden", queues=2)
    admin.update_topic("forbidden", permission=4)
    with Producer(mq, "p", linger=0.001) as producer:
        futures = [producer.send_async(Message(topic, b"x"), sharding_key=f"k{number}") for number in range(5)]
        assert {type(future.exception(10)) for future in futures} == {error}


def test_keyed_send_auto_creates_topic(tmp_path: Path) -> None:
    services = Services(tmp_path, auto_create_topics=True)
    services.start()
    try:
        with Connection([services.name_server.address]) as mq, Producer(mq, "p", linger=0.001) as producer:
            futures = [producer.send_async(Message("new", b"x"), sharding_key=f"k{number}") for number in range(20)]
            assert len({future.result(10).queue for future in futures}) > 1
    finally:
        services.stop()


def test_send_async_refuses_invalid_arguments(mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=FOREVER) as producer:
        with pytest.raises(QueueNotFound):
            producer.send_async(Message("t", b"x"), queue=MessageQueue("u", "broker-a", 0))
        with pytest.raises(TypeError, match="unknown arguments"):
            producer.send_async(Message("t", b"x"), que=None)  # type: ignore[call-arg]
        late = producer.send_async(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 99))
    with pytest.raises(QueueNotFound):
        late.result(0)
    assert read_all_bodies(mq) == []


def buffer_full_error(producer: Producer) -> BufferFull | None:
    try:
        producer.send_async(Message("t", b"x"))
    except BufferFull as error:
        return error
    return None


def test_full_buffer_raises_with_when_full_raise(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=0.001, buffer_bytes=1_000, when_full="raise", timeout=2.0) as producer:
        producer.send_async(Message("t", b"x")).result(5)
        release = threading.Event()
        services.loop.loop.call_soon_threadsafe(release.wait, 10.0)  # blocks the brokers
        first = producer.send_async(Message("t", bytes(2_000)))
        try:
            refused = poll_until(lambda: buffer_full_error(producer))
            assert isinstance(refused, NotStored)
        finally:
            release.set()
        assert first.result(5)


def block_brokers(services: Services, producer: Producer) -> threading.Event:
    """Block all brokers until the event is set; the producer has its routes by then."""
    producer.send_async(Message("t", b"x")).result(5)
    release = threading.Event()
    services.loop.loop.call_soon_threadsafe(release.wait, 10.0)
    return release


def test_full_buffer_blocks_at_most_until_send_timeout(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=0.001, buffer_bytes=1_000, timeout=0.3) as producer:
        release = block_brokers(services, producer)
        producer.send_async(Message("t", bytes(2_000)), timeout=10.0)
        try:
            began = time.monotonic()
            with pytest.raises(BufferFull):
                producer.send_async(Message("t", b"x"))
            assert time.monotonic() - began > 0.2
        finally:
            release.set()


def test_full_buffer_blocks_until_room_is_free(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=0.001, buffer_bytes=1_000, timeout=10.0) as producer:
        release = block_brokers(services, producer)
        threading.Timer(0.2, release.set).start()
        futures = [producer.send_async(Message("t", bytes(2_000))) for _ in range(20)]
        assert release.is_set()
        assert all(future.result(10) for future in futures)


def test_close_sends_lingering_messages(mq: Connection, admin: Admin) -> None:
    del admin
    producer = Producer(mq, "p", linger=FOREVER)
    future = producer.send_async(Message("t", b"x"))
    producer.close()
    assert future.done()
    with pytest.raises(ClientClosed):
        producer.send_async(Message("t", b"x"))
    producer.close()


def test_concurrent_threads_lose_no_message(mq: Connection, admin: Admin) -> None:
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
    assert read_all_bodies(mq) == sorted(b"%d:%03d" % (worker, number) for worker in range(4) for number in range(500))


def run_script(services: Services, lines: str) -> str:
    # Use a host name: the exit of the interpreter must not prevent its lookup.
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


def test_process_exit_sends_lingering_messages(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    assert run_script(services, "for n in range(50): producer.send_async(Message('t', b'%02d' % n))") == ""
    assert read_all_bodies(mq) == [b"%02d" % number for number in range(50)]


def test_unreferenced_producer_sends_lingering_messages(services: Services, mq: Connection, admin: Admin) -> None:
    """Cover fault 13.16: a garbage-collected producer stored none of its lingering messages."""
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
    assert read_all_bodies(mq) == [b"%02d" % number for number in range(5)]


def test_idle_producer_is_garbage_collected(mq: Connection, admin: Admin) -> None:
    del admin
    producer = Producer(mq, "p", linger=0.01)
    producer.send_async(Message("t", b"x")).result(10)
    alive = weakref.ref(producer)
    del producer

    def gone() -> bool:
        gc.collect()
        return alive() is None

    poll_until(gone, 10)


def test_process_exit_waits_for_pending_sends(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    lines = """
hasty = Producer(mq, "q")
for n in range(20):
    hasty.send_async(Message('t', b'%02d' % n))
for n in range(20, 30):
    hasty.send_oneway(Message('t', b'%02d' % n))
"""
    assert run_script(services, lines) == ""
    assert read_all_bodies(mq) == [b"%02d" % number for number in range(30)]


def test_close_waits_for_pending_sends(services: Services, mq: Connection, admin: Admin) -> None:
    del admin
    with Producer(mq, "p", linger=FOREVER) as producer:
        producer.send(Message("t", b"now"))
        release = threading.Event()
        services.loop.loop.call_soon_threadsafe(release.wait, 10.0)  # blocks the brokers
        delayed = producer.send_async(Message("t", b"later", delay_level=1))  # delayed messages do not linger
        assert not producer.flush(0.05)
        threading.Timer(0.1, release.set).start()
    assert delayed.done()
    assert delayed.result().queue.topic == "SCHEDULE_TOPIC_XXXX"


@pytest.mark.parametrize("second", ["the producer", "its connection"])
def test_second_close_waits_for_first_close(services: Services, admin: Admin, second: str) -> None:
    del admin
    mq = Connection([services.name_server.address])
    producer = Producer(mq, "p", linger=FOREVER)
    producer.send(Message("t", b"now"))
    release = threading.Event()
    services.loop.loop.call_soon_threadsafe(release.wait, 10.0)  # blocks the brokers
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


def test_forked_child_sends_its_own_messages(services: Services, mq: Connection, admin: Admin) -> None:
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
    assert read_all_bodies(mq) == [b"child", b"child, at once", b"parent", b"warm"]


def test_unreferenced_consumer_leaves_group_at_process_exit(services: Services, mq: Connection, admin: Admin) -> None:
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


def test_accepted_sends_complete_when_connection_closes(services: Services, admin: Admin) -> None:
    """Close the connection under sending threads; every accepted send gets an outcome."""
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
        with pytest.raises(ClientClosed):  # as by a thread that saw the producer open
            producer._paths.batcher.add(Message("t", b"x"))
    assert not wait(taken, 10).not_done
