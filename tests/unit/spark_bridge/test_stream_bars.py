"""Test stream progress bars: counts of batches, restarts of queries, and their end."""

from __future__ import annotations

import io
import re

import pytest

pytest.importorskip("pyspark")

from rich.console import Console

from raymq.client.errors import BrokerUnavailable
from raymq.spark_bridge import progress_bars
from raymq.spark_bridge.progress_bars import QueryPosition, StreamProgressBars
from tests.polling import poll_until


class Streams:
    """Fake the positions of streams' queries as a bridge reports them."""

    def __init__(self) -> None:
        self.screen = io.StringIO()
        self.at: dict[str, QueryPosition | None] = {}
        self.away = False
        environment = {"TERM": "xterm"}  # independent of the terminal of the tests
        console = Console(file=self.screen, force_terminal=True, width=100, color_system=None, _environ=environment)
        self.bars = StreamProgressBars(console, self.standing)

    def standing(self, stream: str) -> QueryPosition | None:
        if self.away:
            raise BrokerUnavailable("broker-a", "it is away")
        return self.at.get(stream)

    def last(self, stream: str) -> tuple[int, int] | None:
        """Return the last (done, total) of the stream's line."""
        matches = re.findall(rf"stream {stream} [^\d?]*(\d+)/(\d+) ", self.screen.getvalue())
        return (int(matches[-1][0]), int(matches[-1][1])) if matches else None


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    monkeypatch.setattr(progress_bars, "_STREAM_POLL_SECONDS", 0.01)
    return Streams()


def test_line_counts_from_query_position_to_queue_ends(streams: Streams) -> None:
    streams.bars.watch("totals")
    streams.bars.watch("totals")
    streams.bars.watch("late")
    streams.at["totals"] = QueryPosition("q1", 1_000, 1_500)
    poll_until(lambda: streams.last("totals") == (0, 500))
    streams.at["totals"] = QueryPosition("q1", 1_400, 1_900)
    poll_until(lambda: streams.last("totals") == (400, 900))
    assert streams.last("late") is None, "no query of it runs"
    streams.at["late"] = QueryPosition("q1", 0, 0)
    poll_until(lambda: streams.last("late") == (0, 0))
    streams.at["totals"] = QueryPosition("another checkpoint", 200, 1_900)
    poll_until(lambda: streams.last("totals") == (0, 1_700))
    streams.bars.close()


def test_line_is_unchanged_while_a_broker_is_unavailable(streams: Streams) -> None:
    streams.at["totals"] = QueryPosition("q1", 0, 10)
    streams.bars.watch("totals")
    poll_until(lambda: streams.last("totals") == (0, 10))
    streams.away = True
    assert all(streams.bars.refresh() for _ in range(20))
    streams.away = False
    streams.at["totals"] = QueryPosition("q1", 10, 10)
    poll_until(lambda: streams.last("totals") == (10, 10))
    streams.bars.close()


def test_program_output_goes_to_stdout_beside_a_bar(streams: Streams, capsys: pytest.CaptureFixture[str]) -> None:
    # Redirected output went to the terminal while a bar was shown.
    streams.at["totals"] = QueryPosition("q1", 0, 10)
    streams.bars.watch("totals")
    poll_until(lambda: streams.last("totals") == (0, 10))
    print("a result")
    streams.bars.close()
    assert capsys.readouterr().out == "a result\n"
    assert "a result" not in streams.screen.getvalue()


def test_line_survives_a_restart_and_closes_at_query_end() -> None:
    streams = Streams()
    streams.bars._streams = ["totals"]  # no polling thread: only this test refreshes
    streams.at["totals"] = QueryPosition("q1", 5, 10)
    assert streams.bars.refresh()
    display = streams.bars._progress
    streams.at["totals"] = None
    for _ in range(progress_bars._MAX_MISSED - 1):
        assert streams.bars.refresh()
    streams.at["totals"] = QueryPosition("q1", 10, 10)
    assert streams.bars.refresh()
    assert streams.bars._progress is display
    streams.at["totals"] = None
    for _ in range(progress_bars._MAX_MISSED):
        assert streams.bars.refresh()
    assert streams.bars._progress is None
    assert streams.last("totals") == (5, 5)
    streams.at["totals"] = QueryPosition("q1", 10, 12)
    assert streams.bars.refresh()
    assert streams.bars._progress is not None
    streams.bars.close()
    assert not streams.bars.refresh()
    assert streams.bars._progress is None


def test_dumb_terminal_gets_plain_stream_lines() -> None:
    screen, at = io.StringIO(), {"totals": QueryPosition("q1", 5, 10)}
    console = Console(file=screen, force_terminal=True, width=100, color_system=None, _environ={"TERM": "dumb"})
    bars = StreamProgressBars(console, at.get)
    bars._streams = ["totals"]  # no polling thread: only this test refreshes the bars
    assert bars.refresh()
    at["totals"] = QueryPosition("q1", 9, 12)
    assert bars.refresh()
    bars.close()
    assert screen.getvalue() == "stream totals 0/5 0:00:00\nstream totals 4/7 0:00:00\n"
