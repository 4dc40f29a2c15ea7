"""When a broker asks the homes of the writes that it has rows of, as tables with a clock of ours."""

from __future__ import annotations

from raymq.actors.broker.core.writes.following import QUIET_SECONDS, UNSEEN_SECONDS, Following
from tests.unit.actors.clock import FakeClock


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.following = Following(self.clock)

    def asked(self) -> dict[str, list[str]]:
        return {home: list(writes) for home, writes in self.following.to_ask().items()}


def test_a_write_is_asked_about_when_nothing_was_added_for_a_while() -> None:
    bench = Bench()
    bench.following.touched("tx", "a")
    for _ in range(10):
        bench.clock.advance(QUIET_SECONDS - 1)
        assert bench.asked() == {}
        bench.following.touched("tx", "a")
    bench.clock.advance(QUIET_SECONDS)
    assert bench.following.to_ask() == {"a": {"tx": QUIET_SECONDS}}
    assert bench.asked() == {}
    bench.clock.advance(QUIET_SECONDS)
    assert bench.following.to_ask() == {"a": {"tx": 2 * QUIET_SECONDS}}


def test_a_write_that_goes_on_for_long_is_told_to_its_home_in_time() -> None:
    bench = Bench()
    asked = 0
    for _ in range(3_600):
        bench.clock.advance(1.0)
        bench.following.touched("tx", "a")
        asked += len(bench.asked())
    assert 4 <= asked <= 7


def test_what_a_start_finds_is_asked_about_at_once() -> None:
    bench = Bench()
    bench.following.found("tx", "a")
    assert bench.asked() == {"a": ["tx"]}


def test_a_start_tells_nothing_of_rows_that_were_added() -> None:
    """A broker that was started anew each day had each abandoned write count as touched just then."""
    bench = Bench()
    bench.following.found("tx", "a")
    for _ in range(3):
        assert bench.following.to_ask()["a"]["tx"] >= UNSEEN_SECONDS
        bench.following.again("tx")
        bench.clock.advance(QUIET_SECONDS)
    bench.following.touched("tx", "a")
    bench.clock.advance(QUIET_SECONDS)
    assert bench.following.to_ask() == {"a": {"tx": QUIET_SECONDS}}


def test_a_home_that_does_not_answer_is_asked_less_often_and_others_as_before() -> None:
    bench = Bench()
    times: dict[str, list[float]] = {"a": [], "b": []}
    for number in range(20):
        bench.following.found(f"a{number}", "a")
        bench.following.found(f"b{number}", "b")
    began = bench.clock.now
    for _ in range(600):
        for home in bench.asked():
            times[home].append(bench.clock.now - began)
            if home == "a":
                bench.following.failed("a")
            else:
                bench.following.answered("b")
        bench.clock.advance(0.5)
    assert 8 <= len(times["a"]) <= 25
    assert times["a"][1] <= 2.0
    assert max(late - early for early, late in zip(times["a"], times["a"][1:], strict=False)) <= 30.5
    assert len(times["b"]) >= 50
    bench.following.answered("a")
    bench.clock.advance(QUIET_SECONDS)
    assert sorted(bench.asked()["a"]) == sorted(f"a{number}" for number in range(20))


def test_what_could_not_be_done_is_asked_about_again_soon() -> None:
    bench = Bench()
    bench.following.found("tx", "a")
    bench.asked()
    bench.following.again("tx")
    assert bench.asked() == {}
    bench.clock.advance(1.0)
    assert bench.asked() == {"a": ["tx"]}


def test_what_is_over_is_not_asked_about_and_what_is_done_is_told_until_the_home_knows() -> None:
    bench = Bench()
    for name in ("done", "dropped"):
        bench.following.found(name, "a")
    bench.following.done("done", "a")
    bench.following.over("dropped")
    assert bench.asked() == {}
    assert bench.following.to_tell() == {"a": ["done"]}
    bench.following.failed("a")
    assert bench.following.to_tell() == {}
    bench.clock.advance(2.0)
    assert bench.following.to_tell() == {"a": ["done"]}
    assert not bench.following.is_told("done")
    bench.following.told("done")
    assert bench.following.to_tell() == {}
    assert bench.following.is_told("done")
