"""Test docs/stories.md: what is wrong with a group is found by the commands alone, and by the console alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raymq.client import (
    Admin,
    Connection,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from raymq.console.console_server import ConsoleSettings
from tests.console_client import ConsoleClient
from tests.console_thread import running_console
from tests.integration.shell import Shell
from tests.polling import poll_until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("admin")]

QUEUE, OTHER = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-b", 1)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raymq.client.admin.group_facts._BETWEEN_SECONDS", 0.3)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tmp_path / "token"


@pytest.fixture
def console(mq: Connection, token_file: Path) -> Iterator[ConsoleClient]:
    """A console in a browser that has not entered the token."""
    with running_console(mq, ConsoleSettings(token_file=token_file)) as url:
        yield ConsoleClient(url)


def send(mq: Connection, *bodies: bytes, queue: MessageQueue | None = QUEUE, tags: str | None = None) -> list[str]:
    with Producer(mq, "p") as producer:
        return [producer.send(Message("t", body, tags=tags), queue=queue).message_id for body in bodies]


def succeed(_: list[ReceivedMessage]) -> ConsumeResult:
    return ConsumeResult.SUCCESS


def caught_up(admin: Admin, group: str = "g") -> bool:
    progress = admin.group_progress(group) if group in admin.groups() else {}
    return bool(progress) and all(not each.lag for queue, each in progress.items() if queue.topic == "t")


def until_why(look: Callable[[], dict[str, Any]], text: str) -> dict[str, Any]:
    """Return a diagnosis as soon as its verdict contains a text."""
    found: dict[str, Any] = {}

    def matches() -> bool:
        found.update(look())
        return text in found["verdict"]

    poll_until(matches, 20, text)
    return found


def test_group_without_member_stands_still(shell: Shell, mq: Connection, admin: Admin, console: ConsoleClient) -> None:
    send(mq, b"1", b"2")
    with PushConsumer(mq, "g", {"t": "*"}, succeed):
        poll_until(lambda: caught_up(admin), 20)
    send(mq, b"3", b"4", b"5")

    assert shell.json("group", "list") == [{"group": "g", "members": 0, "lag": 3}]
    found = until_why(lambda: shell.json("group", "why", "g"), "no member of the group is connected; 3 messages wait")
    assert found["evidence"][0].startswith("start a consumer of the group")

    until_why(lambda: console.get_json("/groups/g/why"), "no member of the group is connected; 3 messages wait")
    page = console.get("/groups/g").text
    assert "No member is connected" in page
    assert console.get_json("/groups/g")["status"] == {"level": "bad", "text": "no member connected"}
    poll_until(lambda: console.get_json("/")["watched_groups"], 20)
    assert "no member connected" in console.get("/").text


def test_poison_message_is_found_and_redriven(
    shell: Shell, mq: Connection, console: ConsoleClient, token_file: Path
) -> None:
    repaired = threading.Event()
    billed: list[bytes] = []

    def bill(messages: list[ReceivedMessage]) -> ConsumeResult:
        for message in messages:
            if message.body == b"twelve" and not repaired.is_set():
                raise ValueError(f"no amount: {message.body.decode()}")
            billed.append(message.body)
        return ConsumeResult.SUCCESS

    good, poison = send(mq, b"12", b"twelve")
    with PushConsumer(mq, "g", {"t": "*"}, bill, max_reconsume_times=0):
        found = until_why(lambda: shell.json("group", "why", "g"), "messages fail for good: 1 dead letter")
        assert any(poison in line and "ValueError: no amount: twelve" in line for line in found["evidence"])
        assert any("raymq dlq redrive g" in line for line in found["evidence"])
        (letter,) = shell.json("dlq", "list", "g")
        assert (letter["message_id"], letter["body"]) == (poison, "twelve")
        assert (letter["reason"], letter["redriven"]) == ("ValueError: no amount: twelve", False)
        assert "would be redriven  1" in shell.shown("dlq", "redrive", "g", "--id", poison, "--dry-run")
        trace = shell.json("message", "trace", poison)
        assert [each["reason"] for each in trace["dead_letters"]] == ["ValueError: no amount: twelve"]
        assert shell.json("message", "trace", good)["dead_letters"] == []

        (row,) = console.get_json("/groups/g/dead-letters")["dead_letters"]
        assert (row["message_id"], row["reason"]) == (poison, "ValueError: no amount: twelve")
        page = console.get("/groups/g/dead-letters").text
        assert "ValueError: no amount: twelve" in page
        assert poison in page
        cookie, csrf = console.sign_in(token_file.read_text().strip())
        form = {"csrf": csrf, "ids": poison}
        path = "/groups/g/dead-letters/redrive"
        assert "nothing was sent" in console.submit(path, {**form, "dry_run": "1"}, Cookie=cookie).text
        assert console.post(path, {"ids": poison}, Cookie=cookie).status == 403
        repaired.set()
        assert console.submit(path, form, Cookie=cookie).status == 200
        poll_until(lambda: b"twelve" in billed, 20)
    assert console.get_json("/groups/g/dead-letters")["dead_letters"][0]["redriven"] is True
    assert shell.json("dlq", "list", "g")[0]["redriven"] is True
    assert "redriven" in shell.shown("dlq", "list", "g")
    assert [each["reconsume_times"] for each in shell.json("message", "trace", poison)["redrives"]] == [0]


def test_slow_member_and_its_queue_are_named(shell: Shell, mq: Connection, console: ConsoleClient) -> None:
    may_end = threading.Event()

    def hang(_: list[ReceivedMessage]) -> ConsumeResult:
        may_end.wait(60)
        return ConsumeResult.SUCCESS

    def owners() -> set[str]:
        return {row["owner"] for row in shell.json("group", "progress", "g") if row["topic"] == "t" and row["owner"]}

    with (
        Connection(mq.name_servers) as elsewhere,
        PushConsumer(mq, "g", {"t": "*"}, succeed),
        PushConsumer(elsewhere, "g", {"t": "*"}, hang),
    ):
        try:
            poll_until(lambda: len(owners()) == 2, 20)
            send(mq, *[b"x"] * 8, queue=None)
            poll_until(lambda: any(row["calls"] for row in shell.json("group", "members", "g")), 20)
            slow, quick = sorted(shell.json("group", "members", "g"), key=lambda row: -row["longest_call"])
            assert (slow["calls"] > 0, quick["calls"]) == (True, 0)
            held = {(each["broker"], each["queue_id"]) for each in slow["queues"] if each["topic"] == "t"}

            def lagging() -> set[tuple[str, int]]:
                return {(row["broker"], row["queue_id"]) for row in shell.json("group", "progress", "g") if row["lag"]}

            poll_until(lambda: lagging() == held, 20)
            found = until_why(lambda: shell.json("group", "why", "g", "--hang-after", "0.2"), slow["client_id"])
            assert any("restart that process" in line for line in found["evidence"])

            found = until_why(lambda: console.get_json("/groups/g/why"), "the listener works")
            assert any(slow["client_id"] in line for line in found["evidence"])
            assert [member["client_id"] for member in found["members"]] == [slow["client_id"], quick["client_id"]]
            assert "Longest call" in console.get("/groups/g/why").text
            rows = [row for row in console.get_json("/groups/g")["queues"] if row["progress"]["lag"]]
            assert {row["progress"]["owner"] for row in rows} == {slow["client_id"]}
        finally:
            may_end.set()


def test_message_received_twice_tells_why(shell: Shell, mq: Connection, admin: Admin, console: ConsoleClient) -> None:
    again = Message("t", b"again", keys=["order-2"])
    with Producer(mq, "p") as producer:
        failed = producer.send(Message("t", b"once", keys=["order-1"]), queue=QUEUE)
        copies = [producer.send(again, queue=queue) for queue in (QUEUE, OTHER)]
    seen: list[ReceivedMessage] = []

    def fail_first(messages: list[ReceivedMessage]) -> ConsumeResult:
        seen.extend(messages)
        if messages[0].body == b"once" and messages[0].reconsume_times == 0:
            raise TimeoutError("the database did not answer")
        return ConsumeResult.SUCCESS

    with PushConsumer(mq, "g", {"t": "*"}, fail_first):
        poll_until(lambda: len(seen) == 4, 30)
        poll_until(lambda: caught_up(admin), 20)

    # A retry: one copy in the topic, and a copy in the group's retry topic with the failure.
    trace = shell.json("message", "trace", failed.message_id)
    assert (len(trace["stored"]), len(trace["retries"])) == (1, 1)
    assert trace["retries"][0]["failure"] == "TimeoutError: the database did not answer"
    assert "the database did not answer" in shell.shown("message", "trace", failed.message_id)
    page = console.get(f"/messages/{failed.message_id}").text
    assert "the database did not answer" in page
    assert console.get_json(f"/messages/{failed.message_id}")["trace"]["retries"] == trace["retries"]

    # A send that was repeated: two copies with one unique key, and no retry.
    trace = shell.json("message", "trace", copies[0].unique_key)
    assert [each["message_id"] for each in trace["stored"]] == [each.message_id for each in copies]
    assert trace["retries"] == []
    found = console.get_json(f"/messages/{copies[0].message_id}")
    assert len(found["trace"]["stored"]) == 2
    assert copies[1].message_id in console.get(f"/messages/{copies[0].message_id}").text


def test_nothing_arrives_for_three_reasons(shell: Shell, mq: Connection, console: ConsoleClient) -> None:
    send(mq, b"1", b"2", tags="new")
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"later", keys=["k"], deliver_at=time.time() + 3_600))
    with PushConsumer(mq, "filters", {"t": "paid"}, succeed), SimpleConsumer(mq, "mistypes", {"orders": "*"}):
        for look in (shell_why(shell), console_why(console)):
            found = until_why(lambda look=look: look("filters"), "the filter 'paid' excludes all of the newest 2")  # type: ignore[misc]
            assert "their tags: new" in found["evidence"]
            found = until_why(lambda look=look: look("mistypes"), "topic orders does not exist")  # type: ignore[misc]
            assert any("raymq topic create orders" in line for line in found["evidence"])
        assert "Members subscribe to topics that do not exist" in console.get("/groups/mistypes").text
    (waiting,) = shell.json("delay", "list", "--topic", "t")
    assert (waiting["body"], waiting["recall_handle"] is not None) == ("later", True)
    assert [row["preview"] for row in console.get_json("/delayed")["delayed"]] == ["later"]
    assert "later" in console.get("/delayed").text


def shell_why(shell: Shell) -> Callable[[str], dict[str, Any]]:
    return lambda group: shell.json("group", "why", group)


def console_why(console: ConsoleClient) -> Callable[[str], dict[str, Any]]:
    return lambda group: dict(console.get_json(f"/groups/{group}/why"))


def test_lag_grows_when_consumers_are_slower(shell: Shell, mq: Connection, console: ConsoleClient) -> None:
    ended = threading.Event()

    def send_on() -> None:
        with Producer(mq, "p") as producer:
            while not ended.wait(0.01):
                producer.send(Message("t", b"x"))

    def work(_: list[ReceivedMessage]) -> ConsumeResult:
        ended.wait(0.2)
        return ConsumeResult.SUCCESS

    sending = threading.Thread(target=send_on)
    sending.start()
    try:
        with PushConsumer(mq, "g", {"t": "*"}, work, threads=1):
            found = until_why(lambda: shell.json("group", "why", "g"), "consumers are slower than producers")
            assert any("more members" in line for line in found["evidence"])
            assert shell.json("topic", "stats", "t", "--rates")
            found = until_why(lambda: console.get_json("/groups/g/why"), "consumers are slower than producers")
            poll_until(lambda: "more members" in console.get("/groups/g/why").text, 20)

            def known_to_the_sampler() -> bool:
                rows = {row["group"]: row for row in console.get_json("/groups")["groups"]}
                return bool(rows["g"]["lag"] and rows["g"]["oldest_age"] and rows["g"]["status"]["text"] == "working")

            poll_until(known_to_the_sampler, 20)
            assert "working" in console.get("/groups").text
    finally:
        ended.set()
        sending.join()
