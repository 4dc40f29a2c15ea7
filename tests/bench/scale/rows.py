"""Collect the rows of the bench, and show them and the current step on standard error of a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from raymq.cluster.output import console


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `subject` is the broker or the cluster that was measured, `stage` what it had then."""

    part: str
    subject: str
    stage: str
    name: str
    value: float
    unit: str


class RowCollector:
    """Collects rows. A context manager: at its end the line of the current step is removed."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._console: Final = Console(stderr=True)
        is_terminal = sys.stderr.isatty()
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress: Final = Progress(*columns, console=self._console, transient=True, disable=not is_terminal)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def add(self, rows: Iterable[Row]) -> None:
        """Take rows as they are measured."""
        for row in rows:
            self.rows.append(row)
            told = f"{row.subject}, {row.stage}: {row.name}"
            self._console.print(
                f"{told:90} {row.value:14,.2f} {row.unit}", markup=False, highlight=False, soft_wrap=True
            )

    @contextmanager
    def step(self, what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Something that takes its time; gives what is called with how much more of it is done."""
        task = self._progress.add_task(what, total=total)
        try:
            yield lambda more: self._progress.advance(task, more)
        finally:
            self._progress.remove_task(task)

    def as_json(self) -> list[dict[str, object]]:
        """All rows."""
        return [asdict(row) for row in self.rows]


def report(rows: Sequence[Row]) -> None:
    """A table for each part: stages or clusters side by side."""
    for part in dict.fromkeys(row.part for row in rows):
        of_part = [row for row in rows if row.part == part]
        stages = list(dict.fromkeys(row.stage for row in of_part))
        table = Table("", "", *stages, "unit", title=part)
        for subject, name, unit in dict.fromkeys((row.subject, row.name, row.unit) for row in of_part):
            found = {row.stage: row.value for row in of_part if (row.subject, row.name) == (subject, name)}
            cells = [f"{found[stage]:,.2f}" if stage in found else "" for stage in stages]
            table.add_row(subject, name, *cells, unit)
        console().print(table)
