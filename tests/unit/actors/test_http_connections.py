"""Test how many connections are admitted, and which of them take too long."""

from __future__ import annotations

from raymq.actors.metrics.http_connections import HttpConnections


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_number_of_connections_is_bounded() -> None:
    table = HttpConnections[str](2, Clock())
    assert [table.admit(name) for name in "abc"] == [True, True, False]
    table.forget("c")
    assert not table.admit("c")
    table.request_read("a")
    assert not table.admit("c"), "an answer that is being sent counts, too"
    table.forget("a")
    assert table.admit("c")


def test_incomplete_requests_are_overdue() -> None:
    clock = Clock()
    table = HttpConnections[str](9, clock)
    table.admit("slow")
    table.admit("answered")
    table.admit("closed")
    clock.now += 9.9
    table.admit("new")
    table.request_read("answered")
    table.forget("closed")
    table.request_read("closed")
    assert table.waiting(10.0) == []
    clock.now += 0.1
    assert table.waiting(10.0) == ["slow"]
    assert table.waiting(0.0) == ["slow", "new"]
