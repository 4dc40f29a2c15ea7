"""Test every page of the console as HTML and as JSON, with brokers and without one."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from raymq.client import Admin, Connection, ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage
from raymq.console.console_server import ConsoleSettings
from tests.console_client import ConsoleClient
from tests.console_data import Shop
from tests.console_thread import running_console
from tests.integration.conftest import Services
from tests.polling import poll_until

pytestmark = pytest.mark.integration

VOID = {"meta", "link", "input", "br", "meter", "hr", "img"}
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'


@pytest.fixture
def console(mq: Connection, tmp_path: Path) -> Iterator[ConsoleClient]:
    token_file = tmp_path / "token"
    with running_console(mq, ConsoleSettings(token_file=token_file)) as url:
        yield ConsoleClient(url, token_file.read_text().strip())


class CheckedPage(HTMLParser):
    """Checks that tags are closed in their order, and collects what a browser would run or load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._open: list[str] = []
        self.scripts: list[str] = []
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []
        assert len(self.ids) == len(set(self.ids)), self.ids

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.attributes |= values.keys()
        if tag == "script":
            self.scripts.append(values.get("src") or "inline")
        if values.get("id"):
            self.ids.append(values["id"] or "")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag


def check(text: str) -> None:
    """Check that a page is well-formed, and that it runs only the console's own scripts."""
    page = CheckedPage(text)
    assert all(script.startswith("/static/") for script in page.scripts)
    assert not {name for name in page.attributes if name.startswith("on") or name == "style"}


def test_every_page_is_served_as_html_and_json(mq: Connection) -> None:
    shop = Shop(mq)
    shop.trade(12)
    with shop.billing(), shop.shipping():
        shop.pour_poison()
        shop.dead_letters(1)
    shop.lend_thumbnails().close()
    shop.plan_reminders()
    shop.leave_transactions_open()
    message_id = shop.admin.query_by_key("orders", "order-4001")[0].message_id
    pages = {
        "/": "brokers",
        "/topics": "topics",
        "/topics?filter=ord": "topics",
        "/topics?system=1": "topics",
        "/topics/orders": "messages",
        "/topics/orders?queue=broker-a:0": "messages",
        "/topics/orders?queue=broker-b:1&offset=1": "older",
        "/topics/orders?from=1m": "notes",
        "/topics/shipments": "messages",
        "/topics/%25DLQ%25billing": "messages",
        "/topics/%25RETRY%25billing": "queues",
        "/groups": "groups",
        "/groups?filter=bill": "groups",
        "/groups/billing": "queues",
        "/groups/thumbnailer": "in_flight",
        "/groups/billing/dead-letters": "dead_letters",
        "/messages": "query",
        "/messages?topic=orders&key=order-4001": "messages",
        "/messages?topic=orders&key=none": "messages",
        f"/messages/{message_id}": "body",
        "/delayed": "delayed",
        "/transactions": "transactions",
        "/transactions?topic=orders": "transactions",
        "/sign-in": "next",
    }
    with running_console(mq, ConsoleSettings()) as url:
        console = ConsoleClient(url)
        for path, field in pages.items():
            html = console.get(path)
            assert (html.status, html.headers.get_content_type()) == (200, "text/html"), (path, html.text[:2000])
            check(html.text)
            assert "default-src 'self'" in html.headers["Content-Security-Policy"]
            assert html.headers["X-Content-Type-Options"] == "nosniff"
            assert html.headers["Cache-Control"] == "no-store"
            assert field in console.get_json(path), path
            if path not in ("/", "/sign-in"):
                by_suffix = console.get(path.replace("?", ".json?") if "?" in path else f"{path}.json")
                assert by_suffix.json.keys() == console.get_json(path).keys()
        assert console.get("/overview.json").json["topics"] == 6


