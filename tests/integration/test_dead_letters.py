"""Dead letters over real sockets: listed, sent again once, exported."""

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
from tests.integration.taker import Taker
from tests.polling import poll_until
from tests.store_records import flip_byte

pytestmark = pytest.mark.integration


@pytest.fixture
def dead(mq: Connection, admin: Admin) -> list[DeadMessage]:
    """Ten messages that group g has refused, as they are listed."""
    producer = Producer(mq, "p")
    for number in range(10):
        body = b"\xff" if number == 9 else b"m%d" % number
        producer.send(Message("t", body, tags="a", keys=[f"k{number}"], properties={"p": str(number)}))
    return give_up(mq, admin, 10)


def give_up(mq: Connection, admin: Admin, count: int) -> list[DeadMessage]:
    """Let group g refuse what it gets, until so many more messages are dead; these."""
    known = {(message.queue, message.queue_offset) for message in listed(admin)}

    def new() -> list[DeadMessage]:
        return [message for message in listed(admin) if (message.queue, message.queue_offset) not in known]

    with PushConsumer(mq, "g", {"t": "*"}, Taker(lambda message: Retry(-1))):
        poll_until(lambda: len(new()) >= count, 20, "deaths")
    return new()


def listed(admin: Admin) -> list[DeadMessage]:
    try:
        return admin.dlq_list("g")
    except GroupNotFound:
        return []


def ids(messages: list[DeadMessage]) -> list[str]:
    return [message.message_id for message in messages]


def test_a_list_names_the_originals(mq: Connection, admin: Admin, dead: list[DeadMessage]) -> None:
    assert {message.queue.topic for message in dead} == {"%DLQ%g"}
    assert {message.queue.broker for message in dead} == {"broker-a", "broker-b"}
    for message in dead:
        original = admin.query_by_id(message.message_id)
        for name in ("topic", "unique_key", "keys", "tags", "properties", "body", "born_timestamp"):
            assert getattr(message, name) == getattr(original, name)
        assert message.reason == "the listener asked for it"
        assert original.store_timestamp <= message.dead_at <= time.time()
    assert [message.dead_at for message in dead] == sorted(message.dead_at for message in dead)
    assert ids(admin.dlq_list("g", limit=3)) == ids(dead)[:3]
    assert sorted(ids(list(admin.dlq_messages("g")))) == sorted(ids(dead))


def test_a_damaged_dead_letter_is_passed_over_alone(
    services: Services, admin: Admin, dead: list[DeadMessage], caplog: pytest.LogCaptureFixture
) -> None:
    """The others of its group, on all brokers, could neither be listed nor sent again, by their ids neither."""
    body, around = [message for message in dead if message.queue.broker == "broker-a"][:2]
    log = services.directory / "broker-a" / "commitlog" / f"{0:020d}"
    flip_byte(log, body.physical_offset + OFFSET_BODY)
    flip_byte(log, around.physical_offset + OFFSET_BODY - 1)  # the body's length
    sound = [message for message in dead if message not in (body, around)]
    found = admin.dlq_list("g")
    assert ids(found) == ids(sound)
    assert [(told.queue, told.offset) for told in found.unreadable] == [
        (message.queue, message.queue_offset) for message in (body, around)
    ]
    assert ids(list(admin.dlq_messages("g"))) == ids(sorted(sound, key=lambda message: message.queue))
    assert "cannot be read and is passed over" in caplog.text
    result = admin.dlq_redrive("g")
    assert (sorted(result.redriven), len(result.unreadable)) == (sorted(ids(sound)), 2)
    assert admin.dlq_redrive("g", [body.message_id]).unknown == [body.message_id]


