"""Every option that RayMQ gives to Ray about an actor, in one place.

Detached: an actor outlives the driver that made it. `max_restarts=-1`: Ray starts it again after any death.
`max_task_retries=0`: a call is never repeated behind our back, where it would be a silent duplicate out of order.
`num_cpus=0`: brokers wait on disks and sockets; they must fit on a cluster that is full of work.
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
    "broker_name",
    "make_broker",
    "make_coordinator",
    "make_keeper",
    "make_name_server",
    "make_producer",
    "make_scheduler",
    "name_server_name",
]

#: Threads for a shell's methods, so that a status call is answered while another one waits.
_CONTROL_CALLS = 8
#: Sends that a shared producer works on together; it is an asyncio actor.
_PRODUCER_CALLS = 1_000
#: Threads for commands that come through the actor instead of the socket; each may be parked for a second.
_INVOKE_THREADS = 32
#: Enough of a resource to be bound to its node, little enough for thousands of actors.
_TRACE = 0.001


def _options(name: str, namespace: str, resources: dict[str, float] | None = None) -> dict[str, Any]:
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
    options = _options(name_server_name(spec.index), namespace, {resource: _TRACE})
    return ray.remote(NameServer).options(**options).remote(spec)


def make_keeper(spec: KeeperSpec, namespace: str, resource: str) -> Any:
    """Start (or find) a keeper on the machine that has `resource`, where its file is."""
    from raymq.actors.keeper_actor import Keeper  # most clusters have none

    options = _options(keeper_name(spec.number), namespace, {resource: _TRACE})
    return ray.remote(Keeper).options(**options).remote(spec)


def make_broker(spec: BrokerSpec, namespace: str, resource: str) -> Any:
    """Start (or find) a broker, bound to its directory's machine by `resource`, never by node id."""
    threads = {INVOKE_GROUP: _INVOKE_THREADS}
    actor = ray.remote(concurrency_groups=threads)(Broker)  # type: ignore[call-overload] # missing in Ray's types
    name = replica_name(spec.name, spec.replica)
    return actor.options(**_options(name, namespace, {resource: _TRACE})).remote(spec)


def make_coordinator(spec: CoordinatorSpec) -> Any:
    """Start (or find) the cluster's coordinator; it may run anywhere."""
    from raymq.actors.coordinator_actor import Coordinator  # most clusters have none

    return ray.remote(Coordinator).options(**_options(COORDINATOR_NAME, spec.cluster)).remote(spec)


def make_scheduler(spec: SchedulerSpec) -> Any:
    """Start (or find) the cluster's scheduler; it may run anywhere."""
    return ray.remote(Scheduler).options(**_options(SCHEDULER_NAME, spec.namespace)).remote(spec)


def make_producer(spec: ProducerSpec, namespace: str) -> Any:
    """Start (or find) the shared producer of a group; it may run anywhere."""
    options = {**_options(producer_name(spec.group), namespace), "max_concurrency": _PRODUCER_CALLS}
    return ray.remote(Producer).options(**options).remote(spec)
