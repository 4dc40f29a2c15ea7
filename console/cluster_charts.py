"""The charts of the cluster, of a topic and of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from raymq.client.timestamps import format_duration
from raymq.console.figure_history import FigureHistory, Point
from raymq.console.page_rendering import rate_text
from raymq.console.svg_chart import ChartLine, line_chart

#: The distances of ticks in time, in seconds: whole seconds, minutes, hours and days.
SPANS: Final = (
    *(0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_200.0, 1_800.0),
    *(3_600.0, 7_200.0, 14_400.0, 21_600.0, 43_200.0, 86_400.0, 172_800.0, 432_000.0),
    *(864_000.0, 1_728_000.0, 4_320_000.0, 8_640_000.0),
)
#: The distances of ticks of a count below 10: half a message does not exist.
COUNTS: Final = (1.0, 2.0, 5.0)


def cluster_charts(history: FigureHistory, now: float) -> list[Markup]:
    """Return the charts of the overview: rates, lag, its age, disks."""
    rates = [ChartLine("in", history.points("rate in")), ChartLine("out", history.points("rate out"))]
    lag = [ChartLine("lag", history.points("lag"))]
    disks = [ChartLine(name[1], history.points(*name)) for name in history.names("disk")]
    return [
        line_chart("Messages per second", rates, now, _rate),
        line_chart("Lag of all groups, messages", lag, now, _messages, tick=_count, steps=COUNTS),
        _age_chart(history.points("age"), now),
        line_chart("Disk used", disks, now, _percent, top=1.0),
    ]


def topic_charts(history: FigureHistory, topic: str, now: float) -> list[Markup]:
    """Return the chart of a topic."""
    return [line_chart("Messages per second", [ChartLine("in", history.points("rate in", topic))], now, _rate)]


def group_charts(history: FigureHistory, group: str, now: float) -> list[Markup]:
    """Return the charts of a group: lag, its age, rate of commits."""
    return [
        line_chart(
            "Lag, messages", [ChartLine("lag", history.points("lag", group))], now, _messages, tick=_count, steps=COUNTS
        ),
        _age_chart(history.points("age", group), now),
        line_chart("Finished per second", [ChartLine("out", history.points("rate out", group))], now, _rate),
    ]


def _age_chart(points: Sequence[Point], now: float) -> Markup:
    lines = [ChartLine("age", points)]
    return line_chart("Age of the oldest waiting message", lines, now, format_duration, tick=span_text, steps=SPANS)


def span_text(seconds: float) -> str:
    """Return a tick of an age in a unit without rounding, such as 90 s."""
    for unit_seconds, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_seconds or seconds == unit_seconds:
            return f"{seconds / unit_seconds:g} {unit}"
    return f"{seconds:g} s"


def _rate(value: float) -> str:
    return f"{rate_text(value)}/s"


def _messages(value: float) -> str:
    return f"{value:,.0f} message{'' if value == 1 else 's'}"


def _count(value: float) -> str:
    """Return a number that fits beside the axis, such as 2.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.2g}"


def _percent(value: float) -> str:
    return f"{value:.0%}"
