"""Joining a Ray that runs, or starting one for this process, without a line of noise."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import Any

import ray

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.java import JavaNotFound, java_environment
from raymq.actors.spec import host_resource

#: Settings that an embedded Ray is started with unless the environment says otherwise. Not RAY_AUTH_MODE: Ray has read
#: it when it was imported, and protects a cluster of its own with a token by itself.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else brokers run at niceness 15 and wait for everything else on the machine
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns about GPUs that are not there
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # else a SIGTERM prints stack traces
}
_OBJECT_STORE_BYTES = 512 * 1024 * 1024
#: Ray takes 127.0.0.1 for "find my real address"; any other loopback address it leaves alone.
_LOOPBACK = "127.0.0.2"


def join() -> bool:
    """Use the Ray that this process is connected to, or one that runs on this machine; False if there is none.

    RAY_ADDRESS=local, Ray's own word for "start a new one", looks for none.
    """
    if ray.is_initialized():
        return True
    return os.environ.get("RAY_ADDRESS") != "local" and _init(address="auto")


def join_address(address: str) -> bool:
    """Connect to the Ray at `address` ("auto": the one that runs here). True if this call connected.

    Raises:
        BrokerUnavailable: there is no Ray at that address.
    """
    if ray.is_initialized():
        return False
    if not _init(address=address):
        raise BrokerUnavailable("ray", f"no Ray cluster at address {address!r}")
    return True


def start_embedded(cpus: int | None = None) -> None:
    """Start a Ray of this process's own, on loopback, with a Java that Spark can use if there is one."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with contextlib.suppress(JavaNotFound):  # a cluster without Spark needs none
        os.environ.update(java_environment())
    host = socket.gethostname()
    ray.init(
        address="local",
        num_cpus=cpus or max(2, os.cpu_count() or 2),
        resources={host_resource(host): 1.0},
        object_store_memory=_OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address=_LOOPBACK,
    )


def hosts() -> list[tuple[str, str]]:
    """The living nodes, sorted: (resource that binds an actor to the machine, its address).

    A machine says which it is by a resource `broker_<host name>`; one that does not is told by Ray's own
    `node:<address>`, which survives a restart of its raylet as long as its address does.
    """
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            address = node["NodeManagerAddress"]
            own = sorted(name for name in node["Resources"] if name.startswith("broker_"))
            found.append((own[0] if own else f"node:{address}", address))
    return sorted(set(found))


def _init(**arguments: Any) -> bool:
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **arguments)
    except ConnectionError:
        return False
    return True
