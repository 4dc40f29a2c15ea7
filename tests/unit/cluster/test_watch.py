"""Test figures that are shown again and again."""

from __future__ import annotations

import io
import itertools
import json
import sys

import pytest
from rich.text import Text

from raymq.cluster import watch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch, out: io.StringIO, *, as_json: bool, seconds: float | None) -> str:
    rounds = itertools.count(1)

    class Clock:
        @staticmethod
        def sleep(_: float) -> None:
            if next(rounds) == 3:
                raise KeyboardInterrupt

    figures = itertools.count(1)
    monkeypatch.setattr(watch, "time", Clock)
    monkeypatch.setattr(sys, "stdout", out)
    watch.show(lambda: next(figures), lambda figure: Text(f"figure {figure}"), as_json=as_json, seconds=seconds)
    return out.getvalue()


def test_terminal_shows_the_newest_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = watched(monkeypatch, Terminal(), as_json=False, seconds=1.0)
    assert [shown.count(f"figure {number}") > 0 for number in (1, 2, 3)] == [True, True, True]
    assert shown.rindex("figure 3") > shown.rindex("figure 2")
    assert "\x1b" in shown  # the earlier figure is overwritten


def test_pipe_gets_each_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = watched(monkeypatch, io.StringIO(), as_json=False, seconds=1.0)
    assert shown.split("\n") == ["figure 1", "figure 2", "figure 3", ""]


def test_json_is_one_value_per_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = watched(monkeypatch, Terminal(), as_json=True, seconds=1.0)
    assert [json.loads(line) for line in shown.splitlines()] == [1, 2, 3]


def test_without_seconds_it_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, io.StringIO(), as_json=False, seconds=None) == "figure 1\n"
