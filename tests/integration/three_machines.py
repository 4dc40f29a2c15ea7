"""Run `raymq` on a machine that counts as three hosts for the placement of brokers."""

from __future__ import annotations

import socket

from raymq.actors.naming import host_resource
from raymq.cluster import ray_runtime
from raymq.cluster.cli import main

#: Resources that a private Ray has on its single machine.
NAMES = sorted([host_resource(socket.gethostname()), "node:127.0.0.2", "node:__internal_head__"])


def hosts() -> list[tuple[str, str]]:
    """Return three hosts in the form of `ray_runtime.hosts`."""
    return [(name, "127.0.0.1") for name in NAMES]


if __name__ == "__main__":
    ray_runtime.hosts = hosts
    main()
