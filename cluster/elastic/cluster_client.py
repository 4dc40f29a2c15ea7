"""Observe a running cluster for changes of its brokers, and execute single steps.

It uses the cluster's actors, its register, and the recorded layout.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from raymq.actors import actor_calls
from raymq.actors.actor_options import make_broker
from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError, TopicNotFound
from raymq.actors.keeper.group_state import ReplicationPolicy
from raymq.actors.naming import is_system_topic, replica_name, reply_topic
from raymq.actors.protocol import ClusterView
from raymq.actors.wire.commands import broker_config_commands as whole
from raymq.actors.wire.commands.admin_commands import read_topic_stats, topic_stats_command
from raymq.actors.wire.commands.controller_commands import clean_replica_command, read_replicas, sync_state_command
from raymq.actors.wire.commands.drain_commands import (
    DrainBacklog,
    consumption_command,
    drain_backlog_command,
    read_consumption,
    read_drain_backlog,
)
from raymq.actors.wire.commands.target_broker import with_target_broker
from raymq.actors.wire.frame import Command
from raymq.client.admin import broker_removal, election_requests
from raymq.client.admin import cluster_info as admin_cluster
from raymq.client.bulk import coordinator_lookup
from raymq.client.connection import Connection
from raymq.client.requests import fan_out
from raymq.cluster import cluster_launch, cluster_stop, ray_runtime
from raymq.cluster import cluster_layout as noted
from raymq.cluster.cluster_config import ClusterConfig
from raymq.cluster.cluster_layout import ClusterLayout, group_name, replica_number
from raymq.cluster.cluster_lock import cluster_lock
from raymq.cluster.elastic.change_steps import (
    CopyMetadata,
    DeregisterGroup,
    DeregisterReplica,
    RegisterGroup,
    RestartReplica,
    SaveLayout,
    SetPermission,
    StartReplica,
    StopReplica,
    TransferMaster,
)
from raymq.cluster.elastic.observed_groups import ObservedGroup, observe_groups
from raymq.cluster.machines import addresses_by_resource

#: The seconds that a broker may take to stop before it is killed.
_STOP_SECONDS: Final = 60.0
_REQUEST_SECONDS: Final = 5.0
#: The number of topics, or consumer groups, that one request creates, ...
_BATCH_SIZE: Final = 1_000
#: ... within these seconds.
_COPY_SECONDS: Final = 30.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StartArguments:
    """The arguments with which the cluster was started."""

    directory: Path
    brokers: int
    replicas: int
    settings: ClusterConfig


class ClusterClient:
    """The client of one cluster, for use on the connection's event loop.

    Calls that wait for Ray or a disk run on other threads.
    """

    def __init__(self, mq: Connection, namespace: str) -> None:
        self.mq = mq
        self.namespace = namespace
        self._layout = ClusterLayout()
        self._ending: set[asyncio.Task[None]] = set()

    # -- observing

    async def actors(self) -> list[str]:
        """Return the names of all brokers' actors."""
        return await asyncio.to_thread(actor_calls.broker_names, self.namespace)

    async def groups(self) -> dict[str, ObservedGroup]:
        """Return all broker groups, as observed now."""
        info = await admin_cluster.info(self.mq, {})
        return observe_groups(await self.actors(), info.brokers)

    async def registered(self, group: str) -> dict[str, bool]:
        """Return the names of a group's registered replicas, and whether each is in sync."""
        answer = await self.mq.routes.ask(sync_state_command(group), _REQUEST_SECONDS)
        return {replica_name(group, number - 1): each for number, each in read_replicas(answer, group).items()}

    async def arguments(self) -> StartArguments:
        """Return the arguments with which the cluster was started.

        Raises:
            BrokerUnavailable: the cluster's layout is not recorded on this machine.
        """
        arguments = await asyncio.to_thread(cluster_launch.start_arguments, self.namespace)
        directory = Path(arguments["root"])
        if not (directory / noted.LAYOUT_FILE).exists():
            raise BrokerUnavailable(
                "cluster",
                f"{directory / noted.LAYOUT_FILE} is not on this machine: it has the list of brokers",
                remedy="run this on the machine on which the cluster was started",
            )
        return StartArguments(
            directory, arguments["brokers"], arguments["replicas"], ClusterConfig.from_dict(arguments["config"])
        )

    async def layout(self, directory: Path) -> ClusterLayout:
        """Return the recorded layout."""
        self._layout = await asyncio.to_thread(noted.load, directory)
        return self._layout

    async def machines(self) -> dict[str, str]:
        """Return the address of each machine's brokers, by the machine's resource."""
        return addresses_by_resource(await asyncio.to_thread(ray_runtime.hosts))

    async def master_address(self, group: str) -> str | None:
        """Return the address of a group's master, None if the routes have none."""
        return (await self.mq.routes.cluster()).masters.get(group)

    async def permission(self, group: str) -> int | None:
        """Return the permission that a group's master has, None if it does not answer."""
        answer = await self._request(group, whole.broker_config_command)
        return None if answer is None else whole.read_permission(answer)

    async def remains(self, group: str) -> DrainBacklog | None:
        """Return the backlog that a group reports, None if its master does not answer."""
        answer = await self._request(group, lambda: with_target_broker(group, drain_backlog_command()))
        return None if answer is None else read_drain_backlog(answer)

    async def leftovers_for_all(
        self, group: str, others: Iterable[str], without: frozenset[str] = frozenset()
    ) -> DrainBacklog | None:
        """Return the backlog of a group, including that of consumer groups without offsets there.

        These consumer groups consume a topic on other brokers, but have no offset on this one, because they were not
        running when this broker was added, or when its first messages arrived. None as `remains`. The other brokers are
        queried only if the group itself reports nothing pending, apart from the backlog of the consumer groups
        `without`: the query has a cost for them, and a drain may wait for a timer for weeks. A broker that was removed
        with `forget` on all brokers is not queried.

        Raises:
            BrokerUnavailable: one of the other groups does not report which consumer groups consume what.
        """
        remains = await self.remains(group)
        if remains is None or remains.has_pending(without):
            return remains
        here = await self._request(group, partial(_consumption_of, group))
        if here is None:
            return None
        pairs: set[tuple[str, str]] = set()
        masters = (await self.mq.routes.cluster()).masters
        for broker in others:
            if broker not in masters:
                if await self._is_forgotten(broker):  # The actor waits for a machine that does not return.
                    continue
                raise BrokerUnavailable(
                    broker,
                    "not reachable, but its list of groups and topics is needed",
                    remedy=coordinator_lookup.REMEDY,
                )
            command = partial(_consumption_of, broker)
            pairs |= read_consumption(await fan_out.request_with_retry(self.mq, masters[broker], command))
        pairs -= read_consumption(here)
        counts: dict[str, int] = {}
        for topic in sorted({topic for _, topic in pairs}):
            count = await self._messages_of(group, topic)
            if count is None:
                return None
            counts[topic] = count
        waiting = {pair: counts[pair[1]] for pair in sorted(pairs) if counts[pair[1]]}
        return replace(
            remains,
            unconsumed={**remains.unconsumed, **waiting},
            unconsumed_messages=remains.unconsumed_messages + sum(waiting.values()),
        )

    async def _is_forgotten(self, group: str) -> bool:
        """Return True if all available brokers have deleted the group from their records."""
        try:
            return await coordinator_lookup.is_forgotten(self.mq, group)
        except BrokerUnavailable:
            return False

    async def _messages_of(self, group: str, topic: str) -> int | None:
        """Return the number of a topic's messages on a group.

        Return None if the group's master does not answer.
        """
        try:
            answer = await self._request(group, partial(topic_stats_command, topic))
        except TopicNotFound:
            return 0
        return None if answer is None else sum(high - low for low, high, _ in read_topic_stats(answer).values())

    async def topics_of(self, group: str) -> dict[str, dict[str, Any]] | None:
        """Return the settings of a group's topics by name.

        Return None if its master does not answer.
        """
        answer = await self._request(group, whole.all_topics_command)
        return None if answer is None else whole.read_all_topics(answer)

    async def topics_elsewhere(self, group: str) -> dict[str, dict[str, Any]]:
        """Return the users' topics that other groups have, with their settings.

        Raises:
            BrokerUnavailable: one of the groups does not answer.
        """
        view = await self.mq.routes.cluster()
        found: dict[str, dict[str, Any]] = {}
        for broker, address in view.masters.items():
            if broker != group:
                answer = await fan_out.request_with_retry(self.mq, address, whole.all_topics_command)
                found |= whole.read_all_topics(answer)
        return _of_users(found, view)

    async def topics_only_on(self, group: str) -> list[str]:
        """Return the users' topics that no other group has.

        The list is empty if the group's master does not answer.

        Raises:
            BrokerUnavailable: another group does not answer.
        """
        there = _of_users(await self.topics_of(group) or {}, await self.mq.routes.cluster())
        return sorted(there.keys() - (await self.topics_elsewhere(group)).keys())

    async def _request(self, group: str, command: Callable[[], Command]) -> Command | None:
        try:
            address = await self.master_address(group)
            return None if address is None else await self.mq.pool.request(address, command(), _REQUEST_SECONDS)
        except BrokerUnavailable:
            return None

    # -- executing

    async def set_permission(self, step: SetPermission) -> None:
        """Set the permission of a group."""
        address = await self.master_address(step.group)
        if address is not None:
            await self.mq.pool.request(address, whole.set_permission_command(step.permission), _REQUEST_SECONDS)

    async def deregister_group(self, step: DeregisterGroup) -> None:
        """Make name servers and brokers forget a removed group.

        Raise BrokerUnavailable if one of them does not answer.
        """
        try:
            await broker_removal.forget(self.mq, step.group)
        except InvalidInput as error:  # One of several name servers has not noticed the removal yet.
            raise BrokerUnavailable(step.group, f"not every name server has removed it yet: {error}") from error

    async def found(self, arguments: StartArguments, group: str) -> None:
        """Add a group to the register."""

        def found() -> None:
            from raymq.cluster import group_bootstrap, register_setup

            settings = arguments.settings
            policy = ReplicationPolicy(settings.replication, settings.min_in_sync)
            group_bootstrap.found(register_setup.known(arguments.directory), settings.tls, [group], policy)

        await asyncio.to_thread(found)

    async def copy_metadata(self, step: CopyMetadata) -> None:
        """Create topics on a group with their settings on other groups, and all consumer groups."""
        address = await self.master_address(step.group)
        if address is None:
            return
        groups: dict[str, dict[str, Any]] = {}
        for broker, other in (await self.mq.routes.cluster()).masters.items():
            if broker != step.group:
                groups |= whole.read_all_groups(
                    await fan_out.request_with_retry(self.mq, other, whole.all_groups_command)
                )
        topics = await self.topics_elsewhere(step.group)
        for some in batched(groups.values(), _BATCH_SIZE):
            await self.mq.pool.request(address, whole.create_groups_command(some), _COPY_SECONDS)
        for batch in batched((topics[name] for name in step.topics if name in topics), _BATCH_SIZE):
            await self.mq.pool.request(address, whole.create_topics_command(batch), _COPY_SECONDS)

    async def save_layout(self, directory: Path, step: SaveLayout) -> None:
        """Record a layout, unless another change has recorded one since it was read.

        In that case the change must observe again. A start in progress uses the layout that it has read, so this call
        waits for its end first. Thus a start that began earlier cannot recreate a broker that is ended after this call.

        Raises:
            BrokerUnavailable: a start in progress does not end.
        """

        def save_layout() -> None:
            with cluster_lock(self.namespace, doing="starting or changing the cluster"):
                if noted.load(directory) == self._layout:
                    noted.save(directory, step.layout, ClusterLayout())

        await asyncio.to_thread(save_layout)

    async def start_replica(self, arguments: StartArguments, step: StartReplica) -> None:
        """Start a broker, and wait until it listens.

        Raises:
            BrokerUnavailable: its machine is not part of the Ray cluster.
            RayMQError: the broker cannot start.
        """
        host = (await self.machines()).get(step.machine)
        if host is None:
            raise BrokerUnavailable(
                step.name, f"its machine ({step.machine}) is not part of this Ray cluster", remedy="start Ray there"
            )

        def start_replica() -> None:
            register_at = None
            if arguments.replicas > 1:
                from raymq.cluster import register_setup

                register_at = register_setup.known(arguments.directory)
            listening = tuple(cluster_launch.addresses(self.namespace))
            common = cluster_launch.BrokerSpecTemplate(
                self.namespace, arguments.directory, arguments.settings, listening, register_at
            )
            spec = common.spec_of(step.name, host, arguments.replicas)
            cluster_launch.await_address(step.name, make_broker(spec, self.namespace, step.machine))

        await asyncio.to_thread(start_replica)

    async def hand_over(self, step: TransferMaster) -> str:
        """Elect a replica as master; return the error text if the election is refused.

        The planner decides whether it is tried again.
        """
        try:
            await election_requests.elect(self.mq, step.group, step.replica + 1, unclean=False, dry_run=False)
        except RayMQError as error:
            return str(error)
        return ""

    async def restart(self, step: RestartReplica) -> None:
        """Stop or kill a process, which Ray then restarts; return before it has ended."""
        handle = await asyncio.to_thread(actor_calls.find, step.name, self.namespace)
        if step.by_force:
            await asyncio.to_thread(cluster_launch.kill_process, self.namespace, step.name)
            return

        async def stop() -> None:
            with contextlib.suppress(RayMQError):  # The call never returns, because the process ends.
                await actor_calls.call_async(step.name, handle, "restart", timeout=_STOP_SECONDS)

        task = asyncio.get_running_loop().create_task(stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def stop_replica(self, step: StopReplica) -> str:
        """Stop a broker and end its actor permanently; return why any end was not clean.

        An actor that did not end cleanly was killed.
        """

        def stop_replica() -> Mapping[str, str]:
            return cluster_stop.stop_named(self.namespace, [step.name], time.monotonic() + _STOP_SECONDS)

        return "; ".join(f"{name}: {why}" for name, why in (await asyncio.to_thread(stop_replica)).items())

    async def forget(self, step: DeregisterReplica) -> None:
        """Remove a stopped replica from the register.

        A replica that still counts as in sync stays; the next observation leads to another attempt.
        """
        with contextlib.suppress(InvalidInput):
            command = clean_replica_command(group_name(step.name), replica_number(step.name) + 1)
            await self.mq.routes.ask(command, _REQUEST_SECONDS)

    async def execute_stateless(self, step: object) -> str:
        """Execute one step that does not record a layout; return a message about it."""
        if isinstance(step, TransferMaster):
            return await self.hand_over(step)
        if isinstance(step, RestartReplica):
            await self.restart(step)
        return ""

    async def do(self, step: Any, arguments: StartArguments) -> str:
        """Execute one step of any kind; return a message about it."""
        if isinstance(step, SaveLayout):
            await self.save_layout(arguments.directory, step)
        elif isinstance(step, StartReplica):
            await self.start_replica(arguments, step)
        elif isinstance(step, TransferMaster):
            return await self.hand_over(step)
        elif isinstance(step, StopReplica):
            return await self.stop_replica(step)
        elif isinstance(step, DeregisterReplica):
            await self.forget(step)
        elif isinstance(step, SetPermission):
            await self.set_permission(step)
        elif isinstance(step, DeregisterGroup):
            await self.deregister_group(step)
        elif isinstance(step, RegisterGroup):
            await self.found(arguments, step.group)
        elif isinstance(step, CopyMetadata):
            await self.copy_metadata(step)
        return ""


def _consumption_of(group: str) -> Command:
    return with_target_broker(group, consumption_command())


def _of_users(topics: Mapping[str, dict[str, Any]], view: ClusterView) -> dict[str, dict[str, Any]]:
    """Return the topics without system topics and each broker's own topics."""
    own = {each for broker, (cluster, _) in view.brokers.items() for each in (broker, cluster, reply_topic(cluster))}
    return {name: each for name, each in topics.items() if not is_system_topic(name) and name not in own}


def batched(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield the items in lists of `size`, like `itertools.batched` of Python 3.12."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
