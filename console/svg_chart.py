"""Draw charts and trend lines as SVG text.

No script, no style attribute, colours by class.

A chart has labelled axes with units, a gap where a value was unknown, and the newest value in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from markupsafe import Markup

from raymq.console.figure_history import SPAN_SECONDS, Point

_WIDTH: Final = 480
_HEIGHT: Final = 184
_LEFT: Final = 62
_RIGHT: Final = 10
_TOP: Final = 12
_BOTTOM: Final = 28
#: Colours that the style sheet has.
_COLOURS: Final = 6
#: Points further apart than this are not joined.
_GAP_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line of a chart."""

    name: str
    points: Sequence[Point]


def line_chart(
    title: str,
    lines: Sequence[ChartLine],
    now: float,
    shown: Callable[[float], str],
    *,
    tick: Callable[[float], str] | None = None,
    steps: Sequence[float] | None = None,
    top: float | None = None,
) -> Markup:
    """Return a chart of the last hour with its title and the newest values.

    Args:
        shown: writes a value with its unit.
        tick: writes a value of the vertical axis, if not as `shown`.
        steps: the distances of ticks to choose from; None: round decimal numbers.
        top: the upper end of the vertical axis; None: as the values need it.
    """
    values = [value for line in lines for _, value in line.points if value is not None]
    newest = [
        (line.name, "unknown" if not line.points or line.points[-1][1] is None else shown(line.points[-1][1]))
        for line in lines
    ]
    ticks = axis_ticks(max(values, default=0.0) if top is None else top, steps)
    drawn = [*_grid(ticks, tick or shown), *_time_axis()]
    for index, line in enumerate(lines):
        drawn += _line(line.points, now, ticks[-1], index % _COLOURS)
    if not values:
        drawn.append(
            f'<text class="chart-empty" x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT / 2}" text-anchor="middle">'
            "no value yet</text>"
        )
    words = ", ".join(f"{name} {value}" for name, value in newest) or "no value yet"
    legend = "".join(
        f'<li><span class="key series-{index % _COLOURS}" aria-hidden="true"></span>{escape(name)} '
        f"<strong>{escape(value)}</strong></li>"
        for index, (name, value) in enumerate(newest)
    )
    return Markup(  # noqa: S704 - every text in it is escaped above
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(f"{title}, the last hour: {words}")}">'
        f'{"".join(drawn)}</svg><ul class="legend">{legend}</ul></figure>'
    )


def trend_line(points: Sequence[Point], now: float, label: str) -> Markup:
    """Return a small line without axes for a row of a table.

    Empty with fewer than two known points.
    """
    known = [value for _, value in points if value is not None]
    if len(known) < 2:
        return Markup("")
    width, height = 90, 22
    high = max(known) or 1.0
    paths = [
        "M"
        + "L".join(
            f"{_number(width * (1 - (now - at) / SPAN_SECONDS))} {_number(2 + (height - 4) * (1 - value / high))}"
            for at, value in part
        )
        for part in _parts(points)
        if len(part) > 1
    ]
    return Markup(  # noqa: S704 - every text in it is escaped
        f'<svg class="trend" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
        f'<path class="series-0" d="{" ".join(paths)}"/></svg>'
    )


def axis_ticks(highest: float, steps: Sequence[float] | None = None) -> list[float]:
    """Return the values of the vertical axis, from 0 on, at round distances.

    The last is at least `highest`.
    """
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / 4
    size = 10.0 ** math.floor(math.log10(rough))
    decimal = [factor * size for factor in (1, 2, 2.5, 5, 10)]
    step = next(each for each in [*(steps or ()), *decimal] if each >= rough * (1 - 1e-9))
    count = math.ceil(highest / step - 1e-9)
    return [step * index for index in range(count + 1)]


def _grid(ticks: Sequence[float], shown: Callable[[float], str]) -> list[str]:
    drawn = []
    for tick in ticks:
        y = _number(_y(tick, ticks[-1]))
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        drawn.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{y}" dy="4" text-anchor="end">{escape(shown(tick))}</text>'
        )
    return drawn


def _time_axis() -> list[str]:
    drawn = []
    for minutes in (60, 45, 30, 15, 0):
        x = _number(_x(minutes * 60.0))
        anchor = "end" if minutes == 0 else "middle"
        words = "now" if minutes == 0 else f"{minutes} min ago" if minutes == 60 else f"{minutes}"
        drawn.append(f'<text class="tick" x="{x}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{words}</text>')
    return drawn


def _line(points: Sequence[Point], now: float, top: float, colour: int) -> list[str]:
    drawn = []
    for part in _parts(points):
        places = [(_number(_x(now - at)), _number(_y(min(value, top), top))) for at, value in part]
        if len(places) == 1:
            x, y = places[0]
            drawn.append(f'<circle class="dot series-{colour}" cx="{x}" cy="{y}" r="2"/>')
        else:
            drawn.append(f'<path class="line series-{colour}" d="M{"L".join(f"{x} {y}" for x, y in places)}"/>')
    return drawn


def _parts(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """Return the runs of known points without a gap between them."""
    parts: list[list[tuple[float, float]]] = [[]]
    before = -math.inf
    for at, value in points:
        if parts[-1] and (value is None or at - before > _GAP_SECONDS):
            parts.append([])
        if value is not None:
            parts[-1].append((at, value))
            before = at
    return [part for part in parts if part]


def _x(age: float) -> float:
    return _LEFT + (_WIDTH - _RIGHT - _LEFT) * (1 - min(max(age, 0.0), SPAN_SECONDS) / SPAN_SECONDS)


def _y(value: float, top: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / top)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
