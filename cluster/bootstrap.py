"""Start, find and stop a cluster.

Ray is imported only when an actor is used, so a client that connects through sockets alone does not wait for the
import.
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
from raymq.actors.keeper.group_state import MAX_REPLICAS
from raymq.actors.naming import MAX_NAMESPACE_CHARACTERS, check_name, is_broker_name, is_name_server_name
from raymq.actors.protocol import Tls
from raymq.actors.wire.tls import server_context
from raymq.client import arguments as rules
from raymq.client.cluster_changes import ClusterChanges
from raymq.client.connection import Connection, check_tracing
from raymq.cluster import cluster_file
from raymq.cluster.cluster_config import ClusterConfig, check_port

MAX_BROKERS = 702  # From broker-a to broker-zz.
MAX_NAME_SERVERS = 16
MAX_HOSTS = 10_000

_log = logging.getLogger(__name__)


class Cluster(Connection):
    """A connection that can stop its cluster.

    The connection that `start` returns stops the cluster at the end of its `with` block.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        namespace: str | None = None,
        tls: Tls | None = None,
        tracing: bool = False,
        owns_ray: bool = False,
        stops: bool = False,
        is_new: bool = False,
    ) -> None:
        super().__init__(name_servers, namespace=namespace, tls=tls, tracing=tracing)
        self._owns_ray = owns_ray
        self._stops = stops
        self._is_new = is_new
        self._is_parents = False

    def reset_after_fork(self) -> None:
        """Reset the connection in a forked child; see `Connection.reset_after_fork`.

        Only the parent can stop the cluster.
        """
        self._is_parents = self.namespace is not None
        self._owns_ray = self._stops = False
        super().reset_after_fork()

    @property
    def owns_ray(self) -> bool:
        """Return True if this process started Ray for this cluster.

        Such a Ray ends with the cluster.
        """
        return self._owns_ray

    @property
    def is_new(self) -> bool:
        """Return True if the start created the cluster, False if it joined a running one."""
        return self._is_new

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stops:
            self.stop()
        self.close()

    def cluster_changes(self) -> ClusterChanges:
        """Return the operations that change the cluster; see `Connection.cluster_changes`."""
        if self.namespace is None:
            return super().cluster_changes()
        from raymq.cluster.elastic.change_executor import ChangeExecutor

        return ChangeExecutor(self, self.namespace)

    def stop(self, timeout: float = 30.0) -> None:
        """Stop every actor cleanly. The data stay.

        Ray is stopped too if `start` started it and no other cluster in this process uses it.

        Raises:
            InvalidInput: this connection does not reach Ray; in a forked child the parent's connection never does.
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
        from raymq.cluster.cluster_stop import stop_actors

        Connection.close(self)
        try:
            stop_actors(self.namespace, timeout)
            cluster_file.forget(self.namespace, ray_runtime.address())
        finally:
            self._leave_ray()

    async def astop(self, timeout: float = 30.0) -> None:
        """Stop the cluster from asyncio code; see `stop`."""
        await asyncio.to_thread(self.stop, timeout)

    def close(self) -> None:
        """Disconnect this process.

        The cluster continues to run, unless this process started its Ray, which ends with the process.
        """
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
    tracing: bool = False,
) -> Cluster:
    """Start a cluster, or join the one that runs in `namespace`.

    A running cluster must have been started with the same arguments; its missing actors are created. The call joins a
    Ray if this process is connected to one, RAY_ADDRESS names one, or `ray start` started one on this machine.
    Otherwise it starts a Ray for this process.

    Args:
        brokers: the number of brokers; their stores are `<root>/broker-a`, `<root>/broker-b`, ... on their machines.
        replicas: the number of copies of each broker, on as many machines; a warning is issued if there are fewer
            machines. The stores of further replicas are `<root>/broker-a.1`, ...
        root: a folder; `~` is the user's home.
        name_servers: the number of name servers, which are independent of each other, distributed over the machines.
            `port` is the port of the first one on each machine. With port 0, and for further name servers on a machine,
            a free port is chosen and kept.
        config: settings, or the path of a YAML file of them; see configs/.
        hosts: the number of machines that the Ray cluster must have before actors are placed; the call waits for them,
            at most `hosts_timeout` seconds. If there are more brokers than machines, brokers share machines.
        tracing: the connection traces messages, as that of `connect`.

    Raises:
        InvalidInput: an argument is invalid, or the cluster in `namespace` was started with other arguments.
        StoreLocked, StoreCorrupt: a store cannot be opened.
        BrokerUnavailable: a named Ray cannot be joined, or an actor does not start; the message has the reason.
    """
    _check_arguments(brokers, namespace, replicas, name_servers, port)
    rules.whole("hosts", hosts, 1, MAX_HOSTS)
    rules.duration("hosts_timeout", hosts_timeout)
    check_tracing(tracing)
    settings = ClusterConfig.load(config)
    if settings.tls is not None:
        server_context(settings.tls)  # Check the TLS files before anything is started.
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
    from raymq.cluster import actor_deaths, cluster_launch, ray_runtime

    owns_ray = ray_runtime.is_embedded() or not ray_runtime.join()
    if owns_ray and not ray_runtime.is_embedded():
        _check_not_running(namespace)
    if owns_ray:
        _log.info("starting Ray in this process")
        ray_runtime.use_embedded()
    try:
        ray_runtime.await_hosts(hosts, hosts_timeout, _log.info)
        machines = len(ray_runtime.hosts())
        for risk in (
            shared_machine_warning(replicas, machines),
            single_name_server_warning(replicas, name_servers, machines),
        ):
            if risk is not None:
                warnings.warn(risk, stacklevel=2)
        actor_deaths.watch(namespace)
        addresses, is_new = cluster_launch.start(namespace, directory, settings, arguments)
        actor_deaths.record_actor_pids()
        cluster_file.save(namespace, addresses, ray_runtime.address(), settings.tls)
        return Cluster(
            addresses,
            namespace=namespace,
            tls=settings.tls,
            tracing=tracing,
            owns_ray=owns_ray,
            stops=True,
            is_new=is_new,
        )
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
    tracing: bool = False,
) -> Cluster:
    """Connect to a running cluster, through Ray or by its name servers' addresses.

    If this call joins a Ray, the process stays connected to it after the connection is closed, because the program may
    use it too.

    Args:
        namespace, address: of the cluster and of its Ray; not used with `name_servers`. "auto" is the Ray that this
            process is connected to, RAY_ADDRESS, the one that `ray start` started on this machine, or the one in which
            this user started a cluster of that namespace.
        name_servers: "host:port", several as a list or separated by ";" or ",". With them Ray is neither needed nor
            imported.
        tls: for a cluster whose sockets use TLS. Through Ray it is not needed if the cluster's own files are at the
            same paths on this machine.
        tracing: make OpenTelemetry spans of the messages of this connection, and pass the trace context on in them; see
            docs/tracing.md. It needs the extra `otel`.

    Raises:
        BrokerUnavailable: no Ray at `address`, or no cluster in `namespace`, or its start is not finished.
        InvalidInput: an address is not "host:port", or a file of `tls` cannot be used; or a Ray could only be found
            through this user's cluster file, and another user may have written that file.
    """
    if name_servers is not None:
        return Cluster(name_servers, tls=tls, tracing=tracing)
    check_namespace(namespace)
    rules.text("address", address)
    _disable_rays_signal_handler()
    from raymq.cluster import actor_deaths, cluster_launch, ray_runtime

    ray_runtime.join_address(address, partial(_own_ray, namespace))
    addresses = cluster_launch.addresses(namespace)
    actor_deaths.watch(namespace)
    actor_deaths.record_actor_pids()
    return Cluster(addresses, namespace=namespace, tls=tls or _own_tls(namespace), tracing=tracing)


def stop(namespace: str = "raymq", address: str = "auto", timeout: float = 30.0) -> None:
    """Stop the cluster in `namespace`, also after an aborted start; see `Cluster.stop`."""
    check_namespace(namespace)
    _disable_rays_signal_handler()
    from raymq.cluster import ray_runtime
    from raymq.cluster.cluster_stop import stop_actors

    ray_runtime.join_address(address, partial(_own_ray, namespace))
    stop_actors(namespace, rules.duration("timeout", timeout, above=True))
    cluster_file.forget(namespace, ray_runtime.address())


def running_brokers(namespace: str = "raymq", address: str = "auto") -> list[str]:
    """Return the sorted names of the brokers that a stop would end.

    Raises:
        BrokerUnavailable: no Ray at `address`, or no actor of a cluster in `namespace`.
    """
    check_namespace(namespace)
    _disable_rays_signal_handler()
    from raymq.cluster import cluster_launch, ray_runtime

    ray_runtime.join_address(address, partial(_own_ray, namespace))
    there = cluster_launch.names(namespace)
    if not any(is_broker_name(name) or is_name_server_name(name) for name in there):
        raise BrokerUnavailable(
            "cluster", f"no cluster runs in namespace {namespace}", remedy="cluster.start() starts one"
        )
    return [name for name in there if is_broker_name(name)]


def _check_not_running(namespace: str) -> None:
    """Raise BrokerUnavailable if another process of this user runs this cluster.

    That process runs a cluster in the same namespace on a Ray of its own.
    """
    try:
        known = cluster_file.load(namespace)
    except InvalidInput:  # The file is not this user's own.
        return
    if known is None or known.pid in {None, os.getpid()}:
        return
    from raymq.cluster.cluster_file_check import verified_name_servers

    if verified_name_servers(namespace, known, known.tls):
        raise BrokerUnavailable(
            "cluster",
            f"a cluster runs in namespace {namespace} already, in process {known.pid}, with its own Ray",
            remedy="join it: cluster.connect(); or stop it, or start this one with another namespace and root",
        )


def _disable_rays_signal_handler() -> None:
    """Prevent Ray from printing stack traces at a SIGTERM; Ray reads the variable at import."""
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")


def shared_machine_warning(replicas: int, machines: int) -> str | None:
    """Return a warning if replicas of a group share a machine, else None."""
    if replicas <= machines:
        return None
    return (
        f"{replicas} replicas of each broker group share {machines} machine{'' if machines == 1 else 's'}: "
        "the loss of one machine loses more than one copy"
    )


def single_name_server_warning(replicas: int, name_servers: int, machines: int) -> str | None:
    """Return a warning if one name server is a single point of failure, else None.

    That is so if there are several replicas on several machines, but only one name server.
    """
    if replicas == 1 or machines == 1 or name_servers > 1:
        return None
    return (
        "there is one name server: while its machine is away clients do not find the next master; "
        "start the cluster with name_servers=2"
    )


def check_namespace(namespace: object) -> None:
    """Raise InvalidInput unless the namespace is a valid cluster name.

    Topics are named after it.
    """
    try:
        check_name("namespace", namespace, MAX_NAMESPACE_CHARACTERS)
    except InvalidInput as error:
        if isinstance(namespace, str) and ":" in namespace:
            error.remedy = "pass addresses of name servers as name_servers="
        raise


def _check_arguments(brokers: object, namespace: str, replicas: int, name_servers: int, port: int) -> None:
    if isinstance(brokers, str):
        raise WrongType("brokers", "a number of brokers; the cluster's name is namespace=", brokers)
    check_namespace(namespace)
    rules.whole("brokers", brokers, 1, MAX_BROKERS)
    rules.whole("name_servers", name_servers, 1, MAX_NAME_SERVERS)
    rules.whole("replicas", replicas, 1, MAX_REPLICAS)
    check_port(port)


def _checked_root(root: str | os.PathLike[str]) -> Path:
    if not isinstance(root, str | os.PathLike) or not os.fspath(root):
        raise InvalidInput("root", "the path of a folder", root)
    try:
        directory = Path(root).expanduser().absolute()
    except RuntimeError as error:
        raise InvalidInput("root", "a path whose home directory (~) exists", f"{root}: {error}") from error
    if directory.exists() and not directory.is_dir():
        raise InvalidInput("root", "a folder", str(directory))
    return directory


def _own_ray(namespace: str) -> str | None:
    """Return the Ray address of this user's cluster in `namespace`, None if unknown.

    It may be a Ray that is embedded in another process.
    """
    known = cluster_file.load(namespace)
    return None if known is None else known.ray_address


def _own_tls(namespace: str) -> Tls | None:
    from raymq.cluster import cluster_launch

    files = cluster_launch.start_arguments(namespace)["config"]["tls"]
    return None if files is None else Tls(**files)
