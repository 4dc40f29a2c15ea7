"""Test the deletion of groups, of dead letters and of the progress on single topics."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from click.testing import CliRunner

from raymq.actors.broker.core.groups import group_remover
from raymq.actors.errors import BrokerUnavailable
from raymq.actors.naming import dlq_topic, retry_topic
from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    GroupDeletion,
    GroupNotFound,
    InvalidInput,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    Retry,
    SimpleConsumer,
)
from raymq.client.admin import group_requests as admin_groups
from raymq.cluster.cli import main_group
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration


@pytest.fixture
def commits_count_as_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let recent commits count as old."""
    for module in (group_remover, admin_groups):
        monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)


@pytest.fixture
def name(request: pytest.FixtureRequest, admin: Admin) -> str:
    """Return a name for a topic and a group that only this test uses."""
    made = f"del-{abs(hash(request.node.nodeid)) % 10**9}"
    admin.create_topic(made, queues=1)
    return made


def send(mq: Connection, topic: str, count: int = 3) -> None:
    with Producer(mq, "p") as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number, keys=f"k{number}"), queue=MessageQueue(topic, "broker-a", 0))


def create_dead_letters(mq: Connection, admin: Admin, name: str, count: int, died: int = 0) -> None:
    """Make `count` messages of the topic dead letters of the group with the same name.

    Args:
        died: how many dead letters to wait for, if they are more.
    """
    send(mq, name, count)
    before = len(admin.dlq_list(name)) if name in admin.groups() else 0
    with PushConsumer(mq, name, {name: "*"}, lambda messages: Retry(-1)):
        poll_until(lambda: name in admin.groups() and len(admin.dlq_list(name)) >= before + max(count, died), 20)


def run_command(mq: Connection, *given: str) -> Any:
    return CliRunner().invoke(main_group, ["--name-servers", ";".join(mq.name_servers), *given])


def test_group_deletion_removes_offsets_and_retries(
    mq: Connection, admin: Admin, name: str, commits_count_as_old: None
) -> None:
    create_dead_letters(mq, admin, name, 1)
    send(mq, name, 3)
    calls: list[bytes] = []

    def refuse(messages: Any) -> ConsumeResult | Retry:
        calls.extend(message.body for message in messages)
        return Retry(4)

    with PushConsumer(mq, name, {name: "*"}, refuse):
        poll_until(lambda: len(calls) >= 3, 10)
    send(mq, name, 2)
    with SimpleConsumer(mq, name, {name: "*"}) as consumer:
        assert poll_until(lambda: consumer.receive(1, invisible_duration=600.0, await_duration=1.0), 10)
    planned = poll_until(lambda: (w := admin.delete_group(name, dry_run=True)).in_flight and w, 10)
    assert (planned.dead_letters, planned.deleted) == (1, False)
    assert planned.retries >= 1
    assert planned.offsets >= 1
    assert name in admin.groups()

    done = poll_until(lambda: _try_delete(admin, name), 10)
    assert done.deleted
    assert name not in admin.groups()
    assert retry_topic(name) not in admin.topics(system=True)
    assert dlq_topic(name) in admin.topics(system=True)
    with pytest.raises(GroupNotFound):
        admin.group_progress(name)
    with pytest.raises(GroupNotFound):
        admin.delete_group(name)
    with SimpleConsumer(
        mq, name, {name: "*"}
    ) as consumer:  # a new group: no message is in flight, all are delivered again
        assert poll_until(lambda: consumer.receive(32, await_duration=1.0), 10)
        assert len(admin.dlq_list(name)) == 1
    poll_until(lambda: _try_delete(admin, name, dead_letters=True), 10)
    assert dlq_topic(name) not in admin.topics(system=True)


def _try_delete(admin: Admin, name: str, **options: bool) -> GroupDeletion | None:
    """Delete the group; None while members are still leaving."""
    try:
        return admin.delete_group(name, **options)
    except InvalidInput:
        return None


def test_dead_letters_of_deleted_group_can_be_read_and_deleted(
    mq: Connection, admin: Admin, name: str, commits_count_as_old: None
) -> None:
    create_dead_letters(mq, admin, name, 3)
    assert admin.delete_group(name).dead_letters == 3
    assert name not in admin.groups()
    letters = admin.dlq_list(name)
    assert len(letters) == len(list(admin.dlq_messages(name))) == 3
    assert admin.dlq_delete(name, [letters[0].message_id]) == 1
    assert admin.delete_group(name, dead_letters=True).dead_letters == 2
    for call in (admin.dlq_list, admin.dlq_messages, admin.dlq_delete):
        with pytest.raises(GroupNotFound):
            call(name)


