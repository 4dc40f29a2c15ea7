"""Test the outbox: kept messages, later sends in order, restarts and the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from raymq.actors import route_cache
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer
from raymq.client.errors import InvalidInput, NotStored, SendError, TopicNotFound
from raymq.client.produce.outbox import OutboxSender
from raymq.client.produce.outbox_file import OutboxBatch, OutboxEntry, OutboxFile, UnsentBatches
from raymq.cluster.cli import main_group
from tests.integration.conftest import Services
from tests.integration.test_lingering import bodies, read_all_bodies
from tests.polling import poll_until
from tests.unit.actors.clock import FakeClock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


def run_command(*arguments: str, exit_code: int = 0) -> Any:
    done = CliRunner().invoke(main_group, ["outbox", *arguments, "--json"])
    assert done.exit_code == exit_code, done.output
    return json.loads(done.stdout)


def stop_all(services: Services) -> None:
    for name in list(services.brokers):
        services.stop_broker(name)


def start_all(services: Services) -> None:
    for name in ("broker-a", "broker-b"):
        services.start_broker(name)


def batch_states(file: Path) -> list[str]:
    outbox = OutboxFile(file)
    states = [batch.state for batch in outbox.batches()]
    outbox.close()
    return states


@pytest.mark.parametrize("idempotent", [False, True])
def test_unsent_messages_are_sent_later_in_order(
    services: Services, mq: Connection, admin: Admin, file: Path, idempotent: bool
) -> None:
    del admin
    queue = MessageQueue("t", "broker-a", 1)
    with Producer(mq, "p", timeout=10.0, outbox=file, idempotent=idempotent) as producer:
        producer.send(Message("t", b"before"), queue=queue)
        stop_all(services)
        messages = [Message("t", b"%d" % number, tags="x") for number in range(4)]
        for message in messages[:2]:
            with pytest.raises(NotStored) as caught:
                producer.send(message, queue=queue, retries=0, timeout=0.5)
            assert caught.value.kept
            assert "outbox" in str(caught.value)
        with pytest.raises(NotStored):
            producer.send_batch(messages[2:], queue=queue, retries=0, timeout=0.5)
        assert batch_states(file) == ["waiting"] * 3
        start_all(services)
        poll_until(lambda: not batch_states(file), 20)
    assert bodies(mq)[queue] == [b"before", b"0", b"1", b"2", b"3"]


def test_resend_of_partly_kept_batch_stores_no_duplicates(
    services: Services, mq: Connection, admin: Admin, file: Path
) -> None:
    """Resend `.not_stored`, which leaves out what the outbox keeps."""
    del admin
    messages = [Message("t", b"%d " % number + bytes(1 << 18)) for number in range(40)]
    with Producer(mq, "p", outbox=file) as producer:  # its own time-out is long: an unknown outcome may be stored twice
        producer.send(Message("t", b"before"))
        stop_all(services)
        with pytest.raises(NotStored, match="kept by the outbox") as caught:
            producer.send_batch(messages, timeout=0.5)
        rest = caught.value.not_stored
        assert 0 < len(rest) < 40
        start_all(services)
        producer.send_batch([messages[place] for place in rest], timeout=30.0)
        poll_until(lambda: not batch_states(file), 30)
    found = [body.split(b" ")[0] for each in bodies(mq).values() for body in each]
    assert sorted(found) == sorted([b"before", *(b"%d" % number for number in range(40))])


def test_next_process_sends_kept_messages(services: Services, mq: Connection, admin: Admin, file: Path) -> None:
    del admin
    stop_all(services)
    with (
        Connection([services.name_server.address]) as first,
        Producer(first, "p", timeout=0.3, outbox=file, linger=0.01) as producer,
    ):
        future = producer.send_async(Message("t", b"x", keys="k"))
        with pytest.raises(NotStored):
            future.result(10)
    assert batch_states(file) == ["waiting"]
    start_all(services)
    with Producer(mq, "p", outbox=file):
        poll_until(lambda: not batch_states(file), 20)
    assert read_all_bodies(mq) == [b"x"]


@contextmanager
def lock_file(file: Path) -> Iterator[None]:
    """Lock the file, as another process does during a change."""
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.rollback()
        other.close()


@pytest.mark.usefixtures("admin")
def test_outbox_survives_locked_file(
    services: Services, mq: Connection, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Cover fault 13.16: one "database is locked" stopped the outbox and lost the message."""
    monkeypatch.setattr("raymq.client.produce.outbox_file._BUSY_SECONDS", 0.1)
    queue = MessageQueue("t", "broker-a", 1)
    with Producer(mq, "p", timeout=0.5, outbox=file) as producer:
        stop_all(services)
        with lock_file(file):
            future = producer.send_async(Message("t", b"1"), queue=queue, retries=0)
            poll_until(lambda: "cannot be written" in caplog.text and "cannot be read" in caplog.text, 20)
            assert not future.done()
        with pytest.raises(NotStored) as caught:
            future.result(30)
        assert caught.value.kept
        assert batch_states(file) == ["waiting"]
        start_all(services)
        poll_until(lambda: not batch_states(file), 30)
    assert bodies(mq)[queue] == [b"1"]


