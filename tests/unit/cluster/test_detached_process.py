"""Test a detached cluster: its log file, its signals, and the process id in the cluster file."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from raymq.cluster import cli_cluster, cluster_file, detached_process
from raymq.cluster.cli import main_group

PROGRAM = """
import logging, os, pathlib, sys
from raymq.cluster.detached_process import LogFile
log = LogFile(pathlib.Path(sys.argv[1]), most_bytes=1_000)
logging.getLogger().addHandler(log)
log.take_outputs()
for number in range(100):
    logging.warning("line %d", number)
print("printed", flush=True)
os.write(2, b"from C")
"""


def test_log_file_rotates_and_captures_stdout_and_stderr(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(log)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.log", "a.log.1", "a.log.2", "a.log.3"]
    assert all(each.stat().st_size <= 1_100 for each in tmp_path.iterdir())
    newest = log.read_text(encoding="utf-8")
    assert "WARNING root: line 99" in newest
    assert "printed" in newest
    assert "from C" in newest


def test_ignored_signal_stays_ignored_during_a_detached_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals are passed on, except one that `nohup` ignores."""
    monkeypatch.setattr(detached_process, "_PROGRAM", "print('up')")
    passed_on = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {which: signal.getsignal(which) for which in passed_on}
    try:
        for which in passed_on:
            signal.signal(which, signal.SIG_IGN if which == signal.SIGHUP else signal.SIG_DFL)
        assert detached_process.start_detached([]) == "up\n"
        assert [callable(signal.getsignal(which)) for which in passed_on[:2]] == [True, True]
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def test_cluster_file_keeps_the_process_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(tmp_path))
    cluster_file.save_process("n", 7)  # the cluster file does not exist yet
    assert cluster_file.load("n") is None
    cluster_file.save("n", ["h:1"], "r:2", None)
    known = cluster_file.load("n")
    assert known is not None
    assert known.pid is None
    cluster_file.save_process("n", 7)
    assert cluster_file.load("n") == cluster_file.ClusterEndpoint(("h:1",), "r:2", None, 7)


def test_options_reach_the_detached_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cluster_file.HOME_VARIABLE, str(tmp_path))
    commands = []
    endpoint = {"namespace": "n", "name_servers": ["h:1"], "pid": 1, "log": "l"}

    def start_detached(command: list[str]) -> str:
        commands.append(command)
        return json.dumps(endpoint)

    monkeypatch.setattr(cli_cluster, "start_detached", start_detached)
    line: list[Any] = [
        "--namespace",
        "n",
        "cluster",
        "start",
        "--detach",
        "--brokers",
        3,
        "--name-servers",
        2,
        "--json",
    ]
    done = CliRunner().invoke(main_group, list(map(str, line)), catch_exceptions=False)
    assert json.loads(done.stdout) == endpoint
    (command,) = commands
    assert command[:4] == ["--namespace", "n", "cluster", "start"]
    assert command[command.index("--brokers") + 1] == "3"
    assert command[command.index("--name-servers") + 1] == "2"
    assert command[command.index("--log") + 1] == str(tmp_path / "n.log")
    assert "--config" not in command
