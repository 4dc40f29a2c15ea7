"""Making a cluster's actors: those of its layout that are missing, each waited for, undone where one cannot come up.

A start that was broken off leaves some actors; the next one with the same arguments makes the rest. The name servers
keep whether the start was finished, so that nobody takes half a cluster for a whole one.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import ray

from raymq.actors import handles
from raymq.actors.actor_options import make_broker, make_name_server, make_scheduler
from raymq.actors.actor_startup import PATIENCE_SECONDS
from raymq.actors.errors import BrokerUnavailable, ConnectionLost, InvalidInput, RayMQError, Timeout
from raymq.actors.keeper.group_state import ReplicationPolicy
from raymq.actors.naming import (
    COORDINATOR_NAME,
    SCHEDULER_NAME,
    is_keeper_name,
    name_server_name,
)
from raymq.actors.protocol import BrokerSpec, CoordinatorSpec, NameServerSpec, SchedulerSpec
from raymq.cluster import host_files, machines, ray_runtime
from raymq.cluster import layout as noted
from raymq.cluster.config import ClusterConfig
from raymq.cluster.host_files import located
from raymq.cluster.layout import LAYOUT_FILE, group_of, number_of
from raymq.cluster.placement import name_server_ports, place
from raymq.cluster.start_lock import alone

#: An actor has this long to start: a store that was killed is recovered first.
START_SECONDS = 120.0
#: How long a start that somebody else has begun may take until it is said to be broken off.
FINISH_SECONDS = 20.0
#: How long a broker may take to be in the routes of every name server. One whose machine has another address now is
#: found when an attempt at the former one is over, which is given 20 s.
REGISTER_SECONDS = 30.0
#: What a call to an actor may take beyond the time that the actor itself was given.
_MARGIN_SECONDS = 5.0
_POLL_SECONDS = 0.05

Arguments = Mapping[str, Any]


#: Set once who interrupts a start stops what it has made, so that the start does not kill it amid that.
_abandoned = threading.Event()


def abandon() -> None:
    """Leave what starts of this process have made to the caller, who stops it; whatever becomes of these starts."""
    _abandoned.set()


class Started(NamedTuple):
    """What a start has come to: the name servers' addresses, and whether there was no such cluster before."""

    name_servers: list[str]
    is_new: bool


def start(namespace: str, directory: Path, settings: ClusterConfig, arguments: Arguments) -> Started:
    """See to it that every actor of the layout is there and up.

    Raises:
        InvalidInput: the cluster runs with other arguments, or the directory cannot be used.
        BrokerUnavailable: another start is in the way and does not come to its end.
        RayMQError: what keeps an actor from coming up. What this call made is gone again.
    """
    with alone(namespace):
        before = set(names(namespace))
        is_new = name_server_name(0) not in before
        if not is_new:
            _check_same(namespace, arguments)
            if not (directory / LAYOUT_FILE).exists() and _is_finished(namespace):
                return Started(addresses(namespace), is_new)  # who there is, is written down on another machine
        try:
            return Started(_make(namespace, directory, settings, arguments), is_new)
        except BaseException:
            if _abandoned.is_set():
                raise
            made = [name for name in names(namespace) if name in layout(arguments) or is_keeper_name(name)]
            kill(namespace, [name for name in made if name not in before])
            raise


def addresses(namespace: str) -> list[str]:
    """The name servers' addresses of a cluster whose start is finished.

    Raises:
        BrokerUnavailable: no cluster runs in `namespace`, or its start was broken off.
    """
    there = names(namespace)
    first = name_server_name(0)
    if first not in there:
        ours = ("broker-", "name-server-", "keeper-")
        left = [name for name in there if name.startswith(ours) or name in (SCHEDULER_NAME, COORDINATOR_NAME)]
        if left:
            raise BrokerUnavailable(
                "cluster",
                f"of the cluster in namespace {namespace} only {', '.join(left)} is left",
                remedy="cluster.start() with the arguments it was started with makes what is missing",
            )
        raise BrokerUnavailable(
            "cluster", f"no cluster runs in namespace {namespace}", remedy="cluster.start() starts one"
        )
    deadline = time.monotonic() + FINISH_SECONDS
    while not _is_finished(namespace):
        if time.monotonic() > deadline:
            missing = sorted(set(layout(told_arguments(namespace))) - set(names(namespace)))
            raise BrokerUnavailable(
                "cluster",
                f"the start of the cluster in namespace {namespace} was not finished; missing: {', '.join(missing)}",
                remedy="cluster.start() with the arguments it was started with finishes it",
            )
        time.sleep(_POLL_SECONDS)
    servers = [name for name in layout(told_arguments(namespace)) if name.startswith("name-server-")]
    return [await_address(name, handles.find(name, namespace)) for name in servers]


