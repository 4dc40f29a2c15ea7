"""Test dead letters over sockets: list, redrive once, export."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raymq.actors.wire.commands.dead_letter_commands import redrive_command
from raymq.client import (
    Admin,
    Connection,
    DeadMessage,
    GroupNotFound,
    InvalidInput,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    RedriveResult,
    Retry,
)
from raymq.client.admin import dead_letter_requests
from raymq.cluster.cli import main_group
from raymq.storage.records.record import OFFSET_BODY
from tests.integration.conftest import Services
from tests.integration.recording_listener import RecordingListener
from tests.polling import poll_until
from tests.store_records import flip_byte

pytestmark = pytest.mark.integration


@pytest.fixture
def dead_letters(mq: Connection, admin: Admin) -> list[DeadMessage]:
    """Return the list of ten dead letters of group g."""
    producer = Producer(mq, "p")
    for number in range(10):
        body = b"\xff" if number == 9 else b"m%d" % number
        producer.send(Message("t", body, tags="a", keys=[f"k{number}"], properties={"p": str(number)}))
    return create_dead_letters(mq, admin, 10)


def create_dead_letters(mq: Connection, admin: Admin, count: int) -> list[DeadMessage]:
    """Let group g refuse its messages until `count` more are dead letters; return the new ones."""
    known = {(message.queue, message.queue_offset) for message in list_dead_letters(admin)}

    def new() -> list[DeadMessage]:
        return [message for message in list_dead_letters(admin) if (message.queue, message.queue_offset) not in known]

    with PushConsumer(mq, "g", {"t": "*"}, RecordingListener(lambda message: Retry(-1))):
        poll_until(lambda: len(new()) >= count, 20, "deaths")
    return new()


def list_dead_letters(admin: Admin) -> list[DeadMessage]:
    try:
        return admin.dlq_list("g")
    except GroupNotFound:
        return []


def ids(messages: list[DeadMessage]) -> list[str]:
    return [message.message_id for message in messages]


def test_dlq_list_names_original_messages(mq: Connection, admin: Admin, dead_letters: list[DeadMessage]) -> None:
    assert {message.queue.topic for message in dead_letters} == {"%DLQ%g"}
    assert {message.queue.broker for message in dead_letters} == {"broker-a", "broker-b"}
    for message in dead_letters:
        original = admin.query_by_id(message.message_id)
        for name in ("topic", "unique_key", "keys", "tags", "properties", "body", "born_timestamp"):
            assert getattr(message, name) == getattr(original, name)
        assert message.reason == "the listener asked for it"
        assert original.store_timestamp <= message.dead_at <= time.time()
    assert [message.dead_at for message in dead_letters] == sorted(message.dead_at for message in dead_letters)
    assert ids(admin.dlq_list("g", limit=3)) == ids(dead_letters)[:3]
    assert ids(admin.dlq_list("g", newest_first=True)) == ids(dead_letters)[::-1]
    newest = admin.dlq_list("g", limit=3, newest_first=True)
    assert (ids(newest), newest.truncated) == (ids(dead_letters)[:-4:-1], len(dead_letters) > 3)
    assert sorted(ids(list(admin.dlq_messages("g")))) == sorted(ids(dead_letters))


def test_damaged_dead_letter_is_skipped_alone(
    services: Services, admin: Admin, dead_letters: list[DeadMessage], caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise no dead letter of the group, on any broker, could be listed or redriven."""
    body, around = [message for message in dead_letters if message.queue.broker == "broker-a"][:2]
    log = services.directory / "broker-a" / "commitlog" / f"{0:020d}"
    flip_byte(log, body.physical_offset + OFFSET_BODY)
    flip_byte(log, around.physical_offset + OFFSET_BODY - 1)  # the body's length
    sound = [message for message in dead_letters if message not in (body, around)]
    newest = admin.dlq_list("g", newest_first=True)
    assert ids(newest) == ids(sound)[::-1]
    assert {entry.offset for entry in newest.unreadable} == {body.queue_offset, around.queue_offset}
    assert ids(admin.dlq_list("g", limit=2, newest_first=True)) == ids(sound)[:-3:-1]
    found = admin.dlq_list("g")
    assert ids(found) == ids(sound)
    assert [(entry.queue, entry.offset) for entry in found.unreadable] == [
        (message.queue, message.queue_offset) for message in (body, around)
    ]
    assert ids(list(admin.dlq_messages("g"))) == ids(sorted(sound, key=lambda message: message.queue))
    assert "cannot be read and is passed over" in caplog.text
    result = admin.dlq_redrive("g")
    assert (sorted(result.redriven), len(result.unreadable)) == (sorted(ids(sound)), 2)
    assert admin.dlq_redrive("g", [body.message_id]).unknown == [body.message_id]


