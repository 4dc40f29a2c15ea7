"""Prepare a machine for shutdown.

Its masters hand over to replicas on other machines, then the stores of its brokers are closed. The cluster's layout is
unchanged: the actors stay bound to the machine, and are started again when it returns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from raymq.actors import actor_calls
from raymq.actors.errors import RayMQError
from raymq.actors.naming import replica_name
from raymq.actors.protocol import BrokerInfo
from raymq.client import Admin, arguments
from raymq.cluster.bootstrap import Cluster

#: The share of the time for handing over; the rest is for closing stores.
_HAND_OVER_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class LeaveResult:
    """The result for one broker of this machine.

    Attributes:
        broker, replica: the broker's name and the number of its replica.
        handed_to: the replica that is master now; None if this one was not master, or no replica could take over.
        trouble: what failed; None if nothing did.
    """

    broker: str
    replica: int
    handed_to: int | None = None
    trouble: str | None = None

    @property
    def actor(self) -> str:
        """Return the name of its actor."""
        return replica_name(self.broker, self.replica)

    def with_trouble(self, error: RayMQError) -> LeaveResult:
        """Return the result with this error, unless it has an earlier one."""
        return replace(self, trouble=self.trouble or str(error))


def leave_host(mq: Cluster, timeout: float, *, dry_run: bool = False) -> list[LeaveResult]:
    """Hand over the masters on this machine and close its stores; return the results.

    An error of one broker is not raised, because the others must still be handled.

    Raises:
        InvalidInput: the time-out is invalid.
    """
    assert mq.namespace is not None
    deadline = time.monotonic() + arguments.duration("timeout", timeout, above=True)
    here = ray.get_runtime_context().get_node_id()
    results = []
    with Admin(mq) as admin:
        brokers = admin.cluster_info().brokers
        for broker in brokers:
            if broker.node_id == here:
                until = time.monotonic() + (deadline - time.monotonic()) * _HAND_OVER_SHARE
                others = [each for each in brokers if each.name == broker.name and each.node_id != here]
                results.append(_hand_over(admin, broker, others, until, dry_run=dry_run))
    return results if dry_run else close_stores(results, mq.namespace, deadline)


def close_stores(results: Sequence[LeaveResult], namespace: str, deadline: float) -> list[LeaveResult]:
    """Close the stores of all these brokers at once, until the deadline; return the results."""
    stopping: list[tuple[LeaveResult, Any]] = []
    done: list[LeaveResult] = []
    for each in results:
        try:
            stopping.append((each, actor_calls.find(each.actor, namespace).stop.remote()))
        except RayMQError as error:
            done.append(each.with_trouble(error))
    for each, ref in stopping:
        try:
            actor_calls.result(each.actor, ref, max(0.0, deadline - time.monotonic()))
        except RayMQError as error:
            done.append(each.with_trouble(error))
        else:
            done.append(each)
    return done


def choose_successor(broker: BrokerInfo, others: list[BrokerInfo]) -> int | None:
    """Return the replica that may take over from a master.

    It is the lowest-numbered replica on another machine that is running and in sync.
    """
    fit = [each.replica for each in others if each.state == "running" and each.replica in (broker.in_sync or ())]
    return min(fit, default=None)


def _hand_over(
    admin: Admin, broker: BrokerInfo, others: list[BrokerInfo], until: float, *, dry_run: bool
) -> LeaveResult:
    if broker.role != "master" or broker.in_sync is None:
        return LeaveResult(broker.name, broker.replica)
    to = choose_successor(broker, others)
    if to is None:
        return LeaveResult(broker.name, broker.replica, trouble="no replica on another machine is in sync")
    try:
        if not dry_run:
            admin.elect(broker.name, to).wait(max(0.1, until - time.monotonic()))
    except RayMQError as error:
        return LeaveResult(broker.name, broker.replica, trouble=str(error))
    return LeaveResult(broker.name, broker.replica, to)
