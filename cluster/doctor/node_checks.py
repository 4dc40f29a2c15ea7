"""Check Ray's nodes, each by a task on it, and the cluster's actors."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raymq.actors import actor_calls
from raymq.actors.errors import RayMQError
from raymq.actors.naming import (
    CONSOLE_NAME,
    COORDINATOR_NAME,
    SCHEDULER_NAME,
    is_broker_name,
    is_keeper_name,
    is_name_server_name,
)
from raymq.cluster import cluster_launch
from raymq.cluster.doctor import host_probes
from raymq.cluster.doctor.check_result import CheckResult, fine, note, problem
from raymq.cluster.doctor.host_checks import check_clock_offset, check_machine
from raymq.cluster.doctor.process_checks import check_orphans

#: A node may have to start a worker first.
_NODE_SECONDS: Final = 60.0
_ACTOR_SECONDS: Final = 3.0


def check_nodes(spark: bool, here: str) -> Iterator[CheckResult]:
    """Check every other live node and the clocks of all live nodes; report dead nodes."""
    nodes = ray.nodes()
    for node in nodes:
        if not node["Alive"]:
            remedy = "start Ray there again (`ray start --address=...`): brokers come back with their machine"
            yield note("nodes", "it is dead, according to Ray's head", _named(node), remedy)
    requests = [(node, _on(node, _clock)) for node in nodes if node["Alive"]]
    for node, refs in requests:
        try:
            # The first call waits until the worker has started; the second one measures the clock.
            actor_calls.result(_named(node), refs.remote(), _NODE_SECONDS)
            begun = time.time()
            node_time, host = actor_calls.result(_named(node), refs.remote(), _NODE_SECONDS)
            ended = time.time()
            yield check_clock_offset(f"{host} ({_named(node)})", node_time - (begun + ended) / 2, (ended - begun) / 2)
            if host != here:
                yield from actor_calls.result(_named(node), _on(node, _machine).remote(spark), _NODE_SECONDS)
        except RayMQError as error:
            remedy = "check whether its machine is overloaded, and whether raymq is installed there"
            yield problem("nodes", f"no task runs there: {error}", _named(node), remedy)


def check_actors(namespace: str) -> Iterator[CheckResult]:
    """Check that every actor of the cluster exists and answers."""
    there = cluster_launch.names(namespace)
    ours = [name for name in there if _is_ours(name)]
    try:
        missing = sorted(set(cluster_launch.expected_actors(cluster_launch.start_arguments(namespace))) - set(there))
    except RayMQError as error:
        missing = []
        yield problem("actors", f"the actors of the cluster are not known: {error}", namespace, _START_REMEDY)
    for name in missing:
        yield problem("actors", f"{name} is missing", namespace, _START_REMEDY)
    silent = dict(_silent(namespace, ours))
    for name, reason in silent.items():
        remedy = "`ray list actors` and its log show more; Ray restarts a dead actor by itself"
        yield problem("actors", f"{name} does not answer: {reason}", namespace, remedy)
    yield fine("actors", f"{len(ours) - len(silent)} of {len(ours)} actors answer", namespace)


_START_REMEDY: Final = "`raymq cluster start` with the arguments that it was started with starts the missing actors"


def _is_ours(name: str) -> bool:
    is_named = is_broker_name(name) or is_name_server_name(name) or is_keeper_name(name)
    return is_named or name in (SCHEDULER_NAME, COORDINATOR_NAME, CONSOLE_NAME)


def _silent(namespace: str, names: Iterable[str]) -> Iterator[tuple[str, RayMQError]]:
    """Yield the actors that do not answer, each with the error."""
    requests: list[tuple[str, Any]] = []
    for name in names:
        try:
            requests.append((name, actor_calls.find(name, namespace).__ray_ready__.remote()))
        except RayMQError as error:
            yield name, error
    deadline = time.monotonic() + _ACTOR_SECONDS
    for name, ref in requests:
        try:
            actor_calls.result(name, ref, max(0.1, deadline - time.monotonic()))
        except RayMQError as error:
            yield name, error


def _on(node: dict[str, Any], function: Any) -> Any:
    pinned = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return ray.remote(function).options(scheduling_strategy=pinned, num_cpus=0, max_retries=0)


def _clock() -> tuple[float, str]:
    import socket

    return time.time(), socket.gethostname()


def _machine(spark: bool) -> Sequence[CheckResult]:
    seen = host_probes.read_machine(spark=spark)
    return [*check_machine(seen), *check_orphans(host_probes.read_processes(), seen.host)]


def _named(node: dict[str, Any]) -> str:
    return f"node {node['NodeManagerAddress']}"
