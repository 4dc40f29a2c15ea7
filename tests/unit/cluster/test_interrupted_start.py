"""Test an interrupted `raymq cluster start`: it removes only what it has created."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raymq.actors.errors import BrokerUnavailable
from raymq.cluster import bootstrap, cli_cluster, cluster_file, cluster_launch
from raymq.cluster.cli import main_group
from raymq.cluster.cluster_config import ClusterConfig


class FakeCluster:
    """The result of a start; `is_stopped` tells whether `stop` was called."""

    name_servers = ("127.0.0.1:9",)

    def __init__(self, *, is_new: bool, owns_ray: bool) -> None:
        self.is_new = is_new
        self.owns_ray = owns_ray
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True

    def close(self) -> None:
        pass


#: A program whose start ends by a signal while its stderr cannot be written.
STOPPED = """
import os, signal, threading
from raymq.cluster import cli_cluster

said, echo = threading.Event(), cli_cluster.click.echo

def saying(*arguments, **options):
    try:
        echo(*arguments, **options)
    finally:
        said.set()

def live(asked, started):
    started.set()
    os.kill(os.getpid(), signal.SIGTERM)
    return said.wait(30)

cli_cluster.click.echo = saying
cli_cluster._run_without_signals(live, "raymq")
"""


@pytest.fixture(autouse=True)
def handlers_as_before() -> Any:
    before = {which: signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for which, handler in before.items():
        signal.signal(which, handler)


def call_after_handlers(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call `call` after each signal handler that is set from now on."""
    begin = signal.signal

    def telling(number: int, handler: Any) -> Any:
        def handle(*arguments: Any) -> None:
            handler(*arguments)
            call()

        return begin(number, handle)

    monkeypatch.setattr(signal, "signal", telling)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("is_new", "owns_ray", "stops"), [(False, False, False), (True, False, True), (True, True, True)]
)
def test_interrupted_start_stops_only_a_cluster_it_created(
    which: signal.Signals, is_new: bool, owns_ray: bool, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cover a regression: an interrupted start stopped the cluster that it had joined."""
    made = FakeCluster(is_new=is_new, owns_ray=owns_ray)
    handled = threading.Event()

    def start(*_: Any, **__: Any) -> FakeCluster:
        os.kill(os.getpid(), which)
        assert handled.wait(30)
        return made

    monkeypatch.setattr(bootstrap, "start", start)
    call_after_handlers(handled.set, monkeypatch)
    done = CliRunner().invoke(main_group, ["cluster", "start"])
    assert (done.exit_code, made.is_stopped) == (128 + which, stops)


def test_first_signal_determines_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor expects the exit code of its own signal, although another one may follow."""
    handled = threading.Semaphore(0)

    def start(*_: Any, **__: Any) -> FakeCluster:
        for which in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), which)
            assert handled.acquire(timeout=30)
        return FakeCluster(is_new=True, owns_ray=True)

    monkeypatch.setattr(bootstrap, "start", start)
    call_after_handlers(handled.release, monkeypatch)
    assert CliRunner().invoke(main_group, ["cluster", "start"]).exit_code == 128 + signal.SIGTERM


def test_unfinished_start_is_aborted_after_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that waits ten seconds would kill the start with all its processes."""
    broken_off = threading.Event()
    codes = []

    def start(*_: Any, **__: Any) -> FakeCluster:
        os.kill(os.getpid(), signal.SIGTERM)
        assert broken_off.wait(30)
        return FakeCluster(is_new=True, owns_ray=True)

    def break_off(namespace: str, exit_code: int) -> None:
        codes.append((namespace, exit_code))
        broken_off.set()

    monkeypatch.setattr(bootstrap, "start", start)
    monkeypatch.setattr(cli_cluster, "_FINISH_SECONDS", 0.0)
    monkeypatch.setattr(cli_cluster, "_abort_start", break_off)
    CliRunner().invoke(main_group, ["--namespace", "slow", "cluster", "start"])
    assert codes[0] == ("slow", 128 + signal.SIGTERM)


def test_closed_terminal_keeps_the_exit_code() -> None:
    """The exit code stays 0 although Python buffers text that cannot be written."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    try:
        done = subprocess.run([sys.executable, "-c", STOPPED], stderr=writer, env=environment, timeout=60, check=False)
    finally:
        os.close(writer)
    assert done.returncode == 0


def test_ignored_hangup_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "start", lambda *_, **__: FakeCluster(is_new=True, owns_ray=False))
    monkeypatch.setattr(cli_cluster, "find_console", lambda _: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert CliRunner().invoke(main_group, ["cluster", "start"]).exit_code == 0
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize("abandoned", [False, True])
def test_failed_start_kills_no_actor_that_is_being_stopped(
    abandoned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cover a regression: a broker killed during its stop left its abort file."""
    made: list[str] = []
    killed: list[list[str]] = []

    def make(*_: Any) -> list[str]:
        made.append("broker-a")
        if abandoned:
            cluster_launch.skip_rollback()
        raise BrokerUnavailable("broker-a", "it was stopped")

    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(tmp_path))
    monkeypatch.setattr(cluster_launch, "_abandoned", threading.Event())
    monkeypatch.setattr(cluster_launch, "_make", make)
    monkeypatch.setattr(cluster_launch, "names", lambda _: list(made))
    monkeypatch.setattr(cluster_launch, "kill", lambda _, names: killed.append(names))
    arguments = {"brokers": 1, "replicas": 1, "name_servers": 1, "root": str(tmp_path)}
    with pytest.raises(BrokerUnavailable):
        cluster_launch.start("n", tmp_path, ClusterConfig(), arguments)
    assert killed == ([] if abandoned else [["broker-a"]])
