"""Which Ray a start joins, how soon it is known why one cannot be joined, and commands of another terminal.

Each program is a process of its own, as a user runs it. The Ray of this module stands for another program's embedded
one: private to it, and never joined unless it is named.
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
#: Told within 5 seconds; starting the interpreter and Ray's libraries on a busy machine apart.
TOLD_SECONDS = 60.0


@pytest.fixture(scope="module")
def others() -> Iterator[str]:
    """Another program's embedded Ray; its address."""
    with own_ray():
        yield str(ray.get_runtime_context().gcs_address)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    return {**kept, "RAYMQ_HOME": str(tmp_path / "home")}


@pytest.mark.long
def test_an_embedded_ray_of_another_program_is_not_joined_and_ones_own_is_shared(
    others: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """Two clusters of one program use the Ray that the first of them started; the last one to stop ends it."""
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
    address, *told = done.stdout.split()
    assert address != others
    assert told == ["True", "1", "False"]


@pytest.mark.long
def test_a_ray_that_was_joined_is_the_programs_to_end(others: str, environment: dict[str, str], tmp_path: Path) -> None:
    """Its own tasks go on when the connection to the cluster is closed."""
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
    """An address at which somebody listens and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


#: Where a Ray is said to be, and a command that would use it.
UNUSABLE = [
    ("refused", ["cluster", "start"]),
    ("refused", ["topic", "list"]),
    ("silent", ["cluster", "start"]),
    ("silent", ["cluster", "stop"]),
    ("nonsense", ["topic", "list"]),
    ("another mode", ["cluster", "start"]),
]


@pytest.mark.long
def test_a_ray_that_cannot_be_joined_is_told_at_once(others: str, silent: str, environment: dict[str, str]) -> None:
    """All six commands at once, each a process: none of them waits for more than the answer that does not come."""
    addresses = {"refused": "127.0.0.1:9", "silent": silent, "nonsense": "nowhere", "another mode": others}

    def told(where: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        mode = {"RAY_AUTH_MODE": "disabled"} if where == "another mode" else {}
        its_own = {**environment, **mode, "RAY_ADDRESS": addresses[where]}
        return run(RAYMQ, *command, environment=its_own, seconds=TOLD_SECONDS)

    with ThreadPoolExecutor(len(UNUSABLE)) as terminals:
        all_done = list(terminals.map(lambda each: told(*each), UNUSABLE))
    for (where, command), done in zip(UNUSABLE, all_done, strict=True):
        named = f"{where}, {command}: {done.stderr}"
        assert (done.returncode, done.stdout) == (1, ""), named
        assert len(done.stderr.splitlines()) == 1, named
        assert done.stderr.startswith("error: ray: "), named
        assert addresses[where] in done.stderr, named
        assert "\x1b" not in done.stderr, named
        if where == "another mode":
            assert "RAY_AUTH_MODE=token" in done.stderr


def test_without_any_ray_a_command_says_what_to_do(environment: dict[str, str]) -> None:
    done = run(RAYMQ, "topic", "list", environment=environment, seconds=TOLD_SECONDS)
    assert done.returncode == 1
    assert "raymq cluster start" in done.stderr
    assert "RAY_ADDRESS" in done.stderr
    assert "--name-servers" in done.stderr


@pytest.mark.long
def test_a_start_that_is_interrupted_ends_cleanly(environment: dict[str, str], tmp_path: Path) -> None:
    """By Ctrl-C, and by a supervisor's SIGTERM; each in a terminal of its own."""
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
            # One may have come up while the other one was interrupted.
            up = bool(lines) and lines[0].startswith("Ray runs in this process")
            assert lines[up:] in ([], ["stopping"]), which
            # One that is up and has not said so yet has done what it was called for, too.
            assert it.returncode in ((0,) if up else (0, 128 + which)), which
            assert not list(root.glob("*/abort")), which


def test_stop_through_addresses_is_wrong_usage(environment: dict[str, str]) -> None:
    for command in ("stop", "start"):
        done = run(RAYMQ, "--name-servers", "prod:9876", "cluster", command, environment=environment)
        assert done.returncode == 2
        assert re.search(r"--name-servers", done.stderr)