@pytest.mark.usefixtures("admin")
def test_outbox_file_is_not_accessed_on_event_loop(
    services: Services, mq: Connection, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cover fault 13.16: a file locked by another process blocked the whole client."""
    calls: dict[str, set[bool]] = defaultdict(set)

    def watch(name: str) -> None:
        call = getattr(OutboxFile, name)

        def watched(self: OutboxFile, *arguments: Any, **options: Any) -> Any:
            calls[name].add(mq.is_on_loop)
            return call(self, *arguments, **options)

        monkeypatch.setattr(OutboxFile, name, watched)

    for name in ("keep", "claim", "next", "remove", "failed", "close"):
        watch(name)
    with Producer(mq, "p", timeout=0.5, outbox=file) as producer:
        stop_all(services)
        with pytest.raises(NotStored):
            producer.send(Message("t", b"1"), retries=0)
        poll_until(lambda: "failed" in calls, 20)
        start_all(services)
        poll_until(lambda: "remove" in calls, 20)
    assert calls == {name: {False} for name in ("keep", "claim", "next", "remove", "failed", "close")}


def test_outbox_is_claimed_by_one_sender_at_a_time(file: Path) -> None:
    first, second = OutboxFile(file), OutboxFile(file)
    assert first.claim(60)
    assert not second.claim(60)
    assert first.claim(60)
    first.close()
    assert second.claim(60)
    second.close()


def test_outbox_claim_ignores_wall_clock_changes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover fault 13.29: a killed sender with a wrong clock blocked others for a week."""
    monkeypatch.setattr(time, "time", lambda: 7 * 86_400.0 + 1_700_000_000.0)
    elapsed = FakeClock(100.0)
    killed = OutboxFile(file, elapsed=elapsed, boot="first")
    other = OutboxFile(file, elapsed=elapsed, boot="first")
    assert killed.claim(8)
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    assert not other.claim(8), "a step of 60 s must not make two senders"
    elapsed.advance(8.1)
    assert other.claim(8)
    elapsed.now = 5.0
    assert OutboxFile(file, elapsed=elapsed, boot="second").claim(8), "the machine was started anew"


def keep(outbox: OutboxFile, queue_id: int, broker: str = "broker-a") -> int:
    record = bytearray(Message("t", b"%d" % queue_id).encode(1, bytes(8)))
    queue = MessageQueue("t", broker, queue_id)
    return outbox.keep(UnsentBatches("t", [OutboxEntry(record, np.array([len(record)], np.int32), queue)], "down"))[0]


def test_full_disk_keeps_all_or_no_batches_of_one_send(file: Path) -> None:
    """Cover a regression: a partly kept send was reported as unsent and stored twice."""
    outbox = OutboxFile(file)
    outbox._db.execute(f"PRAGMA max_page_count={outbox._db.execute('PRAGMA page_count').fetchone()[0] + 4}")
    small, large = (bytearray(Message("t", b"x" * size).encode(1, bytes(8))) for size in (10, 100_000))
    with pytest.raises(sqlite3.Error, match="full"):
        outbox.keep(
            UnsentBatches("t", [OutboxEntry(each, np.array([len(each)], np.int32)) for each in (small, large)], "down")
        )
    assert outbox.batches() == []
    assert outbox.keep(UnsentBatches("t", [OutboxEntry(small, np.array([len(small)], np.int32))] * 2, "down")) == [1, 2]
    outbox.close()
    assert batch_states(file) == ["waiting"] * 2


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize("linger", [pytest.param(0.0, marks=pytest.mark.long), 0.01])
@pytest.mark.parametrize("is_new", [False, True], ids=["the same process", "a new process"])
def test_kept_messages_survive_outage_with_lost_routes(
    services: Services, mq: Connection, file: Path, monkeypatch: pytest.MonkeyPatch, linger: float, is_new: bool
) -> None:
    """Cover a regression: an old or unknown route turned kept messages into "refused" ones."""
    monkeypatch.setattr(route_cache, "ROUTE_SECONDS", 1.0)
    monkeypatch.setattr("raymq.client.produce.outbox._REST_SECONDS", 1.0)
    queue = MessageQueue("t", "broker-b", 1)
    Producer(mq, "p").send(Message("t", b"before"))
    stop_all(services)
    with (
        Connection([services.name_server.address]) as other,
        # Outbox sends get more time: a message that a slow broker answers too late is sent again.
        Producer(other if is_new else mq, "p", timeout=5.0, outbox=file, linger=linger) as producer,
    ):
        sends = [
            producer.send_async(Message("t", b"any"), timeout=0.5),
            producer.send_async(Message("t", b"to a queue"), queue=queue, timeout=0.5),
            producer.send_async(Message("t", b"of a key"), sharding_key="k", timeout=0.5),
        ]
        for each in sends:
            error = each.exception(20)
            assert isinstance(error, NotStored)
            assert error.kept
        assert batch_states(file) == ["waiting"] * 3
        outbox = OutboxFile(file, read_only=True)
        poll_until(lambda: outbox.batches()[0].tries > 2, 30, "it is tried beyond the age of a route")
        outbox.close()
        assert batch_states(file) == ["waiting"] * 3
        start_all(services)
        poll_until(lambda: not batch_states(file), 30)
    assert read_all_bodies(mq) == [b"any", b"before", b"of a key", b"to a queue"]


@pytest.mark.usefixtures("admin")
def test_kept_message_waits_for_broker_unknown_to_process(services: Services, mq: Connection, file: Path) -> None:
    queue = MessageQueue("t", "broker-b", 1)
    outbox = OutboxFile(file)
    keep(outbox, 1, "broker-b")
    services.stop_broker("broker-b")
    with Connection([services.name_server.address]) as new, Producer(new, "p", timeout=0.5, outbox=file):
        poll_until(lambda: outbox.batches()[0].tries > 1, 20)
        assert batch_states(file) == ["waiting"]
        services.start_broker("broker-b")
        poll_until(lambda: not batch_states(file), 30)
    outbox.close()
    assert bodies(mq)[queue] == [b"1"]


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize("linger", [pytest.param(0.0, marks=pytest.mark.long), 0.01])
@pytest.mark.parametrize("key", [None, "k"])
def test_outbox_waits_for_missing_topic_without_blocking(
    mq: Connection, admin: Admin, file: Path, linger: float, key: str | None
) -> None:
    """Keep messages that only the routes refuse, as can happen after a restart."""
    outbox = OutboxFile(file)
    with Producer(mq, "p", timeout=10.0, outbox=file, linger=linger) as producer:
        error = producer.send_async(Message("missing", b"1"), sharding_key=key).exception(20)
        assert isinstance(error, TopicNotFound)
        assert error.kept
        assert (error.refused_by, "outbox" in str(error)) == (None, True)
        with pytest.raises(TopicNotFound) as caught:
            producer.send_batch([Message("missing", b"2"), Message("missing", b"3")])
        assert caught.value.kept
        poll_until(lambda: outbox.batches()[0].tries > 0, 20)
        keep(outbox, 0)
        poll_until(lambda: [batch.topic for batch in outbox.batches()] == ["missing"] * 2, 20, "t's has gone out")
        assert batch_states(file) == ["waiting"] * 2
        admin.create_topic("missing", queues=1)
        poll_until(lambda: not batch_states(file), 30)
    outbox.close()
    with PullConsumer(mq, "g") as pull:
        found = [message.body for queue in pull.queues("missing") for message in pull.poll(queue, timeout=1.0)]
    assert sorted(found) == [b"1", b"2", b"3"]


@pytest.mark.usefixtures("admin")
def test_outbox_continues_after_unexpected_error(
    services: Services, mq: Connection, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cover a regression: after one MemoryError no kept message was ever sent."""
    stop_all(services)
    with Producer(mq, "p", timeout=0.5, outbox=file) as producer, pytest.raises(SendError):
        producer.send(Message("t", b"kept"))
    assert batch_states(file) == ["waiting"]
    start_all(services)
    following, failures = OutboxFile.next, [MemoryError()]

    def next_one(self: OutboxFile, resting: list[str]) -> OutboxBatch | None:
        if failures:
            raise failures.pop()
        return following(self, resting)

    monkeypatch.setattr(OutboxFile, "next", next_one)
    with Producer(mq, "p", outbox=file):
        poll_until(lambda: not batch_states(file), 20, "it is sent")
    assert not failures


@pytest.mark.usefixtures("admin")
def test_permanently_refused_message_waits_for_operator(mq: Connection, file: Path) -> None:
    outbox = OutboxFile(file)
    number = keep(outbox, 99)
    keep(outbox, 0)
    with Producer(mq, "p", outbox=file, timeout=1.0):
        poll_until(lambda: batch_states(file) == ["refused"], 20)
        assert read_all_bodies(mq) == [b"0"]
        (listed,) = run_command("list", str(file))
        assert (listed["id"], listed["messages"], listed["state"], listed["tries"]) == (number, 1, "refused", 1)
        assert "QueueNotFound" in listed["error"]
        assert run_command("retry", str(file), str(number)) == {"retried": [number], "missing": []}
        poll_until(lambda: [(batch.state, batch.tries) for batch in outbox.batches()] == [("refused", 2)], 20)
    outbox.close()


def test_outbox_drop_removes_batches(file: Path) -> None:
    outbox = OutboxFile(file)
    first, second = keep(outbox, 0), keep(outbox, 1)
    assert run_command("drop", str(file), str(first), "77", exit_code=1) == {"dropped": [first], "missing": [77]}
    assert [batch.id for batch in outbox.batches()] == [second]
    assert [record.body for record in outbox.batches()[0].messages()] == [b"1"]
    assert CliRunner().invoke(main_group, ["outbox", "drop", str(file)]).exit_code == 2
    assert run_command("drop", str(file), "--all") == {"dropped": [second], "missing": []}
    assert outbox.batches() == []
    outbox.close()


def test_invalid_outbox_file_is_refused(mq: Connection, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, however long one looks at it" * 10)
    for path in (tmp_path, tmp_path / "text", tmp_path / "missing" / "file"):
        with pytest.raises(InvalidInput) as caught:
            Producer(mq, "p", outbox=path)
        assert caught.value.field == "outbox"


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize("linger", [pytest.param(0.0, marks=pytest.mark.long), 0.01])
@pytest.mark.parametrize("idempotent", [False, True])
def test_close_keeps_pending_messages(
    services: Services, mq: Connection, file: Path, linger: float, idempotent: bool
) -> None:
    """Cover a regression: close shut the file before pending sends ended and kept none."""
    producer = Producer(mq, "p", timeout=60.0, retries=1_000, linger=linger, outbox=file, idempotent=idempotent)
    producer.send(Message("t", b"before"))
    stop_all(services)
    outcomes: list[SendError] = []

    def send() -> None:
        try:
            producer.send(Message("t", b"1"))
        except SendError as error:
            outcomes.append(error)

    waiting = threading.Thread(target=send)
    waiting.start()
    future = producer.send_async(Message("t", b"2"))
    sends = producer._paths.sends
    assert isinstance(sends, OutboxSender)
    poll_until(lambda: sends._busy == 2, what="both are on their way")
    producer.close(0.1)
    waiting.join(10)
    outcomes.append(future.exception(10))
    assert [error.kept for error in outcomes] == [True, True]
    assert batch_states(file) == ["waiting"] * 2
    start_all(services)
    with Producer(mq, "q", outbox=file):
        poll_until(lambda: not batch_states(file), 20)
    found = read_all_bodies(mq)
    # A message whose answer is slow may be stored, and is sent again.
    assert (found if idempotent else sorted(set(found))) == [b"1", b"2", b"before"]


def test_foreign_sqlite_file_is_not_changed(mq: Connection, tmp_path: Path) -> None:
    mine = tmp_path / "mine.sqlite"
    with contextlib.closing(sqlite3.connect(mine, isolation_level=None)) as db:
        db.execute("CREATE TABLE sender (name TEXT)")
        db.execute("INSERT INTO sender VALUES ('ann')")
    before = mine.read_bytes()
    with pytest.raises(InvalidInput):
        Producer(mq, "p", outbox=mine)
    assert CliRunner().invoke(main_group, ["outbox", "list", str(mine)]).exit_code != 0
    assert mine.read_bytes() == before
    assert sorted(tmp_path.glob("mine*")) == [mine]


@pytest.mark.parametrize(("records", "sizes"), [(b"", b""), (b"garbage" * 20, b"\x8c\0\0\0"), (b"x", b"abc")])
def test_damaged_batch_is_listed_as_damaged(file: Path, records: bytes, sizes: bytes) -> None:
    outbox = OutboxFile(file)
    keep(outbox, 0)
    outbox.close()
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("UPDATE batches SET records = ?, sizes = ?", (records, sizes))
    (listed,) = run_command("list", str(file))
    assert (listed["messages"], listed["state"]) == (0, "damaged")


FIRST_SENDS = """
import asyncio, os, sys
from raymq.client import Connection, Message, Producer

producer = Producer(Connection([sys.argv[1]]), "p", outbox=sys.argv[2])
message = Message("t", b"child")
producer.send(Message("t", b"parent"))
producer._paths.sends._thread.submit(int).result()  # it has looked at the file: a fork amid that would leave it locked
child = os.fork()
if not child:
    {send}
    assert producer.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize(
    "send",
    [
        "asyncio.run(producer.asend(message))",
        "asyncio.run(producer.asend_batch([message]))",
        "producer.send_oneway(message)",
        "producer.send_oneway(message); producer.send(message)",
    ],
)
def test_forked_child_can_start_with_any_send_call(
    services: Services, mq: Connection, admin: Admin, file: Path, send: str
) -> None:
    """Cover a regression: the first send failed, or the child hung."""
    del admin
    script = FIRST_SENDS.format(send=send)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, services.name_server.address, str(file)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert set(read_all_bodies(mq)) == {b"child", b"parent"}


@pytest.mark.usefixtures("admin")
def test_close_during_outbox_send_records_success(mq: Connection, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover a regression: close dropped the pending answer, and the next process sent again."""
    outbox = OutboxFile(file)
    keep(outbox, 0)
    keep(outbox, 1)
    outbox.close()
    request, stored = mq.pool.request, threading.Event()

    async def late(address: str, command: Command, *arguments: Any, **options: Any) -> Command:
        answer = await request(address, command, *arguments, **options)
        if command.code == RequestCode.APPEND_RECORDS:
            stored.set()
            await asyncio.sleep(0.5)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(mq.pool, "request", late)
        with Producer(mq, "p", outbox=file):
            assert stored.wait(20)
    assert batch_states(file) == ["waiting"], "it has begun with no other one"
    with Producer(mq, "p", outbox=file):
        poll_until(lambda: not batch_states(file), 20)
    assert read_all_bodies(mq) == [b"0", b"1"]