def test_figures_of_pages_are_those_of_the_admin_client(mq: Connection, console: ConsoleClient) -> None:
    admin = Admin(mq)
    admin.create_topic("t", queues=1)
    with Producer(mq, "p") as producer:
        sent = [producer.send(Message("t", b"m%d" % number, keys=[f"k{number}"])) for number in range(40)]
    topic = console.get_json("/topics/t")
    assert topic["message_count"] == 40
    assert len(topic["messages"]) == 25
    stored = [row["store_timestamp"] for row in topic["messages"]]
    assert stored == sorted(stored, reverse=True)
    row = next(row for row in topic["messages"] if row["message_id"] == sent[-1].message_id)
    assert (row["preview"], row["keys"], row["size"]) == ("m39", ["k39"], 3)
    queue = console.get_json("/topics/t?queue=broker-a:0&offset=3")
    offsets = [row["offset"] for row in queue["messages"]]
    assert offsets == list(range(3, queue["messages"][-1]["offset"] + 1))
    assert queue["older"] == 0
    window = console.get_json(f"/topics/t?from={sent and time.time() - 60}&to={time.time() + 1}")
    assert len(window["messages"]) == 25
    assert window["notes"] == ["the first 25 of 40 messages"]
    assert "choose the queue" in console.get_json("/topics/t?offset=5")["notes"][0]
    with PushConsumer(mq, "pops", {"t": "*"}, lambda _: ConsumeResult.SUCCESS, mode="pop"):
        poll_until(lambda: "members that pop share all queues" in console.get("/groups/pops").text, 20, "the group")
    system = console.get("/topics?system=1").text
    assert "not sampled: open it for its figures" in system
    message = console.get_json(f"/messages/{sent[7].message_id}")
    assert (message["body"]["text"], message["offset"]) == ("m7", sent[7].queue_offset)
    assert console.get_json(f"/messages?topic=t&unique_key={sent[7].unique_key}")["messages"][0]["keys"] == ["k7"]
    assert console.get(f"/messages?id={sent[7].message_id}").headers["Location"] == f"/messages/{sent[7].message_id}"


def test_large_bodies_are_not_read_for_the_list(mq: Connection, console: ConsoleClient, admin: Admin) -> None:
    with Producer(mq, "p") as producer:
        sent = producer.send(Message("t", b"x" * (1 << 20)))
    topic = console.get_json("/topics/t")
    assert topic["messages"][0]["preview"] is None
    assert "large" in topic["notes"][0]
    body = console.get_json(f"/messages/{sent.message_id}")["body"]
    assert (body["size"], body["cut"], len(body["text"])) == (1 << 20, True, 64 << 10)


@pytest.mark.parametrize(
    ("path", "status", "contains"),
    [
        ("/topics/none", 404, "none"),
        ("/topics/none/tail", 404, "none"),
        ("/topics/t?queue=broker-x:0", 404, "no queue"),
        ("/topics/t?queue=broker-a:0&offset=x", 400, "offset"),
        ("/topics/t?from=yesterday", 400, "from"),
        ("/topics/t?from=1h&to=2h", 400, "after"),
        ("/topics?page=0", 400, "page"),
        ("/topics/..%2F..%2Fetc", 400, "topic"),
        ("/groups/none", 404, "none"),
        ("/groups/none/dead-letters", 404, "none"),
        ("/groups/g/redrives/7", 404, "redrive"),
        ("/groups/g/redrives/x", 404, "redrive"),
        ("/messages/xyz", 400, "message"),
        ("/messages/7F0000010000000100000000000000FF", 503, "127.0.0.1:1"),
        ("/nothing/here", 404, "Not Found"),
        ("/static/..%2Fconsole_app.py", 404, "Not Found"),
        ("/static/NOTICE.txt", 404, "Not Found"),
    ],
)
def test_errors_are_pages_with_a_remedy(
    admin: Admin, console: ConsoleClient, path: str, status: int, contains: str
) -> None:
    html = console.get(path)
    assert (html.status, html.headers.get_content_type()) == (status, "text/html"), html.text[:1000]
    check(html.text)
    answer = console.get(path, Accept="application/json")
    assert answer.status == status
    assert contains in answer.json["message"]
    assert answer.json["remedy"] or status in {400, 404}


def test_pages_say_which_broker_is_missing(
    services: Services, mq: Connection, admin: Admin, console: ConsoleClient
) -> None:
    with Producer(mq, "p") as producer:
        sent = [producer.send(Message("t", b"x")) for _ in range(8)]
    with PushConsumer(mq, "g", {"t": "*"}, lambda messages: None):
        poll_until(lambda: console.get("/groups/g").status == 200, 20, "the group")
    poll_until(lambda: len(console.get_json("/")["brokers"]) == 2, 20, "the first sample")
    on_b = next(each for each in sent if each.queue.broker == "broker-b")
    services.stop_broker("broker-b")

    def overview_says_it() -> bool:
        brokers = console.get_json("/")["brokers"]
        return {each["name"]: each["state"] for each in brokers} == {"broker-a": "running", "broker-b": "unreachable"}

    poll_until(overview_says_it, 20, "the next sample")
    page = console.get("/").text
    assert "Not reachable: broker-b" in page
    assert "unknown" in page
    poll_until(lambda: console.get_json("/")["lag_partly_unknown"], 20, "the sum of a part")
    assert "at least " in console.get("/").text
    group = console.get_json("/groups/g")
    assert {row["broker"] for row in group["queues"] if row["progress"]["lag"] is None} >= {"broker-b"}
    answer = console.get(f"/messages/{on_b.message_id}", Accept="application/json")
    assert (answer.status, bool(answer.json["missing"]), bool(answer.json["remedy"])) == (503, True, True)


