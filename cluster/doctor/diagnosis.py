"""Run all checks of this machine, and of a cluster if it can be reached."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from raymq.actors.errors import RayMQError
from raymq.actors.naming import CHECK_MAX_TIME_TOPIC
from raymq.client import Admin
from raymq.client.results import ClusterInfo, OpenTransaction
from raymq.cluster import cluster_file as notes
from raymq.cluster.bootstrap import Cluster
from raymq.cluster.doctor import host_probes
from raymq.cluster.doctor.broker_checks import check_cluster, given_up_transactions
from raymq.cluster.doctor.broker_runtime import fetch_runtime_figures
from raymq.cluster.doctor.check_result import CheckResult, Severity, fine, note, problem
from raymq.cluster.doctor.host_checks import check_machine
from raymq.cluster.doctor.process_checks import check_orphans
from raymq.cluster.doctor.store_checks import check_store


@dataclass(frozen=True, slots=True)
class DiagnosisTarget:
    """The machine and the cluster to check.

    Attributes:
        connect: returns a connection to the cluster; raises RayMQError if there is none.
        is_named: whether the user named the cluster, so that its absence is a problem.
        namespace, address: of the cluster and its Ray; with None for `address` any Ray that is found is used.
        root: a folder with directories of brokers on this machine, in addition to those of the brokers that answer.
        spark: whether Java is required even if Spark is not installed.
        ray: whether nodes and actors are checked through Ray, too.
    """

    connect: Callable[[], Cluster]
    is_named: bool
    namespace: str
    address: str | None
    root: Path | None
    spark: bool
    ray: bool


def diagnose(patient: DiagnosisTarget) -> Iterator[CheckResult]:
    """Run all checks, and yield each result when it is found."""
    with_ray = list(_join_ray(patient)) if patient.ray else []
    yield from with_ray
    has_ray = bool(with_ray) and all(each.severity is Severity.FINE for each in with_ray)
    info: ClusterInfo | None = None
    try:
        with patient.connect() as mq, Admin(mq) as admin:
            info = _with_real_paths(admin.cluster_info())
            figures, clocks = fetch_runtime_figures(mq, info)
            transactions = _transactions(admin, info)
        yield from check_cluster(info, figures)
        yield from given_up_transactions(transactions)
        yield from clocks
    except RayMQError as error:
        remedy = error.remedy or "name it (--namespace, --address, --name-servers), or start it"
        found = f"no cluster was found, so only this machine is checked: {Exception.__str__(error)}"
        yield (problem if patient.is_named else note)("cluster", found, patient.namespace, remedy)
    directories = _directories(patient, info, has_ray=has_ray)
    seen = host_probes.read_machine(directories, spark=patient.spark)
    yield from check_machine(seen)
    processes = host_probes.read_processes()
    yield from check_orphans(processes, seen.host)
    brokers = None if info is None else info.brokers
    for directory in directories:
        yield from check_store(host_probes.read_store(directory, processes), brokers, seen.host)
    if has_ray:
        from raymq.cluster.doctor import node_checks

        yield from node_checks.check_nodes(patient.spark, seen.host)
        if info is not None:
            yield from node_checks.check_actors(patient.namespace)


def _transactions(admin: Admin, info: ClusterInfo) -> list[OpenTransaction]:
    """Return the undecided transactions; none if not all brokers answer, or if none was ever given up."""
    with contextlib.suppress(RayMQError):
        is_whole = all(each.state == "running" for each in info.brokers)
        if is_whole and CHECK_MAX_TIME_TOPIC in admin.topics(system=True):
            return admin.transactions()
    return []


def _with_real_paths(info: ClusterInfo) -> ClusterInfo:
    """Return the cluster with the directories of its brokers resolved from links.

    Brokers that do not answer do not report their directories.
    """
    brokers = [replace(each, store=each.store and str(Path(each.store).resolve())) for each in info.brokers]
    return replace(info, brokers=brokers)


def _directories(patient: DiagnosisTarget, info: ClusterInfo | None, *, has_ray: bool) -> list[str]:
    """Return the known directories of brokers on this machine."""
    roots = [] if patient.root is None else [patient.root]
    if has_ray and info is not None:
        from raymq.cluster import cluster_launch

        with contextlib.suppress(RayMQError):
            roots.append(Path(cluster_launch.start_arguments(patient.namespace)["root"]))
    stores = [] if info is None else [each.store for each in info.brokers if each.store]
    there = {each for each in stores if Path(each, "commitlog").is_dir()}
    return sorted(there.union(*map(host_probes.stores_below, roots)))


def _join_ray(patient: DiagnosisTarget) -> Iterator[CheckResult]:
    """Join the cluster's Ray, or yield the reason why that fails."""
    host = socket.gethostname()
    try:
        from raymq.cluster import ray_runtime

        ray_runtime.join_address(patient.address or "auto", partial(_noted_ray, patient.namespace))
        yield fine("ray", f"joined at {ray_runtime.address()}", host)
    except ImportError as error:
        yield note("ray", f"nodes and actors are not checked: Ray cannot be imported: {error}", host)
    except RayMQError as error:
        found = f"nodes and actors are not checked: {Exception.__str__(error)}"
        yield (problem if patient.address else note)("ray", found, host, error.remedy)


def _noted_ray(namespace: str) -> str | None:
    known = notes.load(namespace)
    return None if known is None else known.ray_address
