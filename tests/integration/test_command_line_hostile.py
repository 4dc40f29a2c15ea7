"""Test the `raymq` command with hostile data, arguments and outputs: data is shown as is, errors are one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from raymq.client import Admin, Connection, Message, MessageQueue, Producer, PullConsumer
from raymq.cluster.output import cell, print_fields, print_rows

pytestmark = pytest.mark.integration

QUEUE = MessageQueue("t", "broker-a", 0)
RAYMQ = str(Path(sys.executable).with_name("raymq"))


def run_raymq(
    mq: Connection, *arguments: str | bytes, out: int | None = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    command = [RAYMQ, "--name-servers", ";".join(mq.name_servers), *arguments]
    return subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


def test_markup_and_control_characters_are_data(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"keys": "[/red]", "tags": "[bold]x[/bold]"}, {"keys": "\x1b[2J\x9b1m", "tags": None}]
    print_rows(rows, as_json=False, empty="")
    print_fields({"keys": "[/red]\x1b]0;title\x07"}, as_json=False)
    shown = capsys.readouterr().out
    assert "[/red]" in shown
    assert "[bold]x[/bold]" in shown
    assert r"\x1b[2J\x9b1m" in shown
    assert r"\x1b]0;title\x07" in shown
    assert "\x1b" not in shown
    console = Console(width=40)
    with console.capture() as captured:
        console.print(cell("[/red]"))
    assert "[/red]" in captured.get()


def test_output_without_terminal_is_not_truncated(capsys: pytest.CaptureFixture[str]) -> None:
    row = {f"column{n}": "x" * 60 for n in range(5)}
    print_rows([row], as_json=False, empty="")
    assert capsys.readouterr().out.count("x" * 60) == 5


def test_non_utf8_body_is_sent_unchanged(mq: Connection, admin: Admin) -> None:
    done = run_raymq(mq, "message", "send", "t", "--body", b"\xff\x00\xfe".replace(b"\x00", b"\x01"))
    assert (done.returncode, done.stderr) == (0, "")
    with PullConsumer(mq, "g") as consumer:
        assert [m.body for q in consumer.queues("t") for m in consumer.poll(q, 9, 0.0)] == [b"\xff\x01\xfe"]
    refused = run_raymq(mq, "message", "send", "t", "--body", "x", "--key", b"\xff")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: keys: text that UTF-8 can express")


def test_characters_missing_in_output_encoding_are_escaped(
    mq: Connection, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ended in a traceback, for instance on ISO-8859-1 terminals."""
    with Producer(mq, "p") as producer:
        sent = producer.send(Message("t", "ä→\U0001f600".encode(), keys=["日本"]))
    monkeypatch.setenv("PYTHONIOENCODING", "iso-8859-1")
    command = [RAYMQ, "--name-servers", ";".join(mq.name_servers), "message", "get", sent.message_id]
    encoded = subprocess.run([*command, "--json"], capture_output=True, timeout=60, check=True).stdout
    assert json.loads(encoded.decode("iso-8859-1"))["body"] == "ä→\U0001f600"
    shown = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
    assert "ä\\u2192\\U0001f600".encode("iso-8859-1") in shown


def test_closed_output_pipe_is_no_error(mq: Connection, admin: Admin) -> None:
    for number in range(50):
        admin.create_topic(f"topic-{number:03}", 1)
    read, write = os.pipe()
    os.close(read)
    try:
        done = run_raymq(mq, "topic", "list", out=write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_write_error_is_one_line(mq: Connection, admin: Admin, tmp_path: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = run_raymq(mq, "topic", "list", "--json", out=full.fileno())
    assert done.returncode == 1
    assert done.stderr.splitlines() == [done.stderr.strip()]
    assert "No space left" in done.stderr
    with Producer(mq, "p") as producer:
        producer.send(Message("t", b"x"))
    with PullConsumer(mq, "g"):
        pass
    nowhere = run_raymq(mq, "dlq", "export", "g", str(tmp_path / "missing" / "file"))
    assert nowhere.returncode == 1
    assert nowhere.stderr.splitlines() == [nowhere.stderr.strip()]
    assert "No such file" in nowhere.stderr


def test_dry_run_refuses_invalid_change(mq: Connection, admin: Admin) -> None:
    for more in ([], ["--dry-run"]):
        done = run_raymq(mq, "topic", "update", "t", "--queues", "0", *more)
        assert done.returncode == 1
        assert done.stderr.startswith("error: queues: a whole number, at least 1")


def test_misplaced_option_error_names_its_place(mq: Connection) -> None:
    done = run_raymq(mq, "topic", "list", "--namespace", "x")
    assert done.returncode == 2
    assert "--namespace goes before the command" in done.stderr


def test_certificate_alone_does_not_enable_tls(mq: Connection, admin: Admin) -> None:
    assert run_raymq(mq, "--tls-cert-file", "x", "topic", "list").returncode == 2


def test_tls_to_plain_port_error_names_reason(mq: Connection, admin: Admin, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=x",
            "-keyout",
            "key.pem",
            "-out",
            ca,
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    done = run_raymq(mq, "--tls-ca-file", str(ca), "topic", "list")
    assert done.returncode == 1
    assert "cannot connect: " in done.stderr
    assert not done.stderr.rstrip().endswith("cannot connect:")
    assert "TLS" in done.stderr or "SSL" in done.stderr
