"""On which Ray nodes Spark's JVMs may run: those whose raylet can start Java workers.

A raylet finds `java` when it starts, or never. A cluster that RayMQ starts has it (see actors/java.py); one that was
started without a Java on PATH has no node that could run an executor. Then a node without CPUs is added to it on this
machine, with a Java on its PATH and a resource of its own that pins Spark there, for as long as the session lives.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raymq.actors.naming import SPARK_NODE_PREFIX
from raymq.client.errors import RayMQError

#: Runs a command in a process group of its own until standard input ends, that is: until its owner closes it or dies.
#: A node of Ray ends its processes on SIGTERM, unless the cluster has gone first: then they are killed.
_GUARD = """
import os, signal, subprocess, sys
node = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
sys.stdin.buffer.read()
node.terminate()
try:
    node.wait(8)
except subprocess.TimeoutExpired:
    os.killpg(0, signal.SIGKILL)
"""

#: What a raylet is told of Java workers: how to start them, or nothing.
_JAVA: Final = b"--java_worker_command="

#: The longest name that a socket may have on Linux, in bytes; those of a node are so much longer than its folder's.
_MOST_SOCKET_NAME: Final = 107
_NAME_OF_A_SOCKET: Final = "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"

#: What one Spark process takes of a resource that is only there to say where it runs.
_SHARE = 0.001


#: How Ray says that a node has not come up within its 30 s (ray/_private/node.py, 2.60).
_TOOK_TOO_LONG: Final = "timed out during startup"


@dataclass(slots=True)
class Placement:
    """Where Spark goes: Ray resources that its master and each executor must hold, and the node made for them.

    Attributes:
        process: of that node; None: none was made.
        folder: its files, which go with it.
    """

    resources: dict[str, float] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    folder: Path | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the node that was made is gone by itself."""
        return self.process is not None and self.process.poll() is not None

    def close(self, timeout: float = 12.0) -> None:
        """Take the node that was added away again, if one was."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def place(environment: Mapping[str, str], memory_bytes: int, directory: Path, timeout: float) -> Placement:
    """Find where Spark can run; add a node to the cluster if nowhere.

    Args:
        environment: what a child process needs to find Java (actors.java.java_environment).
        memory_bytes: what Spark's processes will ask for, for a node that must be added.
        directory: where that node's output is (node.log).
        timeout: seconds for looking, and again for adding.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    here = _raylets_of_this_machine()
    elsewhere = _nodes_with_java([node for node in nodes if node["NodeID"] not in here], timeout)
    able = [node for node in nodes if here.get(node["NodeID"]) or node in elsewhere]
    if len(able) == len(nodes):
        return Placement()
    if able:
        own = ray.get_runtime_context().get_node_id()
        chosen = next((node for node in able if node["NodeID"] == own), able[0])
        return Placement({f"node:{chosen['NodeManagerAddress']}": _SHARE})
    return _add_node(environment, memory_bytes, directory, timeout)


def _raylets_of_this_machine() -> dict[str, bool]:
    """Of the raylets that this process sees, by their nodes' ids, whether they can start Java workers.

    To ask one of them takes a second and more: it starts a worker for that.
    """
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if arguments[0].endswith(b"/raylet"):
            node = _argument(arguments, b"--node_id=")
            if node:
                found[node.decode()] = bool(_argument(arguments, _JAVA))
    return found


def _can_start_java() -> bool:
    """Whether the raylet that started this worker was given a command for Java workers."""
    return bool(_argument(Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0"), _JAVA))


def _argument(arguments: list[bytes], name: bytes) -> bytes:
    return next((each[len(name) :] for each in arguments if each.startswith(name)), b"")


def _nodes_with_java(nodes: list[dict[str, Any]], timeout: float) -> list[dict[str, Any]]:
    probe = ray.remote(num_cpus=0, max_retries=0)(_can_start_java)
    refs = {
        probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(): node
        for node in nodes
    }
    ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=timeout)
    able = []
    for ref in ready:
        try:
            if ray.get(ref, timeout=timeout):
                able.append(refs[ref])
        except (ray.exceptions.RayError, OSError):
            continue  # the node left, or has no /proc: not a place to rely on
    return able


def _own_address() -> str:
    """Return a loopback address of this machine that no other node has.

    A JVM that joins Ray asks the cluster for the raylet of its *address*. Where two share one it may get the other
    one, and a raylet without a Java command does not refuse a Java driver: it aborts, with everything that it runs.
    """
    taken = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    candidates = (f"127.{random.randint(64, 127)}.{random.randint(0, 255)}.{random.randint(2, 254)}" for _ in range(99))
    return next(candidate for candidate in candidates if candidate not in taken)


def _folder_for_sockets() -> str:
    """Where a node's folder may be made: a name below which its sockets' names are not too long for the system."""
    room = _MOST_SOCKET_NAME - len(_NAME_OF_A_SOCKET) - len("/rq01234567")
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= room else "/tmp"  # noqa: S108 - mkdtemp makes a folder of our own there


def _add_node(environment: Mapping[str, str], memory_bytes: int, directory: Path, timeout: float) -> Placement:
    """A node that Ray gave up because it took longer than Ray waits, 30 s whatever one sets, is tried again."""
    deadline = time.monotonic() + timeout
    log = directory / "node.log"
    while True:
        placement = _start_node(environment, memory_bytes, log)
        while not placement.resources.keys() <= ray.cluster_resources().keys():
            if placement.has_ended or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        else:
            return placement
        placement.close()
        told = log.read_text(errors="replace").splitlines() or ["it has said nothing"]
        if _TOOK_TOO_LONG not in told[-1] or time.monotonic() > deadline:
            raise RayMQError(
                f"no Ray node can start Java workers, and a node that can could not be added: {told[-1]}",
                remedy="start Ray with java on its PATH",
            )


def _start_node(environment: Mapping[str, str], memory_bytes: int, log: Path) -> Placement:
    resource = f"{SPARK_NODE_PREFIX}{uuid.uuid4().hex[:12]}"
    folder = Path(tempfile.mkdtemp(prefix="rq", dir=_folder_for_sockets()))
    command = [
        *(sys.executable, "-c", _GUARD),
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
        f"--address={ray.get_runtime_context().gcs_address}",
        f"--node-ip-address={_own_address()}",
        f"--temp-dir={folder}",  # else it notes its cluster where later programs of this machine look
        *("--num-cpus=0", "--num-gpus=0", f"--memory={memory_bytes}", "--object-store-memory=80000000"),
        f'--resources={{"{resource}": 1}}',
    ]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a Ctrl-C on the terminal is for the driver, which takes the node away in order
        )
    return Placement({resource: _SHARE}, process, folder)