def freeze(services: Services, broker: str) -> None:
    """Let a broker take requests and answer none, as a stopped process does."""

    async def hang(*_: object) -> None:
        await asyncio.sleep(3_600)

    server = services.brokers[broker]._server
    server.handlers = dict.fromkeys(server.handlers, hang)  # type: ignore[arg-type]


def test_pages_of_topics_and_groups_do_without_a_broker_that_hangs(
    services: Services, mq: Connection, admin: Admin, console: ConsoleClient
) -> None:
    with Producer(mq, "p") as producer:
        sent = [producer.send(Message("t", b"x", keys=["k"])) for _ in range(8)]
    with PushConsumer(mq, "g", {"t": "*"}, lambda messages: None):
        poll_until(lambda: "g" in [each["group"] for each in console.get_json("/groups")["groups"]], 20, "the group")
    poll_until(lambda: console.get_json("/")["groups"] == 1, 20, "the sample")
    on_a = {each.queue_offset for each in sent if each.queue.broker == "broker-a"}
    assert admin is not None
    freeze(services, "broker-b")
    topic = console.get_json("/topics/t")
    assert topic["not_asked"] == ["broker-b"]
    assert {row["broker"] for row in topic["queues"] + topic["messages"]} == {"broker-a"}
    assert {row["offset"] for row in topic["messages"]} == on_a
    assert topic["config"]["queues"] == 2
    for path, note in (("queue=broker-b:0", "does not answer"), ("from=1m", "choose a queue")):
        found = console.get_json(f"/topics/t?{path}")
        assert found["messages"] == []
        assert note in found["notes"][0]
    by_key = console.get_json("/messages?topic=t&key=k")
    assert by_key["not_asked"] == ["broker-b"]
    assert {row["broker"] for row in by_key["messages"]} == {"broker-a"}
    unique_key = next(each.unique_key for each in sent if each.queue.broker == "broker-a")
    assert len(console.get_json(f"/messages?topic=t&unique_key={unique_key}")["messages"]) == 1
    text = console.get("/topics/t").text
    check(text)
    assert "Not asked: broker-b." in text
    assert "at least " in text
    assert [each["group"] for each in console.get_json("/groups")["groups"]] == ["g"]
    assert console.get_json("/groups/g")["lag_partly_unknown"]
    poll_until(lambda: console.get_json("/")["lag_partly_unknown"], 60, "a sample without broker-b")
    assert console.get_json("/")["error"] is None


def test_message_page_shows_the_life_of_a_message(mq: Connection, admin: Admin, console: ConsoleClient) -> None:
    calls = 0

    def fail_until_redriven(messages: list[ReceivedMessage]) -> ConsumeResult:
        nonlocal calls
        calls += len(messages)
        if calls > 2:
            return ConsumeResult.SUCCESS
        raise ValueError("no such account")

    with Producer(mq, "p") as producer:
        sent = producer.send(Message("t", b"poison"))
    path = f"/messages/{sent.message_id}"
    assert "No group consumes the topic." in console.get(path).text
    with PushConsumer(mq, "g", {"t": "*"}, fail_until_redriven, max_reconsume_times=1):
        poll_until(lambda: console.get_json(path)["trace"]["dead_letters"], 20, "the dead letter")
        admin.dlq_redrive("g")
        poll_until(lambda: [e["state"] for e in console.get_json(path)["trace"]["redrives"]] == ["finished"], 20)
    trace = console.get_json(path)["trace"]
    (stored,), (retry,), (dead,) = trace["stored"], trace["retries"], trace["dead_letters"]
    assert (stored["state"], stored["queue"]["topic"], stored["queue_offset"]) == ("stored", "t", sent.queue_offset)
    assert trace["consumed"] == [{"group": "g", "state": "finished", "offset": sent.queue_offset}]
    assert "message" not in trace
    text = console.get(path).text
    check(text)
    life = text.partition('id="life"')[2]
    for shown in (
        f"{sent.queue.broker}:{sent.queue.queue_id} @ {sent.queue_offset}",
        '<a href="/groups/g">g</a>',
        '<span class="status good">finished</span>',
        retry["failure"],
        dead["message_id"],
        '<a href="/groups/g/dead-letters">g</a>',
        "no such account",
    ):
        assert shown in life, shown
    assert life.count("<table") == 5
    for linked in (stored, retry, dead):
        queue = linked["queue"]
        place = f"/topics/{quote(queue['topic'], safe='')}?queue={queue['broker']}:{queue['queue_id']}"
        assert console.get(f"{place}&offset={linked['queue_offset']}").status == 200


