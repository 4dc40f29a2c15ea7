"""Show the demo's steps, progress bars and closing tables.

Nothing is shown if only JSON is requested.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from raymq.cluster.output import cell, console
from raymq.demo.counts import Counts

_SHOWN_SUMMARIES = 8


class DemoProgress:
    """Three progress bars."""

    def __init__(self, progress: Progress, rows: int) -> None:
        self._progress = progress
        self._rows = rows
        self._sent = progress.add_task("sent", total=rows, note="")
        self._consumed = progress.add_task("consumed", total=rows, note="")
        self._dead = progress.add_task("dead letters", total=None, note="")

    def show(self, sent: int, consumed: int, retries: int, dead_letters: int, dirty: int) -> None:
        """Show the current counts."""
        self._update(self._sent, sent)
        self._progress.update(self._consumed, total=self._rows - dirty)
        self._update(self._consumed, consumed, note=f"{retries} retries")
        self._progress.update(self._dead, total=dirty)
        self._update(self._dead, dead_letters)

    def _update(self, task: TaskID, completed: int, note: str = "") -> None:
        self._progress.update(task, completed=completed, note=note)


class DemoOutput:
    """The demo's output to `out`; with `quiet` it shows nothing."""

    def __init__(self, out: TextIO, *, quiet: bool) -> None:
        self._console = console(out, quiet=quiet)
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(f"  {text}", markup=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print a line when the block ends, with the time that it took."""
        began = time.monotonic()
        with self._console.status(title):
            yield
        self._console.print(f"  {title} ({time.monotonic() - began:.1f} s)", markup=False)

    @contextmanager
    def bars(self, rows: int) -> Iterator[DemoProgress]:
        """Show the bars until the block ends."""
        columns = (
            TextColumn("  {task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self._console) as progress:
            yield DemoProgress(progress, rows)

    def summary(self, rows: Sequence[dict[str, Any]], tag: str | None, measure: str | None) -> None:
        """Print Spark's aggregate: the largest tags."""
        first = tag or "tag"
        table = Table(title=cell(f"events by {first} (Spark)"), box=box.SIMPLE_HEAD)
        table.add_column(cell(first))
        for title in ("rows", "dead letters", *([f"mean {measure}"] if measure else [])):
            table.add_column(cell(title), justify="right")
        for row in rows[:_SHOWN_SUMMARIES]:
            mean = [] if measure is None else ["-" if row["mean"] is None else f"{row['mean']:.2f}"]
            table.add_row(cell(row["tags"]), str(row["rows"]), str(row["dead_letters"]), *mean)
        if len(rows) > _SHOWN_SUMMARIES:
            table.add_row(f"... {len(rows) - _SHOWN_SUMMARIES} more", "", "", *([""] if measure else []))
        self._console.print(table)

    def result(self, counts: Counts, retries: int, duplicates: int, streamed: int, problems: Sequence[str]) -> None:
        """Print the closing table."""
        table = Table(
            title="every row accounted for" if counts.ok else "NOT every row accounted for", box=box.SIMPLE_HEAD
        )
        table.add_column("count")
        table.add_column("rows", justify="right")
        table.add_column("must be")
        for name, value, meaning in (
            ("rows of the input", counts.rows, ""),
            ("acknowledged to the producer", counts.sent, "= rows"),
            ("taken by the listener", counts.consumed, "= rows - dirty"),
            ("dirty rows", counts.dirty, ""),
            ("deliveries that were retries", retries, ""),
            ("delivered twice (a broker died)", duplicates, "0 if no broker died"),
            ("in the dead-letter queue", counts.dead_letters, "= dirty"),
            ("events read by Spark", counts.spark_rows, "= rows"),
            ("dead letters read by Spark", counts.spark_dead_letters, "= dirty"),
            ("events streamed by Spark", streamed, "= rows"),
        ):
            table.add_row(name, str(value), meaning)
        self._console.print(table)
        for problem in problems:
            self._console.print(f"  wrong: {problem}", style="red", markup=False)
        self._console.print(f"  {time.monotonic() - self._began:.1f} s in all")
