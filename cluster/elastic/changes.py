"""Carries out changes of a cluster's brokers: looks, asks what is next, does it, and looks again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from raymq.actors.errors import InvalidInput, broker_not_found
from raymq.actors.naming import host_resource, is_replica_of, replica_name
from raymq.client.cluster_changes import DrainWish
from raymq.client.connection import Connection
from raymq.client.results import BrokerChange
from raymq.cluster.elastic import growing, replacing, rolling
from raymq.cluster.elastic.carrying_out import carried_out
from raymq.cluster.elastic.draining import Draining, DrainScene, cancelled, in_words, stays_in_words, takers
from raymq.cluster.elastic.ground import Arguments, Ground
from raymq.cluster.elastic.growing import Growing, GrowScene, NewGroup
from raymq.cluster.elastic.replacing import Replacement, Replacing, Scene
from raymq.cluster.elastic.rolling import RollingRestart
from raymq.cluster.elastic.seen import GroupSeen
from raymq.cluster.layout import Layout, group_of
from raymq.cluster.placement import roomiest
from raymq.cluster.start_lock import alone

Told = Callable[[str], None]


class Changes:
    """Of one cluster; see `client.cluster_changes.ClusterChanges`. Used on the connection's loop."""

    def __init__(self, mq: Connection, namespace: str) -> None:
        self._namespace = namespace
        self._ground = Ground(mq, namespace)

    async def restart(self, broker: str | None, told: Told, *, dry_run: bool) -> BrokerChange:
        """See `Admin.restart`."""
        ground = self._ground
        names = [name for name in await ground.actors() if broker is None or _is_meant(name, broker)]
        if not names:
            raise broker_not_found(broker or "of any name", f"namespace {self._namespace}")
        if dry_run:
            return BrokerChange(names, rolling.rehearsed(names, await ground.groups()), dry_run=True)
        plan = RollingRestart(names, time.monotonic)
        async with self._alone():
            steps = await carried_out(ground.groups, plan.next, ground.do_without_notes, told)
        return BrokerChange(plan.done, steps)

    async def add_replica(self, group: str, host: str | None, told: Told, *, dry_run: bool) -> BrokerChange:
        """See `Admin.add_broker`."""
        arguments, scene = await self._scene(group)
        machine = "" if host is None else await self._machine(host)
        wanted = Replacement("add", replacing.free_name(group, scene), machine)
        wanted = replacing.planned(group, wanted, arguments.settings.min_in_sync, scene)
        if not wanted.machine:
            machines = sorted(await self._ground.machines())
            wanted = replace(wanted, machine=roomiest(scene.layout, group, machines))
        return await self._replace(group, wanted, arguments, scene, told, dry_run=dry_run)

    async def move(self, group: str, replica: int, host: str, told: Told, *, dry_run: bool) -> BrokerChange:
        """See `Admin.move`."""
        arguments, scene = await self._scene(group)
        new, old = replacing.free_name(group, scene), replica_name(group, replica)
        wanted = Replacement("move", new, await self._machine(host), old)
        wanted = replacing.planned(group, wanted, arguments.settings.min_in_sync, scene)
        return await self._replace(group, wanted, arguments, scene, told, dry_run=dry_run)

    async def remove_replica(self, name: str, told: Told, *, dry_run: bool) -> BrokerChange:
        """See `Admin.remove_broker`."""
        group = group_of(name)
        arguments, scene = await self._scene(group)
        wanted = Replacement("remove", old=name)
        wanted = replacing.planned(group, wanted, arguments.settings.min_in_sync, scene)
        return await self._replace(group, wanted, arguments, scene, told, dry_run=dry_run)

    async def add_group(
        self,
        name: str | None,
        replicas: int | None,
        host: str | None,
        topics: Sequence[str] | None,
        told: Told,
        *,
        dry_run: bool,
    ) -> BrokerChange:
        """See `Admin.add_broker`."""
        ground = self._ground
        arguments = await ground.arguments()
        layout = await ground.layout(arguments.directory)
        count = arguments.replicas if replicas is None else replicas
        if (count > 1) != (arguments.replicas > 1):
            raise InvalidInput("replicas", f"{arguments.replicas}, as the other groups have", count)
        group = growing.planned(layout, arguments.brokers, name, await ground.groups())
        if group in layout.under_way:
            wanted = NewGroup.from_json(group, layout.under_way[group])
        else:
            if topics is not None:
                await self._check_topics(topics)
            machines = await self._machines_for(group, count, host, layout)
            wanted = NewGroup(group, machines, None if topics is None else tuple(topics))
        plan, names = Growing(wanted, time.monotonic), list(wanted.machines)
        if dry_run:
            lacks = await self._lacks(wanted, if_away=())
            return BrokerChange(names, growing.rehearsed(wanted, layout, lacks, is_replicated=count > 1), dry_run=True)
        async with self._alone():
            look, do = partial(self._grow_scene, arguments, wanted), partial(self._do, arguments, plan.did)
            steps = await carried_out(look, plan.next, do, told)
        return BrokerChange(names, steps)

    async def drain(
        self, group: str, wanted: DrainWish, told: Told, *, cancel: bool = False, dry_run: bool
    ) -> BrokerChange:
        """See `Admin.drain`."""
        arguments = await self._ground.arguments()
        without = None if cancel else wanted.without
        scene = await self._drain_scene(arguments, group, without)
        if not scene.actors and group not in scene.layout.under_way:
            raise broker_not_found(group, f"namespace {self._namespace}")
        names = list(scene.actors)
        kept = [f"{scene.layout.machines.get(name, '')}:{arguments.directory / name}" for name in names]
        is_new = not cancel and group not in scene.layout.under_way
        plan = Draining(group, wanted, await self._ground.topics_only_on(group) if is_new else ())
        if dry_run:
            words = [f"{group} has {each}" for each in self._left_in_words(scene, wanted) if each]
            first = cancelled(group, scene.layout, scene.permission) if cancel else plan.next(scene)
            return BrokerChange(names, [*words, *([] if first is None else [str(first)])], dry_run=True)

        def next_step(now: DrainScene) -> object | None:
            return cancelled(group, now.layout, now.permission) if cancel else plan.next(now)

        async with self._alone(f".{group}"):
            look, do = (
                partial(self._drain_scene, arguments, group, without),
                partial(self._do, arguments, plan.did),
            )
            steps = await carried_out(look, next_step, do, told)
        return BrokerChange(names, steps, kept=kept if wanted.remove and not cancel else [])

    async def _do(self, arguments: Arguments, did: Callable[[object], None], step: object) -> str:
        said = await self._ground.do(step, arguments)
        did(step)
        return said

    @staticmethod
    def _left_in_words(scene: DrainScene, wanted: DrainWish) -> list[str]:
        if scene.remains is None:
            return []
        return [in_words(scene.remains, wanted.without), stays_in_words(scene.remains)]

    async def _drain_scene(self, arguments: Arguments, group: str, without: frozenset[str] | None) -> DrainScene:
        """`without`: the consumer groups that are not waited for; None: nothing is, it is taken back."""
        ground = self._ground
        groups, layout = await ground.groups(), await ground.layout(arguments.directory)
        seen = groups.get(group)
        replicas = [] if seen is None else sorted(seen.replicas.values(), key=lambda each: each.is_master)
        is_routed, others = await ground.master_address(group) is not None, sorted(groups.keys() - {group})
        return DrainScene(
            layout,
            tuple(each.name for each in replicas),
            await ground.permission(group),
            await (ground.remains(group) if without is None else ground.remains_for_all(group, others, without)),
            is_routed=is_routed,
            others=takers(groups, layout, group),
        )

    async def _grow_scene(self, arguments: Arguments, wanted: NewGroup) -> GrowScene:
        ground = self._ground
        groups, actors = await ground.groups(), await ground.actors()
        return GrowScene(
            await ground.layout(arguments.directory),
            actors,
            groups.get(wanted.name),
            is_replicated=arguments.replicas > 1,
            lacks=await self._lacks(wanted),
        )

    async def _lacks(self, wanted: NewGroup, if_away: Iterable[str] | None = None) -> tuple[str, ...] | None:
        """The topics that are to be on a new group, and are not; None: it does not answer yet.

        `if_away`: those that it has while it does not answer; None: that is not known.
        """
        elsewhere = await self._ground.topics_elsewhere(wanted.name)
        there = await self._ground.topics_of(wanted.name)
        names = [name for name, each in elsewhere.items() if not each.get("order")]
        wished = names if wanted.topics is None else [name for name in wanted.topics if name in elsewhere]
        has = there if there is not None else if_away
        return None if has is None else tuple(sorted(set(wished).difference(has)))

    async def _check_topics(self, topics: Sequence[str]) -> None:
        unknown = sorted(set(topics) - (await self._ground.topics_elsewhere("")).keys())
        if unknown:
            raise InvalidInput("topics", "topics that there are", ", ".join(unknown))

    async def _machines_for(self, group: str, count: int, host: str | None, layout: Layout) -> dict[str, str]:
        """The machines of a new group's replicas: the named one first, then those with most room."""
        machines, found = sorted(await self._ground.machines()), dict[str, str]()
        for number in range(count):
            first = host if number == 0 else None
            machine = roomiest(layout, group, machines) if first is None else await self._machine(first)
            found[replica_name(group, number)] = machine
            layout = layout.with_added(found)
        return found

    async def _replace(
        self, group: str, wanted: Replacement, arguments: Arguments, scene: Scene, told: Told, *, dry_run: bool
    ) -> BrokerChange:
        names = [name for name in (wanted.new, wanted.old) if name is not None]
        kept = []
        if wanted.old is not None and (machine := scene.layout.machines.get(wanted.old)):
            kept = [f"{machine}:{arguments.directory / wanted.old}"]
        if dry_run:
            return BrokerChange(names, replacing.rehearsed(group, wanted, scene), dry_run=True, kept=kept)
        plan = Replacing(group, wanted, time.monotonic)

        async def look() -> Scene:
            return (await self._scene(group))[1]

        async with self._alone():
            steps = await carried_out(look, plan.next, partial(self._ground.do, arguments=arguments), told)
        return BrokerChange(names, steps, kept=kept)

    async def _scene(self, group: str) -> tuple[Arguments, Scene]:
        ground = self._ground
        arguments = await ground.arguments()
        if arguments.replicas == 1:
            raise InvalidInput(
                "broker",
                "of a cluster whose groups have replicas",
                group,
                remedy="stop the cluster and start it with replicas=2: what is there becomes the first of them",
            )
        groups, actors = await ground.groups(), frozenset(await ground.actors())
        layout = await ground.layout(arguments.directory)
        if group not in groups and group not in layout.under_way:
            raise broker_not_found(group, f"namespace {self._namespace}")
        ours = frozenset(name for name in actors if is_replica_of(name, group))
        seen = groups.get(group) or GroupSeen(group, {})
        return arguments, Scene(layout, ours, seen, await ground.registered(group))

    async def _machine(self, host: str) -> str:
        """The resource of the machine of that name or address."""
        machines = await self._ground.machines()
        meant = {resource for resource, address in machines.items() if host in (resource, address)}
        meant |= {host_resource(host)} & machines.keys()
        # Behind its host's name a machine's own has something random.
        meant = meant or {each for each in machines if each.rpartition("-")[0] == host_resource(host)}
        if len(meant) != 1:
            raise InvalidInput("host", f"the name or the address of one of {', '.join(sorted(machines))}", host)
        return meant.pop()

    @contextlib.asynccontextmanager
    async def _alone(self, what: str = "") -> AsyncIterator[None]:
        """One change of a cluster at a time, as far as this user's processes on this machine go.

        `what`: one that may take days; it keeps only its like out.
        """
        with alone(f"{self._namespace}.changes{what}", 0.0, 0.0, "changing the brokers of the cluster"):
            yield


def _is_meant(actor: str, broker: str) -> bool:
    """Whether an actor is a replica of that group, or the replica that is named."""
    group, _, number = broker.partition(".")
    return is_replica_of(actor, broker) or (number == "0" and actor == replica_name(group, 0))
