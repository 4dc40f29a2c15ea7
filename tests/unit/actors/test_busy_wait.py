"""How long a waiting thread stays awake."""

from __future__ import annotations

import pytest

from raymq.actors.wire.adaptive_spin import AdaptiveSpin


def awake_of(answers: str, processors: int = 2) -> str:
    """Which of the requests were waited for awake (+), by whether their answers come in time (i) or late (l)."""
    alertness, found = AdaptiveSpin(processors), ""
    for answer in answers:
        awake = alertness.should_spin()
        found += "+" if awake else "-"
        if awake:
            alertness.record_wait(in_time=answer == "i")
    return found


@pytest.mark.parametrize(
    ("answers", "awake"),
    [
        ("i" * 50, "+" * 50),
        ("lli" * 10, "+++" * 10),  # never three in a row
        ("l" * 3 + "l" * 16 + "l" + "l" * 32 + "l", "+++" + "-" * 16 + "+" + "-" * 32 + "+"),
        ("l" * 3 + "i" * 16 + "i" + "i" * 9, "+++" + "-" * 16 + "+" + "+" * 9),  # in time once, and it is as before
        ("l" * 3 + "l" * 16 + "i" + "lll" + "l" * 16 + "l", "+++" + "-" * 16 + "+" + "+++" + "-" * 16 + "+"),
    ],
)
def test_when_it_stays_awake(answers: str, awake: str) -> None:
    assert awake_of(answers) == awake


def test_where_answers_are_slow_it_hardly_ever_does() -> None:
    assert awake_of("l" * 100_000).count("+") < 110


def test_with_one_processor_it_never_does() -> None:
    assert awake_of("i" * 100, processors=1) == "-" * 100
