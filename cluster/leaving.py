"""Taking a machine down: what its brokers are masters of goes to replicas elsewhere, then their stores are closed.

Nothing of the cluster changes by that: the actors stay bound to the machine, and are started again when it is back.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from raymq.actors import handles
from raymq.actors.errors import RayMQError
from raymq.actors.naming import replica_name
from raymq.actors.protocol import BrokerInfo
from raymq.client import Admin, arguments
from raymq.cluster.bootstrap import Cluster

#: What of the time may go into handing over; the rest is for closing stores.
_HAND_OVER_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Left:
    """What became of one broker of this machine.

    Attributes:
        broker, replica: who it is.
        handed_to: the replica that is master now; None where this one was none, or nobody could take over.
        trouble: what did not go well; None if all did.
    """

    broker: str
    replica: int
    handed_to: int | None = None
    trouble: str | None = None

    @property
    def actor(self) -> str:
        """The name of its actor."""
        return replica_name(self.broker, self.replica)

    def with_trouble(self, error: RayMQError) -> Left:
        """With what has failed, unless something did before."""
        return replace(self, trouble=self.trouble or str(error))


def leave(mq: Cluster, timeout: float, *, dry_run: bool = False) -> list[Left]:
    """Hand over, and close the stores of the brokers on this machine; what became of each. Nothing is raised for one
    that does not go well: the others still have to.

    Raises:
        InvalidInput: no such time-out can be.
    """
    assert mq.namespace is not None
    deadline = time.monotonic() + arguments.duration("timeout", timeout, above=True)
    here = ray.get_runtime_context().get_node_id()
    left = []
    with Admin(mq) as admin:
        brokers = admin.cluster_info().brokers
        for broker in brokers:
            if broker.node_id == here:
                until = time.monotonic() + (deadline - time.monotonic()) * _HAND_OVER_SHARE
                others = [each for each in brokers if each.name == broker.name and each.node_id != here]
                left.append(_hand_over(admin, broker, others, until, dry_run=dry_run))
    return left if dry_run else closed(left, mq.namespace, deadline)


def closed(left: Sequence[Left], namespace: str, deadline: float) -> list[Left]:
    """Close the stores of all of them at once, until then; what became of each."""
    stopping: list[tuple[Left, Any]] = []
    done: list[Left] = []
    for each in left:
        try:
            stopping.append((each, handles.find(each.actor, namespace).stop.remote()))
        except RayMQError as error:
            done.append(each.with_trouble(error))
    for each, ref in stopping:
        try:
            handles.result(each.actor, ref, max(0.0, deadline - time.monotonic()))
        except RayMQError as error:
            done.append(each.with_trouble(error))
        else:
            done.append(each)
    return done


def successor(broker: BrokerInfo, others: list[BrokerInfo]) -> int | None:
    """The replica elsewhere that may take over from a master: in sync and running, the lowest number of them."""
    fit = [each.replica for each in others if each.state == "running" and each.replica in (broker.in_sync or ())]
    return min(fit, default=None)


def _hand_over(admin: Admin, broker: BrokerInfo, others: list[BrokerInfo], until: float, *, dry_run: bool) -> Left:
    if broker.role != "master" or broker.in_sync is None:
        return Left(broker.name, broker.replica)
    to = successor(broker, others)
    if to is None:
        return Left(broker.name, broker.replica, trouble="no replica on another machine is in sync")
    try:
        if not dry_run:
            admin.elect(broker.name, to).wait(max(0.1, until - time.monotonic()))
    except RayMQError as error:
        return Left(broker.name, broker.replica, trouble=str(error))
    return Left(broker.name, broker.replica, to)
