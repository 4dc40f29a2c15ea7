"""Test which numbers of seconds the command line accepts."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from raymq.cluster.cli import main_group
from raymq.cluster.seconds_option import Seconds


@pytest.mark.parametrize(("text", "expected"), [("0.1", 0.1), ("5", 5.0), ("31536000", 31_536_000.0)])
def test_seconds_are_accepted(text: str, expected: float) -> None:
    assert Seconds(0.1).convert(text, None, None) == expected


@pytest.mark.parametrize("text", ["nan", "-nan", "NaN", "inf", "-inf", "1e400", "31536001", "0.09", "-1", "x", ""])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Seconds(0.1).convert(text, None, None)


@pytest.mark.parametrize("text", ["nan", "inf", "1e300"])
@pytest.mark.parametrize(
    "line",
    [
        "cluster status --watch=",
        "group progress g --watch=",
        "bench produce --seconds=",
        "bench consume --seconds=",
        "bench produce --linger=",
    ],
)
def test_commands_refuse_as_wrong_usage(line: str, text: str) -> None:
    done = CliRunner().invoke(main_group, f"{line}{text}".split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Invalid value" in done.stderr
