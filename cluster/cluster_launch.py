"""Create the missing actors of a cluster, and undo the start if one fails.

Each actor is waited for. An aborted start leaves some actors; the next start with the same arguments creates the rest.
The name servers store whether the start was finished, so that an incomplete cluster is not used.
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

from raymq.actors import actor_calls
from raymq.actors.actor_options import make_broker, make_name_server, make_scheduler
from raymq.actors.errors import BrokerUnavailable, ConnectionLost, InvalidInput, RayMQError, Timeout
from raymq.actors.hosted_service import PATIENCE_SECONDS
from raymq.actors.keeper.group_state import ReplicationPolicy
from raymq.actors.naming import (
    CONSOLE_NAME,
    COORDINATOR_NAME,
    SCHEDULER_NAME,
    is_keeper_name,
    name_server_name,
)
from raymq.actors.protocol import BrokerSpec, CoordinatorSpec, NameServerSpec, SchedulerSpec
from raymq.cluster import cluster_layout as noted
from raymq.cluster import host_files, machines, ray_runtime
from raymq.cluster.cluster_config import ClusterConfig
from raymq.cluster.cluster_layout import LAYOUT_FILE, group_name, replica_number
from raymq.cluster.cluster_lock import cluster_lock
from raymq.cluster.console_entry import CONSOLE_ENTRIES
from raymq.cluster.host_files import locate_actor
from raymq.cluster.replica_placement import name_server_ports, place_replicas

#: The seconds for the start of an actor: after a kill its store is recovered first.
START_SECONDS = 120.0
#: The seconds to wait for another process's start until it counts as aborted.
FINISH_SECONDS = 20.0
#: The seconds until a broker must be in the routes of every name server. If its machine has a new address, an attempt
#: at the former address must fail first, which takes 20 s.
REGISTER_SECONDS = 30.0
#: The seconds of a call to an actor beyond the time limit of the actor itself.
_MARGIN_SECONDS = 5.0
_POLL_SECONDS = 0.05

Arguments = Mapping[str, Any]


#: Set by code that interrupts a start and stops its actors itself, so that the start does not kill them meanwhile.
_abandoned = threading.Event()


def skip_rollback() -> None:
    """Leave the actors that failing starts of this process created to the caller.

    The caller stops them.
    """
    _abandoned.set()


class StartResult(NamedTuple):
    """The result of a start: the name servers' addresses, and whether the cluster is new."""

    name_servers: list[str]
    is_new: bool


def start(namespace: str, directory: Path, settings: ClusterConfig, arguments: Arguments) -> StartResult:
    """Ensure that every actor of the layout exists and runs.

    Raises:
        InvalidInput: the cluster runs with other arguments, or the directory cannot be used.
        BrokerUnavailable: another start is in progress and does not end.
        RayMQError: an actor cannot start. The actors that this call created are removed.
    """
    with cluster_lock(namespace):
        before = set(names(namespace))
        is_new = name_server_name(0) not in before
        if not is_new:
            _check_same(namespace, arguments)
            if not (directory / LAYOUT_FILE).exists() and _is_finished(namespace):
                return StartResult(addresses(namespace), is_new)  # The layout is recorded on another machine.
        try:
            return StartResult(_make(namespace, directory, settings, arguments), is_new)
        except BaseException:
            if _abandoned.is_set():
                raise
            created = [name for name in names(namespace) if name in expected_actors(arguments) or is_keeper_name(name)]
            kill(namespace, [name for name in created if name not in before])
            raise


def addresses(namespace: str) -> list[str]:
    """Return the name servers' addresses of a cluster whose start is finished.

    Raises:
        BrokerUnavailable: no cluster runs in `namespace`, or its start was aborted.
    """
    there = names(namespace)
    first = name_server_name(0)
    if first not in there:
        ours = ("broker-", "name-server-", "keeper-")
        running = [name for name in there if name.startswith(ours) or name in (SCHEDULER_NAME, COORDINATOR_NAME)]
        if running:
            raise BrokerUnavailable(
                "cluster",
                f"of the cluster in namespace {namespace} only {', '.join(running)} still runs",
                remedy="cluster.start() with the arguments it was started with starts the missing actors",
            )
        raise BrokerUnavailable(
            "cluster", f"no cluster runs in namespace {namespace}", remedy="cluster.start() starts one"
        )
    deadline = time.monotonic() + FINISH_SECONDS
    while not _is_finished(namespace):
        if time.monotonic() > deadline:
            missing = sorted(set(expected_actors(start_arguments(namespace))) - set(names(namespace)))
            raise BrokerUnavailable(
                "cluster",
                f"the start of the cluster in namespace {namespace} was not finished; missing: {', '.join(missing)}",
                remedy="cluster.start() with the arguments it was started with finishes it",
            )
        time.sleep(_POLL_SECONDS)
    servers = [name for name in expected_actors(start_arguments(namespace)) if name.startswith("name-server-")]
    return [await_address(name, actor_calls.find(name, namespace)) for name in servers]


