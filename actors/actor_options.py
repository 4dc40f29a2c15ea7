"""All options that RayMQ passes to Ray about an actor.

Detached: an actor outlives the driver that created it. `max_restarts=-1`: Ray restarts it after any crash.
`max_task_retries=0`: Ray never repeats a call, which would be a silent duplicate out of order. `num_cpus=0`: brokers
mostly wait for disks and sockets, and have to fit on a cluster that is fully used.
"""

from __future__ import annotations

from typing import Any

import ray

from raymq.actors.broker_actor import INVOKE_GROUP, Broker
from raymq.actors.name_server_actor import NameServer
from raymq.actors.naming import (
    COORDINATOR_NAME,
    SCHEDULER_NAME,
    broker_name,
    keeper_name,
    name_server_name,
    producer_name,
    replica_name,
)
from raymq.actors.producer_actor import Producer, ProducerSpec
from raymq.actors.protocol import BrokerSpec, CoordinatorSpec, KeeperSpec, NameServerSpec, SchedulerSpec
from raymq.actors.scheduler_actor import Scheduler

__all__ = [
    "BINDING_RESOURCE",
    "broker_name",
    "detached_options",
    "make_broker",
    "make_coordinator",
    "make_keeper",
    "make_name_server",
    "make_producer",
    "make_scheduler",
    "name_server_name",
]

#: Threads for an actor's control methods, so that a status call is answered while another call waits.
_CONTROL_CALLS = 8
#: Concurrent sends of a shared producer, which is an asyncio actor.
_PRODUCER_CALLS = 1_000
#: Threads for commands that arrive through the actor instead of the socket; each may block a thread for a second.
_INVOKE_THREADS = 32
#: Enough of a resource to bind an actor to its node, and little enough for thousands of actors.
BINDING_RESOURCE = 0.001


def detached_options(name: str, namespace: str, resources: dict[str, float] | None = None) -> dict[str, Any]:
    """Return the options of a named actor that outlives its driver and is restarted."""
    return {
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_task_retries": 0,
        "num_cpus": 0,
        "max_concurrency": _CONTROL_CALLS,
        "resources": resources or {},
        "get_if_exists": True,
    }


def make_name_server(spec: NameServerSpec, namespace: str, resource: str) -> Any:
    """Start (or find) a name server on the machine that has `resource`."""
    options = detached_options(name_server_name(spec.index), namespace, {resource: BINDING_RESOURCE})
    return ray.remote(NameServer).options(**options).remote(spec)


def make_keeper(spec: KeeperSpec, namespace: str, resource: str) -> Any:
    """Start (or find) a keeper on the machine that has `resource` and its file."""
    from raymq.actors.keeper_actor import Keeper  # most clusters have none

    options = detached_options(keeper_name(spec.number), namespace, {resource: BINDING_RESOURCE})
    return ray.remote(Keeper).options(**options).remote(spec)


def make_broker(spec: BrokerSpec, namespace: str, resource: str) -> Any:
    """Start (or find) a broker on the machine that has `resource`.

    It has to run where its directory is, so it is bound by that resource, and not by a node id.
    """
    threads = {INVOKE_GROUP: _INVOKE_THREADS}
    actor = ray.remote(concurrency_groups=threads)(Broker)  # type: ignore[call-overload] # missing in Ray's types
    name = replica_name(spec.name, spec.replica)
    return actor.options(**detached_options(name, namespace, {resource: BINDING_RESOURCE})).remote(spec)


def make_coordinator(spec: CoordinatorSpec) -> Any:
    """Start (or find) the cluster's coordinator, on any machine."""
    from raymq.actors.coordinator_actor import Coordinator  # most clusters have none

    return ray.remote(Coordinator).options(**detached_options(COORDINATOR_NAME, spec.cluster)).remote(spec)


def make_scheduler(spec: SchedulerSpec) -> Any:
    """Start (or find) the cluster's scheduler, on any machine."""
    return ray.remote(Scheduler).options(**detached_options(SCHEDULER_NAME, spec.namespace)).remote(spec)


def make_producer(spec: ProducerSpec, namespace: str) -> Any:
    """Start (or find) the shared producer of a group, on any machine."""
    options = {**detached_options(producer_name(spec.group), namespace), "max_concurrency": _PRODUCER_CALLS}
    return ray.remote(Producer).options(**options).remote(spec)
