"""Test how long a waiting thread spins."""

from __future__ import annotations

import pytest

from raymq.actors.wire.adaptive_spin import AdaptiveSpin


def spin_pattern(answers: str, processors: int = 2) -> str:
    """Return which requests spun (+), for answers in time (i) or late (l)."""
    spin, found = AdaptiveSpin(processors), ""
    for answer in answers:
        awake = spin.should_spin()
        found += "+" if awake else "-"
        if awake:
            spin.record_wait(in_time=answer == "i")
    return found


@pytest.mark.parametrize(
    ("answers", "awake"),
    [
        ("i" * 50, "+" * 50),
        ("lli" * 10, "+++" * 10),  # never three in a row
        ("l" * 3 + "l" * 16 + "l" + "l" * 32 + "l", "+++" + "-" * 16 + "+" + "-" * 32 + "+"),
        ("l" * 3 + "i" * 16 + "i" + "i" * 9, "+++" + "-" * 16 + "+" + "+" * 9),  # one answer in time restores spinning
        ("l" * 3 + "l" * 16 + "i" + "lll" + "l" * 16 + "l", "+++" + "-" * 16 + "+" + "+++" + "-" * 16 + "+"),
    ],
)
def test_spin_depends_on_recent_answers(answers: str, awake: str) -> None:
    assert spin_pattern(answers) == awake


def test_slow_answers_almost_stop_spinning() -> None:
    assert spin_pattern("l" * 100_000).count("+") < 110


def test_single_processor_never_spins() -> None:
    assert spin_pattern("i" * 100, processors=1) == "-" * 100