def _is_finished(namespace: str) -> bool:
    """Return True if a start of the cluster was ever finished."""
    first = name_server_name(0)
    is_finished: bool = actor_calls.call(
        first,
        actor_calls.find(first, namespace),
        "is_finished",
        START_SECONDS,
        PATIENCE_SECONDS,
        timeout=START_SECONDS + _MARGIN_SECONDS,
    )
    return is_finished


def start_arguments(namespace: str) -> dict[str, Any]:
    """Return the arguments with which the cluster was started."""
    name = name_server_name(0)
    arguments: dict[str, Any] = actor_calls.call(
        name, actor_calls.find(name, namespace), "arguments", timeout=START_SECONDS
    )
    return arguments


def expected_actors(arguments: Arguments) -> list[str]:
    """Return the names of all actors of such a cluster except its keepers.

    These are name servers, brokers, the scheduler, the coordinator if groups have several replicas, and the console if
    the configuration has it.
    """
    servers = [name_server_name(index) for index in range(arguments["name_servers"])]
    coordinator = [COORDINATOR_NAME] if arguments["replicas"] > 1 else []
    console = [CONSOLE_NAME] if (arguments.get("config") or {}).get("console") else []
    return [*servers, *_brokers(arguments), *coordinator, SCHEDULER_NAME, *console]


def _with_replicas() -> ModuleType:
    """Import the module that only clusters with several replicas per group need."""
    from raymq.cluster import group_bootstrap

    return group_bootstrap


def _registers() -> ModuleType:
    """Import the register's module, which only clusters with replicas need."""
    from raymq.cluster import register_setup

    return register_setup


def _brokers(arguments: Arguments) -> list[str]:
    """Return the names of the brokers' actors.

    Brokers that were added or removed are considered if the layout file is on this machine.
    """
    here = noted.ClusterLayout()
    with contextlib.suppress(RayMQError):
        here = noted.load(Path(arguments["root"]))
    return here.names(arguments["brokers"], arguments["replicas"])


def names(namespace: str) -> list[str]:
    """Return the sorted names of all actors in the namespace, also those of other programs."""
    if not ray.is_initialized():  # Otherwise Ray would start a new instance here, which is never stopped.
        raise BrokerUnavailable("ray", "this process is not connected to Ray any more")
    every = ray.util.list_named_actors(all_namespaces=True)
    return sorted(entry["name"] for entry in every if entry["namespace"] == namespace)


def kill(namespace: str, which: Sequence[str]) -> None:
    """Kill actors at once, without a restart."""
    for name in which:
        with contextlib.suppress(RayMQError):
            ray.kill(actor_calls.find(name, namespace), no_restart=True)


def kill_process(namespace: str, name: str) -> None:
    """Kill an actor's process at once; Ray restarts it."""
    with contextlib.suppress(RayMQError):
        ray.kill(actor_calls.find(name, namespace), no_restart=False)


def _make(namespace: str, directory: Path, settings: ClusterConfig, arguments: Arguments) -> list[str]:
    hosts = ray_runtime.hosts()
    addresses_by_resource = machines.addresses_by_resource(hosts)
    replicas = arguments["replicas"]
    seen = host_files.list_host_files(directory, list(addresses_by_resource))
    placed = place_replicas(directory, arguments["brokers"], replicas, list(addresses_by_resource), seen)
    start_id = uuid.uuid4().hex
    servers = {}
    server_names = [name_server_name(index) for index in range(arguments["name_servers"])]
    turns = zip(server_names, cycle(resource for resource, _ in hosts), strict=False)
    resources = [locate_actor(name, resource, seen) or resource for name, resource in turns]
    addresses = [addresses_by_resource[resource] for resource in resources]
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
        members.setdefault(group_name(name), []).append(name)
    if register_at is not None:
        for namespace_of, entries in _registers().entries(register_at).items():
            for name, server in servers.items():
                actor_calls.call(name, server, "publish", namespace_of, entries, timeout=START_SECONDS)
        _with_replicas().found(
            register_at, settings.tls, list(members), ReplicationPolicy(settings.replication, settings.min_in_sync)
        )
    common = BrokerSpecTemplate(namespace, directory, settings, tuple(listening), register_at)
    brokers = {
        name: make_broker(common.spec_of(name, addresses_by_resource[resource], replicas), namespace, resource)
        for name, resource in placed.items()
    }
    for name, handle in brokers.items():
        restart_stopped(namespace, name, handle)
    for name, handle in brokers.items():
        await_address(name, handle)
    for name, handle in brokers.items():
        _await_registration(name, handle)
    if register_at is not None:
        coordinator = CoordinatorSpec(
            namespace, register_at, tuple(members), settings.replication, settings.min_in_sync, settings.tls
        )
        _with_replicas().start_coordinator(
            coordinator, {group: [(name, brokers[name]) for name in names] for group, names in members.items()}
        )
    scheduler = make_scheduler(SchedulerSpec(namespace, tuple(placed)))
    actor_calls.call(SCHEDULER_NAME, scheduler, "pid", timeout=START_SECONDS)
    if settings.console:
        _start_console(namespace, directory, settings, len(servers), addresses[0], resources[0])
    else:
        for name, server in servers.items():
            actor_calls.call(name, server, "publish", CONSOLE_ENTRIES, {}, timeout=START_SECONDS)
    for name, server in servers.items():
        actor_calls.call(name, server, "finish", timeout=START_SECONDS)
    return listening


