"""A machine that counts as three, as far as brokers are bound to it by resources, and the command `raymq` there."""

from __future__ import annotations

import socket

from raymq.actors.naming import host_resource
from raymq.cluster import ray_runtime
from raymq.cluster.cli import main

#: Resources that a Ray of one's own has on the one machine that it is on.
NAMES = sorted([host_resource(socket.gethostname()), "node:127.0.0.2", "node:__internal_head__"])


def hosts() -> list[tuple[str, str]]:
    """As `ray_runtime.hosts`."""
    return [(name, "127.0.0.1") for name in NAMES]


if __name__ == "__main__":
    ray_runtime.hosts = hosts
    main()
