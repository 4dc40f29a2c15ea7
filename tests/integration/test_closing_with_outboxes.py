"""Test that closing a producer keeps gathered, waiting messages in the outbox."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from raymq.actors.protocol import PERM_READ, TopicRoute
from raymq.actors.wire.commands.broker_config_commands import set_permission_command
from raymq.client import Admin, Connection, Message, MessageQueue, Producer
from raymq.client.errors import SendError
from raymq.client.produce.outbox_file import OutboxFile
from tests.integration.conftest import Services
from tests.integration.test_outbox import stop_all
from tests.polling import poll_until


def kept_bodies(file: Path) -> list[tuple[str | None, bytes]]:
    outbox = OutboxFile(file, read_only=True)
    found = [(batch.sharding_key, message.body) for batch in outbox.batches() for message in batch.messages()]
    outbox.close()
    return found


@pytest.mark.parametrize("idempotent", [False, True])
def test_close_keeps_queued_sends_in_outbox(
    services: Services, mq: Connection, admin: Admin, tmp_path: Path, idempotent: bool
) -> None:
    """Such sends ended with ClientClosed, and their messages were lost."""
    del admin
    file, queue = tmp_path / "outbox.db", MessageQueue("t", "broker-a", 0)
    producer = Producer(mq, "p", timeout=60.0, retries=1_000, linger=0.01, outbox=file, idempotent=idempotent)
    producer.send(Message("t", b"before"))
    stop_all(services)
    batcher = producer._paths.batcher
    assert batcher is not None
    futures = []
    for number in range(4):
        futures.append(producer.send_async(Message("t", b"%d" % number), queue=queue))
        poll_until(lambda: not batcher._gathered, what="it is on its way")
    producer.close(0.1)
    errors = [future.exception(10) for future in futures]
    assert [isinstance(error, SendError) and error.kept for error in errors] == [True] * 4
    assert kept_bodies(file) == [(None, b"%d" % number) for number in range(4)]


def test_close_keeps_keyed_sends_without_route(tmp_path: Path) -> None:
    """Such sends failed with "cannot schedule new futures after shutdown", and their messages were lost."""
    file = tmp_path / "outbox.db"
    mq = Connection(["127.0.0.1:1"])
    producer = Producer(mq, "p", timeout=60.0, retries=1_000, linger=0.01, outbox=file)
    batcher = producer._paths.batcher
    assert batcher is not None
    futures = []
    for number in range(3):
        futures.append(producer.send_async(Message("t", b"%d" % number), sharding_key="k"))
        poll_until(lambda: not batcher._gathered, what="it is on its way")
    producer.close(0.1)
    errors = [future.exception(10) for future in futures]
    assert [isinstance(error, SendError) and error.kept for error in errors] == [True] * 3
    assert kept_bodies(file) == [("k", b"%d" % number) for number in range(3)]
    mq.close()


def test_close_keeps_many_sends_on_slow_disk(
    services: Services, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message was written separately; those not written within the time of a close were lost."""
    del admin
    file = tmp_path / "outbox.db"
    written = OutboxFile.keep

    def slowly(self: OutboxFile, *arguments: Any) -> list[int]:
        time.sleep(0.05)
        return written(self, *arguments)

    with Connection([services.name_server.address]) as mq:
        producer = Producer(mq, "p", timeout=60.0, retries=1_000, linger=0.001, outbox=file)
        producer.send(Message("t", b"before"))
        stop_all(services)
        monkeypatch.setattr(OutboxFile, "keep", slowly)
        futures = [  # each with a different timeout, and so in a separate batch
            producer.send_async(Message("t", b"%d" % number), timeout=60.0 + number / 1_000) for number in range(300)
        ]
        producer.close(0.1)
    errors = [future.exception(10) for future in futures]
    assert [isinstance(error, SendError) and error.kept for error in errors] == [True] * len(errors)
    assert sorted(int(body) for _, body in kept_bodies(file)) == list(range(len(errors)))


def test_close_keeps_keyed_sends_of_drained_broker(
    services: Services, mq: Connection, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such sends were refused, waited for a new route from a hanging name server, and were lost."""
    del admin
    file = tmp_path / "outbox.db"
    with Connection([services.name_server.address]) as sending:
        producer = Producer(sending, "p", timeout=60.0, retries=0, linger=0.01, outbox=file)
        before = {key: producer.send_async(Message("t", b"before"), sharding_key=key) for key in map(str, range(20))}
        there = [key for key, sent in before.items() if sent.result(20).queue.broker == "broker-b"]
        assert there
        address = mq.run(mq.routes.cluster()).masters["broker-b"]
        mq.run(mq.pool.request(address, set_permission_command(PERM_READ), 10.0))
        get, requested = sending.routes.get, threading.Event()

        async def hangs(topic: str, *, fresh: bool = False, timeout: float = 3.0) -> TopicRoute:
            if fresh:
                requested.set()
                await asyncio.sleep(60.0)
            return await get(topic, timeout=timeout)

        monkeypatch.setattr(sending.routes, "get", hangs)
        futures = [producer.send_async(Message("t", key.encode()), sharding_key=key) for key in there]
        assert requested.wait(10.0)
        producer.close(0.1)
    errors = [future.exception(10) for future in futures]
    assert [isinstance(error, SendError) and error.kept for error in errors] == [True] * len(errors)
    assert sorted(kept_bodies(file)) == sorted((key, key.encode()) for key in there)
