"""Test progress bars of reads and writes: their counts, their end, and no terminal."""

from __future__ import annotations

import io
import pickle
import re
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("pyspark")

from raymq.spark_bridge.progress_bars import (
    LINE_SECONDS,
    MessageProgress,
    PeriodicThread,
    PlainLines,
    ProgressBar,
    progress_console,
    task_progress,
)
from tests.polling import poll_until


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


def console_of(screen: io.StringIO, term: str) -> Console:
    """Return a terminal of this kind, independent of the terminal of the tests."""
    return Console(file=screen, force_terminal=True, width=100, color_system=None, _environ={"TERM": term})


@pytest.fixture
def console(screen: io.StringIO) -> Console:
    return console_of(screen, "xterm")


def counts(screen: io.StringIO) -> list[tuple[int, int]]:
    """Return the distinct (done, total) pairs that a bar showed."""
    pairs = [(int(done), int(total)) for done, total in re.findall(r"(\d+)/(\d+) 0:00", screen.getvalue())]
    return list(dict.fromkeys(pairs))


class Spark:
    """Fake a SparkContext with jobs of groups, their stages, and local properties."""

    def __init__(self) -> None:
        self.properties: dict[str, str | None] = {"spark.jobGroup.id": "the user's"}
        self.stages = {1: (4, 4), 2: (1, 6)}
        self.active: list[int] = []

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self.properties[name]

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802
        self.properties[name] = value

    def statusTracker(self) -> Any:  # noqa: N802
        def stage(number: int) -> Any:
            done, total = self.stages[number]
            return SimpleNamespace(numCompletedTasks=done, numTasks=total)

        return SimpleNamespace(
            getJobIdsForGroup=lambda group: [7, 8] if group == "ours" else [],
            getJobInfo=lambda job: SimpleNamespace(stageIds=[1, 2]) if job == 7 else None,
            getStageInfo=stage,
            getActiveJobsIds=lambda: self.active,
        )


def test_write_bar_counts_tasks_and_restores_the_job_group(console: Console, screen: io.StringIO) -> None:
    spark: Any = Spark()
    with task_progress(spark, "write orders", "ours", console):
        assert spark.properties == {"spark.jobGroup.id": "ours"}
        poll_until(lambda: (5, 10) in counts(screen))
        spark.stages[2] = (6, 6)
    assert counts(screen)[-1] == (10, 10)
    assert "write orders" in screen.getvalue()
    assert spark.properties == {"spark.jobGroup.id": "the user's"}


def test_failed_write_leaves_its_bar_at_the_last_count(console: Console, screen: io.StringIO) -> None:
    spark: Any = Spark()

    def fail() -> None:
        poll_until(lambda: (5, 10) in counts(screen))
        raise RuntimeError

    with pytest.raises(RuntimeError), task_progress(spark, "write orders", "ours", console):
        fail()
    assert counts(screen)[-1] == (5, 10)
    assert "raymq-spark-progress" not in {thread.name for thread in threading.enumerate()}
    assert spark.properties == {"spark.jobGroup.id": "the user's"}


def test_without_terminal_no_progress_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert progress_console() is None
    with task_progress(None, "write orders", "ours", progress_console()):  # type: ignore[arg-type]
        pass
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]
    assert capsys.readouterr() == ("", "")


def test_read_bar_counts_messages_of_each_action(console: Console, screen: io.StringIO) -> None:
    spark: Any = Spark()
    spark.active = [1]
    shown = MessageProgress(spark, "read orders", 30, console)
    total = 0
    for _ in range(2):
        for _ in range(3):
            total = shown.addInPlace(total, 10)
        assert counts(screen)[-1] == (30, 30)
    assert total == 60
    shown.addInPlace(total, 1_000)
    assert counts(screen)[-1] == (30, 30), "tasks that were tried again count twice"
    spark.active = []


def test_cancelled_read_ends_its_bar(console: Console, screen: io.StringIO) -> None:
    spark: Any = Spark()
    spark.active = [1]
    shown = MessageProgress(spark, "read orders", 30, console)
    shown.addInPlace(0, 10)
    poll_until(lambda: (10, 30) in counts(screen))
    spark.active = []
    poll_until(lambda: shown._ticks is None)
    shown.addInPlace(10, 20)
    poll_until(lambda: (20, 30) in counts(screen), what="the next action begins at nothing")


def test_accumulator_in_a_task_only_counts(console: Console) -> None:
    shown = MessageProgress(Spark(), "read orders", 30, console)  # type: ignore[arg-type]
    in_task = pickle.loads(pickle.dumps(shown))
    assert (in_task.zero(5), in_task.addInPlace(3, 4)) == (0, 7)
    assert not isinstance(in_task, MessageProgress)


def test_periodic_thread_ends_when_spark_is_closed() -> None:
    ended = threading.Event()

    def look() -> bool:
        ended.set()
        raise RuntimeError("the JVM is gone")

    ticks = PeriodicThread(look, 0.001)
    assert ended.wait(10)
    ticks.close()


def test_bar_without_show_writes_nothing(console: Console, screen: io.StringIO) -> None:
    ProgressBar(console, "x").close()
    assert screen.getvalue() == ""


def test_dumb_terminal_gets_plain_lines(screen: io.StringIO) -> None:
    bar = ProgressBar(console_of(screen, "dumb"), "read [orders]")
    for done in (0, 1, 10):
        bar.show(done, 10)
    bar.close()
    bar.show(3, 10)
    bar.close()
    assert screen.getvalue() == "".join(f"read [orders] {done}/10 0:00:00\n" for done in (0, 10, 3))


def test_plain_lines_are_rate_limited(screen: io.StringIO) -> None:
    now = 100.0
    lines = PlainLines(console_of(screen, "dumb"), lambda: now)
    tasks = [lines.add_task(name, total=None) for name in ("one", "two")]
    lines.start()
    for number in range(int(2 * LINE_SECONDS) + 1):
        lines.update(tasks[0], completed=number, total=20)
        now += 1
    lines.update(tasks[1], completed=7)
    lines.stop()
    assert screen.getvalue().splitlines() == [
        "one 0/20 0:00:00",
        "one 5/20 0:00:05",
        "one 10/20 0:00:10",
        "two 7/? 0:00:11",
    ]
