"""Bars on the driver's terminal that show how far streams are: a line for each whose query runs.

A line counts messages, from where the query went on as it was seen first to the queues' ends, which grow. It moves with
each batch that is done.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from rich.console import Console
from rich.progress import Progress, TaskID

from raymq.client.errors import RayMQError
from raymq.spark_bridge.progress_bars import Ticks, display

_LOOK_SECONDS: Final = 0.5
#: A query that is not seen so many times running has ended: `run_available_now` starts it again within fewer.
_MISSED_LOOKS: Final = 6


class QueryPosition(NamedTuple):
    """How far a query that runs is in a stream: all queues' offsets together, and their ends."""

    query: str
    offset: int
    end: int


@dataclass(slots=True)
class _Line:
    query: str
    first: int
    task: TaskID
    missed: int = 0


class StreamBars:
    """The lines of one bridge's streams. `watch` and `close` by any thread."""

    def __init__(self, console: Console, standing: Callable[[str], QueryPosition | None]) -> None:
        """`standing` says how far a stream is, None where no query of it runs; it is asked on a thread of its own."""
        self._console = console
        self._standing = standing
        self._lock = threading.Lock()
        self._streams: list[str] = []
        self._lines: dict[str, _Line] = {}
        self._progress: Progress | None = None
        self._closed = False

    def watch(self, stream: str) -> None:
        """Show this stream, too, whenever a query of it runs."""
        with self._lock:
            begins = not self._streams
            if stream not in self._streams:
                self._streams.append(stream)
        if begins:
            Ticks(self.look, _LOOK_SECONDS)

    def close(self) -> None:
        """Leave the lines as they are. It does not wait for a broker that is being asked."""
        with self._lock:
            self._closed = True
            self._end()

    def look(self) -> bool:
        """Bring every line up to date; False after `close`."""
        for stream in self._streams.copy():
            with contextlib.suppress(RayMQError):  # a broker is away: the line stays as it is
                told = self._standing(stream)
                with self._lock:
                    if self._closed:
                        return False
                    self._show(stream, told)
        return not self._closed

    def _show(self, stream: str, told: QueryPosition | None) -> None:
        line = self._lines.get(stream)
        if told is not None and (line is None or line.query != told.query):
            if self._progress is None:
                self._progress = display(self._console)
                self._progress.start()
            line = _Line(told.query, told.offset, self._progress.add_task(f"stream {stream}", total=None))
            self._lines[stream] = line
        if line is None:
            return
        if told is not None:
            line.missed = 0
            if self._progress is not None:
                done, total = max(0, told.offset - line.first), max(0, told.end - line.first)
                self._progress.update(line.task, completed=done, total=total)
            return
        line.missed += 1
        if line.missed >= _MISSED_LOOKS:
            del self._lines[stream]
            if not self._lines:
                self._end()

    def _end(self) -> None:
        progress, self._progress = self._progress, None
        self._lines.clear()
        if progress is not None:
            progress.stop()
