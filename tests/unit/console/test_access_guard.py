"""Test the access rules as tables: hosts, origins, tokens, sessions, CSRF."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raymq.actors.errors import InvalidInput
from raymq.console.access_guard import SESSION_SECONDS, AccessGuard, RequestFacts, Sessions, is_loopback, is_public

TOKEN = "a-token-of-the-test"
HOST = "127.0.0.1:8400"
READ = RequestFacts("GET", HOST)
WRITE = RequestFacts("POST", HOST)
LOCAL = ("localhost", "127.0.0.2", "[::1]")


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(clock)


def guard(sessions: Sessions, host: str = "127.0.0.1", token: str | None = TOKEN, *allowed: str) -> AccessGuard:
    return AccessGuard(host, allowed, token, sessions)


def status(rules: AccessGuard, facts: RequestFacts) -> int:
    refusal = rules.check(facts)
    if refusal is None:
        return 200
    assert refusal.reason
    assert refusal.remedy
    return refusal.status


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8400", 200),
        ("127.0.0.1", 200),
        ("localhost:8400", 200),
        ("LOCALHOST.:8400", 200),
        ("[::1]:8400", 200),
        ("console.example:8400", 200),
        (None, 421),
        ("", 421),
        ("evil.example:8400", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1@evil.example", 421),
        ("192.0.2.7:8400", 421),
        ("[::1", 421),
    ],
)
def test_only_known_hosts_are_answered(sessions: Sessions, host: str | None, expected: int) -> None:
    rules = AccessGuard("127.0.0.1", LOCAL, TOKEN, sessions, ["Console.example"])
    assert status(rules, RequestFacts("GET", host)) == expected


def test_reads_under_an_allowed_name_need_the_token(sessions: Sessions) -> None:
    rules = guard(sessions, "127.0.0.1", TOKEN, "MQ.example.org.", "[2001:db8::1]")
    for host in ("mq.example.org", "mq.example.org:8080", "[2001:db8::1]:443", HOST):
        assert status(rules, RequestFacts("GET", host)) == 401
        assert status(rules, RequestFacts("GET", host, authorization=f"Bearer {TOKEN}")) == 200
    assert not is_public("127.0.0.1", LOCAL)


@pytest.mark.parametrize(
    "name", ["", "*", "*.example", "a b", " mq", "mq:443", "https://mq.example", "[mq]x", "mö", "a/b"]
)
def test_names_that_no_browser_sends_are_refused(sessions: Sessions, name: str) -> None:
    with pytest.raises(InvalidInput, match="wildcard"):
        guard(sessions, "127.0.0.1", TOKEN, name)


@pytest.mark.parametrize(
    ("origin", "fetch_site", "expected"),
    [
        (None, None, 200),
        (f"http://{HOST}", "same-origin", 200),
        (f"https://{HOST}", None, 200),
        (None, "none", 200),
        ("null", None, 403),
        ("http://[", None, 403),
        ("http://\udcff", None, 403),
        ("http://evil.example", None, 403),
        ("http://127.0.0.1:9999", None, 403),
        (f"ftp://{HOST}", None, 403),
        (None, "cross-site", 403),
        (None, "same-site", 403),
    ],
)
def test_writes_from_other_origins_are_refused(
    sessions: Sessions, origin: str | None, fetch_site: str | None, expected: int
) -> None:
    facts = replace(WRITE, origin=origin, fetch_site=fetch_site, authorization=f"Bearer {TOKEN}")
    assert status(guard(sessions), facts) == expected


def test_reads_from_another_origin_are_refused(sessions: Sessions) -> None:
    assert status(guard(sessions), replace(READ, origin="http://evil.example")) == 403


def test_link_from_another_site_is_answered(sessions: Sessions) -> None:
    assert status(guard(sessions), replace(READ, fetch_site="cross-site")) == 200


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        (None, 401),
        ("", 401),
        ("Bearer ", 401),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (TOKEN, 401),
        ("Bearer ä", 401),
        ("Bearer \udcff", 401),
        (f"Bearer {TOKEN}", 200),
    ],
)
def test_writes_need_the_token(sessions: Sessions, authorization: str | None, expected: int) -> None:
    assert status(guard(sessions), replace(WRITE, authorization=authorization)) == expected


def test_session_needs_its_own_csrf_token(sessions: Sessions) -> None:
    rules = guard(sessions)
    mine, other = sessions.open(), sessions.open()
    csrf, others = sessions.get(mine).csrf, sessions.get(other).csrf
    table = [
        (mine, csrf, 200),
        (mine, None, 403),
        (mine, "", 403),
        (mine, others, 403),
        (mine, "\udcff", 403),
        ("unknown", csrf, 401),
    ]
    for session, given, expected in table:
        assert status(rules, replace(WRITE, session=session, csrf=given)) == expected, (session, given)


def test_session_ends(sessions: Sessions, clock: Clock) -> None:
    rules, session = guard(sessions), sessions.open()
    facts = replace(WRITE, session=session, csrf=sessions.get(session).csrf)
    assert status(rules, facts) == 200
    clock.now += SESSION_SECONDS
    assert status(rules, facts) == 401


def test_closed_session_is_refused(sessions: Sessions) -> None:
    session = sessions.open()
    sessions.close(session)
    assert status(guard(sessions), replace(WRITE, session=session)) == 401


def test_number_of_sessions_is_bounded(sessions: Sessions) -> None:
    first = sessions.open()
    for _ in range(100):
        sessions.open()
    assert sessions.get(first) is None


def test_console_without_a_token_only_reads(sessions: Sessions) -> None:
    rules = guard(sessions, token=None)
    assert status(rules, READ) == 200
    assert status(rules, replace(WRITE, authorization="Bearer ")) == 403
    assert not rules.accepts("")
    assert not rules.may_write


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", 200), ("::1", 200), ("localhost", 200), ("0.0.0.0", 401)])
def test_reads_need_the_token_beyond_loopback(sessions: Sessions, host: str, expected: int) -> None:
    rules = guard(sessions, host)
    assert status(rules, READ) == expected
    assert status(rules, replace(READ, authorization=f"Bearer {TOKEN}")) == 200
    assert status(rules, replace(READ, session=sessions.open())) == 200
    assert status(rules, replace(READ, is_open=True)) == 200, "the form for the token"


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("192.0.2.1", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_loopback_addresses_are_known(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
