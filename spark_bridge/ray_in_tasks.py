"""How Spark's Python workers reach Ray: each connects once, to the node that its executor runs on."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: A worker, its daemon, the executor: more steps than that are not between a task and the JVM that runs it.
_STEPS = 4
_NODE_OF_JVM = b"-Dray.node-ip="


@dataclass(frozen=True, slots=True)
class RayAddress:
    """Where Ray is, and in which namespace what tasks look for has its names."""

    address: str
    namespace: str

    def actor(self, name: str) -> Any:
        """Return the handle of an actor; this process is connected to Ray then.

        Raises:
            ValueError: there is no such actor (any more).
        """
        return self.connected().get_actor(name, namespace=self.namespace)

    def connected(self) -> Any:
        """Return the module `ray`, connected. It is imported here: tasks that need no Ray do not wait for it."""
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
    """The address of the Ray node that the executor of this worker was started by; None if that is not to be seen.

    Ray itself takes any node of the machine, which may be another one where there are several.
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
