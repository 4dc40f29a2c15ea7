"""Test when a broker queries the coordinators of in-doubt writes, with a fake clock."""

from __future__ import annotations

from raymq.actors.broker.core.writes.in_doubt_tracker import QUIET_SECONDS, UNKNOWN_IDLE_SECONDS, InDoubtTracker
from tests.unit.actors.clock import FakeClock


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.in_doubt = InDoubtTracker(self.clock)

    def queries(self) -> dict[str, list[str]]:
        return {coordinator: list(writes) for coordinator, writes in self.in_doubt.due_queries().items()}


def test_quiet_write_is_queried() -> None:
    bench = Bench()
    bench.in_doubt.touch("tx", "a")
    for _ in range(10):
        bench.clock.advance(QUIET_SECONDS - 1)
        assert bench.queries() == {}
        bench.in_doubt.touch("tx", "a")
    bench.clock.advance(QUIET_SECONDS)
    assert bench.in_doubt.due_queries() == {"a": {"tx": QUIET_SECONDS}}
    assert bench.queries() == {}
    bench.clock.advance(QUIET_SECONDS)
    assert bench.in_doubt.due_queries() == {"a": {"tx": 2 * QUIET_SECONDS}}


def test_long_active_write_is_queried_in_time() -> None:
    bench = Bench()
    queries = 0
    for _ in range(3_600):
        bench.clock.advance(1.0)
        bench.in_doubt.touch("tx", "a")
        queries += len(bench.queries())
    assert 4 <= queries <= 7


def test_recovered_write_is_queried_at_once() -> None:
    bench = Bench()
    bench.in_doubt.recover("tx", "a")
    assert bench.queries() == {"a": ["tx"]}


def test_recovered_write_counts_as_long_idle() -> None:
    """Guard against abandoned writes that count as active after each daily restart."""
    bench = Bench()
    bench.in_doubt.recover("tx", "a")
    for _ in range(3):
        assert bench.in_doubt.due_queries()["a"]["tx"] >= UNKNOWN_IDLE_SECONDS
        bench.in_doubt.retry_soon("tx")
        bench.clock.advance(QUIET_SECONDS)
    bench.in_doubt.touch("tx", "a")
    bench.clock.advance(QUIET_SECONDS)
    assert bench.in_doubt.due_queries() == {"a": {"tx": QUIET_SECONDS}}


def test_unresponsive_broker_is_queried_less_often() -> None:
    bench = Bench()
    times: dict[str, list[float]] = {"a": [], "b": []}
    for number in range(20):
        bench.in_doubt.recover(f"a{number}", "a")
        bench.in_doubt.recover(f"b{number}", "b")
    began = bench.clock.now
    for _ in range(600):
        for coordinator in bench.queries():
            times[coordinator].append(bench.clock.now - began)
            if coordinator == "a":
                bench.in_doubt.failed("a")
            else:
                bench.in_doubt.record_success("b")
        bench.clock.advance(0.5)
    assert 8 <= len(times["a"]) <= 25
    assert times["a"][1] <= 2.0
    assert max(late - early for early, late in zip(times["a"], times["a"][1:], strict=False)) <= 30.5
    assert len(times["b"]) >= 50
    bench.in_doubt.record_success("a")
    bench.clock.advance(QUIET_SECONDS)
    assert sorted(bench.queries()["a"]) == sorted(f"a{number}" for number in range(20))


def test_retry_soon_queries_again_after_one_second() -> None:
    bench = Bench()
    bench.in_doubt.recover("tx", "a")
    bench.queries()
    bench.in_doubt.retry_soon("tx")
    assert bench.queries() == {}
    bench.clock.advance(1.0)
    assert bench.queries() == {"a": ["tx"]}


def test_done_write_is_notified_until_acknowledged() -> None:
    bench = Bench()
    for name in ("done", "dropped"):
        bench.in_doubt.recover(name, "a")
    bench.in_doubt.mark_done("done", "a")
    bench.in_doubt.forget("dropped")
    assert bench.queries() == {}
    assert bench.in_doubt.due_notifications() == {"a": ["done"]}
    bench.in_doubt.failed("a")
    assert bench.in_doubt.due_notifications() == {}
    bench.clock.advance(2.0)
    assert bench.in_doubt.due_notifications() == {"a": ["done"]}
    assert not bench.in_doubt.is_notified("done")
    bench.in_doubt.mark_notified("done")
    assert bench.in_doubt.due_notifications() == {}
    assert bench.in_doubt.is_notified("done")