def _start_console(
    namespace: str, directory: Path, settings: ClusterConfig, name_servers: int, machine: str, resource: str
) -> None:
    """Start the console on the first name server's machine, and wait until it serves."""
    from raymq.cluster.console_actor import ConsoleSpec, make_console

    spec = ConsoleSpec(
        namespace,
        name_servers,
        machine,
        settings.console_host,
        settings.console_port,
        str(directory),
        settings.tls,
        tuple(settings.console_allowed_hosts or ()),
    )
    actor_calls.call(
        CONSOLE_NAME,
        make_console(spec, resource),
        "url",
        START_SECONDS,
        PATIENCE_SECONDS,
        timeout=START_SECONDS + _MARGIN_SECONDS,
    )


@dataclass(frozen=True, slots=True)
class BrokerSpecTemplate:
    """The common settings of all brokers of a cluster.

    Attributes:
        name_servers: their addresses.
        register_at: the location of the register (`raymq.actors.keeper.serving.register_location`); None if each group
            has one replica.
    """

    namespace: str
    directory: Path
    settings: ClusterConfig
    name_servers: tuple[str, ...]
    register_at: dict[str, Any] | None

    def spec_of(self, name: str, host: str, replicas: int) -> BrokerSpec:
        """Return the settings of the replica whose actor has that name."""
        return BrokerSpec(
            name=group_name(name),
            cluster=self.namespace,
            directory=str(self.directory / name),
            host=host,
            name_servers=self.name_servers,
            auto_create_topics=self.settings.auto_create_topics,
            append_wait_ms=self.settings.append_wait_ms,
            store=self.settings.store,
            tls=self.settings.tls,
            keepers=self.register_at,
            replica=replica_number(name),
            replicas=replicas,
            replication=self.settings.replication,
            min_in_sync=self.settings.min_in_sync,
            metrics=self.settings.metrics,
            metrics_host=self.settings.metrics_host,
            metrics_port=self.settings.metrics_port,
        )


def restart_stopped(namespace: str, name: str, handle: Any) -> None:
    """Restart a broker's process that was stopped because its machine was to leave.

    Raises:
        BrokerUnavailable: no new process starts.
    """
    if not hasattr(handle, "is_stopped"):  # The actor is of an earlier version.
        return
    deadline, was_killed = time.monotonic() + START_SECONDS, False
    while True:
        try:
            if not actor_calls.call(name, handle, "is_stopped", timeout=START_SECONDS):
                return
        except (Timeout, ConnectionLost):  # The actor is starting.
            if time.monotonic() > deadline:
                raise
        else:
            if not was_killed:
                kill_process(namespace, name)
                was_killed = True
            elif time.monotonic() > deadline:
                raise BrokerUnavailable(
                    name, f"it was stopped, and no other process started within {START_SECONDS:.0f} s"
                )
        time.sleep(_POLL_SECONDS)


def await_address(name: str, handle: Any) -> str:
    """Return an actor's address once it listens; raise the error of a failed start."""
    address: str = actor_calls.call(
        name, handle, "address", START_SECONDS, PATIENCE_SECONDS, timeout=START_SECONDS + _MARGIN_SECONDS
    )
    return address


def _await_registration(name: str, handle: Any) -> None:
    """Wait until a broker is in the routes of every name server.

    Raise BrokerUnavailable with the reason if it is not after `REGISTER_SECONDS`.
    """
    deadline = time.monotonic() + REGISTER_SECONDS
    while troubles := actor_calls.call(name, handle, "troubles", timeout=START_SECONDS):
        if time.monotonic() > deadline:
            reasons = "; ".join(f"{server}: {trouble}" for server, trouble in troubles.items())
            raise BrokerUnavailable(name, f"it is not in the routes of every name server: {reasons}")
        time.sleep(_POLL_SECONDS)


def _check_same(namespace: str, arguments: Arguments) -> None:
    running = start_arguments(namespace)
    differing = sorted(key for key in arguments if arguments[key] != running.get(key))
    if set(differing) <= {"brokers", "replicas"} and _brokers(arguments) == _brokers(running):
        return
    if differing:
        raise settings_mismatch(namespace, running, arguments)


def settings_mismatch(namespace: str, running: Arguments, requested: Arguments) -> InvalidInput:
    """Return the error of a start whose arguments differ from the running cluster's.

    It names the arguments, both values, and a remedy.
    """
    theirs, ours = _flat(running), _flat(requested)
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
    """Return arguments and settings by their public names, with the store's defaults."""
    flat = {key: value for key, value in arguments.items() if key != "config"}
    config = dict(arguments.get("config") or {})
    config.pop("port", None)  # The port is an argument as well.
    tls = {f"tls_{key}": value for key, value in (config.pop("tls", None) or {}).items()}
    store = config.pop("store", None) or {}
    return flat | ClusterConfig.defaults_of_store() | config | tls | store
