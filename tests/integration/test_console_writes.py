"""Test what changes a cluster through the console: never without the token, from another site, or by half."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raymq.client import Admin, Connection, InvalidInput, Message, Producer, PullConsumer, PushConsumer, Retry
from raymq.console import console_app, dead_letter_pages
from raymq.console.console_server import ConsoleSettings
from tests.console_client import ConsoleClient
from tests.console_thread import running_console
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

WRITES = [path.format(topic="t", group="g") for path in console_app._WRITES]


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tmp_path / "token"


@pytest.fixture
def url(mq: Connection, token_file: Path) -> Iterator[str]:
    with running_console(mq, ConsoleSettings(token_file=token_file)) as served:
        yield served


@pytest.fixture
def stranger(url: str) -> ConsoleClient:
    return ConsoleClient(url)


@pytest.fixture
def console(url: str, token_file: Path) -> ConsoleClient:
    return ConsoleClient(url, token_file.read_text().strip())


def bodies(mq: Connection, topic: str = "t") -> list[bytes]:
    with PullConsumer(mq, f"read-{time.time_ns()}") as consumer:
        return sorted(
            message.body for queue in consumer.queues(topic) for message in consumer.poll(queue, 100, timeout=0.5)
        )


def make_dead_letters(mq: Connection, console: ConsoleClient, count: int) -> list[dict[str, Any]]:
    """Let group g refuse messages until they are dead letters; return these."""
    with Producer(mq, "p") as producer:
        for number in range(count):
            producer.send(Message("t", b"m%d" % number, keys=[f"k{number}"]))
    with PushConsumer(mq, "g", {"t": "*"}, lambda _: Retry(-1)):
        poll_until(lambda: console.get("/groups/g").status == 200, 20, "the group")
        poll_until(lambda: len(listed(console)) == count, 20, "dead letters")
    return listed(console)


def listed(console: ConsoleClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = console.get_json("/groups/g/dead-letters")["dead_letters"]
    return found


# Who may write


@pytest.mark.usefixtures("admin")
def test_every_write_without_the_token_is_refused(mq: Connection, stranger: ConsoleClient) -> None:
    assert len(WRITES) == 7
    for path in WRITES:
        for headers in ({}, {"Authorization": "Bearer wrong-token-of-a-stranger"}, {"Cookie": "raymq_console=x"}):
            answer = stranger.post(path, {"body": "x", "all": "1", "confirm": "1", "csrf": "x"}, **headers)
            assert answer.status == 401, path
            assert "Enter the token" in answer.text
        answer = stranger.post(f"{path}.json", {"body": "x"}, Accept="application/json")
        assert (answer.status, answer.json["needs_token"]) == (401, True)
        assert stranger.get(path).headers["Location"] == path.rpartition("/")[0], "a link never writes"
    assert bodies(mq) == []


@pytest.mark.usefixtures("admin")
def test_console_without_a_token_file_only_reads(mq: Connection) -> None:
    with running_console(mq, ConsoleSettings()) as url:
        client = ConsoleClient(url)
        for path in WRITES:
            answer = client.post(path, {"body": "x"}, Authorization="Bearer ")
            assert answer.status == 403
            assert "--token-file" in answer.text
        assert client.post("/sign-in", {"token": ""}).status == 401
        assert "only reads" in client.get("/topics/t").text


@pytest.mark.usefixtures("admin")
def test_session_writes_with_its_csrf_token_only(mq: Connection, stranger: ConsoleClient, token_file: Path) -> None:
    token = token_file.read_text().strip()
    assert stranger.post("/sign-in", {"token": token + "x"}).status == 401
    cookie, csrf = stranger.sign_in(token)
    assert token not in cookie
    form = {"body": "hello", "keys": "a b", "tags": "x", "properties": "p=1\n q = 2=3"}
    for wrong in ({}, {"csrf": ""}, {"csrf": csrf + "x"}):
        assert stranger.post("/topics/t/send", {**form, **wrong}, Cookie=cookie).status == 403
    assert stranger.post("/topics/t/send", {**form, "csrf": csrf}, Cookie=cookie).status == 303
    (message,) = [Admin(mq).query_by_key("t", "a")[0]]
    assert (message.body, message.keys, message.tags) == (b"hello", ["a", "b"], "x")
    assert message.properties == {"p": "1", "q": "2=3"}
    assert stranger.post("/sign-out", {"csrf": csrf}, Cookie=cookie).status == 303
    assert stranger.post("/topics/t/send", {**form, "csrf": csrf}, Cookie=cookie).status == 401
    assert bodies(mq) == [b"hello"]


@pytest.mark.usefixtures("admin")
def test_requests_of_other_sites_are_refused(mq: Connection, console: ConsoleClient) -> None:
    foreign = [
        {"Host": "evil.example"},
        {"Host": f"evil.example:{console.host.partition(':')[2]}"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
    ]
    for headers in foreign:
        answer = console.post("/topics/t/send", {"body": "x"}, **headers)
        assert answer.status == (421 if "Host" in headers else 403), headers
    assert console.get("/", Host="evil.example").status == 421
    assert console.get("/", Origin="http://evil.example").status == 403
    assert console.get("/", Host="localhost").status == 200
    assert bodies(mq) == []


FORM = {"Content-Type": "application/x-www-form-urlencoded"}
JSON = {"Content-Type": "application/json"}


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/sign-in", b"token=x", {"Content-Type": f"{FORM['Content-Type']}; charset=nonsense"}, 400),
        ("/sign-in", b"token=x", {"Content-Type": f"{FORM['Content-Type']}; charset=zip"}, 400),
        ("/sign-in", b"token=\\ud800", {"Content-Type": f"{FORM['Content-Type']}; charset=unicode_escape"}, 400),
        ("/sign-in", b"token=\xff", FORM, 400),
        ("/sign-in", b"garbage", {"Content-Type": "multipart/form-data"}, 400),
        ("/sign-in", b"garbage", {"Content-Type": "multipart/form-data; boundary=x"}, 400),
        ("/sign-in", b'{"token": "\\ud800"}', JSON, 400),
        ("/topics/t/send", b"", {"Authorization": b"Bearer \xff"}, 401),
        ("/topics/t/send", b"", {"Origin": "http://["}, 403),
        ("/topics/t/send", b"", {"Origin": b"http://\xff"}, 403),
        ("/topics/t/send", b'{"body": "\\ud800"}', JSON, 400),
    ],
)
def test_malformed_requests_are_refused(
    console: ConsoleClient, path: str, body: bytes, headers: dict[str, str | bytes], status: int
) -> None:
    answer = console.post_bytes(path, body, {"Accept": "application/json", **headers})
    assert answer.status == status, answer.text
    assert answer.json["message"]


def test_allowed_host_is_answered_with_the_token(mq: Connection, token_file: Path) -> None:
    allowed = ["console.example"]
    with pytest.raises(InvalidInput, match="--token-file"), running_console(mq, ConsoleSettings(allowed_hosts=allowed)):
        pytest.fail("it served")
    with running_console(mq, ConsoleSettings(allowed_hosts=allowed, token_file=token_file)) as url:
        client = ConsoleClient(url, token_file.read_text().strip())
        assert client.get("/", Host="console.example").status == 200
        assert client.get("/", Host="other.example").status == 421
        assert ConsoleClient(url).get("/", Host="console.example").status == 401


def test_other_addresses_than_loopback_need_the_token(mq: Connection, token_file: Path) -> None:
    with pytest.raises(InvalidInput, match="--token-file"), running_console(mq, ConsoleSettings(host="0.0.0.0")):
        pytest.fail("it served")
    settings = ConsoleSettings(host="0.0.0.0", token_file=token_file)
    with running_console(mq, settings) as url:
        local = url.replace("0.0.0.0", "127.0.0.1")
        refused = ConsoleClient(local).get("/")
        assert refused.status == 401
        assert "broker-a" not in refused.text
        assert ConsoleClient(local).get("/live").status == 401
        assert ConsoleClient(local).get("/sign-in").status == 200
        assert ConsoleClient(local, token_file.read_text().strip()).get("/").status == 200


# What is written


@pytest.mark.usefixtures("admin")
def test_send_answers_with_the_place_of_the_message(mq: Connection, console: ConsoleClient) -> None:
    sent = console.post_json("/topics/t/send", {"body": "ä", "properties": {"a": "1"}})
    assert console.get_json(f"/messages/{sent['message_id']}")["properties"] == {"a": "1"}
    assert console.get(f"/messages/{sent['message_id']}").status == 200
    for path, fields, status in [
        ("/topics/none/send", {"body": "x"}, 404),
        ("/topics/t/send", {"body": ""}, 400),
        ("/topics/t/send", {"body": "x", "keys": "a\x01"}, 400),
        ("/topics/t/send", {"body": "x", "delay": "soon"}, 400),
        ("/topics/t/send", {"body": "x", "properties": "none"}, 400),
        ("/topics/SCHEDULE_TOPIC_XXXX/send", {"body": "x"}, 400),
    ]:
        assert console.post(path, fields).status == status, (path, fields)
    assert bodies(mq) == ["ä".encode()]


@pytest.mark.usefixtures("admin")
def test_result_of_a_form_has_an_address_of_its_own(mq: Connection, console: ConsoleClient) -> None:
    taken = console.post("/topics/t/send", {"body": "x"})
    result = taken.headers["Location"]
    assert (taken.status, result.partition("/done/")[0]) == (303, "")
    for _ in range(2):
        assert "Stored (SEND_OK)" in console.get(result).text
    assert console.get_json(result)["topic"] == "t"
    assert bodies(mq) == [b"x"], "to load the result again sends nothing"
    assert console.get("/done/none").status == 404
    refused = console.post("/topics/t/send", {"body": ""})
    assert refused.status == 400
    assert console.get("/topics/%25DLQ%25g/send").headers["Location"] == "/topics/%25DLQ%25g"


@pytest.mark.usefixtures("admin")
def test_token_that_is_entered_after_a_refused_form_leads_to_its_page(stranger: ConsoleClient) -> None:
    refused = stranger.post("/topics/t/send", {"body": "x"})
    assert (refused.status, refused.text.count('/sign-in?next=/topics/t"')) == (401, 2)


@pytest.mark.usefixtures("admin")
def test_redrive_reports_what_it_did(mq: Connection, console: ConsoleClient) -> None:
    letters = make_dead_letters(mq, console, 4)
    path = "/groups/g/dead-letters/redrive"
    ids = [letter["message_id"] for letter in letters]
    assert console.post(path).status == 400, "nothing selected"
    tried = console.post_json(path, {"ids": ids[:2], "dry_run": True})
    assert (tried["state"], tried["dry_run"], tried["redriven"]) == ("done", True, ids[:2])
    done = console.post_json(path, {"ids": [*ids[:2], "F" * 32], "rate": 1000})
    assert done["counts"] == {"redriven": 2, "already": 0, "unknown": 1, "not_asked": 0, "unreadable": 0}
    assert console.get_json(f"/groups/g/redrives/{done['job']}") == done
    assert console.get(f"/groups/g/redrives/{done['job']}").status == 200
    assert console.get(f"/groups/other/redrives/{done['job']}").status == 404
    every = console.post_json(path, {"all": True})
    assert (every["counts"]["redriven"], every["counts"]["already"]) == (2, 2)
    form = console.submit(path, {"ids": ids, "dry_run": "1"})
    assert "Dry run: nothing was sent" in form.text
    assert console.post(path, {"all": "1", "rate": "fast"}).status == 400
    assert console.submit("/groups/none/dead-letters/redrive", {"all": "1"}).text.count("stopped before its end") == 1


@pytest.mark.usefixtures("admin")
def test_dead_letters_are_listed_the_newest_first_in_pages(
    mq: Connection, console: ConsoleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = make_dead_letters(mq, console, 5)
    died = [letter["dead_at"] for letter in letters]
    assert died == sorted(died, reverse=True)
    monkeypatch.setattr(dead_letter_pages, "ITEMS_PER_PAGE", 2)
    path = "/groups/g/dead-letters"
    pages = [console.get_json(f"{path}?page={page}") for page in (1, 2, 3, 4)]
    assert [each["dead_letters"] for each in pages] == [letters[:2], letters[2:4], letters[4:], []]
    assert [each["truncated"] for each in pages] == [True, True, False, False]
    assert "page=2" in console.get(path).text
    console.post_json(f"{path}/redrive", {"ids": [letters[0]["message_id"]]})
    hidden = console.get_json(f"{path}?hide=redriven")
    assert [each["message_id"] for each in hidden["dead_letters"]] == [letters[1]["message_id"]]
    assert hidden["hidden"] == 1
    assert "1 that were redriven are hidden" in console.get(f"{path}?hide=redriven").text


@pytest.mark.usefixtures("admin")
def test_slow_redrive_runs_on_and_shows_its_state(mq: Connection, console: ConsoleClient) -> None:
    make_dead_letters(mq, console, 6)
    begun = console.post_json("/groups/g/dead-letters/redrive", {"all": True, "rate": 0.2})
    assert (begun["state"], begun["counts"]) == ("running", {})
    path = f"/groups/g/redrives/{begun['job']}"
    poll_until(lambda: console.get_json(path)["total"] == 6, 20, "the number of dead letters")
    assert console.get_json(path)["handled"] in range(1, 6)
    page = console.get(path).text
    assert "Running" in page
    assert re.search("[1-5] of 6 done", page)
    assert 'hx-trigger="every 1s"' in page


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize(
    "fields",
    [
        *({"all": True, "rate": rate} for rate in ("nan", "inf", "0", 0, -1, "1e400")),
        *({"ids": ids} for ids in ([], [""], [1], {"a": 1}, None, 7)),
    ],
)
def test_bad_redrive_starts_no_job(console: ConsoleClient, fields: dict[str, Any]) -> None:
    answer = console.post_bytes(
        "/groups/g/dead-letters/redrive", json.dumps(fields).encode(), JSON | {"Accept": "application/json"}
    )
    assert (answer.status, answer.json["error"]) in {(400, "InvalidInput"), (400, "WrongType")}
    assert console.get("/groups/g/redrives/1").status == 404


@pytest.mark.usefixtures("admin")
def test_failed_redrive_says_so(services: Services, mq: Connection, console: ConsoleClient) -> None:
    letters = make_dead_letters(mq, console, 8)
    on_b = [letter["message_id"] for letter in letters if letter["broker"] == "broker-b"]
    services.stop_broker("broker-b")
    path = "/groups/g/dead-letters/redrive"
    poll_until(
        lambda: console.get_json("/groups/g/dead-letters")["not_asked"] == ["broker-b"], 30, "the broker is away"
    )
    failed = console.post_json(path, {"ids": on_b})
    poll_until(lambda: console.get_json(f"/groups/g/redrives/{failed['job']}")["state"] == "failed", 30, "the end")
    assert "broker-b" in console.get_json(f"/groups/g/redrives/{failed['job']}")["error"]
    partly = console.post_json(path, {"all": True})
    assert partly["not_asked"] == ["broker-b"]
    assert "Not all of the selected ones" in console.get(f"/groups/g/redrives/{partly['job']}").text


@pytest.mark.usefixtures("admin")
def test_deletion_asks_first(mq: Connection, console: ConsoleClient) -> None:
    letters = make_dead_letters(mq, console, 3)
    ids = [letter["message_id"] for letter in letters]
    path = "/groups/g/dead-letters/delete"
    asked = console.submit(path, {"ids": ids[:2]})
    assert "2 dead letters" in asked.text
    assert "Nothing is deleted yet" in asked.text
    assert len(listed(console)) == 3
    assert console.post_json(path, {"ids": ids[:2], "confirm": True})["deleted"] == 2
    assert [letter["message_id"] for letter in listed(console)] == ids[2:]
    assert "1 deleted of 2 selected" in console.submit(path, {"ids": ids[1:], "confirm": "1"}).text
    assert listed(console) == []


@pytest.mark.usefixtures("admin")
def test_delayed_messages_are_listed_and_recalled(mq: Connection, console: ConsoleClient) -> None:
    with Producer(mq, "p") as producer:
        later = producer.send(Message("t", b"later", keys=["k"], deliver_at=time.time() + 500))
        producer.send(Message("t", b"level", delay_level=4))
    sent = console.post_json("/topics/t/send", {"body": "soon", "delay": "90s"})
    found = console.get_json("/delayed")
    assert (found["truncated"], found["not_asked"]) == (False, [])
    timers = [row for row in found["delayed"] if row["recall_handle"]]  # the one with a level comes within a second
    assert [row["preview"] for row in timers] == ["soon", "later"]
    assert timers[1]["recall_handle"] == later.recall_handle
    assert timers[0]["recall_handle"] == sent["recall_handle"]
    assert console.post_json("/delayed/recall", {"handle": later.recall_handle})["status"] == "WITHDRAWN"
    after = {row["preview"]: row["recalled"] for row in console.get_json("/delayed")["delayed"]}
    assert after.pop("later", True), "it has no button any more, if it is still listed"
    assert not any(after.values())
    assert "Withdrawn" in console.submit("/delayed/recall", {"handle": later.recall_handle}).text
    assert console.post("/delayed/recall", {"handle": "x"}).status == 404, "no handle, and no message has that id"
    assert console.post("/delayed/recall", {"handle": ""}).status == 400


@pytest.mark.usefixtures("admin")
def test_transactions_are_decided(mq: Connection, console: ConsoleClient) -> None:
    with Producer(mq, "p") as producer:
        for name in ("commit", "rollback", "resume"):
            producer.begin(Message("t", name.encode(), keys=[name]))
    rows = {row["keys"][0]: row for row in console.get_json("/transactions")["transactions"]}
    assert {row["state"] for row in rows.values()} == {"open"}
    for name in ("commit", "rollback", "resume"):
        answer = console.post_json(f"/transactions/{name}", {"message_id": rows[name]["message_id"]})
        assert answer["state"] == {"commit": "committed", "rollback": "rolled back", "resume": "resumed"}[name]
    assert bodies(mq) == [b"commit"]
    assert [row["keys"] for row in console.get_json("/transactions")["transactions"]] == [["resume"]]
    assert console.post("/transactions/commit", {"message_id": rows["rollback"]["message_id"]}).status == 404


# The command


RAYMQ = str(Path(sys.executable).with_name("raymq"))


def test_command_serves_until_it_is_told_to_end(services: Services, token_file: Path) -> None:
    options = ["console", "--port", "0", "--token-file", str(token_file), "--json"]
    command = [RAYMQ, "--name-servers", services.name_server.address, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            url = json.loads(running.stdout.readline())["url"]
            assert ConsoleClient(url).get_json("/overview.json")["brokers"][0]["name"] == "broker-a"
            stream = ConsoleClient(url).events("/live")
            running.send_signal(signal.SIGTERM)
            assert all(name == "sample" for name, _ in stream), "an open page does not hold up the end"
            out, err = running.communicate(timeout=20)
        finally:
            running.kill()
    assert (running.returncode, out, err) == (0, "", "")


def test_command_refuses_with_a_remedy(services: Services, tmp_path: Path) -> None:
    port = services.name_server.address.partition(":")[2]
    for options, contains in [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--port", port], "--port 0"),
        (["--token-file", str(tmp_path / "none" / "token")], "token_file"),
    ]:
        command = [RAYMQ, "--name-servers", services.name_server.address, "console", *options]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stdout) == (1, ""), options
        assert contains in ended.stderr