def test_dead_letters_behind_expired_ones(
    services: Services, mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the oldest of a group had expired the others could neither be listed nor sent again."""
    queue = MessageQueue("t", "broker-a", 0)
    producer = Producer(mq, "p", timeout=10.0)
    producer.send(Message("t", b"old"), queue=queue)
    give_up(mq, admin, 1)
    admin.create_topic("filling", queues=1)
    producer.send_batch([Message("filling", bytes(1_000_000))] * 20, queue=MessageQueue("filling", "broker-a", 0))
    producer.send(Message("t", b"new"), queue=queue)
    new = give_up(mq, admin, 1)
    store = services.brokers["broker-a"].store
    monkeypatch.setattr(store._age, "now_ms", lambda: int((time.time() + 80 * 3_600) * 1000))

    async def delete() -> int:
        return store.delete_expired(asked=True).log_files

    store.flush()  # what is not on disk yet is not deleted
    assert services.loop.run(delete()) > 0
    assert store.min_offset("%DLQ%g", 0) == 1
    assert ids(admin.dlq_list("g")) == ids(list(admin.dlq_messages("g"))) == ids(new)
    assert admin.dlq_redrive("g").redriven == ids(new)


def test_an_unknown_group_and_one_without_deaths(mq: Connection, admin: Admin) -> None:
    for call in (admin.dlq_list, admin.dlq_redrive, admin.dlq_messages):
        with pytest.raises(GroupNotFound):
            call("nobody")
    with PushConsumer(mq, "happy", {"t": "*"}, Taker()):
        assert admin.dlq_list("happy") == []
        assert admin.dlq_redrive("happy") == RedriveResult([], [], [])
        assert admin.dlq_redrive("happy", ["AB"]) == RedriveResult([], [], ["AB"])
    with pytest.raises(InvalidInput):
        admin.dlq_list("happy", limit=0)
    with pytest.raises(InvalidInput):
        admin.dlq_redrive("happy", rate=0)


def test_redrive_reaches_the_group_once_and_no_other(mq: Connection, admin: Admin, dead: list[DeadMessage]) -> None:
    chosen = ids(dead)[:4]
    with PushConsumer(mq, "other", {"t": "*"}, other := Taker()):
        poll_until(lambda: len(other.taken) == 10, 10)
        assert admin.dlq_redrive("g", chosen, dry_run=True) == RedriveResult(chosen, [], [])
        assert admin.dlq_redrive("g", [chosen[0].lower(), *chosen[1:], "F" * 32]) == RedriveResult(
            chosen, [], ["F" * 32]
        )
        assert admin.dlq_redrive("g", chosen) == RedriveResult([], chosen, [])
        rest = admin.dlq_redrive("g")
        assert sorted(rest.already) == sorted(chosen)
        assert sorted(rest.redriven + rest.already) == sorted(ids(dead))
        with PushConsumer(mq, "g", {"t": "*"}, taker := Taker()):
            poll_until(lambda: len(taker.taken) == 10, 10)
            mark = Producer(mq, "p").send(Message("t", b"mark"))
            poll_until(lambda: b"mark" in taker.bodies and b"mark" in other.bodies, 10)
    assert len(other.taken) == 11
    again = {message.message_id: message for message in taker.taken if message.message_id != mark.message_id}
    assert len(again) == 10
    for message in dead:
        copy = again[message.message_id]
        assert (copy.topic, copy.body, copy.keys, copy.tags) == ("t", message.body, message.keys, message.tags)
        assert copy.properties == message.properties
        assert copy.unique_key == message.unique_key
        assert copy.born_timestamp == message.born_timestamp
        assert copy.reconsume_times == 0
        assert admin.query_by_id(copy.system_properties["RAYMQ_REDRIVEN_FROM"]).queue == message.queue


def test_what_dies_again_is_a_new_entry(mq: Connection, admin: Admin, dead: list[DeadMessage]) -> None:
    first = ids(dead)[:2]
    assert admin.dlq_redrive("g", first).redriven == first
    died_again = give_up(mq, admin, 2)
    assert sorted(ids(died_again)) == sorted(first)
    assert admin.dlq_redrive("g", first) == RedriveResult(first, [], [])
    assert admin.dlq_redrive("g", first) == RedriveResult([], first, [])
    assert admin.dlq_redrive("g", first[:1], force=True) == RedriveResult(first[:1], [], [])


def test_a_restart_forgets_nothing(mq: Connection, admin: Admin, dead: list[DeadMessage], services: Services) -> None:
    assert len(admin.dlq_redrive("g").redriven) == 10
    for name in ("broker-a", "broker-b"):
        services.stop_broker(name)
        services.start_broker(name)
    assert len(admin.dlq_redrive("g").already) == 10


def test_a_redrive_keeps_no_bodies(
    mq: Connection, admin: Admin, dead: list[DeadMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had all wanted dead letters in memory, however many and long they were."""
    kept: list[int] = []

    def letters() -> int:
        gc.collect()  # what nobody has any more
        return sum(isinstance(each, DeadMessage) for each in gc.get_objects())

    def counted(*arguments: Any, **options: Any) -> Any:
        kept.append(letters())
        return redrive_command(*arguments, **options)

    monkeypatch.setattr(dead_letter_requests, "redrive_command", counted)
    wanted, others = set(ids(dead)), letters()
    assert set(admin.dlq_redrive("g").redriven) == wanted
    assert max(kept) <= others + 1  # the one that was read last


def test_rate(mq: Connection, admin: Admin, dead: list[DeadMessage]) -> None:
    began = time.monotonic()
    assert len(admin.dlq_redrive("g", rate=10).redriven) == 10
    assert 0.9 <= time.monotonic() - began < 5.0


def test_the_command_line(
    mq: Connection, admin: Admin, dead: list[DeadMessage], services: Services, tmp_path: Path
) -> None:
    def call(*arguments: str) -> Any:
        name_server = services.name_server.address
        found = CliRunner().invoke(main_group, ["--name-servers", name_server, "dlq", *arguments, "--json"])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    rows = call("list", "g")
    assert [row["message_id"] for row in rows] == ids(dead)
    assert {"topic", "body", "keys", "dead_at", "reason"} <= rows[0].keys()
    assert [row["body_base64"] for row in rows if "body" not in row] == ["/w=="]
    path = tmp_path / "dead.jsonl"
    assert call("export", "g", str(path)) == {"group": "g", "file": str(path), "messages": 10}
    exported = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(exported, key=lambda row: row["message_id"]) == sorted(rows, key=lambda row: row["message_id"])
    nothing = {"redriven": [], "already": [], "unknown": [], "not_asked": [], "unreadable": []}
    one = ids(dead)[0]
    assert call("redrive", "g", "--id", one, "--dry-run") == nothing | {"redriven": [one]}
    assert call("redrive", "g", "--id", one) == nothing | {"redriven": [one]}
    assert call("redrive", "g", "--id", one, "--id", "AB") == nothing | {"already": [one], "unknown": ["AB"]}
    assert len(call("redrive", "g")["redriven"]) == 9
