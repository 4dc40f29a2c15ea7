"""`raymq cluster start` and the signals of terminals and supervisors, which go to it or to its whole process group."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.ray, pytest.mark.timeout(180)]

RAYMQ = str(Path(sys.executable).with_name("raymq"))


@contextlib.contextmanager
def up(folder: Path, *command: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A started cluster in a terminal of its own, and that terminal's other end."""
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment = {**kept, "RAYMQ_HOME": str(folder / "home")}
    ours, its = pty.openpty()
    # The tests may run under `nohup`, where SIGHUP is ignored.
    start = [
        "env",
        "--default-signal=HUP",
        *command,
        RAYMQ,
        "cluster",
        "start",
        "--brokers",
        "1",
        "--root",
        str(folder / "data"),
    ]
    with subprocess.Popen(
        start, stdin=its, stdout=subprocess.PIPE, stderr=its, text=True, env=environment, start_new_session=True
    ) as it:
        os.close(its)
        try:
            assert it.stdout is not None
            # Under `nohup` the lines of stderr are there, too.
            assert any(line.startswith("namespace") for line in it.stdout)
            yield it, ours
        finally:
            it.kill()


def ended_cleanly(it: subprocess.Popen[str], folder: Path, end: Callable[[], None]) -> None:
    family = psutil.Process(it.pid).children(recursive=True)
    assert family
    began = time.monotonic()
    end()
    assert it.wait(60) == 0
    assert time.monotonic() - began < 20  # it takes two; others use the machine, too
    assert psutil.wait_procs(family, timeout=5)[1] == []
    assert (folder / "data" / "broker-a").is_dir()
    assert not list(folder.glob("data/*/abort"))


def by_group_signals(folder: Path) -> None:
    """As timeout(1) ends what it runs."""
    with up(folder) as (it, _):

        def end() -> None:
            for _ in range(2):
                os.killpg(it.pid, signal.SIGTERM)

        ended_cleanly(it, folder, end)


def by_a_closed_terminal(folder: Path) -> None:
    """What is written to that terminal fails, too."""
    with up(folder) as (it, terminal):

        def end() -> None:
            os.close(terminal)
            os.killpg(it.pid, signal.SIGHUP)

        ended_cleanly(it, folder, end)


def by_ctrl_c_under_nohup(folder: Path) -> None:
    """The terminal's end is none of its business."""
    with up(folder, "nohup") as (it, _):
        os.killpg(it.pid, signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            it.wait(2)
        ended_cleanly(it, folder, lambda: os.killpg(it.pid, signal.SIGINT))


def test_a_signal_to_the_process_group_is_a_clean_stop(tmp_path: Path) -> None:
    """It ended Ray's processes, too: the stop took a minute and failed, and stores had to be recovered."""
    ways = (by_group_signals, by_a_closed_terminal, by_ctrl_c_under_nohup)
    with ThreadPoolExecutor(len(ways)) as terminals:
        for way in [terminals.submit(way, tmp_path / way.__name__) for way in ways]:
            way.result()
