"""Show the progress of streams on the driver's terminal, one line for each running stream.

A line counts messages, from the query's position when it was first seen to the queues' ends, which grow. It advances
with each finished batch.
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
from raymq.spark_bridge.progress_bars import PeriodicThread, create_progress

_POLL_SECONDS: Final = 0.5
#: After this many polls without a running query the query has ended; `run_available_now` restarts it in less time.
_MAX_MISSED: Final = 6


class QueryPosition(NamedTuple):
    """The position of a running query in a stream, summed over all queues.

    `offset` is the sum of the queues' offsets, `end` the sum of their ends.
    """

    query: str
    offset: int
    end: int


@dataclass(slots=True)
class _Line:
    query: str
    first: int
    task: TaskID
    missed: int = 0


class StreamProgressBars:
    """The progress lines of one bridge's streams.

    Any thread may call `watch` and `close`.
    """

    def __init__(self, console: Console, standing: Callable[[str], QueryPosition | None]) -> None:
        """Create the display without lines.

        `standing` returns the position of a stream, or None if no query of it runs. It is called on a separate thread.
        """
        self._console = console
        self._standing = standing
        self._lock = threading.Lock()
        self._streams: list[str] = []
        self._lines: dict[str, _Line] = {}
        self._progress: Progress | None = None
        self._closed = False

    def watch(self, stream: str) -> None:
        """Show this stream whenever a query of it runs."""
        with self._lock:
            begins = not self._streams
            if stream not in self._streams:
                self._streams.append(stream)
        if begins:
            PeriodicThread(self.refresh, _POLL_SECONDS)

    def close(self) -> None:
        """End the lines and leave them on the terminal.

        It does not wait for a pending request to a broker.
        """
        with self._lock:
            self._closed = True
            self._end()

    def refresh(self) -> bool:
        """Update every line. Return False after `close`."""
        for stream in self._streams.copy():
            with contextlib.suppress(RayMQError):  # A broker is unavailable, so the line stays unchanged.
                position = self._standing(stream)
                with self._lock:
                    if self._closed:
                        return False
                    self._show(stream, position)
        return not self._closed

    def _show(self, stream: str, position: QueryPosition | None) -> None:
        line = self._lines.get(stream)
        if position is not None and (line is None or line.query != position.query):
            if self._progress is None:
                self._progress = create_progress(self._console)
                self._progress.start()
            line = _Line(position.query, position.offset, self._progress.add_task(f"stream {stream}", total=None))
            self._lines[stream] = line
        if line is None:
            return
        if position is not None:
            line.missed = 0
            if self._progress is not None:
                done, total = max(0, position.offset - line.first), max(0, position.end - line.first)
                self._progress.update(line.task, completed=done, total=total)
            return
        line.missed += 1
        if line.missed >= _MAX_MISSED:
            del self._lines[stream]
            if not self._lines:
                self._end()

    def _end(self) -> None:
        progress, self._progress = self._progress, None
        self._lines.clear()
        if progress is not None:
            progress.stop()