def _is_finished(namespace: str) -> bool:
    """Whether the start of the cluster was ever through."""
    first = name_server_name(0)
    is_finished: bool = handles.call(
        first,
        handles.find(first, namespace),
        "is_finished",
        START_SECONDS,
        PATIENCE_SECONDS,
        timeout=START_SECONDS + _MARGIN_SECONDS,
    )
    return is_finished


def told_arguments(namespace: str) -> dict[str, Any]:
    """What the cluster was started with."""
    name = name_server_name(0)
    told: dict[str, Any] = handles.call(name, handles.find(name, namespace), "arguments", timeout=START_SECONDS)
    return told


def layout(arguments: Arguments) -> list[str]:
    """The names of all actors that such a cluster has but for its keepers: name servers, brokers, scheduler, and where
    groups have several replicas the coordinator.
    """
    servers = [name_server_name(index) for index in range(arguments["name_servers"])]
    coordinator = [COORDINATOR_NAME] if arguments["replicas"] > 1 else []
    return [*servers, *_brokers(arguments), *coordinator, SCHEDULER_NAME]


def _with_replicas() -> ModuleType:
    """What only clusters whose groups have several replicas need."""
    from raymq.cluster import groups

    return groups


def _registers() -> ModuleType:
    """Likewise."""
    from raymq.cluster import registers

    return registers


def _brokers(arguments: Arguments) -> list[str]:
    """The names of the brokers' actors, as far as it is written down here what was added and taken away."""
    here = noted.Layout()
    with contextlib.suppress(RayMQError):
        here = noted.load(Path(arguments["root"]))
    return here.names(arguments["brokers"], arguments["replicas"])


def names(namespace: str) -> list[str]:
    """The names of all actors in the namespace, other people's included, sorted."""
    if not ray.is_initialized():  # else Ray would start one, and nobody would end it
        raise BrokerUnavailable("ray", "this process is not connected to Ray any more")
    every = ray.util.list_named_actors(all_namespaces=True)
    return sorted(entry["name"] for entry in every if entry["namespace"] == namespace)


def kill(namespace: str, which: Sequence[str]) -> None:
    """End actors at once, never to come back."""
    for name in which:
        with contextlib.suppress(RayMQError):
            ray.kill(handles.find(name, namespace), no_restart=True)


def kill_process(namespace: str, name: str) -> None:
    """End an actor's process at once; Ray starts another one."""
    with contextlib.suppress(RayMQError):
        ray.kill(handles.find(name, namespace), no_restart=False)


def _make(namespace: str, directory: Path, settings: ClusterConfig, arguments: Arguments) -> list[str]:
    hosts = ray_runtime.hosts()
    by_resource = machines.by_resource(hosts)
    replicas = arguments["replicas"]
    seen = host_files.ask(directory, list(by_resource))
    placed = place(directory, arguments["brokers"], replicas, list(by_resource), seen)
    start_id = uuid.uuid4().hex
    servers = {}
    server_names = [name_server_name(index) for index in range(arguments["name_servers"])]
    turns = zip(server_names, cycle(resource for resource, _ in hosts), strict=False)
    resources = [located(name, resource, seen) or resource for name, resource in turns]
    addresses = [by_resource[resource] for resource in resources]
    ports = name_server_ports(addresses, arguments["port"])
    for index, (name, resource) in enumerate(zip(server_names, resources, strict=True)):
        spec = NameServerSpec(
            index, str(directory), addresses[index], ports[index], dict(arguments), settings.tls, start_id, namespace
        )
        servers[name] = make_name_server(spec, namespace, resource)
    register_at = None
    if replicas > 1:
        register_at = _registers().make(namespace, directory, hosts, settings, seen)
    listening = [await_address(name, server) for name, server in servers.items()]
    members: dict[str, list[str]] = {}
    for name in placed:
        members.setdefault(group_of(name), []).append(name)
    if register_at is not None:
        for namespace_of, entries in _registers().entries(register_at).items():
            for name, server in servers.items():
                handles.call(name, server, "publish", namespace_of, entries, timeout=START_SECONDS)
        _with_replicas().found(
            register_at, settings.tls, list(members), ReplicationPolicy(settings.replication, settings.min_in_sync)
        )
    common = Common(namespace, directory, settings, tuple(listening), register_at)
    brokers = {
        name: make_broker(common.spec_of(name, by_resource[resource], replicas), namespace, resource)
        for name, resource in placed.items()
    }
    for name, handle in brokers.items():
        revive(namespace, name, handle)
    for name, handle in brokers.items():
        await_address(name, handle)
    for name, handle in brokers.items():
        _await_registration(name, handle)
    if register_at is not None:
        coordinator = CoordinatorSpec(
            namespace, register_at, tuple(members), settings.replication, settings.min_in_sync, settings.tls
        )
        _with_replicas().bring_up(
            coordinator, {group: [(name, brokers[name]) for name in names] for group, names in members.items()}
        )
    scheduler = make_scheduler(SchedulerSpec(namespace, tuple(placed)))
    handles.call(SCHEDULER_NAME, scheduler, "pid", timeout=START_SECONDS)
    for name, server in servers.items():
        handles.call(name, server, "finish", timeout=START_SECONDS)
    return listening


