"""Starting, finding and stopping a cluster.

Ray is imported where an actor is really touched: who reaches a cluster by its sockets alone never waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from raymq.actors.errors import BrokerUnavailable, InvalidInput, WrongType
from raymq.actors.keeper.group_state import MOST_REPLICAS
from raymq.actors.naming import MAX_NAMESPACE_CHARACTERS, check_name, is_broker_name, is_name_server_name
from raymq.actors.protocol import Tls
from raymq.actors.wire.tls import server_context
from raymq.client import arguments as rules
from raymq.client.cluster_changes import ClusterChanges
from raymq.client.connection import Connection
from raymq.cluster import found
from raymq.cluster.config import ClusterConfig, check_port

MAX_BROKERS = 702  # broker-a .. broker-zz
MAX_NAME_SERVERS = 16
MAX_HOSTS = 10_000

_log = logging.getLogger(__name__)


class Cluster(Connection):
    """A connection that knows how to stop the cluster. `start` makes one that stops with its `with` block."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        namespace: str | None = None,
        tls: Tls | None = None,
        owns_ray: bool = False,
        stops: bool = False,
        is_new: bool = False,
    ) -> None:
        super().__init__(name_servers, namespace=namespace, tls=tls)
        self._owns_ray = owns_ray
        self._stops = stops
        self._is_new = is_new
        self._is_parents = False

    def begin_anew(self) -> None:
        """See `Connection.begin_anew`. The cluster is the parent's to stop."""
        self._is_parents = self.namespace is not None
        self._owns_ray = self._stops = False
        super().begin_anew()

    @property
    def owns_ray(self) -> bool:
        """Whether Ray was started by this process for this cluster, and ends with it."""
        return self._owns_ray

    @property
    def is_new(self) -> bool:
        """Whether the start that returned this has made the cluster, and not joined one that was there."""
        return self._is_new

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stops:
            self.stop()
        self.close()

    def cluster_changes(self) -> ClusterChanges:
        """See `Connection.cluster_changes`."""
        if self.namespace is None:
            return super().cluster_changes()
        from raymq.cluster.elastic.changes import Changes

        return Changes(self, self.namespace)

    def stop(self, timeout: float = 30.0) -> None:
        """End every actor cleanly; also Ray, if `start` started it and nobody else uses it. The data stay.

        Raises:
            InvalidInput: this connection does not reach Ray, as none does that a forked child has of its parent.
            BrokerUnavailable: names the actors that did not end cleanly within `timeout` seconds, and were killed.
        """
        rules.duration("timeout", timeout, above=True)
        if self._is_parents:
            raise InvalidInput(
                "stop",
                "called in the process that connected to Ray, whose connection does not survive a fork",
                f"called in process {os.getpid()}, which was forked from it",
                remedy="call it in the parent, or run `raymq cluster stop`",
            )
        if self.namespace is None:
            raise InvalidInput(
                "stop", "a connection that reaches Ray (cluster.connect(namespace=...))", self.name_servers
            )
        from raymq.cluster import ray_runtime
        from raymq.cluster.stopping import stop_actors

        Connection.close(self)
        try:
            stop_actors(self.namespace, timeout)
            found.forget(self.namespace, ray_runtime.address())
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
        if self._owns_ray:
            from raymq.cluster import ray_runtime

            self._owns_ray = False
            ray_runtime.release()


