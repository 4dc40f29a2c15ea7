"""What a change of brokers stands on: the running cluster's actors, its register, and what is written down of it."""

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

from raymq.actors import handles
from raymq.actors.actor_options import make_broker
from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError, TopicNotFound
from raymq.actors.keeper.group_state import ReplicationPolicy
from raymq.actors.naming import is_system_topic, replica_name, reply_topic
from raymq.actors.protocol import ClusterView
from raymq.actors.wire.commands import whole_broker as whole
from raymq.actors.wire.commands.admin import read_topic_stats, topic_stats_command
from raymq.actors.wire.commands.controller import clean_command, read_replicas, sync_state_command
from raymq.actors.wire.commands.meant import meant_for
from raymq.actors.wire.commands.remains import (
    Leftovers,
    consumption_command,
    read_consumption,
    read_remains,
    remains_command,
)
from raymq.actors.wire.frame import Command
from raymq.client.admin import brokers, elections
from raymq.client.admin import cluster as admin_cluster
from raymq.client.bulk import home
from raymq.client.connection import Connection
from raymq.client.requests import fan_out
from raymq.cluster import launching, ray_runtime, stopping
from raymq.cluster import layout as noted
from raymq.cluster.config import ClusterConfig
from raymq.cluster.elastic.seen import GroupSeen, groups_seen
from raymq.cluster.elastic.steps import (
    End,
    Forget,
    ForgetGroup,
    FoundGroup,
    HandOver,
    Make,
    Permit,
    Restart,
    Spread,
    WriteDown,
)
from raymq.cluster.layout import Layout, group_of, number_of
from raymq.cluster.machines import by_resource
from raymq.cluster.start_lock import alone

