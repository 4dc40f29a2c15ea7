"""Making a cluster's actors: those of its layout that are missing, each waited for, undone where one cannot come up.

A start that was broken off leaves some actors; the next one with the same arguments makes the rest. The name servers
keep whether the start was finished, so that nobody takes half a cluster for a whole one.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from raymq.actors import handles
from raymq.actors.actor_options import make_broker, make_name_server, make_scheduler
from raymq.actors.actor_startup import PATIENCE_SECONDS
from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError, StoreFull
from raymq.actors.naming import SCHEDULER_NAME, broker_name, name_server_name
from raymq.actors.protocol import BrokerSpec, NameServerSpec, SchedulerSpec
from raymq.cluster import ray_runtime
from raymq.cluster.config import ClusterConfig
from raymq.cluster.start_lock import alone
from raymq.storage.files import json_file

#: An actor has this long to start: a store that was killed is recovered first.
START_SECONDS = 120.0
#: How long a start that somebody else has begun may take until it is said to be broken off.
FINISH_SECONDS = 20.0
#: How long a broker may take to be in the routes of every name server.
REGISTER_SECONDS = 10.0
#: What a call to an actor may take beyond the time that the actor itself was given.
_MARGIN_SECONDS = 5.0
_LAYOUT_FILE = "raymq-cluster.json"
_POLL_SECONDS = 0.05

Arguments = Mapping[str, Any]


def start(namespace: str, directory: Path, settings: ClusterConfig, arguments: Arguments) -> list[str]:
    """See to it that every actor of the layout is there and up; the name servers' addresses.

    Raises:
        InvalidInput: the cluster runs with other arguments, or the directory cannot be used.
        BrokerUnavailable: another start is in the way and does not come to its end.
        RayMQError: what keeps an actor from coming up. What this call made is gone again.
    """
    with alone(namespace):
        before = set(names(namespace))
        if name_server_name(0) in before:
            _check_same(namespace, arguments)
        try:
            return _make(namespace, directory, settings, arguments)
        except BaseException:
            kill(namespace, [name for name in names(namespace) if name in layout(arguments) and name not in before])
            raise


def addresses(namespace: str) -> list[str]:
    """The name servers' addresses of a cluster whose start is finished.

    Raises:
        BrokerUnavailable: no cluster runs in `namespace`, or its start was broken off.
    """
    there = names(namespace)
    first = name_server_name(0)
    if first not in there:
        left = [name for name in there if name.startswith(("broker-", "name-server-")) or name == SCHEDULER_NAME]
        if left:
            raise BrokerUnavailable(
                "cluster",
                f"of the cluster in namespace {namespace} only {', '.join(left)} is left",
                remedy="cluster.start() with the arguments it was started with makes what is missing",
            )
        raise BrokerUnavailable("cluster", f"no cluster runs in namespace {namespace}")
    handle = handles.find(first, namespace)
    deadline = time.monotonic() + FINISH_SECONDS
    while not handles.call(
        first, handle, "is_finished", START_SECONDS, PATIENCE_SECONDS, timeout=START_SECONDS + _MARGIN_SECONDS
    ):
        if time.monotonic() > deadline:
            missing = sorted(set(layout(told_arguments(namespace))) - set(names(namespace)))
            raise BrokerUnavailable(
                "cluster",
                f"the start of the cluster in namespace {namespace} was not finished; missing: {', '.join(missing)}",
                remedy="cluster.start() with the arguments it was started with finishes it",
            )
        time.sleep(_POLL_SECONDS)
    servers = [name for name in layout(told_arguments(namespace)) if name.startswith("name-server-")]
    return [_await_address(name, handles.find(name, namespace)) for name in servers]


def told_arguments(namespace: str) -> dict[str, Any]:
    """What the cluster was started with."""
    name = name_server_name(0)
    told: dict[str, Any] = handles.call(name, handles.find(name, namespace), "arguments", timeout=START_SECONDS)
    return told


def layout(arguments: Arguments) -> list[str]:
    """The names of all actors that such a cluster has: name servers, brokers, scheduler."""
    servers = [name_server_name(index) for index in range(arguments["name_servers"])]
    return [*servers, *(broker_name(index) for index in range(arguments["brokers"])), SCHEDULER_NAME]


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


def _make(namespace: str, directory: Path, settings: ClusterConfig, arguments: Arguments) -> list[str]:
    hosts = ray_runtime.hosts()
    by_resource = dict(hosts)
    placed = _place(directory, arguments["brokers"], hosts)
    start_id = uuid.uuid4().hex
    servers = {}
    for index in range(arguments["name_servers"]):
        resource, host = hosts[index % len(hosts)]
        port = arguments["port"] if index == 0 else 0
        spec = NameServerSpec(index, str(directory), host, port, dict(arguments), settings.tls, start_id)
        servers[name_server_name(index)] = make_name_server(spec, namespace, resource)
    listening = [_await_address(name, server) for name, server in servers.items()]
    brokers = {}
    for name, resource in placed.items():
        broker = BrokerSpec(
            name=name,
            cluster=namespace,
            directory=str(directory / name),
            host=by_resource[resource],
            name_servers=tuple(listening),
            auto_create_topics=settings.auto_create_topics,
            append_wait_ms=settings.append_wait_ms,
            store=settings.store,
            tls=settings.tls,
        )
        brokers[name] = make_broker(broker, namespace, resource)
    for name, handle in brokers.items():
        _await_address(name, handle)
    for name, handle in brokers.items():
        _await_registration(name, handle)
    scheduler = make_scheduler(SchedulerSpec(namespace, tuple(placed)))
    handles.call(SCHEDULER_NAME, scheduler, "pid", timeout=START_SECONDS)
    for name, server in servers.items():
        handles.call(name, server, "finish", timeout=START_SECONDS)
    return listening


def _await_address(name: str, handle: Any) -> str:
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


def _place(directory: Path, brokers: int, hosts: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Which machine each broker belongs to: where its directory was made, a new one in turn."""
    file = directory / _LAYOUT_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput("root", "a folder, or a place where one can be made", f"{directory}: {error}") from error
    known = json_file.load_as(file, _brokers)
    resources = [resource for resource, _ in hosts]
    placed = {}
    for index in range(brokers):
        name = broker_name(index)
        placed[name] = known.get(name, resources[index % len(resources)])
        if placed[name] not in resources:
            if len(resources) > 1 or len(set(known.values())) > 1:
                raise BrokerUnavailable(
                    name,
                    f"its machine ({placed[name]}) is not part of this Ray cluster, which has {', '.join(resources)}",
                    remedy=f"start Ray there; if the machine has another name now, write it into {file}",
                )
            placed[name] = resources[0]  # the one machine that there was and is has another name now
    try:
        json_file.save(file, {"brokers": {**known, **placed}}, _brokers)
    except StoreFull:
        if {**known, **placed} != known:  # else it says so already, and brokers may be about to make room
            raise
    except (OSError, RayMQError) as error:
        raise InvalidInput("root", "a folder that can be written", f"{directory}: {error}") from error
    return placed


def _brokers(raw: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(resource) for name, resource in raw.get("brokers", {}).items()}


def _check_same(namespace: str, arguments: Arguments) -> None:
    running = told_arguments(namespace)
    differing = sorted(key for key in arguments if arguments[key] != running.get(key))
    if differing:
        shown = {key: running.get(key) for key in differing}
        raise InvalidInput(
            ", ".join(differing),
            f"what the cluster in namespace {namespace} was started with: {shown}",
            {key: arguments[key] for key in differing},
        )