def test_group_in_use_is_not_deleted(mq: Connection, admin: Admin, name: str) -> None:
    send(mq, name)
    with PushConsumer(mq, name, {name: "*"}, lambda messages: ConsumeResult.SUCCESS):
        with pytest.raises(InvalidInput, match="a group without members"):
            admin.delete_group(name)
        assert not admin.delete_group(name, dry_run=True).deleted
    with PullConsumer(mq, f"{name}-pull") as consumer:
        consumer.commit(MessageQueue(name, "broker-a", 0), 1)
    with pytest.raises(InvalidInput, match=r"a commit of the last 60 s .*committed \d s ago"):
        admin.delete_group(f"{name}-pull")
    assert admin.group_progress(f"{name}-pull")
    with pytest.raises(GroupNotFound):
        admin.delete_group(f"{name}-none", dry_run=True)


def test_partial_group_deletion_survives_broker_crash(
    mq: Connection, services: Services, admin: Admin, name: str, commits_count_as_old: None
) -> None:
    with PullConsumer(mq, name) as consumer:
        send(mq, name)
        consumer.commit(MessageQueue(name, "broker-a", 0), 2)
        consumer.commit(MessageQueue(name, "broker-b", 0), 0)
    services.stop_broker("broker-b")
    poll_until(lambda: _raises_unavailable(admin, name), 20)
    services.crash_broker("broker-a")
    services.start_broker("broker-a")
    services.start_broker("broker-b")
    # Only the broker that was offline still has the group.
    poll_until(lambda: _brokers_with_group(admin, name) == {"broker-b"}, 20)
    assert admin.delete_group(name).deleted
    assert name not in admin.groups()


def _raises_unavailable(admin: Admin, name: str) -> bool:
    """Return whether the deletion fails because a broker is offline."""
    try:
        admin.delete_group(name)
    except BrokerUnavailable as error:
        return "so it missed" in str(error)
    return False


def _brokers_with_group(admin: Admin, name: str) -> set[str]:
    """Return the brokers that have the group."""
    try:
        return {queue.broker for queue in admin.group_progress(name)}
    except (GroupNotFound, BrokerUnavailable):
        return set()


def test_deleted_dead_letters_stay_deleted(mq: Connection, services: Services, admin: Admin, name: str) -> None:
    create_dead_letters(mq, admin, name, 4)
    letters = admin.dlq_list(name)
    ids = [letter.message_id for letter in letters]
    assert admin.dlq_redrive(name, ids[:1]).redriven == ids[:1]
    assert admin.dlq_delete(name, ids[:2]) == 2
    assert admin.dlq_delete(name, ids[:2]) == 0
    assert [letter.message_id for letter in admin.dlq_list(name)] == ids[2:]
    assert [letter.message_id for letter in admin.dlq_messages(name)] == ids[2:]
    preview = admin.dlq_redrive(name, ids, dry_run=True)
    assert (preview.redriven, preview.already, preview.unknown) == (ids[2:], [], ids[:2])
    services.crash_broker("broker-a")
    services.start_broker("broker-a")
    poll_until(lambda: len(admin.dlq_list(name)) == 2, 20)
    assert admin.dlq_redrive(name, dry_run=True).already == []
    assert admin.dlq_delete(name) == 2
    assert admin.dlq_list(name) == []
    create_dead_letters(mq, admin, name, 1)  # later dead letters are kept
    assert admin.dlq_delete(name) >= 1
    with pytest.raises(GroupNotFound):
        admin.dlq_delete(f"{name}-none")


def test_progress_marks_unsubscribed_topic(mq: Connection, admin: Admin, name: str) -> None:
    old, new = MessageQueue(name, "broker-a", 0), f"{name}-new"
    admin.create_topic(new, queues=1)
    send(mq, name, 5)
    with PullConsumer(mq, name) as consumer:
        consumer.commit(old, 1)
    assert admin.group_progress(name)[old].subscribed is None
    with PushConsumer(mq, name, {new: "*"}, lambda messages: ConsumeResult.SUCCESS):
        progress = poll_until(lambda: (p := admin.group_progress(name))[old].subscribed is False and p, 10)
        assert progress[MessageQueue(new, "broker-a", 0)].subscribed is True
        assert progress[MessageQueue(retry_topic(name), "broker-a", 0)].subscribed is True
        summary = next(each for each in admin.group_list() if each.group == name)
        assert (summary.members, summary.lag) == (1, 0)
        shown = run_command(mq, "group", "progress", name)
        assert "raymq group forget" in shown.output
        assert "total" in shown.output
        with pytest.raises(InvalidInput, match="no member"):
            admin.forget_topic(name, new)
        assert admin.forget_topic(name, name) == 1
        assert old not in admin.group_progress(name)
    assert admin.forget_topic(name, name) == 0
    with pytest.raises(InvalidInput, match="retry topic"):
        admin.forget_topic(name, retry_topic(name))
    with pytest.raises(GroupNotFound):
        admin.forget_topic(f"{name}-none", name)


