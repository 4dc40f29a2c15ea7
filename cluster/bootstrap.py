"""Starting, finding and stopping a cluster."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import ray

from raymq.actors import handles
from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError
from raymq.actors.naming import SCHEDULER_NAME, broker_name, check_name, name_server_name
from raymq.actors.protocol import BrokerSpec, NameServerSpec, SchedulerSpec, Tls
from raymq.actors.spec import make_broker, make_name_server, make_scheduler
from raymq.actors.wire.tls import server_context
from raymq.client.connection import Connection
from raymq.cluster import ray_runtime
from raymq.cluster.config import ClusterConfig, check_port
from raymq.storage import json_file

MAX_BROKERS = 702  # broker-a .. broker-zz
#: An actor has this long to start: a store that was killed is recovered first.
START_SECONDS = 120.0
_LAYOUT_FILE = "raymq-cluster.json"
_POLL_SECONDS = 0.02


class Cluster(Connection):
    """A connection that knows how to stop the cluster. `start` makes one that stops with its `with` block."""

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        namespace: str | None = None,
        tls: Tls | None = None,
        owns_ray: bool = False,
        stops: bool = False,
    ) -> None:
        super().__init__(name_servers, namespace=namespace, tls=tls)
        self._owns_ray = owns_ray
        self._stops = stops

    @property
    def owns_ray(self) -> bool:
        """Whether Ray was started, or joined, by this process for this connection, and ends with it."""
        return self._owns_ray

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stops:
            self.stop()
        self.close()

    def stop(self, timeout: float = 30.0) -> None:
        """End every actor cleanly; also Ray, if `start` started it. The data stay where they are.

        Raises:
            InvalidInput: this connection does not reach Ray.
            BrokerUnavailable: an actor did not end within `timeout` seconds.
        """
        if self.namespace is None:
            raise InvalidInput(
                "stop", "a connection that reaches Ray (cluster.connect(namespace=...))", self.name_servers
            )
        Connection.close(self)
        try:
            _stop_actors(self.namespace, timeout)
        finally:
            self._leave_ray()

    async def astop(self, timeout: float = 30.0) -> None:
        """`stop` for asyncio code."""
        await asyncio.to_thread(self.stop, timeout)

    def close(self) -> None:
        """Disconnect this process; the cluster goes on, unless its Ray was started by this process and ends with it."""
        super().close()
        if not self._stops:
            self._leave_ray()

    def _leave_ray(self) -> None:
        if self._owns_ray and ray.is_initialized():
            self._owns_ray = False
            ray.shutdown()


def start(
    brokers: int = 2,
    root: str | os.PathLike[str] = "data/",
    namespace: str = "raymq",
    *,
    replicas: int = 1,
    name_servers: int = 1,
    port: int = 0,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
) -> Cluster:
    """Start a cluster, or join the one that runs in `namespace` and was started alike.

    Ray is joined if this process is connected to one or one runs on this machine, else started for this process.

    Args:
        brokers: how many; their stores are `<root>/broker-a`, `<root>/broker-b`, ... on the machines they run on.
        name_servers: how many, independent of each other; `port` is the first one's, 0 = any free one, kept.
        config: settings, or the path of a YAML file of them; see configs/.

    Raises:
        InvalidInput: an argument breaks its rule, or a cluster runs in `namespace` that was started with others.
        StoreLocked, StoreCorrupt: a store cannot be opened.
    """
    _check_arguments(brokers, namespace, replicas, name_servers, port)
    settings = ClusterConfig.load(config)
    if settings.tls is not None:
        server_context(settings.tls)  # a file that cannot be used is told before anything starts
    directory = Path(root).absolute()
    arguments = {
        "brokers": brokers,
        "root": str(directory),
        "replicas": replicas,
        "name_servers": name_servers,
        "port": port or settings.port,
        "config": settings.as_dict(),
    }
    owns_ray = not ray_runtime.join()
    if owns_ray:
        ray_runtime.start_embedded()
    try:
        running = _names(namespace)
        if name_server_name(0) in running:
            _check_same(namespace, arguments)
            addresses = _addresses(namespace)
        else:
            addresses = _start_actors(namespace, directory, settings, arguments)
        return Cluster(addresses, namespace=namespace, tls=settings.tls, owns_ray=owns_ray, stops=True)
    except BaseException:
        if owns_ray:
            ray.shutdown()
        raise


def connect(
    namespace: str = "raymq",
    address: str = "auto",
    *,
    name_servers: str | Sequence[str] | None = None,
    tls: Tls | None = None,
) -> Cluster:
    """Connect to a running cluster, through Ray or by its name servers' addresses alone.

    Args:
        namespace, address: of the cluster and of its Ray; not used with `name_servers`.
        name_servers: "host:port", several as a list or joined by ";". No Ray is needed then.
        tls: for a cluster whose sockets use TLS. Through Ray it is not needed where the cluster's own files are at the
            same paths here.

    Raises:
        BrokerUnavailable: no Ray at `address`, or no cluster in `namespace`.
        InvalidInput: an address is not "host:port", or a file of `tls` cannot be used.
    """
    if name_servers is not None:
        given = name_servers.split(";") if isinstance(name_servers, str) else list(name_servers)
        return Cluster([each for each in given if each.strip()], tls=tls)
    check_name("namespace", namespace, 127)
    connected = ray_runtime.join_address(address)
    try:
        addresses = _addresses(namespace)
        return Cluster(addresses, namespace=namespace, tls=tls or _own_tls(namespace), owns_ray=connected)
    except BaseException:
        if connected:
            ray.shutdown()
        raise


def stop(namespace: str = "raymq", address: str = "auto", timeout: float = 30.0) -> None:
    """Stop the cluster in `namespace`; see `Cluster.stop`."""
    with connect(namespace, address) as cluster:
        cluster.stop(timeout)


def _check_arguments(brokers: int, namespace: str, replicas: int, name_servers: int, port: int) -> None:
    check_name("namespace", namespace, 127)
    for name, value, most in (("brokers", brokers, MAX_BROKERS), ("name_servers", name_servers, 16)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise InvalidInput(name, f"1..{most}", value)
    if replicas != 1:
        raise InvalidInput("replicas", "1: replication is not in this version", replicas)
    check_port(port)


def _start_actors(namespace: str, directory: Path, settings: ClusterConfig, arguments: dict[str, Any]) -> list[str]:
    """Start every actor and wait until it answers; the name servers' addresses."""
    hosts = ray_runtime.hosts()
    layout = _place(directory, arguments["brokers"], hosts)
    by_resource = dict(hosts)
    try:
        servers = {}
        for index in range(arguments["name_servers"]):
            resource, host = hosts[index % len(hosts)]
            port = arguments["port"] if index == 0 else 0
            spec = NameServerSpec(index, str(directory), host, port, arguments, settings.tls)
            servers[name_server_name(index)] = make_name_server(spec, namespace, resource)
        addresses = [handles.call(name, server, "address", timeout=START_SECONDS) for name, server in servers.items()]
        brokers = {}
        for name, resource in layout.items():
            broker = BrokerSpec(
                name=name,
                cluster=namespace,
                directory=str(directory / name),
                host=by_resource[resource],
                name_servers=tuple(addresses),
                auto_create_topics=settings.auto_create_topics,
                append_wait_ms=settings.append_wait_ms,
                store=settings.store,
                tls=settings.tls,
            )
            brokers[name] = make_broker(broker, namespace, resource)
        for name, handle in brokers.items():
            handles.call(name, handle, "address", timeout=START_SECONDS)
        scheduler = make_scheduler(SchedulerSpec(namespace, tuple(layout)))
        handles.call(SCHEDULER_NAME, scheduler, "pid", timeout=START_SECONDS)
    except BaseException:
        _kill(namespace, _names(namespace))
        raise
    return addresses


