"""Test which Ray a start joins, errors for unusable Rays and commands of another terminal.

Each program runs in a process of its own, as for a user. The Ray of this module acts as another program's embedded Ray:
private to that program, and never joined unless it is named.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray

from tests.polling import poll_until
from tests.program import run, terminal
from tests.ray_cluster import own_ray

pytestmark = [pytest.mark.integration, pytest.mark.ray]

RAYMQ = str(Path(sys.executable).with_name("raymq"))
#: The report itself takes at most 5 s; starting the interpreter and Ray's libraries on a busy machine takes longer.
REPORT_SECONDS = 60.0


@pytest.fixture(scope="module")
def others() -> Iterator[str]:
    """Start the embedded Ray of another program; yield its address."""
    with own_ray():
        yield str(ray.get_runtime_context().gcs_address)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    return {**kept, "RAYMQ_HOME": str(tmp_path / "home")}


@pytest.mark.long
def test_foreign_embedded_ray_is_not_joined_and_own_is_shared(
    others: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """Start two clusters in one program: they share its Ray until the last stop."""
    program = f"""
import ray
from raymq import cluster
from raymq.client import Admin
one = cluster.start(brokers=1, root={str(tmp_path / "one")!r}, namespace="one")
print(ray.get_runtime_context().gcs_address, one.owns_ray)
two = cluster.start(brokers=1, root={str(tmp_path / "two")!r}, namespace="two")
one.stop()
print(len(Admin(two).cluster_info().brokers))
two.stop()
print(ray.is_initialized())
"""
    done = run(sys.executable, "-c", program, environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    address, *output = done.stdout.split()
    assert address != others
    assert output == ["True", "1", "False"]


@pytest.mark.long
def test_joined_ray_is_left_running(others: str, environment: dict[str, str], tmp_path: Path) -> None:
    """Close the connection: the program's own Ray tasks still run."""
    program = f"""
import ray
from raymq import cluster
with cluster.start(brokers=1, root={str(tmp_path / "data")!r}, namespace="joined"):
    cluster.connect("joined").close()
    @ray.remote(num_cpus=0)
    def work(): return 42
    print(ray.get(work.remote()))
print(ray.is_initialized())
"""
    done = run(sys.executable, "-c", program, environment={**environment, "RAY_ADDRESS": others})
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", ["42", "True"])


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield an address whose listener never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


#: The kind of an unusable Ray address, and a command that would use it.
UNUSABLE = [
    ("refused", ["cluster", "start"]),
    ("refused", ["topic", "list"]),
    ("silent", ["cluster", "start"]),
    ("silent", ["cluster", "stop"]),
    ("nonsense", ["topic", "list"]),
    ("another mode", ["cluster", "start"]),
]


@pytest.mark.long
def test_unusable_ray_is_reported_at_once(others: str, silent: str, environment: dict[str, str]) -> None:
    """Run all six commands at once, each in a process; none waits for another."""
    addresses = {"refused": "127.0.0.1:9", "silent": silent, "nonsense": "nowhere", "another mode": others}

    def output(where: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        mode = {"RAY_AUTH_MODE": "disabled"} if where == "another mode" else {}
        its_own = {**environment, **mode, "RAY_ADDRESS": addresses[where]}
        return run(RAYMQ, *command, environment=its_own, seconds=REPORT_SECONDS)

    with ThreadPoolExecutor(len(UNUSABLE)) as terminals:
        all_done = list(terminals.map(lambda each: output(*each), UNUSABLE))
    for (where, command), done in zip(UNUSABLE, all_done, strict=True):
        named = f"{where}, {command}: {done.stderr}"
        assert (done.returncode, done.stdout) == (1, ""), named
        assert len(done.stderr.splitlines()) == 1, named
        assert done.stderr.startswith("error: ray: "), named
        assert addresses[where] in done.stderr, named
        assert "\x1b" not in done.stderr, named
        if where == "another mode":
            assert "RAY_AUTH_MODE=token" in done.stderr


def test_command_without_ray_names_alternatives(environment: dict[str, str]) -> None:
    done = run(RAYMQ, "topic", "list", environment=environment, seconds=REPORT_SECONDS)
    assert done.returncode == 1
    assert "raymq cluster start" in done.stderr
    assert "RAY_ADDRESS" in done.stderr
    assert "--name-servers" in done.stderr


@pytest.mark.long
def test_interrupted_start_exits_cleanly(environment: dict[str, str], tmp_path: Path) -> None:
    """Interrupt by Ctrl-C and by a supervisor's SIGTERM, each in its own terminal."""
    with contextlib.ExitStack() as stack:
        begun = []
        for which in (signal.SIGINT, signal.SIGTERM):
            root = tmp_path / which.name
            start = [RAYMQ, "--namespace", which.name.lower(), "cluster", "start", "--root", str(root)]
            begun.append((which, root, stack.enter_context(terminal(*start, environment=environment))))
        for which, root, it in begun:
            poll_until((root).exists, 60)
            it.send_signal(which)
        for which, root, it in begun:
            _, said = it.communicate(timeout=90)
            lines = [line for line in said.splitlines() if line != "starting Ray in this process"]
            # One cluster may have started while the other one was interrupted.
            up = bool(lines) and lines[0].startswith("Ray runs in this process")
            assert lines[up:] in ([], ["stopping"]), which
            # A started cluster that has not printed so yet has also succeeded.
            assert it.returncode in ((0,) if up else (0, 128 + which)), which
            assert not list(root.glob("*/abort")), which


def test_cluster_command_with_name_servers_is_usage_error(environment: dict[str, str]) -> None:
    for command in ("stop", "start"):
        done = run(RAYMQ, "--name-servers", "prod:9876", "cluster", command, environment=environment)
        assert done.returncode == 2
        assert re.search(r"--name-servers", done.stderr)
