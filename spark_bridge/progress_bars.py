"""Show the progress of reads and writes as bars on the driver's terminal.

Without a terminal nothing is shown. A terminal that cannot move its cursor (TERM=dumb: Emacs, many CI systems) gets
lines of text instead of bars.

The bar of a write counts the finished tasks of its job. The bar of a read counts the messages that its tasks have
fetched. Each action of a read begins when Spark's first task of it ends, and may stop early (`df.take`), so the bar
also ends when Spark has no active job.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from pyspark.accumulators import AccumulatorParam, AddingAccumulatorParam
from pyspark.context import SparkContext
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from raymq.client.errors import RayMQError

_POLL_SECONDS: Final = 0.2
#: The least seconds between two lines of one task on a terminal without bars.
LINE_SECONDS: Final = 5.0
_JOB_GROUP: Final = "spark.jobGroup.id"
_STREAM_POLL_SECONDS: Final = 0.5
#: After this many polls without a running query the query has ended; `run_available_now` restarts it in less time.
_MAX_MISSED: Final = 6


def progress_console() -> Console | None:
    """Return the console for bars, None if stderr is not a terminal."""
    console = Console(file=sys.stderr)
    return console if console.is_terminal else None


def create_progress(console: Console) -> Progress:
    """Create the progress display for a console.

    The program's own output appears above the bars if it goes to the same terminal.
    """
    if console.is_dumb_terminal:
        return PlainLines(console)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty())


class PlainLines(Progress):
    """A progress display that writes a task's numbers as lines of text.

    It writes the first numbers, the last ones, and in between at most one line every few seconds.
    """

    def __init__(self, console: Console, get_time: Callable[[], float] = time.monotonic) -> None:
        """Create the display; `get_time` is a clock in seconds."""
        super().__init__(console=console, get_time=get_time, disable=True)
        self._written: dict[TaskID, tuple[float, tuple[float, float | None]]] = {}

    def update(self, task_id: TaskID, **fields: Any) -> None:
        """Store a task's new numbers, and write them if its last line is old enough."""
        super().update(task_id, **fields)
        at, _ = self._written.get(task_id, (-LINE_SECONDS, None))
        if self.get_time() - at >= LINE_SECONDS:
            self._write(task_id)

    def stop(self) -> None:
        """Write the last numbers of each task."""
        for task_id in self.task_ids:
            self._write(task_id)

    def _write(self, task_id: TaskID) -> None:
        task = self._tasks[task_id]
        numbers = task.completed, task.total
        if task_id in self._written and self._written[task_id][1] == numbers:
            return
        self._written[task_id] = self.get_time(), numbers
        total = "?" if task.total is None else f"{task.total:.0f}"
        elapsed = timedelta(seconds=int(task.elapsed or 0))
        line = f"{task.description} {task.completed:.0f}/{total} {elapsed}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class ProgressBar:
    """One bar, from its first `show` to `close`; afterwards it can be shown again.

    For use by any thread.
    """

    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = label
        self._lock = threading.Lock()
        self._progress: Progress | None = None

    def show(self, done: int, total: int) -> None:
        """Show how much is done.

        Numbers above `total`, which retried tasks cause, are shown as `total`.
        """
        with self._lock:
            if self._progress is None:
                self._progress = create_progress(self._console)
                self._progress.add_task(self._label)
                self._progress.start()
            self._progress.update(self._progress.task_ids[0], completed=min(done, total), total=total)

    def close(self) -> None:
        """End the bar and leave it on the terminal."""
        with self._lock:
            progress, self._progress = self._progress, None
        if progress is not None:
            progress.stop()


class PeriodicThread:
    """A thread that calls `poll` periodically until it returns False or `close` is called."""

    def __init__(self, poll: Callable[[], bool], seconds: float = _POLL_SECONDS) -> None:
        self._look = poll
        self._seconds = seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="raymq-spark-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; `poll` is not called after this returns."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds):
            try:
                if not self._look():
                    return
            except Exception:  # noqa: BLE001 - Spark is being closed: a bar is no reason to fail
                return


@contextmanager
def task_progress(spark: SparkContext, label: str, group: str, console: Console | None) -> Iterator[None]:
    """Show the tasks of the jobs that the body starts on this thread.

    `group` is a unique name of these jobs.
    """
    if console is None:
        yield
        return
    bar = ProgressBar(console, label)
    bar.show(0, 1)

    def poll() -> bool:
        done, total = _tasks(spark, group)
        if total:
            bar.show(done, total)
        return True

    before = spark.getLocalProperty(_JOB_GROUP)
    spark.setLocalProperty(_JOB_GROUP, group)
    ticks = PeriodicThread(poll)
    try:
        yield
        ticks.close()
        _, total = _tasks(spark, group)
        bar.show(total or 1, total or 1)
    finally:
        ticks.close()
        bar.close()
        # None removes the property.
        spark.setLocalProperty(_JOB_GROUP, before)  # type: ignore[arg-type]


def _tasks(spark: SparkContext, group: str) -> tuple[int, int]:
    """Return how many tasks of a group's jobs have ended, and how many there are."""
    tracker = spark.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)


class MessageProgress(AccumulatorParam[int]):
    """An accumulator of the message counts of a read.

    It shows them on the driver; in a task it only counts.
    """

    def __init__(self, spark: SparkContext, label: str, total: int, console: Console) -> None:
        """Create the accumulator; `total` is the number of messages that one action reads."""
        self._spark = spark
        self._total = total
        self._bar = ProgressBar(console, label)
        self._lock = threading.Lock()
        self._done = 0
        self._ticks: PeriodicThread | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return AddingAccumulatorParam, (0,)

    def zero(self, value: int) -> int:  # noqa: ARG002
        """Return the initial count."""
        return 0

    def addInPlace(self, value1: int, value2: int) -> int:  # noqa: N802 - Spark's name
        """Add `value2`, the number of messages of a finished task, and show the progress."""
        with self._lock:
            self._done += value2
            self._bar.show(self._done, self._total)
            if self._done >= self._total:
                self._end()
            elif self._ticks is None:
                self._ticks = PeriodicThread(self._look)
        return value1 + value2

    def _look(self) -> bool:
        if self._spark.statusTracker().getActiveJobsIds():
            return True
        with self._lock:
            self._end()
        return False

    def _end(self) -> None:
        self._bar.close()
        self._done, self._ticks = 0, None


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
            PeriodicThread(self.refresh, _STREAM_POLL_SECONDS)

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