def test_life_of_a_message_that_waits(mq: Connection, admin: Admin, console: ConsoleClient) -> None:
    assert admin is not None
    with Producer(mq, "p") as producer:
        sent = producer.send(Message("t", b"later", deliver_at=time.time() + 600))
    path = f"/messages/{sent.message_id}"
    (stored,) = console.get_json(path)["trace"]["stored"]
    assert stored["state"] == "waiting"
    text = console.get(path).text
    check(text)
    assert '<span class="status busy">waiting</span>' in text
    assert console.get(f"/topics/{stored['queue']['topic']}").status == 200


def test_life_is_unknown_where_a_broker_is_away(
    services: Services, mq: Connection, admin: Admin, console: ConsoleClient
) -> None:
    assert admin is not None
    with Producer(mq, "p") as producer:
        sent = next(s for s in (producer.send(Message("t", b"x")) for _ in range(50)) if s.queue.broker == "broker-a")
    services.stop_broker("broker-b")
    path = f"/messages/{sent.message_id}"
    poll_until(lambda: console.get_json(path)["trace"]["not_asked"] == ["broker-b"], 20, "the broker is away")
    text = console.get(path).text
    check(text)
    assert "Not asked: broker-b." in text
    assert "No group consumes the topic on the brokers that answered." in text


def test_hostile_texts_are_escaped_everywhere(mq: Connection, admin: Admin, console: ConsoleClient) -> None:
    key = HOSTILE.replace(" ", "_")

    def fail(messages: list[ReceivedMessage]) -> None:
        raise ValueError(HOSTILE)

    with Producer(mq, "p") as producer:
        sent = producer.send(
            Message("t", HOSTILE.encode(), tags=key, keys=[key], properties={"p<b>": HOSTILE, "content-type": HOSTILE})
        )
        producer.begin(Message("t", HOSTILE.encode(), keys=[key]))
        producer.send(Message("t", HOSTILE.encode(), keys=[key], deliver_at=time.time() + 600))
    with PushConsumer(mq, "g", {"t": "*"}, fail, max_reconsume_times=0):
        poll_until(lambda: console.get("/groups/g").status == 200, 20, "the group")
        poll_until(lambda: console.get_json("/groups/g/dead-letters")["dead_letters"], 20, "the dead letter")
    paths = [
        "/topics/t",
        f"/messages/{sent.message_id}",
        f"/messages?topic=t&key={quote(key)}",
        "/groups/g/dead-letters",
        "/transactions",
        "/delayed",
    ]
    for path in paths:
        text = console.get(path).text
        check(text)
        assert "&lt;script&gt;alert(1)" in text, path
        assert "<script>alert" not in text, path
        assert "<img" not in text, path
    for path in ("/topics?filter=", "/groups?filter=", "/messages?topic=t&key=", "/sign-in?next=/", "/topics/", "/"):
        text = console.get(path + quote(HOSTILE)).text
        check(text)
        assert "<script>alert" not in text
        assert "<img" not in text


@pytest.mark.usefixtures("admin")
@pytest.mark.parametrize(("path", "status"), [("/live", 405), ("/topics/t/tail", 405), ("/topics", 200)])
def test_head_answers_without_body(console: ConsoleClient, path: str, status: int) -> None:
    host, _, port = console.host.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(f"HEAD {path} HTTP/1.1\r\nHost: {console.host}\r\nConnection: close\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert body == b""


def test_live_figures_and_live_tail(mq: Connection, admin: Admin, console: ConsoleClient) -> None:
    name, data = next(console.events("/live"))
    assert (name, data["error"]) == ("sample", None)
    tail = console.events("/topics/t/tail")
    ended = threading.Event()

    def send() -> None:
        """Send until the tail, which shows what arrives after its begin, has had a message."""
        with Producer(mq, "p") as producer:
            while not ended.wait(0.05):
                producer.send(Message("t", b"line\n\nevent: fake\n\n", keys=["k"]))

    sending = threading.Thread(target=send)
    sending.start()
    try:
        name, data = next(tail)
    finally:
        ended.set()
        sending.join()
        tail.close()
    assert name == "messages"
    assert data["messages"][0]["preview"] == "line event: fake"
    assert (data["missing"], data["too_fast"]) == (0, 0)