def test_delete_and_forget_commands(mq: Connection, admin: Admin, name: str, commits_count_as_old: None) -> None:
    create_dead_letters(mq, admin, name, 2)
    assert run_command(mq, "dlq", "delete", name).exit_code == 1
    shown = json.loads(run_command(mq, "dlq", "delete", name, "--dry-run", "--json").stdout)
    assert shown == {"group": name, "selected": 2, "deleted": 0}
    assert len(admin.dlq_list(name)) == 2
    assert json.loads(run_command(mq, "dlq", "delete", name, "--yes", "--json").stdout)["deleted"] == 2
    done = json.loads(run_command(mq, "group", "forget", name, name, "--json").stdout)
    assert done == {"group": name, "topic": name, "queues": 2}
    assert run_command(mq, "group", "delete", name).exit_code == 1
    assert json.loads(run_command(mq, "group", "delete", name, "--dry-run", "--json").stdout)["deleted"] is False
    assert name in {row["group"] for row in json.loads(run_command(mq, "group", "list", "--json").stdout)}
    done = run_command(mq, "group", "delete", name, "--yes", "--dead-letters", "--json")
    assert json.loads(done.stdout)["deleted"] is True
    assert name not in admin.groups()
    assert run_command(mq, "group", "delete", name, "--yes").exit_code == 1
    create_dead_letters(mq, admin, name, 1, died=3)  # the group is new, and fails what it had before as well
    unsure = run_command(mq, "group", "delete", name)
    assert unsure.exit_code == 1
    assert f"add --yes to delete group {name} with 0 waiting retries; 3 dead letters would stay" in str(
        unsure.exception
    )


def test_truncated_lists_are_marked(mq: Connection, admin: Admin, name: str) -> None:
    with Producer(mq, "p") as producer:
        for number in range(70):
            producer.send(Message(name, b"%d" % number, keys="same"))
    found = admin.query_by_key(name, "same")
    assert (len(found), found.truncated) == (64, True)
    assert not admin.query_by_key(name, "same", limit=70).truncated
    messages = list(admin.query_messages(name, "same"))
    assert {int(message.body) for message in messages} == set(range(70))
    assert [each.store_timestamp for each in messages] == sorted((m.store_timestamp for m in messages), reverse=True)
    assert messages[:64] == found
    done = run_command(mq, "message", "query", name, "--key", "same", "--json")
    assert len(json.loads(done.stdout)) == 64
    assert done.stderr == "64 of at least 64: --limit\n"
    name = f"{name}-dead"
    admin.create_topic(name, queues=1)
    create_dead_letters(mq, admin, name, 3)
    listed = admin.dlq_list(name, limit=2)
    assert (len(listed), listed.truncated) == (2, True)
    assert not admin.dlq_list(name, limit=3).truncated
    assert run_command(mq, "dlq", "list", name, "--limit", "2").stderr == "2 of at least 2: --limit\n"
    assert run_command(mq, "dlq", "list", name).stderr == ""


def test_search_continues_after_full_answer(mq: Connection, admin: Admin, name: str) -> None:
    """A broker returns less than a page if its answer is full; the search must continue."""
    body = random.Random(1).randbytes(3_700_000)  # incompressible
    with Producer(mq, "p") as producer:
        for _ in range(6):
            producer.send(Message(name, body, keys="large"), queue=MessageQueue(name, "broker-a", 0))
    assert len(list(admin.query_messages(name, "large"))) == 6
    assert len(admin.query_by_key(name, "large")) == 6


def test_search_continues_over_pages_of_one_millisecond(
    mq: Connection, admin: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raymq.client.admin.message_search._PAGE", 3)
    with Producer(mq, "p") as producer:
        producer.send_batch([Message(name, b"%d" % number, keys="k") for number in range(40)])
        producer.send_batch([Message(name, b"%d" % number, keys="k") for number in range(40, 60)])
    assert sorted(int(message.body) for message in admin.query_messages(name, "k")) == list(range(60))

    async def found() -> list[int]:
        return [int(message.body) async for message in admin.aquery_messages(name, "k")]

    assert len(asyncio.run(found())) == 60


def test_group_list_shows_groups_whose_names_are_too_long(services: Services, mq: Connection, admin: Admin) -> None:
    long_name = "g" * 130
    with PullConsumer(mq, "g") as consumer:
        consumer.commit(MessageQueue("t", "broker-a", 0), 0)
    services.stop_broker("broker-a")
    path = services.directory / "broker-a" / "config" / "subscriptionGroup.json"
    groups = json.loads(path.read_text())
    del groups["raymqCrc"]  # so that the change is taken
    groups["subscriptionGroupTable"][long_name] = {"groupName": long_name}
    path.write_text(json.dumps(groups))
    services.start_broker("broker-a")
    poll_until(lambda: long_name in admin.groups(), 10)
    summary = next(each for each in admin.group_list() if each.group == long_name)
    assert (summary.members, summary.lag) == (0, None)
