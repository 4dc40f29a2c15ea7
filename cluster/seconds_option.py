"""The type of command-line options that are a number of seconds."""

from __future__ import annotations

import math
from typing import Any

import click

from raymq.client.arguments import MAX_SECONDS


class Seconds(click.FloatRange):
    """A finite number of seconds, from `least` to a year."""

    def __init__(self, least: float) -> None:
        super().__init__(least, MAX_SECONDS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; NaN, which passes every comparison with a bound, is refused."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return seconds
