"""Choose the Ray nodes for Spark's JVMs: those whose raylet can start Java workers.

A raylet looks for `java` once, when it starts. A cluster that RayMQ starts has it (see actors/java.py). A cluster that
was started without Java on PATH has no node that could run an executor. Then a node without CPUs is added on this
machine, with Java on its PATH and a resource of its own that pins Spark to it, until the session closes.
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

#: Runs a command in a process group of its own until standard input ends, that is: until its owner closes it or dies. A
#: node of Ray ends its processes on SIGTERM, unless the cluster has ended first: then they are killed.
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

#: The raylet's argument with the command for Java workers, which may be empty.
_JAVA: Final = b"--java_worker_command="

#: The longest path of a Unix socket on Linux, in bytes; below is a node's socket path relative to its folder.
_MAX_SOCKET_NAME: Final = 107
_NAME_OF_A_SOCKET: Final = "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"

#: The amount that one Spark process takes of a resource that only marks a node.
_SHARE = 0.001


#: Ray's message if a node does not start within Ray's 30 s (ray/_private/node.py, 2.60).
_TOOK_TOO_LONG: Final = "timed out during startup"


@dataclass(slots=True)
class Placement:
    """The Ray resources that Spark's master and executors must hold, and the added node.

    Attributes:
        process: of the added node; None: no node was added.
        folder: the files of the added node, removed with it.
    """

    resources: dict[str, float] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    folder: Path | None = None

    @property
    def has_ended(self) -> bool:
        """Return True if the added node has ended by itself."""
        return self.process is not None and self.process.poll() is not None

    def close(self, timeout: float = 12.0) -> None:
        """Remove the added node, if there is one."""
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


def find_placement(environment: Mapping[str, str], memory_bytes: int, directory: Path, timeout: float) -> Placement:
    """Find the nodes where Spark can run, or add a node to the cluster.

    A node is added only if no existing node can start Java workers.

    Args:
        environment: the variables with which a child process finds Java (actors.java.java_environment).
        memory_bytes: the memory that Spark's processes will request, for a node that must be added.
        directory: the directory for that node's output (node.log).
        timeout: seconds for the search, and again for adding a node.
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
    """Return whether each raylet of this machine can start Java workers, by node id.

    It reads their command lines, because a task on a node takes a second or more: the raylet starts a worker for it.
    """
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # The process has ended.
            continue
        if arguments[0].endswith(b"/raylet"):
            node = _argument(arguments, b"--node_id=")
            if node:
                found[node.decode()] = bool(_argument(arguments, _JAVA))
    return found


def _can_start_java() -> bool:
    """Return True if this worker's raylet was started with a command for Java workers."""
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
            continue  # The node left the cluster, or has no /proc, so it cannot be used.
    return able


def _own_address() -> str:
    """Return a loopback address of this machine that no other node has.

    A JVM that joins Ray requests the raylet of its *address* from the cluster. If two nodes share an address, it may
    get the wrong raylet, and a raylet without a Java command does not refuse a Java driver: it aborts, with everything
    that it runs.
    """
    taken = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    candidates = (f"127.{random.randint(64, 127)}.{random.randint(0, 255)}.{random.randint(2, 254)}" for _ in range(99))
    return next(candidate for candidate in candidates if candidate not in taken)


def _folder_for_sockets() -> str:
    """Return a folder for a node's files, with a path short enough for socket names."""
    room = _MAX_SOCKET_NAME - len(_NAME_OF_A_SOCKET) - len("/rq01234567")
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= room else "/tmp"  # noqa: S108 - mkdtemp makes a folder of our own there


def _add_node(environment: Mapping[str, str], memory_bytes: int, directory: Path, timeout: float) -> Placement:
    """Start a node and wait until it has joined the cluster.

    Ray gives up on a node that takes longer than 30 s, which cannot be configured; the start of such a node is retried.
    """
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
        output = log.read_text(errors="replace").splitlines() or ["it wrote no output"]
        if _TOOK_TOO_LONG not in output[-1] or time.monotonic() > deadline:
            raise RayMQError(
                f"no Ray node can start Java workers, and a node that can could not be added: {output[-1]}",
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
        # By default the node would record its cluster's address where later programs of this machine look for one.
        f"--temp-dir={folder}",
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
            # A Ctrl-C on the terminal is for the driver only, which then removes the node in order.
            start_new_session=True,
        )
    return Placement({resource: _SHARE}, process, folder)
