"""Test the tables of expected results of RocketMQ's own tests, and the reading of their output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.rocketmq import suite
from tests.interop.rocketmq.expectations import IN_THEIR_OWN_PROCESS, ON_PURPOSE, expected_failures

DIFFERENCES = Path(__file__).resolve().parents[2] / "docs" / "internals" / "differences.md"


def test_tables_name_existing_test_classes() -> None:
    names = suite.names()
    assert len(names) == len(set(names)) == 59
    assert {*IN_THEIR_OWN_PROCESS, *ON_PURPOSE} <= set(names)


@pytest.mark.parametrize("name", sorted(ON_PURPOSE))
def test_intended_differences_are_documented(name: str) -> None:
    text = DIFFERENCES.read_text()
    for method, words in ON_PURPOSE[name].items():
        assert words in text
        assert f"{name.rpartition('.')[2]}.{method}" in text


def test_printed_outcomes_are_read() -> None:
    name = "offset.OffsetNotFoundIT"
    (known,) = expected_failures(name)
    done = f"done {known}\nfailed {known}: AssertionError expected\nresult run=2 failed=1 ignored=0\n"
    assert suite.Outcome.read(name, done).is_as_expected
    more = suite.Outcome.read(name, "failed testOther: NullPointerException null\n" + done)
    assert more.unexpected == {"testOther": "NullPointerException null"}
    assert not more.is_as_expected
    passed = suite.Outcome.read(name, "result run=2 failed=0 ignored=0\n")
    assert (passed.run, passed.surprises, passed.is_as_expected) == (2, [known], False)
    for broken in (suite.Outcome.read(name, "done x\n"), suite.Outcome.read(name, done, "it was not done")):
        assert broken.broke_off
        assert not broken.is_as_expected


def test_classes_are_selected_by_part_of_their_names() -> None:
    assert suite.chosen([]) == suite.names()
    assert suite.chosen(["popOrderly", "lagcalc"]) == ["client.consumer.pop.PopOrderlyIT", "offset.LagCalculationIT"]
    with pytest.raises(ValueError, match="'nothing'"):
        suite.chosen(["pop", "nothing"])