def start(
    brokers: int = 2,
    root: str | os.PathLike[str] = "data/",
    namespace: str = "raymq",
    *,
    replicas: int = 1,
    name_servers: int = 1,
    port: int = 0,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    hosts: int = 1,
    hosts_timeout: float = 600.0,
) -> Cluster:
    """Start a cluster, or join the one that runs in `namespace` and was started alike; what of it is missing is made.

    Ray is joined if this process is connected to one, RAY_ADDRESS names one, or `ray start` started one on this
    machine; else one is started for this process.

    Args:
        brokers: how many; their stores are `<root>/broker-a`, `<root>/broker-b`, ... on the machines they run on.
        replicas: how many copies each broker has, on as many machines; a warning says if there are fewer. The stores
            of the further ones are `<root>/broker-a.1`, ...
        root: a folder; `~` is the user's home.
        name_servers: how many, independent of each other, on as many machines as there are. `port` is that of the first
            one on each machine; 0, and for a second one there: any free one, which is kept.
        config: settings, or the path of a YAML file of them; see configs/.
        hosts: how many machines the Ray cluster has to have before anything is placed; they are waited for, at most
            `hosts_timeout` seconds. More brokers than machines share them.

    Raises:
        InvalidInput: an argument breaks its rule, or a cluster runs in `namespace` that was started with others.
        StoreLocked, StoreCorrupt: a store cannot be opened.
        BrokerUnavailable: a Ray that was named cannot be joined, or an actor does not come up; it says why.
    """
    _check_arguments(brokers, namespace, replicas, name_servers, port)
    rules.whole("hosts", hosts, 1, MAX_HOSTS)
    rules.duration("hosts_timeout", hosts_timeout)
    settings = ClusterConfig.load(config)
    if settings.tls is not None:
        server_context(settings.tls)  # a file that cannot be used is told before anything starts
    directory = _checked_root(root)
    if settings.min_in_sync > replicas:
        raise InvalidInput("min_in_sync", f"at most {replicas}, the replicas of a group", settings.min_in_sync)
    arguments = {
        "brokers": brokers,
        "root": str(directory),
        "replicas": replicas,
        "name_servers": name_servers,
        "port": port or settings.port,
        "config": settings.as_dict(),
    }
    _disable_rays_signal_handler()
    from raymq.cluster import deaths, launching, ray_runtime

    owns_ray = ray_runtime.is_embedded() or not ray_runtime.join()
    if owns_ray and not ray_runtime.is_embedded():
        _check_not_running(namespace)
    if owns_ray:
        _log.info("starting Ray in this process")
        ray_runtime.use_embedded()
    try:
        ray_runtime.await_hosts(hosts, hosts_timeout, _log.info)
        machines = len(ray_runtime.hosts())
        for risk in (shared_machines(replicas, machines), only_name_server(replicas, name_servers, machines)):
            if risk is not None:
                warnings.warn(risk, stacklevel=2)
        deaths.watch(namespace)
        addresses, is_new = launching.start(namespace, directory, settings, arguments)
        deaths.remember()
        found.save(namespace, addresses, ray_runtime.address(), settings.tls)
        return Cluster(addresses, namespace=namespace, tls=settings.tls, owns_ray=owns_ray, stops=True, is_new=is_new)
    except BaseException:
        if owns_ray:
            ray_runtime.release()
        raise


def connect(
    namespace: str = "raymq",
    address: str = "auto",
    *,
    name_servers: str | Sequence[str] | None = None,
    tls: Tls | None = None,
) -> Cluster:
    """Connect to a running cluster, through Ray or by its name servers' addresses alone.

    A Ray that this call joins stays joined when the connection is closed: the program may use it, too.

    Args:
        namespace, address: of the cluster and of its Ray; not used with `name_servers`. "auto" is the Ray that this
            process is connected to, RAY_ADDRESS, the one that `ray start` started on this machine, or the one in which
            this user started a cluster of that namespace.
        name_servers: "host:port", several as a list or separated by ";" or ",". No Ray is needed then, nor imported.
        tls: for a cluster whose sockets use TLS. Through Ray it is not needed where the cluster's own files are at the
            same paths here.

    Raises:
        BrokerUnavailable: no Ray at `address`, or no cluster in `namespace`, or its start is not finished.
        InvalidInput: an address is not "host:port", or a file of `tls` cannot be used; or nothing but this user's own
            notes could lead to a Ray, and somebody else may have written them.
    """
    if name_servers is not None:
        return Cluster(name_servers, tls=tls)
    check_namespace(namespace)
    rules.text("address", address)
    _disable_rays_signal_handler()
    from raymq.cluster import deaths, launching, ray_runtime

    ray_runtime.join_address(address, partial(_own_ray, namespace))
    addresses = launching.addresses(namespace)
    deaths.watch(namespace)
    deaths.remember()
    return Cluster(addresses, namespace=namespace, tls=tls or _own_tls(namespace))


def stop(namespace: str = "raymq", address: str = "auto", timeout: float = 30.0) -> None:
    """Stop the cluster in `namespace`, one whose start was broken off included; see `Cluster.stop`."""
    check_namespace(namespace)
    _disable_rays_signal_handler()
    from raymq.cluster import ray_runtime
    from raymq.cluster.stopping import stop_actors

    ray_runtime.join_address(address, partial(_own_ray, namespace))
    stop_actors(namespace, rules.duration("timeout", timeout, above=True))
    found.forget(namespace, ray_runtime.address())