def test_dead_letters_are_listed_after_older_ones_expire(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the oldest of a group had expired, the others could not be listed or redriven."""
    queue = MessageQueue("t", "broker-a", 0)
    producer = Producer(mq, "p", timeout=10.0)
    producer.send(Message("t", b"old"), queue=queue)
    create_dead_letters(mq, admin, 1)
    admin.create_topic("filling", queues=1)
    producer.send_batch([Message("filling", bytes(1_000_000))] * 20, queue=MessageQueue("filling", "broker-a", 0))
    producer.send(Message("t", b"new"), queue=queue)
    new = create_dead_letters(mq, admin, 1)
    store = services.brokers["broker-a"].store
    monkeypatch.setattr(store._age, "now_ms", lambda: int((time.time() + 80 * 3_600) * 1000))

    async def delete() -> int:
        return store.delete_expired(asked=True).log_files

    store.flush()  # unflushed data is not deleted
    assert services.loop.run(delete()) > 0
    assert store.min_offset("%DLQ%g", 0) == 1
    assert ids(admin.dlq_list("g")) == ids(list(admin.dlq_messages("g"))) == ids(new)
    assert admin.dlq_redrive("g").redriven == ids(new)


def test_dlq_calls_on_unknown_and_empty_groups(mq: Connection, admin: Admin) -> None:
    for call in (admin.dlq_list, admin.dlq_redrive, admin.dlq_messages):
        with pytest.raises(GroupNotFound):
            call("nobody")
    with PushConsumer(mq, "happy", {"t": "*"}, RecordingListener()):
        assert admin.dlq_list("happy") == []
        assert admin.dlq_redrive("happy") == RedriveResult([], [], [])
        assert admin.dlq_redrive("happy", ["AB"]) == RedriveResult([], [], ["AB"])
    with pytest.raises(InvalidInput):
        admin.dlq_list("happy", limit=0)
    with pytest.raises(InvalidInput):
        admin.dlq_redrive("happy", rate=0)


def test_redrive_delivers_once_to_its_group_only(mq: Connection, admin: Admin, dead_letters: list[DeadMessage]) -> None:
    chosen = ids(dead_letters)[:4]
    with PushConsumer(mq, "other", {"t": "*"}, other := RecordingListener()):
        poll_until(lambda: len(other.taken) == 10, 10)
        assert admin.dlq_redrive("g", chosen, dry_run=True) == RedriveResult(chosen, [], [])
        assert admin.dlq_redrive("g", [chosen[0].lower(), *chosen[1:], "F" * 32]) == RedriveResult(
            chosen, [], ["F" * 32]
        )
        assert admin.dlq_redrive("g", chosen) == RedriveResult([], chosen, [])
        rest = admin.dlq_redrive("g")
        assert sorted(rest.already) == sorted(chosen)
        assert sorted(rest.redriven + rest.already) == sorted(ids(dead_letters))
        with PushConsumer(mq, "g", {"t": "*"}, taker := RecordingListener()):
            poll_until(lambda: len(taker.taken) == 10, 10)
            mark = Producer(mq, "p").send(Message("t", b"mark"))
            poll_until(lambda: b"mark" in taker.bodies and b"mark" in other.bodies, 10)
    assert len(other.taken) == 11
    again = {message.message_id: message for message in taker.taken if message.message_id != mark.message_id}
    assert len(again) == 10
    for message in dead_letters:
        copy = again[message.message_id]
        assert (copy.topic, copy.body, copy.keys, copy.tags) == ("t", message.body, message.keys, message.tags)
        assert copy.properties == message.properties
        assert copy.unique_key == message.unique_key
        assert copy.born_timestamp == message.born_timestamp
        assert copy.reconsume_times == 0
        assert admin.query_by_id(copy.system_properties["RAYMQ_REDRIVEN_FROM"]).queue == message.queue


def test_redriven_message_that_fails_is_a_new_entry(
    mq: Connection, admin: Admin, dead_letters: list[DeadMessage]
) -> None:
    first = ids(dead_letters)[:2]
    assert admin.dlq_redrive("g", first).redriven == first
    died_again = create_dead_letters(mq, admin, 2)
    assert sorted(ids(died_again)) == sorted(first)
    assert admin.dlq_redrive("g", first) == RedriveResult(first, [], [])
    assert admin.dlq_redrive("g", first) == RedriveResult([], first, [])
    assert admin.dlq_redrive("g", first[:1], force=True) == RedriveResult(first[:1], [], [])


def test_redrive_state_survives_broker_restart(
    mq: Connection, admin: Admin, dead_letters: list[DeadMessage], services: Services
) -> None:
    assert len(admin.dlq_redrive("g").redriven) == 10
    for name in ("broker-a", "broker-b"):
        services.stop_broker(name)
        services.start_broker(name)
    assert len(admin.dlq_redrive("g").already) == 10


def test_redrive_keeps_no_bodies_in_memory(
    mq: Connection, admin: Admin, dead_letters: list[DeadMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redrive had all requested dead letters in memory."""
    kept: list[int] = []

    def letters() -> int:
        gc.collect()  # collect unreferenced messages
        return sum(isinstance(each, DeadMessage) for each in gc.get_objects())

    def counted(*arguments: Any, **options: Any) -> Any:
        kept.append(letters())
        return redrive_command(*arguments, **options)

    monkeypatch.setattr(dead_letter_requests, "redrive_command", counted)
    wanted, others = set(ids(dead_letters)), letters()
    assert set(admin.dlq_redrive("g").redriven) == wanted
    assert max(kept) <= others + 1  # the message that was read last


def test_redrive_rate_is_limited(mq: Connection, admin: Admin, dead_letters: list[DeadMessage]) -> None:
    began = time.monotonic()
    assert len(admin.dlq_redrive("g", rate=10).redriven) == 10
    assert 0.9 <= time.monotonic() - began < 5.0


def test_dlq_commands(
    mq: Connection, admin: Admin, dead_letters: list[DeadMessage], services: Services, tmp_path: Path
) -> None:
    def call(*arguments: str) -> Any:
        name_server = services.name_server.address
        found = CliRunner().invoke(main_group, ["--name-servers", name_server, "dlq", *arguments, "--json"])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    rows = call("list", "g")
    assert [row["message_id"] for row in rows] == ids(dead_letters)
    assert {row.pop("redriven") for row in rows} == {False}
    assert {"topic", "body", "keys", "dead_at", "reason"} <= rows[0].keys()
    assert [row["body_base64"] for row in rows if "body" not in row] == ["/w=="]
    path = tmp_path / "dead.jsonl"
    assert call("export", "g", str(path)) == {"group": "g", "file": str(path), "messages": 10}
    exported = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(exported, key=lambda row: row["message_id"]) == sorted(rows, key=lambda row: row["message_id"])
    nothing = {"redriven": [], "already": [], "unknown": [], "not_asked": [], "unreadable": []}
    one = ids(dead_letters)[0]
    assert call("redrive", "g", "--id", one, "--dry-run") == nothing | {"redriven": [one]}
    assert call("redrive", "g", "--id", one) == nothing | {"redriven": [one]}
    assert call("redrive", "g", "--id", one, "--id", "AB") == nothing | {"already": [one], "unknown": ["AB"]}
    assert len(call("redrive", "g")["redriven"]) == 9
