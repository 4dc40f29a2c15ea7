"""Connect Spark's Python workers to Ray, each once, on the node of its executor."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The most steps from a task to its JVM in the tree of processes: worker, daemon, executor.
_STEPS = 4
_NODE_OF_JVM = b"-Dray.node-ip="


@dataclass(frozen=True, slots=True)
class RayConnector:
    """The address of Ray, and the namespace of the actors that tasks use."""

    address: str
    namespace: str

    def actor(self, name: str) -> Any:
        """Return the handle of an actor; connect this process to Ray if necessary.

        Raises:
            ValueError: the actor does not exist (any more).
        """
        return self.connected().get_actor(name, namespace=self.namespace)

    def connected(self) -> Any:
        """Return the module `ray`, connected.

        It is imported here, so that tasks without Ray do not wait for the import.
        """
        import ray

        if not ray.is_initialized():
            ray.init(
                address=self.address,
                namespace=self.namespace,
                _node_ip_address=_node_of_executor(),
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        return ray


def _node_of_executor() -> str | None:
    """Return the address of the Ray node that started this worker's executor, None if unknown.

    Without it Ray uses any node of the machine, which may be another one if there are several.
    """
    process = os.getppid()
    for _ in range(_STEPS):
        try:
            arguments = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:
            return None
        for argument in arguments:
            if argument.startswith(_NODE_OF_JVM):
                return argument[len(_NODE_OF_JVM) :].decode()
        process = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
    return None
