"""Show figures again and again, until Ctrl-C: the option --watch."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import click
from rich.console import RenderableType
from rich.live import Live

from raymq.cluster.output import console, print_json
from raymq.cluster.seconds_option import Seconds

_LEAST_SECONDS: Final = 0.1
_SECONDS: Final = 2.0

watch_option = click.option(
    "--watch",
    type=Seconds(_LEAST_SECONDS),
    is_flag=False,
    flag_value=_SECONDS,
    metavar="[SECONDS]",
    help="Show it again every 2 s, or as often as given (--watch=5), until Ctrl-C; with --json one value per line.",
)


def show(
    ask: Callable[[], Any], render: Callable[[Any], RenderableType], *, as_json: bool, seconds: float | None
) -> None:
    """Print what `ask` returns, as JSON or rendered, once or every so many seconds.

    On a terminal the output is replaced each time.
    """
    if seconds is None:
        _print(ask(), render, as_json=as_json)
        return
    with contextlib.suppress(KeyboardInterrupt):
        if as_json or not sys.stdout.isatty():
            while True:
                _print(ask(), render, as_json=as_json)
                sys.stdout.flush()
                time.sleep(seconds)
        with Live(render(ask()), console=console(), auto_refresh=False) as live:
            while True:
                time.sleep(seconds)
                live.update(render(ask()), refresh=True)


def _print(found: Any, render: Callable[[Any], RenderableType], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        console().print(render(found))
