"""Test `raymq message send`, `message tail` and topic lists with patterns, over addresses."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raymq.client import Admin, Connection, Message, MessageQueue, NotStored, Producer, TopicNotFound
from raymq.cluster import cli_message
from raymq.cluster.cli import main_group
from tests.polling import poll_until

pytestmark = pytest.mark.integration


def run(mq: Connection, *given: str, stdin: bytes | None = None) -> Any:
    return CliRunner().invoke(main_group, ["--name-servers", ";".join(mq.name_servers), *given], input=stdin)


def bodies(admin: Admin, topic: str) -> list[bytes]:
    return sorted(message.body for message in admin.tail(topic, "earliest", follow=False))


def test_message_send_sends_lines_of_file(mq: Connection, admin: Admin, tmp_path: Path) -> None:
    admin.create_topic("lines", queues=1)
    file = tmp_path / "lines"
    exported = {"body_base64": base64.b64encode(b"\xff").decode(), "keys": ["k"], "tags": "b", "properties": {"p": "2"}}
    file.write_bytes(b'one\r\n\ntwo \xfe\n{"a": 1}\n{"body": "three"}\n' + json.dumps(exported).encode())
    options = ("--key", "common", "--tag", "a", "--property", "q=x=y")
    done = run(mq, "message", "send", "lines", "--file", str(file), *options, "--json")
    assert json.loads(done.stdout) == {"topic": "lines", "sent": 5, "failed": []}
    found = {message.body: message for message in admin.tail("lines", "earliest", follow=False)}
    assert found.keys() == {b"one", b"two \xfe", b'{"a": 1}', b"three", b"\xff"}
    assert (found[b"one"].keys, found[b"one"].tags, found[b"one"].properties) == (["common"], "a", {"q": "x=y"})
    assert (found[b"\xff"].keys, found[b"\xff"].tags) == (["k"], "b")
    assert found[b"\xff"].properties == {"q": "x=y", "p": "2"}
    done = run(mq, "message", "send", "lines", "--file", "-", stdin=b"from stdin\n")
    assert done.exit_code == 0
    assert b"from stdin" in bodies(admin, "lines")


def test_message_send_count_and_delay_options(mq: Connection, admin: Admin) -> None:
    admin.create_topic("counted", queues=1)
    assert (
        json.loads(run(mq, "message", "send", "counted", "--body", "x", "--count", "3", "--json").stdout)["sent"] == 3
    )
    assert bodies(admin, "counted") == [b"x"] * 3
    done = run(mq, "message", "send", "counted", "--body", "later", "--delay", "300ms", "--json")
    assert json.loads(done.stdout)["recall_handle"]
    assert len(bodies(admin, "counted")) == 3
    poll_until(lambda: b"later" in bodies(admin, "counted"), 10)
    assert run(mq, "message", "send", "counted", "--body", "x", "--delay", "soon").exit_code == 1
    for too_long in ("41d", "3500000"):
        refused = run(mq, "message", "send", "counted", "--body", "x", "--delay", too_long)
        assert refused.exit_code == 1
        assert "--delay: 0 to 3,456,000 seconds (40 days)" in str(refused.exception)
    for wrong in (
        [],
        ["--body", "x", "--file", "-"],
        ["--file", "-", "--count", "2"],
        ["--body", "x", "--property", "a"],
    ):
        assert run(mq, "message", "send", "counted", *wrong).exit_code == 2


def test_message_send_reports_failed_lines(mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    admin.create_topic("partly", queues=1)
    real = Producer.send_async

    def refusing(self: Producer, message: Message, **options: Any) -> Any:
        if message.body in (b"2", b"3", b"6"):
            raise NotStored("refused", [])
        return real(self, message, **options)

    monkeypatch.setattr(Producer, "send_async", refusing)
    lines = b'1\n2\n3\n4\n{"body": 5}\n6\n7'
    done = run(mq, "message", "send", "partly", "--file", "-", stdin=lines)
    assert done.exit_code == 1
    assert "lines 2-3, 6 not stored: NotStored" in done.stderr
    assert "line 5 not stored: InvalidInput" in done.stderr
    assert bodies(admin, "partly") == [b"1", b"4", b"7"]
    missing = run(mq, "message", "send", "no-such", "--file", "-", stdin=b"a\nb\n")
    assert "lines 1-2 not stored: TopicNotFound" in missing.stderr
    assert "raymq topic create" in missing.stderr
    report = json.loads(run(mq, "message", "send", "partly", "--file", "-", "--json", stdin=lines).stdout)
    assert report["sent"] == 3
    assert [each["line"] for each in report["failed"]] == [2, 3, 5, 6]


def test_message_send_with_failed_lines_exits_with_1(mq: Connection) -> None:
    """Run the `raymq` program: its exit code is the one that click returns."""
    raymq = [str(Path(sys.executable).with_name("raymq")), "--name-servers", ";".join(mq.name_servers)]
    send = [*raymq, "message", "send", "no-such", "--file", "-"]
    done = subprocess.run(send, input=b"a\n", capture_output=True, timeout=60, check=False)
    assert (done.returncode, b"TopicNotFound" in done.stderr) == (1, True)


def test_line_with_unsupported_fields_is_not_sent(mq: Connection, admin: Admin) -> None:
    admin.create_topic("fields", queues=1)
    lines = b'{"body": "a", "deliver_at": 4e9}\n{"body": "b", "queue_offset": 7, "dead_at": 1.0}\n'
    done = run(mq, "message", "send", "fields", "--file", "-", stdin=lines)
    assert done.exit_code == 1
    assert "line 1 not stored: InvalidInput" in done.stderr
    assert "deliver_at" in done.stderr
    assert bodies(admin, "fields") == [b"b"]


def test_message_tail_prints_messages_and_creates_no_group(mq: Connection, admin: Admin) -> None:
    admin.create_topic("tailed", queues=1)
    with Producer(mq, "p") as producer:
        for number in range(6):
            producer.send(Message("tailed", b"m%d\n" % number, tags="even" if number % 2 == 0 else "odd", keys="k"))
    groups = admin.groups()
    shown = run(mq, "message", "tail", "tailed", "--from", "earliest")
    assert shown.exit_code == 0
    assert shown.stdout.count("\n") == 6
    assert "[even]  k  m0\\n" in shown.stdout
    found = json.loads(
        run(mq, "message", "tail", "tailed", "--from", "1h", "--tag", "odd", "--limit", "2", "--json").stdout
    )
    assert len(found) == 2
    assert {message["tags"] for message in found} == {"odd"}
    nothing = run(mq, "message", "tail", "tailed")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "--follow" in nothing.stderr
    assert run(mq, "message", "tail", "none-such").exit_code == 1
    assert run(mq, "message", "tail", "tailed", "--from", "soon").exit_code == 2
    assert admin.groups() == groups


def test_message_tail_follow_exits_cleanly_on_ctrl_c(mq: Connection, admin: Admin) -> None:
    admin.create_topic("followed", queues=2)
    with Producer(mq, "p") as producer:
        producer.send(Message("followed", b"before"))
        command = [sys.executable, "-c", "from raymq.cluster.command import main; main()"]
        command += ["--name-servers", ";".join(mq.name_servers), "message", "tail", "followed", "--follow", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            over = threading.Event()

            def send() -> None:
                while not over.wait(0.1):
                    producer.send(Message("followed", b"after"))

            thread = threading.Thread(target=send)
            thread.start()
            line = process.stdout.readline()
            over.set()
            thread.join()
            assert json.loads(line)["body"] == "after"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
            assert process.stderr.read() == ""


def test_admin_atail_follows_all_queues(mq: Connection, admin: Admin) -> None:
    admin.create_topic("all-queues", queues=2)
    queues = [MessageQueue("all-queues", broker, number) for broker in ("broker-a", "broker-b") for number in (0, 1)]
    with Producer(mq, "p") as producer:
        for queue in queues:
            producer.send(Message("all-queues", b"1"), queue=queue)

        async def collect() -> set[MessageQueue]:
            found = set()
            async for message in admin.atail("all-queues", "earliest"):
                found.add(message.queue)
                if len(found) == 4:
                    return found
            return found

        assert asyncio.run(collect()) == set(queues)
    with pytest.raises(TopicNotFound):
        next(admin.tail("none-such"))


def test_topic_list_filters_by_pattern(mq: Connection, admin: Admin) -> None:
    for name in ("globbed-a", "globbed-b", "other-globbed"):
        admin.create_topic(name, queues=1)
    assert [row["topic"] for row in json.loads(run(mq, "topic", "list", "globbed-*", "--json").stdout)] == [
        *("globbed-a", "globbed-b")
    ]
    assert run(mq, "topic", "list", "none-*", "--json").stdout == "[]\n"
    assert {"globbed-a", "other-globbed"} <= {
        row["topic"] for row in json.loads(run(mq, "topic", "list", "--json").stdout)
    }


def test_failed_line_numbers_are_printed_as_ranges() -> None:
    assert cli_message._ranges([1]) == "1"
    assert cli_message._ranges([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
