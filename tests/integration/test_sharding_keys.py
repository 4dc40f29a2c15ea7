"""Test that a sharding key keeps its queue, and so its order, while its broker is away."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from raymq.actors.errors import SendError
from raymq.actors.protocol import PERM_READ
from raymq.actors.wire.commands.broker_config_commands import set_permission_command
from raymq.client import Admin, Connection, Message, MessageQueue, NotStored, Producer
from raymq.client.produce.outbox_file import OutboxFile
from tests.integration.conftest import Services
from tests.integration.test_lingering import read_all_bodies
from tests.polling import poll_until

pytestmark = pytest.mark.integration

KEYS = [f"key-{number}" for number in range(12)]


@pytest.mark.parametrize("linger", [0.0, 0.005])
def test_sharding_key_waits_for_its_broker(mq: Connection, services: Services, admin: Admin, linger: float) -> None:
    with Producer(mq, "p", linger=linger, timeout=0.5) as producer:

        def send(key: str) -> MessageQueue:
            return producer.send_async(Message("t", b"x"), sharding_key=key).result(10).queue

        queue_of_key = {key: send(key) for key in KEYS}
        assert {queue.broker for queue in queue_of_key.values()} == {"broker-a", "broker-b"}
        services.stop_broker("broker-b")

        def away() -> bool:
            mq.run(mq.routes.get("t", fresh=True))
            route = mq.routes.known("t")
            return route is not None and "broker-b" not in route.addresses

        poll_until(away, 30, "the broker has left the routes")
        for key in KEYS:
            if queue_of_key[key].broker == "broker-a":
                assert send(key) == queue_of_key[key]
            else:
                with pytest.raises(NotStored) as caught:
                    send(key)
                assert {attempt.broker for attempt in caught.value.attempts} <= {None, "broker-b"}
                assert "broker-b" in str(caught.value)
        services.start_broker("broker-b")
        deadline = time.monotonic() + 30
        for key in KEYS:
            while True:
                try:
                    assert send(key) == queue_of_key[key]
                    break
                except NotStored:
                    assert time.monotonic() < deadline


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize("has_outbox", [False, True])
@pytest.mark.parametrize("idempotent", [False, True])
def test_lingering_keys_leave_read_only_broker_at_once(
    mq: Connection, tmp_path: Path, *, has_outbox: bool, idempotent: bool
) -> None:
    """Cover a regression: such messages were refused, or kept in an outbox for that broker.

    The broker may never accept messages again, and the outbox sent no other message before them.
    """
    outbox = tmp_path / "outbox" if has_outbox else None
    with Producer(mq, "p", timeout=10.0, linger=0.01, idempotent=idempotent, outbox=outbox) as producer:
        before = {key: producer.send_async(Message("t", b"before"), sharding_key=key) for key in map(str, range(20))}
        there = [key for key, sent in before.items() if sent.result(20).queue.broker == "broker-b"]
        assert there
        address = mq.run(mq.routes.cluster()).masters["broker-b"]
        mq.run(mq.pool.request(address, set_permission_command(PERM_READ), 10.0))
        sent = [producer.send_async(Message("t", b"behind"), sharding_key=key) for key in there]
        assert {each.result(20).queue.broker for each in sent} == {"broker-a"}
        assert read_all_bodies(mq).count(b"behind") == len(there)
    if outbox is not None:
        file = OutboxFile(outbox)
        assert file.batches() == []
        file.close()


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize("ends", ["its tries run out", "it is closed"])
def test_lingering_messages_of_lost_broker_keep_sharding_key(services: Services, tmp_path: Path, ends: str) -> None:
    """Cover a regression: messages were kept for a queue whose broker may never return."""
    is_closed = ends == "it is closed"
    with Connection([services.name_server.address]) as sending:
        timeout, file = 60.0 if is_closed else 2.0, tmp_path / "outbox"
        producer = Producer(sending, "p", timeout=timeout, retries=1_000, linger=0.02, outbox=file)
        before = {key: producer.send_async(Message("t", b"before"), sharding_key=key) for key in KEYS}
        there = [key for key, sent in before.items() if sent.result(20).queue.broker == "broker-b"]
        assert there
        services.crash_broker("broker-b")
        sent = [producer.send_async(Message("t", key.encode()), sharding_key=key) for key in there]
        producer.close(0.1 if is_closed else 30.0)
    errors = [each.exception(10) for each in sent]
    assert [isinstance(error, SendError) and error.kept for error in errors] == [True] * len(there)
    outbox = OutboxFile(file, read_only=True)
    kept = {batch.sharding_key: (batch.queue, [each.body for each in batch.messages()]) for batch in outbox.batches()}
    outbox.close()
    assert kept == {key: (None, [key.encode()]) for key in there}
