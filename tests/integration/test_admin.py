"""Test the Python administration API: topic changes, offset resets and the asyncio methods."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import math
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from click.testing import CliRunner, Result

from raymq.actors.errors import ConnectionLost
from raymq.actors.names import recently_left_brokers
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.coordinator_directory_commands import known_brokers_command, read_known_brokers
from raymq.actors.wire.frame import Command
from raymq.client import (
    Admin,
    ClientClosed,
    Connection,
    ConsumeResult,
    GroupNotFound,
    InvalidInput,
    Message,
    MessageNotFound,
    MessageQueue,
    NotStored,
    PermissionDenied,
    Producer,
    PullConsumer,
    PushConsumer,
    QueueNotFound,
    SimpleConsumer,
    TopicNotFound,
)
from raymq.client.requests import fan_out
from raymq.cluster.cli import main_group
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)
OTHER = MessageQueue("t", "broker-b", 0)


def send(mq: Connection, count: int, queue: MessageQueue = QUEUE) -> None:
    with Producer(mq, "p") as producer:
        for number in range(count):
            producer.send(Message("t", str(number).encode()), queue=queue)


class TestUpdateTopic:
    def test_update_topic_adds_queues(self, mq: Connection, admin: Admin) -> None:
        admin.update_topic("t", queues=3, ordered=True)
        assert sorted(queue.queue_id for queue in admin.topic_stats("t")) == [0, 0, 1, 1, 2, 2]
        admin.create_topic("t", queues=3, ordered=True)  # raises if the topic has other settings
        with PullConsumer(mq, "g") as consumer:
            assert len(consumer.queues("t")) == 6

    def test_update_topic_keeps_unnamed_settings(self, mq: Connection, admin: Admin) -> None:
        admin.create_topic("o", queues=3, ordered=True)
        admin.update_topic("o", permission=4)
        with Producer(mq, "p", retries=0) as producer, pytest.raises(PermissionDenied, match="may not be written"):
            producer.send(Message("o", b"x"))
        admin.update_topic("o", permission=6)
        admin.create_topic("o", queues=3, ordered=True)

    def test_queue_removal_takes_two_steps(self, mq: Connection, admin: Admin) -> None:
        send(mq, 1, MessageQueue("t", "broker-a", 1))
        admin.update_topic("t", write_queues=1)
        assert len(admin.topic_stats("t")) == 4
        with Producer(mq, "p") as producer, pytest.raises(QueueNotFound):
            producer.send(Message("t", b"x"), queue=MessageQueue("t", "broker-a", 1))
        admin.update_topic("t", read_queues=1)
        assert len(admin.topic_stats("t")) == 2

    @pytest.mark.parametrize(("change", "field"), [({"queues": 0}, "queues"), ({"permission": 1}, "permission")])
    def test_invalid_arguments_are_refused(self, admin: Admin, change: dict[str, int], field: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            admin.update_topic("t", **change)
        assert field in caught.value.field
        with pytest.raises(TopicNotFound):
            admin.update_topic("none", queues=2)


class TestOffsetResets:
    def test_reset_of_stopped_group_moves_offsets(self, mq: Connection, admin: Admin) -> None:
        send(mq, 3)
        middle = time.time() + 0.01
        poll_until(lambda: time.time() > middle)
        send(mq, 2)
        with PullConsumer(mq, "g"):
            pass
        assert admin.reset_offset_by_time("g", "t", middle)[QUEUE] == 3
        assert admin.group_progress("g")[QUEUE].lag == 2
        assert admin.reset_offset_by_time("g", "t", 0)[QUEUE] == 0
        for future in (time.time() + 1e6, math.inf):
            assert admin.reset_offset_by_time("g", "t", future)[QUEUE] == 5
        admin.reset_offset_by_time("g", "t", 0)
        assert admin.skip("g", "t")[QUEUE] == 5
        assert admin.group_progress("g")[QUEUE].lag == 0

    def test_reset_of_running_group_redelivers_messages(self, mq: Connection, admin: Admin) -> None:
        seen: list[int] = []

        def listener(messages: list[Any]) -> ConsumeResult:
            seen.extend(message.queue_offset for message in messages)
            return ConsumeResult.SUCCESS

        send(mq, 4)
        with PushConsumer(mq, "g", {"t": "*"}, listener):
            poll_until(lambda: admin.group_progress("g")[QUEUE].committed_offset == 4)
            admin.reset_offset_by_time("g", "t", 0)
            poll_until(lambda: len(seen) == 8 and admin.group_progress("g")[QUEUE].committed_offset == 4)
        assert sorted(seen) == sorted([0, 1, 2, 3] * 2)

    def test_reset_invalidates_earlier_receipt_handles(self, mq: Connection, admin: Admin) -> None:
        send(mq, 3)
        with SimpleConsumer(mq, "g", {"t": "*"}) as simple:
            before = simple.receive(10, invisible_duration=60.0)
            assert len(before) == 3
            admin.reset_offset_by_time("g", "t", 0)
            assert not simple.ack(before)
            assert not simple.change_invisible_duration(before[0], 1.0)
            again = simple.receive(10, invisible_duration=60.0)
            assert [message.queue_offset for message in again] == [0, 1, 2]
            admin.skip("g", "t")
            assert not simple.ack(again[0])
            assert simple.receive(10, await_duration=0.2) == []

    def test_skip_covers_broker_without_the_group(self, mq: Connection, services: Services, admin: Admin) -> None:
        send(mq, 2, OTHER)
        services.stop_broker("broker-b")
        poll_until(lambda: "broker-b" in mq.run(mq.routes.cluster()).left)
        with PullConsumer(mq, "g"):
            pass
        services.start_broker("broker-b")
        assert admin.skip("g", "t")[OTHER] == 2
        assert admin.group_progress("g")[OTHER].committed_offset == 2

    def test_invalid_arguments_are_refused(self, mq: Connection, admin: Admin) -> None:
        with pytest.raises(GroupNotFound):
            admin.skip("none", "t")
        with PullConsumer(mq, "g"), pytest.raises(TopicNotFound):
            admin.skip("g", "none")
        for timestamp in (-1.0, math.nan):
            with pytest.raises(InvalidInput):
                admin.reset_offset_by_time("g", "t", timestamp)


def test_progress_of_unreachable_broker_is_unknown(mq: Connection, services: Services, admin: Admin) -> None:
    send(mq, 1)
    send(mq, 1, OTHER)
    with PullConsumer(mq, "g") as consumer:
        for queue in (QUEUE, OTHER):
            consumer.commit(queue, 1)
    assert admin.groups() == ["g"]
    known = admin.group_progress("g")
    assert known[QUEUE].lag == known[OTHER].lag == 0
    assert {broker.state for broker in admin.cluster_info().brokers} == {"running"}
    services.stop_broker("broker-b")
    progress = admin.group_progress("g")
    assert progress[QUEUE] == known[QUEUE]
    assert (progress[OTHER].committed_offset, progress[OTHER].max_offset, progress[OTHER].lag) == (None, None, None)
    assert {broker.name: broker.state for broker in admin.cluster_info().brokers} == {
        "broker-a": "running",
        "broker-b": "unreachable",
    }


def test_lost_broker_is_listed_until_it_is_forgotten(
    mq: Connection, services: Services, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def known() -> set[str]:
        try:
            return set(read_known_brokers(mq.run(mq.routes.ask(known_brokers_command()))))
        except MessageNotFound:  # no broker has added its name yet
            return set()

    def states(by: Admin) -> dict[str, tuple[str, bool]]:
        return {broker.name: (broker.state, bool(broker.address)) for broker in by.cluster_info().brokers}

    poll_until(lambda: known() == {"broker-a", "broker-b"}, 20)
    assert states(admin) == dict.fromkeys(("broker-a", "broker-b"), ("running", True))
    services.stop_broker("broker-b")
    monkeypatch.setattr(recently_left_brokers, "RECENTLY_LEFT_SECONDS", 0.0)
    assert states(admin)["broker-b"] == ("unreachable", True)
    with Admin(mq) as later:
        for _ in range(2):
            assert states(later) == {"broker-a": ("running", True), "broker-b": ("unreachable", False)}
        for name in ("brokr-b", "broker-b.1"):
            with pytest.raises(InvalidInput, match=r"lost broker \(broker-b\)"):
                admin.forget_broker(name)
        assert forget_by_command(mq, "broker-b").exit_code == 2
        assert json.loads(forget_by_command(mq, "broker-b", "--dry-run").stdout)["forgotten"] is False
        assert states(later)["broker-b"] == ("unreachable", False)
        assert json.loads(forget_by_command(mq, "broker-b", "--yes").stdout)["forgotten"] is True
        assert states(admin) == states(later) == {"broker-a": ("running", True)}


def forget_by_command(mq: Connection, *arguments: str) -> Result:
    addresses = ["--name-servers", ";".join(mq.name_servers)]
    return CliRunner().invoke(main_group, [*addresses, "broker", "forget", *arguments, "--json"])


class TestAsyncio:
    def test_async_methods_of_admin_and_pull_consumer(self, mq: Connection, services: Services) -> None:
        async def scenario() -> None:
            async with Admin(mq) as admin, Producer(mq, "p") as producer:
                await admin.acreate_topic("t", 1)
                sent = await producer.asend(Message("t", b"x", keys=["k"]), queue=QUEUE)
                assert (await admin.aquery_by_id(sent.message_id)).body == b"x"
                assert (await admin.aquery_by_unique_key("t", sent.unique_key)).body == b"x"
                assert [m.body for m in await admin.aquery_by_key("t", "k")] == [b"x"]
                assert (await admin.atopic_stats("t"))[QUEUE].max_offset == 1
                assert await admin.atopics() == ["t"]
                with pytest.raises(MessageNotFound):
                    await admin.aquery_by_unique_key("t", "0" * 32)
                async with PullConsumer(mq, "g") as consumer:
                    assert QUEUE in await consumer.aqueues("t")
                    assert await consumer.aoffsets(QUEUE) == (0, 1)
                    await consumer.aseek(QUEUE, "earliest")
                    assert [m.body for m in await consumer.apoll(QUEUE)] == [b"x"]
                    await consumer.aseek_to_time(QUEUE, 0.0)
                    assert (await consumer.afetch_table(QUEUE)).num_rows == 1
                    await consumer.acommit(QUEUE, await consumer.aposition(QUEUE))
                    assert await consumer.acommitted(QUEUE) == 1
                assert (await admin.agroup_progress("g"))[QUEUE].lag == 0
                assert (await admin.areset_offset_by_time("g", "t", 0.0))[QUEUE] == 0
                assert (await admin.askip("g", "t"))[QUEUE] == 1
                assert await admin.agroups() == ["g"]
                assert await admin.adlq_list("g") == []
                assert [message async for message in admin.adlq_messages("g")] == []
                assert (await admin.adlq_redrive("g")).redriven == []
                assert len((await admin.acluster_info()).brokers) == 2
                await admin.aupdate_topic("t", 2)
                await admin.adelete_topic("t")
            with pytest.raises(ClientClosed):
                await admin.atopics()

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("kind", "blocking"),
        [
            (Admin, {name for name in vars(Admin) if not name.startswith(("_", "a")) and name.islower()}),
            (PullConsumer, {"queues", "offsets", "committed", "position", "seek", "poll", "fetch_table", "commit"}),
            (SimpleConsumer, {"receive", "ack", "change_invisible_duration", "close"}),
            (Producer, {"send", "send_batch", "send_table", "recall", "flush", "close"}),
            (PushConsumer, {"start", "shutdown"}),
        ],
    )
    def test_blocking_methods_have_matching_async_methods(self, kind: type, blocking: set[str]) -> None:
        for name in blocking:
            own, twin = getattr(kind, name), getattr(kind, f"a{name}")
            assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin), name
            assert inspect.signature(own).parameters == inspect.signature(twin).parameters, name

    def test_closing_connection_ends_waiting_poll(self, services: Services) -> None:
        async def wait() -> None:
            connection = Connection([services.name_server.address])
            Admin(connection).create_topic("t", 1)
            consumer = PullConsumer(connection, "g")
            waiting = asyncio.create_task(consumer.apoll(QUEUE, timeout=30.0))
            await consumer.aposition(QUEUE)
            await connection.aclose()
            with pytest.raises(ClientClosed):
                await waiting

        asyncio.run(wait())


def _try_send(producer: Producer, timeout: float) -> None:
    with contextlib.suppress(NotStored):
        producer.send(Message("new", b"x"), timeout=timeout)


class TestTopicAutoCreation:
    def test_first_send_creates_topic(self, tmp_path: Path) -> None:
        services = Services(tmp_path, auto_create_topics=True)
        services.start()
        try:
            with Connection([services.name_server.address]) as mq, Producer(mq, "p") as producer:
                futures = [producer.send_async(Message("new", str(n).encode())) for n in range(40)]
                queues = {future.result(10).queue for future in futures}
                assert queues == {MessageQueue("new", broker, n) for broker in services.brokers for n in range(4)}
                with Admin(mq) as admin:
                    assert admin.topics() == ["new"]
                    admin.create_topic("new", queues=4)
                by_key = {producer.send(Message("keyed", b"x"), sharding_key="k").queue for _ in range(4)}
                assert len(by_key) == 1
                assert len(producer.send_batch([Message("batch", b"x")] * 3)) == 3
        finally:
            services.stop()

    @pytest.mark.long
    def test_send_timeout_holds_while_topic_creation_hangs(self, tmp_path: Path) -> None:
        """Another thread with a longer timeout has already sent the request to the broker."""
        services = Services(tmp_path, auto_create_topics=True)
        services.start()
        requested = threading.Event()

        async def hang(*_: Any) -> None:
            requested.set()
            await asyncio.sleep(3600)

        try:
            services.stop_broker("broker-b")
            handlers = services.brokers["broker-a"]._server.handlers
            services.brokers["broker-a"]._server.handlers = {
                **handlers,
                RequestCode.UPDATE_AND_CREATE_TOPIC: hang,  # type: ignore[dict-item]
            }
            with Connection([services.name_server.address]) as mq, Producer(mq, "p", retries=0) as producer:
                patient = threading.Thread(target=_try_send, args=(producer, 8.0))
                patient.start()
                assert requested.wait(10)
                began = time.monotonic()
                with pytest.raises(NotStored, match="not created within"):
                    producer.send(Message("new", b"x"), timeout=1.0)
                assert time.monotonic() - began < 5.0, "nor as long as the other one"
                assert patient.is_alive()
                patient.join(20)
        finally:
            services.stop()

    def test_send_to_unknown_topic_is_refused_by_default(self, mq: Connection, admin: Admin) -> None:
        with Producer(mq, "p") as producer, pytest.raises(TopicNotFound, match="create_topic"):
            producer.send(Message("new", b"x"))
        assert admin.topics() == ["t"]


@pytest.mark.parametrize("code", [RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV])
def test_topic_deletion_is_retried_after_lost_answer(
    mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch, code: RequestCode
) -> None:
    """The retry counts as success when the server answers that the topic does not exist."""
    admin.create_topic("lost-answer")
    request, requested = mq.pool.request, list[str]()

    async def losing(address: str, command: Command, *arguments: Any, **options: Any) -> Command:
        if command.code != code:
            return await request(address, command, *arguments, **options)
        requested.append(address)
        if requested.count(address) > 1:
            raise TopicNotFound("topic lost-answer does not exist")
        await request(address, command, *arguments, **options)
        raise ConnectionLost(address, "cut")

    monkeypatch.setattr(mq.pool, "request", losing)
    admin.delete_topic("lost-answer")
    assert len(requested) == 2 * len(set(requested))
    monkeypatch.undo()
    assert "lost-answer" not in admin.topics()


def test_admin_call_finds_new_master_of_broker_group(
    mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that died during a call may have a successor at another address."""
    view = mq.run(mq.routes.cluster())
    addresses = dict.fromkeys(view.masters, "127.0.0.1:1")
    with monkeypatch.context() as patch:
        patch.setattr(fan_out, "masters", AsyncMock(return_value=addresses))
        admin.create_topic("successor", queues=1)
    assert set(mq.run(mq.routes.get("successor")).addresses) == set(view.masters)
