"""Test how `raymq cluster start` handles signals to its process or to its process group."""

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
def started_cluster(folder: Path, *command: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a cluster in a new terminal; yield its process and the other end of the terminal."""
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment = {**kept, "RAYMQ_HOME": str(folder / "home")}
    outer_end, inner_end = pty.openpty()
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
        start,
        stdin=inner_end,
        stdout=subprocess.PIPE,
        stderr=inner_end,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        os.close(inner_end)
        try:
            assert process.stdout is not None
            # Under `nohup` stdout contains the lines of stderr, too.
            assert any(line.startswith("namespace") for line in process.stdout)
            yield process, outer_end
        finally:
            process.kill()


def assert_clean_end(process: subprocess.Popen[str], folder: Path, end: Callable[[], None]) -> None:
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    began = time.monotonic()
    end()
    assert process.wait(60) == 0
    assert time.monotonic() - began < 20  # it takes 2 s on an idle machine
    assert psutil.wait_procs(family, timeout=5)[1] == []
    assert (folder / "data" / "broker-a").is_dir()
    assert not list(folder.glob("data/*/abort"))


def stop_by_group_signals(folder: Path) -> None:
    """Signal the process group twice, as timeout(1) does."""
    with started_cluster(folder) as (process, _):

        def end() -> None:
            for _ in range(2):
                os.killpg(process.pid, signal.SIGTERM)

        assert_clean_end(process, folder, end)


def stop_by_closed_terminal(folder: Path) -> None:
    """Close the terminal, so that writes to it fail, too."""
    with started_cluster(folder) as (process, terminal):

        def end() -> None:
            os.close(terminal)
            os.killpg(process.pid, signal.SIGHUP)

        assert_clean_end(process, folder, end)


def stop_by_ctrl_c_under_nohup(folder: Path) -> None:
    """Check that SIGHUP is ignored under nohup and SIGINT stops the cluster."""
    with started_cluster(folder, "nohup") as (process, _):
        os.killpg(process.pid, signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        assert_clean_end(process, folder, lambda: os.killpg(process.pid, signal.SIGINT))


def test_signal_to_process_group_stops_cluster_cleanly(tmp_path: Path) -> None:
    """The signal ended Ray's processes, too: the stop took a minute and failed, and stores needed recovery."""
    ways = (stop_by_group_signals, stop_by_closed_terminal, stop_by_ctrl_c_under_nohup)
    with ThreadPoolExecutor(len(ways)) as terminals:
        for way in [terminals.submit(way, tmp_path / way.__name__) for way in ways]:
            way.result()
