"""Test that charts are well-formed, labelled, and have gaps where nothing was known."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from raymq.client.timestamps import format_duration
from raymq.console.cluster_charts import COUNTS, SPANS, span_text
from raymq.console.svg_chart import ChartLine, axis_ticks, line_chart, trend_line

NOW = 10_000.0


def count(value: float) -> str:
    return f"{value:.0f} msg"


def chart(*lines: ChartLine, **options: float) -> ET.Element:
    return ET.fromstring(str(line_chart("Lag", lines, NOW, count, **options)))


def texts(figure: ET.Element) -> list[str]:
    return [element.text or "" for element in figure.iter("text")]


@pytest.mark.parametrize(
    ("highest", "ticks"),
    [
        (0.0, [0.0, 1.0]),
        (1.0, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (7.0, [0.0, 2.0, 4.0, 6.0, 8.0]),
        (100.0, [0.0, 25.0, 50.0, 75.0, 100.0]),
        (1_080.0, [0.0, 500.0, 1_000.0, 1_500.0]),
    ],
)
def test_axis_has_round_ticks_that_cover_the_values(highest: float, ticks: list[float]) -> None:
    assert axis_ticks(highest) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("highest", "ticks"), [(110.0, [0.0, 30.0, 60.0, 90.0, 120.0]), (1e9, [0.0, 2.5e8, 5e8, 7.5e8, 1e9])]
)
def test_axis_of_times_has_whole_units(highest: float, ticks: list[float]) -> None:
    assert axis_ticks(highest, (1.0, 10.0, 30.0, 60.0)) == pytest.approx(ticks)


@pytest.mark.parametrize("highest", [1, 2, 3, 7, 10, 11, 20, 25, 37, 99, 101, 1_234])
def test_ticks_of_counts_are_whole_numbers(highest: int) -> None:
    ticks = axis_ticks(highest, COUNTS)
    assert all(tick == int(tick) for tick in ticks)
    assert ticks[-1] >= highest
    assert len(ticks) <= 6


@pytest.mark.parametrize(
    "highest", [3.0, 58.0, 71.0, 130.0, 400.0, 3_000.0, 5_000.0, 9_000.0, 50_000.0, 200_000.0, 2e6, 3e7]
)
def test_ticks_of_times_are_exact_and_differ(highest: float) -> None:
    units = {"s": 1.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
    ticks = axis_ticks(highest, SPANS)
    texts = [span_text(each) for each in ticks]
    assert len(set(texts)) == len(ticks)
    assert [float(number) * units[unit] for number, unit in map(str.split, texts)] == pytest.approx(ticks)


def test_chart_has_axis_labels_units_and_the_last_value() -> None:
    figure = chart(ChartLine("lag", [(NOW - 10, 5.0), (NOW - 5, 7.0)]))
    assert {"0 msg", "8 msg", "60 min ago", "now"} <= set(texts(figure))
    assert figure.find("svg").get("aria-label") == "Lag, the last hour: lag 7 msg"
    assert "".join(figure.find("ul").itertext()).strip() == "lag 7 msg"


def test_chart_without_values_says_so() -> None:
    figure = chart(ChartLine("lag", []))
    assert "no value yet" in texts(figure)
    assert "unknown" in "".join(figure.find("ul").itertext())


def test_unknown_values_are_gaps_and_never_zero() -> None:
    points = [(NOW - 30, 4.0), (NOW - 25, 4.0), (NOW - 20, None), (NOW - 15, 4.0), (NOW - 10, 4.0), (NOW - 5, None)]
    figure = chart(ChartLine("lag", points))
    assert len(figure.findall("svg/path")) == 2
    assert figure.find("svg").get("aria-label") == "Lag, the last hour: lag unknown"


def test_long_pause_between_points_is_a_gap() -> None:
    figure = chart(ChartLine("lag", [(NOW - 600, 1.0), (NOW - 595, 1.0), (NOW - 10, 1.0)]))
    assert len(figure.findall("svg/path")) == 1
    assert len(figure.findall("svg/circle")) == 1, "one point without neighbours is a dot"


def test_texts_are_escaped() -> None:
    drawn = str(line_chart("<b>", [ChartLine('"><script>', [(NOW, 1.0)])], NOW, lambda value: "<i>"))
    assert "<script" not in drawn
    assert "<i>" not in drawn
    ET.fromstring(drawn)


def test_chart_has_neither_styles_nor_scripts() -> None:
    drawn = str(line_chart("Age", [ChartLine("age", [(NOW - 5, 90.0), (NOW, 95.0)])], NOW, format_duration))
    assert "style=" not in drawn
    assert "<script" not in drawn


def test_fixed_top_is_the_last_tick() -> None:
    figure = ET.fromstring(str(line_chart("Disk", [ChartLine("a", [(NOW, 0.06)])], NOW, "{:.0%}".format, top=1.0)))
    assert "100%" in texts(figure)


def test_trend_needs_two_known_points() -> None:
    assert trend_line([], NOW, "lag") == ""
    assert trend_line([(NOW - 5, 1.0), (NOW, None)], NOW, "lag") == ""
    drawn = ET.fromstring(str(trend_line([(NOW - 5, 0.0), (NOW, 0.0)], NOW, "lag of g<")))
    assert drawn.get("aria-label") == "lag of g<"
    assert "nan" not in drawn.find("path").get("d")
