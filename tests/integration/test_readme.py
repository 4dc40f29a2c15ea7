"""Test that the README's programs and commands run unchanged in an empty folder and do what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import sys
from pathlib import Path

import psutil
import pytest

from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from tests.integration.foreign_client import ForeignClient
from tests.program import output_of, run, terminal

pytestmark = [pytest.mark.integration, pytest.mark.ray, pytest.mark.timeout(120)]

#: The README's command lines: those that CI itself runs, and those that the tests below run.
BY_CI = ["make demo", "make test"]
FIRST, SECOND = "raymq cluster start --config configs/local.yaml", "mqadmin topicList -n 127.0.0.1:9876"
BACKGROUND = ["raymq cluster start --detach", "raymq cluster status", "raymq cluster stop"]
#: A program that runs each of its arguments as a `raymq` command, where Ray cannot be imported.
SECOND_TERMINAL = """
import shlex, sys
sys.modules["ray"] = None
from raymq.cluster.cli import main_group
for line in sys.argv[1:]:
    main_group.main(shlex.split(line), standalone_mode=False)
    print("--- end of a command ---", flush=True)
"""


@pytest.fixture
def readme(repository: Path) -> str:
    return (repository / "README.md").read_text(encoding="utf-8")


def command_lines(readme: str) -> list[str]:
    """Return the commands of the blocks without a language, without comments."""
    found, language = [], None
    for line in readme.splitlines():
        if line.startswith("```"):
            language = line.removeprefix("```") if language is None else None
        elif language == "" and re.match(r"[a-z]+ [a-zA-Z]+", line):
            found.append(line.split(" #")[0].strip())
    return found


def test_readme_example_prints_documented_output(readme: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", readme, re.DOTALL)
    assert len(blocks) == 1, "one example, followed by what it prints"
    program, printed = blocks[0]
    assert len([line for line in program.splitlines() if line.strip()]) <= 16
    logged = "ValueError: comes again after 1 s"  # the last line of the warning
    assert output_of("-c", program, directory=tmp_path, logged=logged) == printed


def test_all_readme_commands_are_covered(readme: str) -> None:
    assert sorted(command_lines(readme)) == sorted([*BY_CI, *BACKGROUND, FIRST, SECOND])


def test_readme_commands_work_in_two_terminals(repository: Path, tmp_path: Path) -> None:
    """Start the cluster in one terminal, run commands in another without Ray.

    `mqadmin` is run if it is in the PATH. Otherwise the test sends the request of `mqadmin` to the address that the
    README names: `make test-interop` runs the real program.
    """
    address = shlex.split(SECOND)[-1]
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            pytest.skip(f"somebody else has RocketMQ's usual port: {error}")
    (tmp_path / "configs").symlink_to(repository / "configs")
    programs = Path(sys.executable).parent
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    environment = {
        **kept,
        "RAYMQ_HOME": str(tmp_path / "home"),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
    }
    start = shutil.which("raymq", path=environment["PATH"])
    assert start == str(programs / "raymq")
    with terminal(*shlex.split(FIRST), environment=environment, directory=tmp_path) as first:
        assert first.stdout is not None
        shown = [first.stdout.readline(), first.stdout.readline()]
        assert address in shown[1], shown
        commands = [
            "topic create orders --queues 4",
            f"--name-servers {address} topic list",
            "message send orders --body '1 espresso' --key order-42",
            "message query orders --key order-42",
            "cluster status",
        ]
        done = run(sys.executable, "-c", SECOND_TERMINAL, *commands, environment=environment)
        assert (done.returncode, done.stderr) == (0, "")
        _, listed, _, found, status = done.stdout.split("--- end of a command ---\n")[:-1]
        assert "orders" in listed
        assert "1 espresso" in found
        assert "broker-b" in status
        if shutil.which("mqadmin"):
            assert "orders" in run(*shlex.split(SECOND), environment=environment).stdout
        with ForeignClient(address) as mqadmin:
            assert "orders" in mqadmin.json(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))["topicList"]
        stopped = run("raymq", "cluster", "stop", environment=environment)
        assert (stopped.returncode, stopped.stderr) == (0, "")
        assert first.wait(30) == 0
    assert list((tmp_path / "data").glob("broker-*"))
    assert not list((tmp_path / "data").glob("*/abort"))


@pytest.mark.long
def test_readme_background_cluster_starts_and_stops(tmp_path: Path) -> None:
    start, status, stop = ([*shlex.split(line), "--json"] for line in BACKGROUND)
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    environment = {**kept, "RAYMQ_HOME": str(tmp_path / "home"), "RAYMQ_NAMESPACE": "background"}
    program = str(Path(sys.executable).with_name("raymq"))
    none = run(program, *status[1:], environment=environment)
    assert none.returncode == 1
    assert "raymq cluster start" in none.stderr
    root = ["--root", str(tmp_path / "data"), "--brokers", "1"]
    with terminal(program, *start[1:], *root, environment=environment) as first:  # ends with its terminal
        out, _ = first.communicate(timeout=100)
    started = json.loads(out)
    process = psutil.Process(started["pid"])
    try:
        assert started.keys() == {"namespace", "name_servers", "pid", "log"}
        assert json.loads(run(program, *status[1:], environment=environment).stdout)["brokers"][0]["state"] == "running"
        again = run(program, *start[1:], *root, environment=environment)
        assert (again.returncode, f"in process {process.pid}" in again.stderr) == (1, True)
        stopped = run(program, *stop[1:], environment=environment)
        assert (stopped.returncode, json.loads(stopped.stdout)["stopped"]) == (0, True)
        assert not process.is_running()
        assert started["name_servers"][0] in Path(started["log"]).read_text(encoding="utf-8")
        assert not list(tmp_path.glob("data/*/abort"))
    finally:
        if process.is_running():
            process.kill()