def running(namespace: str = "raymq", address: str = "auto") -> list[str]:
    """The names of the brokers that a stop would end, sorted.

    Raises:
        BrokerUnavailable: no Ray at `address`, or nothing of a cluster in `namespace`.
    """
    check_namespace(namespace)
    _disable_rays_signal_handler()
    from raymq.cluster import launching, ray_runtime

    ray_runtime.join_address(address, partial(_own_ray, namespace))
    there = launching.names(namespace)
    if not any(is_broker_name(name) or is_name_server_name(name) for name in there):
        raise BrokerUnavailable(
            "cluster", f"no cluster runs in namespace {namespace}", remedy="cluster.start() starts one"
        )
    return [name for name in there if is_broker_name(name)]


def _check_not_running(namespace: str) -> None:
    """Raise BrokerUnavailable if another process of this user runs a cluster of this name on a Ray of its own."""
    try:
        known = found.load(namespace)
    except InvalidInput:  # not this user's note
        return
    if known is None or known.pid in {None, os.getpid()}:
        return
    from raymq.cluster.noted import name_servers_of

    if name_servers_of(namespace, known, known.tls):
        raise BrokerUnavailable(
            "cluster",
            f"one runs in namespace {namespace} already, in process {known.pid}, on a Ray of its own",
            remedy="join it: cluster.connect(); or end it, or give this one another namespace and root",
        )


def _disable_rays_signal_handler() -> None:
    """Have Ray, which asks for it when it is imported, print no stack traces at a SIGTERM."""
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")


def shared_machines(replicas: int, machines: int) -> str | None:
    """What is to be said where replicas of a group share a machine; None where each has its own."""
    if replicas <= machines:
        return None
    return (
        f"{replicas} replicas of each broker group share {machines} machine{'' if machines == 1 else 's'}: "
        "the loss of one takes more than one copy"
    )


def only_name_server(replicas: int, name_servers: int, machines: int) -> str | None:
    """What is to be said where replicas outlive a machine, and the way to them does not; None where that is not so."""
    if replicas == 1 or machines == 1 or name_servers > 1:
        return None
    return (
        "there is one name server: while its machine is away clients do not find the next master; "
        "start the cluster with name_servers=2"
    )


def check_namespace(namespace: object) -> None:
    """InvalidInput unless it may be the name of a cluster: topics are named after it."""
    try:
        check_name("namespace", namespace, MAX_NAMESPACE_CHARACTERS)
    except InvalidInput as error:
        if isinstance(namespace, str) and ":" in namespace:
            error.remedy = "addresses of name servers are given as name_servers="
        raise


def _check_arguments(brokers: object, namespace: str, replicas: int, name_servers: int, port: int) -> None:
    if isinstance(brokers, str):
        raise WrongType("brokers", "a number of brokers; the cluster's name is namespace=", brokers)
    check_namespace(namespace)
    rules.whole("brokers", brokers, 1, MAX_BROKERS)
    rules.whole("name_servers", name_servers, 1, MAX_NAME_SERVERS)
    rules.whole("replicas", replicas, 1, MOST_REPLICAS)
    check_port(port)


def _checked_root(root: str | os.PathLike[str]) -> Path:
    if not isinstance(root, str | os.PathLike) or not os.fspath(root):
        raise InvalidInput("root", "the path of a folder", root)
    try:
        directory = Path(root).expanduser().absolute()
    except RuntimeError as error:
        raise InvalidInput("root", "a folder whose home is known", f"{root}: {error}") from error
    if directory.exists() and not directory.is_dir():
        raise InvalidInput("root", "a folder", str(directory))
    return directory


def _own_ray(namespace: str) -> str | None:
    """The Ray in which this user started the cluster in `namespace`, an embedded one perhaps."""
    known = found.load(namespace)
    return None if known is None else known.ray_address


def _own_tls(namespace: str) -> Tls | None:
    from raymq.cluster import launching

    files = launching.told_arguments(namespace)["config"]["tls"]
    return None if files is None else Tls(**files)