@dataclass(frozen=True, slots=True)
class Common:
    """What all brokers of a cluster are started with.

    Attributes:
        name_servers: where they listen.
        register_at: where the register is (`raymq.actors.keeper.serving.location`); None where each group has one copy.
    """

    namespace: str
    directory: Path
    settings: ClusterConfig
    name_servers: tuple[str, ...]
    register_at: dict[str, Any] | None

    def spec_of(self, name: str, host: str, replicas: int) -> BrokerSpec:
        """Of the replica whose actor has that name."""
        return BrokerSpec(
            name=group_of(name),
            cluster=self.namespace,
            directory=str(self.directory / name),
            host=host,
            name_servers=self.name_servers,
            auto_create_topics=self.settings.auto_create_topics,
            append_wait_ms=self.settings.append_wait_ms,
            store=self.settings.store,
            tls=self.settings.tls,
            keepers=self.register_at,
            replica=number_of(name),
            replicas=replicas,
            replication=self.settings.replication,
            min_in_sync=self.settings.min_in_sync,
        )


def revive(namespace: str, name: str, handle: Any) -> None:
    """Have Ray start a broker's process anew if it is one that was stopped: its machine was to go, and stays.

    Raises:
        BrokerUnavailable: no other one comes.
    """
    if not hasattr(handle, "is_stopped"):  # of an earlier version
        return
    deadline, was_killed = time.monotonic() + START_SECONDS, False
    while True:
        try:
            if not handles.call(name, handle, "is_stopped", timeout=START_SECONDS):
                return
        except (Timeout, ConnectionLost):  # it is just being started
            if time.monotonic() > deadline:
                raise
        else:
            if not was_killed:
                kill_process(namespace, name)
                was_killed = True
            elif time.monotonic() > deadline:
                raise BrokerUnavailable(name, f"it was stopped, and no other process came in {START_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


def await_address(name: str, handle: Any) -> str:
    """Where an actor listens, once it does; what keeps it from it is raised."""
    told: str = handles.call(
        name, handle, "address", START_SECONDS, PATIENCE_SECONDS, timeout=START_SECONDS + _MARGIN_SECONDS
    )
    return told


def _await_registration(name: str, handle: Any) -> None:
    """Wait until a broker is in the routes; what keeps it out is raised."""
    deadline = time.monotonic() + REGISTER_SECONDS
    while troubles := handles.call(name, handle, "troubles", timeout=START_SECONDS):
        if time.monotonic() > deadline:
            told = "; ".join(f"{server}: {trouble}" for server, trouble in troubles.items())
            raise BrokerUnavailable(name, f"it is not in the routes of every name server: {told}")
        time.sleep(_POLL_SECONDS)


def _check_same(namespace: str, arguments: Arguments) -> None:
    running = told_arguments(namespace)
    differing = sorted(key for key in arguments if arguments[key] != running.get(key))
    if set(differing) <= {"brokers", "replicas"} and _brokers(arguments) == _brokers(running):
        return
    if differing:
        raise other_settings(namespace, running, arguments)


def other_settings(namespace: str, running: Arguments, wanted: Arguments) -> InvalidInput:
    """Return the error of a start that differs from what runs: it names what differs, both values, and what to do."""
    theirs, ours = _flat(running), _flat(wanted)
    differing = [key for key in ours | theirs if ours.get(key) != theirs.get(key)]
    parts = ", ".join(f"{key} is {theirs.get(key)!r}, not {ours.get(key)!r}" for key in differing)
    remedy = "cluster.connect() joins it as it is; to change a setting, stop it and start it with the new one"
    if "brokers" in differing:
        remedy += "; Admin.add_broker() adds a broker while it runs"
    limit = f"as the cluster in namespace {namespace} was started"
    error = InvalidInput(", ".join(differing), limit, {key: ours.get(key) for key in differing}, remedy=remedy)
    error.args = (f"the cluster in namespace {namespace} runs with other settings: {parts}",)
    return error


def _flat(arguments: Arguments) -> dict[str, Any]:
    """Arguments and settings by the names that users give, those of the store with their defaults."""
    flat = {key: value for key, value in arguments.items() if key != "config"}
    config = dict(arguments.get("config") or {})
    config.pop("port", None)  # an argument, too
    tls = {f"tls_{key}": value for key, value in (config.pop("tls", None) or {}).items()}
    store = config.pop("store", None) or {}
    return flat | ClusterConfig.defaults_of_store() | config | tls | store
