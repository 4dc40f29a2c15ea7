"""When a broker asks the homes of the writes that it has rows of, as tables with a clock of ours."""

from __future__ import annotations

from raymq.actors.broker.core.writes.in_doubt_tracker import QUIET_SECONDS, UNKNOWN_IDLE_SECONDS, InDoubtTracker
from tests.unit.actors.clock import FakeClock


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.in_doubt = InDoubtTracker(self.clock)

    def asked(self) -> dict[str, list[str]]:
        return {home: list(writes) for home, writes in self.in_doubt.due_queries().items()}


def test_a_write_is_asked_about_when_nothing_was_added_for_a_while() -> None:
    bench = Bench()
    bench.in_doubt.touch("tx", "a")
    for _ in range(10):
        bench.clock.advance(QUIET_SECONDS - 1)
        assert bench.asked() == {}
        bench.in_doubt.touch("tx", "a")
    bench.clock.advance(QUIET_SECONDS)
    assert bench.in_doubt.due_queries() == {"a": {"tx": QUIET_SECONDS}}
    assert bench.asked() == {}
    bench.clock.advance(QUIET_SECONDS)
    assert bench.in_doubt.due_queries() == {"a": {"tx": 2 * QUIET_SECONDS}}


def test_a_write_that_goes_on_for_long_is_told_to_its_home_in_time() -> None:
    bench = Bench()
    asked = 0
    for _ in range(3_600):
        bench.clock.advance(1.0)
        bench.in_doubt.touch("tx", "a")
        asked += len(bench.asked())
    assert 4 <= asked <= 7


def test_what_a_start_finds_is_asked_about_at_once() -> None:
    bench = Bench()
    bench.in_doubt.recover("tx", "a")
    assert bench.asked() == {"a": ["tx"]}


def test_a_start_tells_nothing_of_rows_that_were_added() -> None:
    """A broker that was started anew each day had each abandoned write count as touched just then."""
    bench = Bench()
    bench.in_doubt.recover("tx", "a")
    for _ in range(3):
        assert bench.in_doubt.due_queries()["a"]["tx"] >= UNKNOWN_IDLE_SECONDS
        bench.in_doubt.retry_soon("tx")
        bench.clock.advance(QUIET_SECONDS)
    bench.in_doubt.touch("tx", "a")
    bench.clock.advance(QUIET_SECONDS)
    assert bench.in_doubt.due_queries() == {"a": {"tx": QUIET_SECONDS}}


def test_a_home_that_does_not_answer_is_asked_less_often_and_others_as_before() -> None:
    bench = Bench()
    times: dict[str, list[float]] = {"a": [], "b": []}
    for number in range(20):
        bench.in_doubt.recover(f"a{number}", "a")
        bench.in_doubt.recover(f"b{number}", "b")
    began = bench.clock.now
    for _ in range(600):
        for home in bench.asked():
            times[home].append(bench.clock.now - began)
            if home == "a":
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
    assert sorted(bench.asked()["a"]) == sorted(f"a{number}" for number in range(20))


def test_what_could_not_be_done_is_asked_about_again_soon() -> None:
    bench = Bench()
    bench.in_doubt.recover("tx", "a")
    bench.asked()
    bench.in_doubt.retry_soon("tx")
    assert bench.asked() == {}
    bench.clock.advance(1.0)
    assert bench.asked() == {"a": ["tx"]}


def test_what_is_over_is_not_asked_about_and_what_is_done_is_told_until_the_home_knows() -> None:
    bench = Bench()
    for name in ("done", "dropped"):
        bench.in_doubt.recover(name, "a")
    bench.in_doubt.mark_done("done", "a")
    bench.in_doubt.forget("dropped")
    assert bench.asked() == {}
    assert bench.in_doubt.due_notifications() == {"a": ["done"]}
    bench.in_doubt.failed("a")
    assert bench.in_doubt.due_notifications() == {}
    bench.clock.advance(2.0)
    assert bench.in_doubt.due_notifications() == {"a": ["done"]}
    assert not bench.in_doubt.is_notified("done")
    bench.in_doubt.mark_notified("done")
    assert bench.in_doubt.due_notifications() == {}
    assert bench.in_doubt.is_notified("done")