def _place(directory: Path, brokers: int, hosts: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Which machine each broker belongs to: where its directory was made, a new one in turn."""
    file = directory / _LAYOUT_FILE
    known = json_file.load(file).get("brokers", {})
    resources = [resource for resource, _ in hosts]
    layout = {}
    for index in range(brokers):
        name = broker_name(index)
        layout[name] = known.get(name, resources[index % len(resources)])
        if layout[name] not in resources:
            raise BrokerUnavailable(name, f"its machine ({layout[name]}) is not part of this Ray cluster")
    directory.mkdir(parents=True, exist_ok=True)
    json_file.save(file, {"brokers": {**known, **layout}})
    return layout


def _names(namespace: str) -> list[str]:
    """The names of the cluster's actors."""
    found = ray.util.list_named_actors(all_namespaces=True)
    return sorted(entry["name"] for entry in found if entry["namespace"] == namespace)


def _addresses(namespace: str) -> list[str]:
    """The name servers' addresses; BrokerUnavailable if no cluster runs there."""
    names = [name for name in _names(namespace) if name.startswith("name-server-")]
    if not names:
        raise BrokerUnavailable("cluster", f"no cluster runs in namespace {namespace}")
    return [handles.call(n, handles.find(n, namespace), "address", timeout=START_SECONDS) for n in sorted(names)]


def _arguments(namespace: str) -> dict[str, Any]:
    """What the cluster was started with."""
    name = name_server_name(0)
    told: dict[str, Any] = handles.call(name, handles.find(name, namespace), "arguments", timeout=START_SECONDS)
    return told


def _own_tls(namespace: str) -> Tls | None:
    files = _arguments(namespace)["config"]["tls"]
    return None if files is None else Tls(**files)


def _check_same(namespace: str, arguments: dict[str, Any]) -> None:
    running = _arguments(namespace)
    differing = sorted(key for key in arguments if arguments[key] != running.get(key))
    if differing:
        shown = {key: running.get(key) for key in differing}
        raise InvalidInput(
            ", ".join(differing),
            f"what the cluster in namespace {namespace} was started with: {shown}",
            {key: arguments[key] for key in differing},
        )


def _stop_actors(namespace: str, timeout: float) -> None:
    """Stop every actor in order: who gives work first, brokers next, name servers last."""
    deadline = time.monotonic() + timeout
    names = _names(namespace)
    servers = [name for name in names if name.startswith("name-server-")]
    brokers = [name for name in names if name.startswith("broker-")]
    others = [name for name in names if name not in servers and name not in brokers]
    for group in (others, brokers, servers):
        pids = _stop_group(namespace, group, deadline)
        _await_end(namespace, group, pids, deadline)


def _stop_group(namespace: str, names: list[str], deadline: float) -> list[int]:
    """Ask each actor to stop, then end it; their process ids."""
    refs: dict[str, Any] = {}
    pids: list[int] = []
    for name in names:
        try:
            handle = handles.find(name, namespace)
            pids.append(handles.call(name, handle, "pid", timeout=max(0.1, deadline - time.monotonic())))
            refs[name] = handle.stop.remote()
        except RayMQError:
            continue  # dead already, or it hangs: it is killed below
    for name, ref in refs.items():
        try:
            handles.result(name, ref, max(0.1, deadline - time.monotonic()))
        except RayMQError:
            continue
    _kill(namespace, names)
    return pids


def _kill(namespace: str, names: list[str]) -> None:
    for name in names:
        try:
            ray.kill(handles.find(name, namespace), no_restart=True)
        except RayMQError:
            continue


def _await_end(namespace: str, names: list[str], pids: list[int], deadline: float) -> None:
    """Wait until the names are free and the processes on this machine are gone."""
    while True:
        left = sorted(set(names) & set(_names(namespace)))
        alive = [pid for pid in pids if _is_ours(pid)]
        if not left and not alive:
            return
        if time.monotonic() > deadline:
            raise BrokerUnavailable(", ".join(left) or f"process {alive}", "it did not end in time")
        time.sleep(_POLL_SECONDS)


def _is_ours(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "ray::" in " ".join(process.cmdline())
    except psutil.Error:
        return False
