"""On which Ray nodes Spark's JVMs may run: those whose raylet can start Java workers.

A raylet finds `java` when it starts, or never. A cluster that RayMQ starts has it (see actors/java.py); one that was
started without a Java on PATH has no node that could run an executor. Then a node without CPUs is added to it on this
machine, with a Java on its PATH and a resource of its own that pins Spark there, for as long as the session lives.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

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

#: What one Spark process takes of a resource that is only there to say where it runs.
_SHARE = 0.001


@dataclass(slots=True)
class Placement:
    """Where Spark goes: Ray resources that its master and each executor must hold, and the node made for them."""

    resources: dict[str, float] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

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


def place(environment: Mapping[str, str], memory_bytes: int, directory: Path, timeout: float) -> Placement:
    """Find where Spark can run; add a node to the cluster if nowhere.

    Args:
        environment: what a child process needs to find Java (actors.java.java_environment).
        memory_bytes: what Spark's processes will ask for, for a node that must be added.
        directory: where that node keeps its files and its output (node.log).
        timeout: seconds for looking, and again for adding.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    able = _nodes_with_java(nodes, timeout)
    if len(able) == len(nodes):
        return Placement()
    if able:
        here = ray.get_runtime_context().get_node_id()
        chosen = next((node for node in able if node["NodeID"] == here), able[0])
        return Placement({f"node:{chosen['NodeManagerAddress']}": _SHARE})
    return _add_node(environment, memory_bytes, directory, timeout)


def _can_start_java() -> bool:
    """Whether the raylet that started this worker was given a command for Java workers."""
    arguments = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
    commands = [argument for argument in arguments if argument.startswith(b"--java_worker_command=")]
    return any(len(command) > len(b"--java_worker_command=") for command in commands)


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


def _add_node(environment: Mapping[str, str], memory_bytes: int, directory: Path, timeout: float) -> Placement:
    resource = f"raymq_spark_{uuid.uuid4().hex[:12]}"
    command = [
        *(sys.executable, "-c", _GUARD),
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
        f"--address={ray.get_runtime_context().gcs_address}",
        f"--node-ip-address={_own_address()}",
        f"--temp-dir={directory / 'ray'}",  # else it notes its cluster where later programs of this machine look
        *("--num-cpus=0", "--num-gpus=0", f"--memory={memory_bytes}", "--object-store-memory=80000000"),
        f'--resources={{"{resource}": 1}}',
    ]
    with (directory / "node.log").open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a Ctrl-C on the terminal is for the driver, which takes the node away in order
        )
    placement = Placement({resource: _SHARE}, process)
    deadline = time.monotonic() + timeout
    while resource not in ray.cluster_resources():
        if process.poll() is not None or time.monotonic() > deadline:
            placement.close()
            raise RayMQError(
                "no Ray node can start Java workers, and a node that can could not be added",
                remedy="start Ray with java on its PATH",
            )
        time.sleep(0.1)
    return placement