#: What a broker may take to stop before it is killed.
_STOP_SECONDS: Final = 60.0
_ASK_SECONDS: Final = 5.0
#: So many topics, or consumer groups, are made at once, ...
_AT_ONCE: Final = 1_000
#: ... within this time.
_SPREAD_SECONDS: Final = 30.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the cluster was started with."""

    directory: Path
    brokers: int
    replicas: int
    settings: ClusterConfig


class Ground:
    """Of one cluster. Used on the connection's loop; what waits for Ray or a disk is done on other threads."""

    def __init__(self, mq: Connection, namespace: str) -> None:
        self.mq = mq
        self.namespace = namespace
        self._layout = Layout()
        self._ending: set[asyncio.Task[None]] = set()

    # -- looking

    async def actors(self) -> list[str]:
        """The names of all brokers' actors."""
        return await asyncio.to_thread(handles.broker_names, self.namespace)

    async def groups(self) -> dict[str, GroupSeen]:
        """All broker groups, as they are now."""
        info = await admin_cluster.info(self.mq, {})
        return groups_seen(await self.actors(), info.brokers)

    async def registered(self, group: str) -> dict[str, bool]:
        """The names of a group's replicas that the register knows, and whether each is in sync."""
        answer = await self.mq.routes.ask(sync_state_command(group), _ASK_SECONDS)
        return {replica_name(group, number - 1): each for number, each in read_replicas(answer, group).items()}

    async def arguments(self) -> Arguments:
        """What the cluster was started with.

        Raises:
            BrokerUnavailable: what is written down of it is not on this machine.
        """
        told = await asyncio.to_thread(launching.told_arguments, self.namespace)
        directory = Path(told["root"])
        if not (directory / noted.LAYOUT_FILE).exists():
            raise BrokerUnavailable(
                "cluster",
                f"{directory / noted.LAYOUT_FILE} is not on this machine: it says which brokers there are",
                remedy="do it on the machine on which the cluster was started",
            )
        return Arguments(directory, told["brokers"], told["replicas"], ClusterConfig.from_dict(told["config"]))

    async def layout(self, directory: Path) -> Layout:
        """What is written down."""
        self._layout = await asyncio.to_thread(noted.load, directory)
        return self._layout

    async def machines(self) -> dict[str, str]:
        """By its resource: where the brokers of each machine listen."""
        return by_resource(await asyncio.to_thread(ray_runtime.hosts))

    async def master_address(self, group: str) -> str | None:
        """Where a group's master listens; None: it has none in the routes."""
        return (await self.mq.routes.cluster()).masters.get(group)

    async def permission(self, group: str) -> int | None:
        """What a group's master lets clients do; None: it does not answer."""
        answer = await self._ask(group, whole.settings_command)
        return None if answer is None else whole.read_permission(answer)

    async def remains(self, group: str) -> Leftovers | None:
        """What is left on a group, as it knows itself; None: its master does not answer."""
        answer = await self._ask(group, lambda: meant_for(group, remains_command()))
        return None if answer is None else read_remains(answer)

    async def remains_for_all(
        self, group: str, others: Iterable[str], without: frozenset[str] = frozenset()
    ) -> Leftovers | None:
        """What is left on a group, also for consumer groups that consume a topic on others, and have no offset here:
        they were away when the broker came, or when its first messages did. None as `remains`.

        Others are only asked where nothing is left of what the group knows itself, but for those of the consumer groups
        `without`: to tell it costs them something, and a drain may wait for a timer for weeks. Nor is one asked that is
        gone for good, as all were told.

        Raises:
            BrokerUnavailable: one of the other groups does not say who consumes what.
        """
        remains = await self.remains(group)
        if remains is None or remains.are_awaited(without):
            return remains
        here = await self._ask(group, partial(_consumption_of, group))
        if here is None:
            return None
        pairs: set[tuple[str, str]] = set()
        masters = (await self.mq.routes.cluster()).masters
        for broker in others:
            if broker not in masters:
                if await self._is_forgotten(broker):  # its actor waits for a machine that does not come back
                    continue
                raise BrokerUnavailable(
                    broker, "it is away, and has to say which groups consume what", remedy=home.REMEDY
                )
            command = partial(_consumption_of, broker)
            pairs |= read_consumption(await fan_out.ask_broker(self.mq, masters[broker], command))
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
        """Whether all that are there surely say that it is gone for good."""
        try:
            return await home.is_forgotten(self.mq, group)
        except BrokerUnavailable:
            return False

    async def _messages_of(self, group: str, topic: str) -> int | None:
        """How many messages of a topic a group has; None: its master does not answer."""
        try:
            answer = await self._ask(group, partial(topic_stats_command, topic))
        except TopicNotFound:
            return 0
        return None if answer is None else sum(high - low for low, high, _ in read_topic_stats(answer).values())

    async def topics_of(self, group: str) -> dict[str, dict[str, Any]] | None:
        """The settings of all topics of a group, by name; None: its master does not answer."""
        answer = await self._ask(group, whole.all_topics_command)
        return None if answer is None else whole.read_all_topics(answer)

    async def topics_elsewhere(self, group: str) -> dict[str, dict[str, Any]]:
        """Those of users, as other groups have them.

        Raises:
            BrokerUnavailable: one does not answer.
        """
        view = await self.mq.routes.cluster()
        found: dict[str, dict[str, Any]] = {}
        for broker, address in view.masters.items():
            if broker != group:
                answer = await fan_out.ask_broker(self.mq, address, whole.all_topics_command)
                found |= whole.read_all_topics(answer)
        return _of_users(found, view)

    async def topics_only_on(self, group: str) -> list[str]:
        """Those of users that no other group has; none where its master does not answer.

        Raises:
            BrokerUnavailable: another group does not answer.
        """
        there = _of_users(await self.topics_of(group) or {}, await self.mq.routes.cluster())
        return sorted(there.keys() - (await self.topics_elsewhere(group)).keys())

    async def _ask(self, group: str, command: Callable[[], Command]) -> Command | None:
        try:
            address = await self.master_address(group)
            return None if address is None else await self.mq.pool.request(address, command(), _ASK_SECONDS)
        except BrokerUnavailable:
            return None

    # -- doing

    async def permit(self, step: Permit) -> None:
        """Have a group let clients do less, or more."""
        address = await self.master_address(step.group)
        if address is not None:
            await self.mq.pool.request(address, whole.permit_command(step.permission), _ASK_SECONDS)

    async def forget_group(self, step: ForgetGroup) -> None:
        """Have name servers and brokers forget it; BrokerUnavailable: one of them does not answer."""
        try:
            await brokers.forget(self.mq, step.group)
        except InvalidInput as error:  # one of several name servers has not noticed yet
            raise BrokerUnavailable(
                step.group, f"not every name server has noticed that it is gone: {error}"
            ) from error

    async def found(self, arguments: Arguments, group: str) -> None:
        """Put a group into the register."""

        def found() -> None:
            from raymq.cluster import groups, registers

            settings = arguments.settings
            policy = ReplicationPolicy(settings.replication, settings.min_in_sync)
            groups.found(registers.known(arguments.directory), settings.tls, [group], policy)

        await asyncio.to_thread(found)

    async def spread(self, step: Spread) -> None:
        """Make topics on a group as they are elsewhere, and all consumer groups."""
        address = await self.master_address(step.group)
        if address is None:
            return
        groups: dict[str, dict[str, Any]] = {}
        for broker, other in (await self.mq.routes.cluster()).masters.items():
            if broker != step.group:
                groups |= whole.read_all_groups(await fan_out.ask_broker(self.mq, other, whole.all_groups_command))
        topics = await self.topics_elsewhere(step.group)
        for some in batched(groups.values(), _AT_ONCE):
            await self.mq.pool.request(address, whole.make_groups_command(some), _SPREAD_SECONDS)
        for wanted in batched((topics[name] for name in step.topics if name in topics), _AT_ONCE):
            await self.mq.pool.request(address, whole.make_topics_command(wanted), _SPREAD_SECONDS)

    async def note(self, directory: Path, step: WriteDown) -> None:
        """Write a layout down, unless another change has written one since it was looked at: then look again.

        A start that is under way goes by the one that it has read: it ends first. So none that began before makes a
        broker anew that is ended after this.

        Raises:
            BrokerUnavailable: a start does not come to its end.
        """

        def note() -> None:
            with alone(self.namespace, doing="starting or changing the cluster"):
                if noted.load(directory) == self._layout:
                    noted.save(directory, step.layout, Layout())

        await asyncio.to_thread(note)

    async def make(self, arguments: Arguments, step: Make) -> None:
        """Start a broker, and wait until it listens.

        Raises:
            BrokerUnavailable: its machine is not there. RayMQError: what keeps it from coming up.
        """
        host = (await self.machines()).get(step.machine)
        if host is None:
            raise BrokerUnavailable(
                step.name, f"its machine ({step.machine}) is not part of this Ray cluster", remedy="start Ray there"
            )

        def make() -> None:
            register_at = None
            if arguments.replicas > 1:
                from raymq.cluster import registers

                register_at = registers.known(arguments.directory)
            listening = tuple(launching.addresses(self.namespace))
            common = launching.Common(self.namespace, arguments.directory, arguments.settings, listening, register_at)
            spec = common.spec_of(step.name, host, arguments.replicas)
            launching.await_address(step.name, make_broker(spec, self.namespace, step.machine))

        await asyncio.to_thread(make)

    async def hand_over(self, step: HandOver) -> str:
        """Have a replica elected; what refuses it: whether it is tried again is decided elsewhere."""
        try:
            await elections.elect(self.mq, step.group, step.replica + 1, unclean=False, dry_run=False)
        except RayMQError as error:
            return str(error)
        return ""

    async def restart(self, step: Restart) -> None:
        """Have a process end, of itself or by a kill; returns before it has."""
        handle = await asyncio.to_thread(handles.find, step.name, self.namespace)
        if step.by_force:
            await asyncio.to_thread(launching.kill_process, self.namespace, step.name)
            return

        async def stop() -> None:
            with contextlib.suppress(RayMQError):  # it never answers: its process ends
                await handles.acall(step.name, handle, "restart", timeout=_STOP_SECONDS)

        task = asyncio.get_running_loop().create_task(stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def end(self, step: End) -> str:
        """Stop a broker and end its actor for good; what did not end cleanly, and was killed."""

        def end() -> Mapping[str, str]:
            return stopping.stop_together(self.namespace, [step.name], time.monotonic() + _STOP_SECONDS)

        return "; ".join(f"{name}: {why}" for name, why in (await asyncio.to_thread(end)).items())

    async def forget(self, step: Forget) -> None:
        """Take an ended replica out of the register; one that still counts there is left to the next look."""
        with contextlib.suppress(InvalidInput):
            command = clean_command(group_of(step.name), number_of(step.name) + 1)
            await self.mq.routes.ask(command, _ASK_SECONDS)

    async def do_without_notes(self, step: object) -> str:
        """One step that writes nothing down."""
        if isinstance(step, HandOver):
            return await self.hand_over(step)
        if isinstance(step, Restart):
            await self.restart(step)
        return ""

    async def do(self, step: Any, arguments: Arguments) -> str:
        """One step of any kind; what is to be said of it."""
        if isinstance(step, WriteDown):
            await self.note(arguments.directory, step)
        elif isinstance(step, Make):
            await self.make(arguments, step)
        elif isinstance(step, HandOver):
            return await self.hand_over(step)
        elif isinstance(step, End):
            return await self.end(step)
        elif isinstance(step, Forget):
            await self.forget(step)
        elif isinstance(step, Permit):
            await self.permit(step)
        elif isinstance(step, ForgetGroup):
            await self.forget_group(step)
        elif isinstance(step, FoundGroup):
            await self.found(arguments, step.group)
        elif isinstance(step, Spread):
            await self.spread(step)
        return ""


def _consumption_of(group: str) -> Command:
    return meant_for(group, consumption_command())


def _of_users(topics: Mapping[str, dict[str, Any]], view: ClusterView) -> dict[str, dict[str, Any]]:
    """Without those that are the system's, or each broker's own."""
    own = {each for broker, (cluster, _) in view.brokers.items() for each in (broker, cluster, reply_topic(cluster))}
    return {name: each for name, each in topics.items() if not is_system_topic(name) and name not in own}


def batched(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """The items, so many at a time; as Python 3.12's."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
