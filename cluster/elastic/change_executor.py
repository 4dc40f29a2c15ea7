"""Execute changes of a cluster's brokers: observe, plan, execute a step, and repeat."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from raymq.actors.errors import InvalidInput, broker_not_found
from raymq.actors.naming import host_resource, is_replica_of, replica_name
from raymq.client.cluster_changes import DrainOptions, ReportStep
from raymq.client.connection import Connection
from raymq.client.results import BrokerChange
from raymq.cluster.cluster_layout import ClusterLayout, group_name
from raymq.cluster.cluster_lock import cluster_lock
from raymq.cluster.elastic import replica_planner, rolling_restart, scale_out_planner
from raymq.cluster.elastic.cluster_client import ClusterClient, StartArguments
from raymq.cluster.elastic.drain_planner import (
    DrainPlanner,
    DrainState,
    count_writable_groups,
    describe_pending,
    describe_permanent,
    next_cancel_step,
)
from raymq.cluster.elastic.observed_groups import ObservedGroup
from raymq.cluster.elastic.reconcile_loop import run_until_done
from raymq.cluster.elastic.replica_planner import ReplicaChange, ReplicaChangePlanner, ReplicaChangeState
from raymq.cluster.elastic.rolling_restart import RollingRestartPlanner
from raymq.cluster.elastic.scale_out_planner import ScaleOut, ScaleOutPlanner, ScaleOutState
from raymq.cluster.replica_placement import least_loaded_machine


class ChangeExecutor:
    """The changes of one cluster; see `client.cluster_changes.ClusterChanges`.

    Its methods are called on the connection's event loop.
    """

    def __init__(self, mq: Connection, namespace: str) -> None:
        self._namespace = namespace
        self._client = ClusterClient(mq, namespace)

    async def restart(self, broker: str | None, report: ReportStep, *, dry_run: bool) -> BrokerChange:
        """Restart brokers one after the other; see `Admin.restart`."""
        ground = self._client
        names = [name for name in await ground.actors() if broker is None or _matches_broker(name, broker)]
        if not names:
            raise broker_not_found(broker or "of any name", f"namespace {self._namespace}")
        if dry_run:
            return BrokerChange(names, rolling_restart.dry_run_steps(names, await ground.groups()), dry_run=True)
        plan = RollingRestartPlanner(names, time.monotonic)
        async with self._change_lock():
            steps = await run_until_done(ground.groups, plan.next, ground.execute_stateless, report)
        return BrokerChange(plan.done, steps)

    async def add_replica(self, group: str, host: str | None, report: ReportStep, *, dry_run: bool) -> BrokerChange:
        """Add a replica to a group; see `Admin.add_broker`."""
        arguments, scene = await self._scene(group)
        machine = "" if host is None else await self._machine(host)
        change = ReplicaChange("add", replica_planner.free_replica_name(group, scene), machine)
        change = replica_planner.planned(group, change, arguments.settings.min_in_sync, scene)
        if not change.machine:
            machines = sorted(await self._client.machines())
            change = replace(change, machine=least_loaded_machine(scene.layout, group, machines))
        return await self._replace(group, change, arguments, scene, report, dry_run=dry_run)

    async def move(self, group: str, replica: int, host: str, report: ReportStep, *, dry_run: bool) -> BrokerChange:
        """Move a replica to another machine; see `Admin.move`."""
        arguments, scene = await self._scene(group)
        new, old = replica_planner.free_replica_name(group, scene), replica_name(group, replica)
        change = ReplicaChange("move", new, await self._machine(host), old)
        change = replica_planner.planned(group, change, arguments.settings.min_in_sync, scene)
        return await self._replace(group, change, arguments, scene, report, dry_run=dry_run)

    async def remove_replica(self, name: str, report: ReportStep, *, dry_run: bool) -> BrokerChange:
        """Remove a replica; see `Admin.remove_broker`."""
        group = group_name(name)
        arguments, scene = await self._scene(group)
        change = ReplicaChange("remove", old=name)
        change = replica_planner.planned(group, change, arguments.settings.min_in_sync, scene)
        return await self._replace(group, change, arguments, scene, report, dry_run=dry_run)

    async def add_group(
        self,
        name: str | None,
        replicas: int | None,
        host: str | None,
        topics: Sequence[str] | None,
        report: ReportStep,
        *,
        dry_run: bool,
    ) -> BrokerChange:
        """Add a broker group; see `Admin.add_broker`."""
        ground = self._client
        arguments = await ground.arguments()
        layout = await ground.layout(arguments.directory)
        count = arguments.replicas if replicas is None else replicas
        if (count > 1) != (arguments.replicas > 1):
            raise InvalidInput("replicas", f"{arguments.replicas}, as the other groups have", count)
        group = scale_out_planner.planned(layout, arguments.brokers, name, await ground.groups())
        if group in layout.pending_changes:
            change = ScaleOut.from_json(group, layout.pending_changes[group])
        else:
            if topics is not None:
                await self._check_topics(topics)
            machines = await self._machines_for(group, count, host, layout)
            change = ScaleOut(group, machines, None if topics is None else tuple(topics))
        plan, names = ScaleOutPlanner(change, time.monotonic), list(change.machines)
        if dry_run:
            missing_topics = await self._lacks(change, if_away=())
            return BrokerChange(
                names,
                scale_out_planner.dry_run_steps(change, layout, missing_topics, is_replicated=count > 1),
                dry_run=True,
            )
        async with self._change_lock():
            look, do = partial(self._grow_scene, arguments, change), partial(self._do, arguments, plan.record_done)
            steps = await run_until_done(look, plan.next, do, report)
        return BrokerChange(names, steps)

    async def drain(
        self, group: str, options: DrainOptions, report: ReportStep, *, cancel: bool = False, dry_run: bool
    ) -> BrokerChange:
        """Drain a broker group; see `Admin.drain`."""
        arguments = await self._client.arguments()
        without = None if cancel else options.without
        scene = await self._drain_scene(arguments, group, without)
        if not scene.actors and group not in scene.layout.pending_changes:
            raise broker_not_found(group, f"namespace {self._namespace}")
        names = list(scene.actors)
        retained = [f"{scene.layout.machines.get(name, '')}:{arguments.directory / name}" for name in names]
        is_new = not cancel and group not in scene.layout.pending_changes
        plan = DrainPlanner(group, options, await self._client.topics_only_on(group) if is_new else ())
        if dry_run:
            words = [f"{group} has {each}" for each in self._left_in_words(scene, options) if each]
            first = next_cancel_step(group, scene.layout, scene.permission) if cancel else plan.next(scene)
            return BrokerChange(names, [*words, *([] if first is None else [str(first)])], dry_run=True)

        def next_step(now: DrainState) -> object | None:
            return next_cancel_step(group, now.layout, now.permission) if cancel else plan.next(now)

        async with self._change_lock(f".{group}"):
            look, do = (
                partial(self._drain_scene, arguments, group, without),
                partial(self._do, arguments, plan.record_done),
            )
            steps = await run_until_done(look, next_step, do, report)
        return BrokerChange(names, steps, kept=retained if options.remove and not cancel else [])

    async def _do(self, arguments: StartArguments, record_done: Callable[[object], None], step: object) -> str:
        result = await self._client.do(step, arguments)
        record_done(step)
        return result

    @staticmethod
    def _left_in_words(scene: DrainState, options: DrainOptions) -> list[str]:
        if scene.remains is None:
            return []
        return [describe_pending(scene.remains, options.without), describe_permanent(scene.remains)]

    async def _drain_scene(self, arguments: StartArguments, group: str, without: frozenset[str] | None) -> DrainState:
        """Observe a group that is drained.

        `without` names the consumer groups that the drain does not wait for; None: the drain is cancelled and waits for
        none.
        """
        ground = self._client
        groups, layout = await ground.groups(), await ground.layout(arguments.directory)
        seen = groups.get(group)
        replicas = [] if seen is None else sorted(seen.replicas.values(), key=lambda each: each.is_master)
        is_routed, others = await ground.master_address(group) is not None, sorted(groups.keys() - {group})
        return DrainState(
            layout,
            tuple(each.name for each in replicas),
            await ground.permission(group),
            await (ground.remains(group) if without is None else ground.leftovers_for_all(group, others, without)),
            is_routed=is_routed,
            others=count_writable_groups(groups, layout, group),
        )

    async def _grow_scene(self, arguments: StartArguments, change: ScaleOut) -> ScaleOutState:
        ground = self._client
        groups, actors = await ground.groups(), await ground.actors()
        return ScaleOutState(
            await ground.layout(arguments.directory),
            actors,
            groups.get(change.name),
            is_replicated=arguments.replicas > 1,
            missing_topics=await self._lacks(change),
        )

    async def _lacks(self, change: ScaleOut, if_away: Iterable[str] | None = None) -> tuple[str, ...] | None:
        """Return the topics that a new group must have and lacks.

        Return None if the group does not answer yet, unless `if_away` gives the topics to assume in that case.
        """
        elsewhere = await self._client.topics_elsewhere(change.name)
        there = await self._client.topics_of(change.name)
        names = [name for name, each in elsewhere.items() if not each.get("order")]
        requested = names if change.topics is None else [name for name in change.topics if name in elsewhere]
        has = there if there is not None else if_away
        return None if has is None else tuple(sorted(set(requested).difference(has)))

    async def _check_topics(self, topics: Sequence[str]) -> None:
        unknown = sorted(set(topics) - (await self._client.topics_elsewhere("")).keys())
        if unknown:
            raise InvalidInput("topics", "topics that exist", ", ".join(unknown))

    async def _machines_for(self, group: str, count: int, host: str | None, layout: ClusterLayout) -> dict[str, str]:
        """Return the machines of a new group's replicas.

        The machine `host` comes first if given; the others are those with the most room.
        """
        machines, found = sorted(await self._client.machines()), dict[str, str]()
        for number in range(count):
            first = host if number == 0 else None
            machine = least_loaded_machine(layout, group, machines) if first is None else await self._machine(first)
            found[replica_name(group, number)] = machine
            layout = layout.with_added(found)
        return found

    async def _replace(
        self,
        group: str,
        change: ReplicaChange,
        arguments: StartArguments,
        scene: ReplicaChangeState,
        report: ReportStep,
        *,
        dry_run: bool,
    ) -> BrokerChange:
        names = [name for name in (change.new, change.old) if name is not None]
        retained = []
        if change.old is not None and (machine := scene.layout.machines.get(change.old)):
            retained = [f"{machine}:{arguments.directory / change.old}"]
        if dry_run:
            return BrokerChange(names, replica_planner.dry_run_steps(group, change, scene), dry_run=True, kept=retained)
        plan = ReplicaChangePlanner(group, change, time.monotonic)

        async def look() -> ReplicaChangeState:
            return (await self._scene(group))[1]

        async with self._change_lock():
            steps = await run_until_done(look, plan.next, partial(self._client.do, arguments=arguments), report)
        return BrokerChange(names, steps, kept=retained)

    async def _scene(self, group: str) -> tuple[StartArguments, ReplicaChangeState]:
        ground = self._client
        arguments = await ground.arguments()
        if arguments.replicas == 1:
            raise InvalidInput(
                "broker",
                "a broker of a group that has replicas",
                group,
                remedy="stop the cluster and start it with replicas=2: the existing copies become the first replicas",
            )
        groups, actors = await ground.groups(), frozenset(await ground.actors())
        layout = await ground.layout(arguments.directory)
        if group not in groups and group not in layout.pending_changes:
            raise broker_not_found(group, f"namespace {self._namespace}")
        ours = frozenset(name for name in actors if is_replica_of(name, group))
        seen = groups.get(group) or ObservedGroup(group, {})
        return arguments, ReplicaChangeState(layout, ours, seen, await ground.registered(group))

    async def _machine(self, host: str) -> str:
        """Return the resource of the machine with that name or address."""
        machines = await self._client.machines()
        matching = {resource for resource, address in machines.items() if host in (resource, address)}
        matching |= {host_resource(host)} & machines.keys()
        # A machine's identity is its host name and a random suffix.
        matching = matching or {each for each in machines if each.rpartition("-")[0] == host_resource(host)}
        if len(matching) != 1:
            raise InvalidInput("host", f"the name or the address of one of {', '.join(sorted(machines))}", host)
        return matching.pop()

    @contextlib.asynccontextmanager
    async def _change_lock(self, what: str = "") -> AsyncIterator[None]:
        """Serialize the changes of a cluster among this user's processes on this machine.

        `what` marks a change that may take days; it excludes only changes of the same kind.
        """
        with cluster_lock(f"{self._namespace}.changes{what}", 0.0, 0.0, "changing the brokers of the cluster"):
            yield


def _matches_broker(actor: str, broker: str) -> bool:
    """Return True if an actor belongs to the named group or is the named replica."""
    group, _, number = broker.partition(".")
    return is_replica_of(actor, broker) or (number == "0" and actor == replica_name(group, 0))
