"""Test that programs of the fork server behave as in a new interpreter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.fork_server import Program

#: A program that prints its arguments, environment and input.
SHOWS = """
import json, os, sys, threading
def after(): print("after", file=sys.stderr)
threading.Thread(target=after).start()
print(json.dumps([sys.argv[1:], __name__, os.environ.get("X"), os.getcwd(), sys.stdin.read(), sys.path[0]]))
sys.exit(int(sys.argv[1]))
"""


def start_interpreter(arguments: list[str], **options: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen([sys.executable, *arguments], **options)


@pytest.mark.parametrize("start", [start_interpreter, Program])
def test_program_gets_arguments_streams_and_environment(
    tmp_path: Path, start: Callable[..., subprocess.Popen[Any]]
) -> None:
    (tmp_path / "shows.py").write_text(SHOWS)
    for arguments, first in ((["-c", SHOWS], ""), ([str(tmp_path / "shows.py")], str(tmp_path))):
        pipe = subprocess.PIPE
        environment = {**os.environ, "X": "y"}
        with start(
            [*arguments, "3", "ä"], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=tmp_path
        ) as program:
            out, err = program.communicate("given", timeout=60)
        assert json.loads(out) == [["3", "ä"], "__main__", "y", str(tmp_path), "given", first]
        assert (err, program.returncode) == ("after\n", 3)


def test_program_has_the_right_exit_code() -> None:
    for code, expected in (
        ("pass", 0),
        ("import os; os._exit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("raise SystemExit('reason')", 1),
        ("1 / 0", 1),
    ):
        done = fork_server.run(["-c", code], stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == expected
        assert ("ZeroDivisionError" in done.stderr) == (code == "1 / 0")
    with pytest.raises(subprocess.CalledProcessError):
        fork_server.run(["-c", "raise SystemExit(1)"], timeout=60, check=True)


def test_program_can_be_awaited_and_killed() -> None:
    with Program(["-c", "import time; time.sleep(600)"]) as program:
        assert program.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.01)
        program.kill()
        assert program.wait(60) == -signal.SIGKILL
        assert program.poll() == -signal.SIGKILL
    with pytest.raises(subprocess.TimeoutExpired):
        fork_server.run(["-c", "import time; time.sleep(600)"], timeout=0.01)


def test_parallel_programs_do_not_share_pipes() -> None:
    programs = [
        Program(["-c", "import sys; print(sys.stdin.read())"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(5)
    ]
    for number, program in enumerate(programs):  # the later programs still run
        assert program.communicate(str(number), timeout=60) == (f"{number}\n", None)


def test_failpoint_in_the_environment_kills_the_program() -> None:
    code = "from raymq.storage import failpoints; failpoints.failpoint('leader.before_epoch')"
    for name, expected in (("leader.before_epoch:1", -signal.SIGKILL), ("", 0)):
        environment = {**os.environ, "RAYMQ_FAILPOINT": name}
        assert fork_server.run(["-c", code], env=environment, timeout=60).returncode == expected


def test_program_runs_exit_handlers_and_flushes_output() -> None:
    code = "import atexit, sys; atexit.register(print, 'at exit'); sys.stdout.write('no flush ')"
    done = fork_server.run(["-c", code], stdout=subprocess.PIPE, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("no flush at exit\n", 0)


def test_module_runs_as_a_program() -> None:
    done = fork_server.run(["-m", "json.tool", "--help"], stdout=subprocess.PIPE, text=True, timeout=60)
    assert "usage" in done.stdout
    assert done.returncode == 0
